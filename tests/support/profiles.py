"""Serving profiles for tests: one written out, and a strategy for any other."""

from collections.abc import Mapping
from typing import Any

import msgspec
from hypothesis import strategies as st

from tuner.profile.profile import (
    CapNumbers,
    CurveStep,
    Decision,
    EngineSeconds,
    KvCacheUsageSection,
    Promise,
    Provenance,
    ServingProfile,
    SloSection,
    SpreadSection,
    Validity,
    seal,
)

SPREAD = SpreadSection(mean=40.0, p50=38.0, p90=45.0, p95=48.5, p99=60.25)
USAGE = KvCacheUsageSection(mean=0.25, p99=0.5, peak=0.625)
ENGINE = {
    "model": "m",
    "max_num_seqs": 16,
    "max_num_batched_tokens": 8192,
    "gpu_memory_utilization": 0.3,
    "enable_prefix_caching": True,
    "enforce_eager": False,
    "kv_cache_dtype": "auto",
    "cudagraph_capture_sizes": [1, 2],
}


def step(max_num_seqs: int, *, goodput_rps: float = 8.0) -> CurveStep:
    numbers = _numbers(max_num_seqs, goodput_rps)
    return CurveStep(
        max_num_seqs=max_num_seqs,
        **numbers,
        cut=False,
        source="both",
        intervals={"goodput_rps": (7.5, 8.5)},
        measured=CapNumbers(**numbers),
    )


def _numbers(running_peak: int, goodput_rps: float) -> dict[str, Any]:
    return {
        "attainment": 0.995,
        "goodput_rps": goodput_rps,
        "requests_per_s": goodput_rps,
        "output_tokens_per_s": 800.0,
        "ttft_ms": SPREAD,
        "tpot_ms": SPREAD,
        "itl_ms": SPREAD,
        "e2el_ms": SPREAD,
        "queue_ms": None,
        "kv_cache_usage": USAGE,
        "preemptions": 0,
        "recomputed_tokens": 0,
        "running_peak": running_peak,
        "binds": None,
    }


_BY_ITSELF = {
    *("model", "max_num_batched_tokens", "enable_prefix_caching", "enforce_eager"),
    *("kv_cache_dtype", "compilation_config"),
}
"""The arguments that vLLM came to in a profile for tests."""


def profile(
    *,
    engine: Mapping[str, object] | None = None,
    curve: tuple[CurveStep, ...] = (step(8, goodput_rps=4.0), step(16), step(32)),
    verdict: str = "knee",
    engine_: str = "vllm",
    reason: str = "32 adds 0.4 % goodput and costs +38 % p95 decode time per token",
    **provenance: object,
) -> ServingProfile:
    arguments = ENGINE if engine is None else engine
    max_num_seqs = arguments["max_num_seqs"]
    facts = {
        "engine": engine_,
        "device": {"kind": "cpu", "name": "any"},
        "versions": {"vllm": "0.32.0"},
        "environment": None,
        "model": arguments["model"],
        "model_digest": None,
        "given": [name for name in arguments if name not in _BY_ITSELF],
        "tuner": "0.1.0",
        "seed": 0,
        "created": "2025-06-01T12:00:00Z",
        "wall_s": 240.5,
        "engine_starts": 2,
        "engine_seconds": EngineSeconds(starts=24.0, replay=180.0),
        "warnings": [],
    }
    result = ServingProfile(
        schema_version=1,
        engine=dict(arguments),
        decision=Decision(
            verdict=verdict,  # type: ignore[arg-type] # any that is checked
            max_num_seqs=max_num_seqs,  # type: ignore[arg-type]
            interval=(max_num_seqs, max_num_seqs),  # type: ignore[arg-type]
            confidence=0.97,
            reason=reason,
            busy=None,
            objective="goodput_rps",
            slo=SloSection(
                ttft_ms=500.0,
                ttft_ms_per_input_token=None,
                tpot_ms=50.0,
                e2el_ms=None,
                derived=True,
            ),
        ),
        baseline=None,
        curve=list(curve),
        promise=Promise(
            load=1.0,
            attainment=0.995,
            requests_per_s=8.0,
            output_tokens_per_s=800.0,
            ttft_ms=SPREAD,
            tpot_ms=SPREAD,
            itl_ms=None,
            e2el_ms=SPREAD,
            kv_cache_usage=USAGE,
            preemptions=0,
            goodput_rps=8.0,
            queue_ms=None,
            recomputed_tokens=0,
            running_peak=14,
            binds=None,
            source="confirming run",
            predicted=[],
        ),
        front_end=None,
        admission=None,
        validity=Validity(
            peak_concurrency=14,
            validated_load=1.25,
            trace_digest="sha256:" + "0" * 64,
            window="0.000s+600.000s",
            windows=["20.000s+60.000s"],
            arrival_rate_rps=8.0,
            retune_when=["the peak concurrency exceeds 20"],
        ),
        provenance=Provenance(**(facts | provenance)),  # type: ignore[arg-type]
    )
    return seal(result)


def resealed(item: ServingProfile, *, evidence: bytes = b"", **changes: object) -> ServingProfile:
    """Return a profile with other sections, under its own digest."""
    return seal(msgspec.structs.replace(item, **changes), evidence)


_TEXT = st.text(max_size=30)
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=5,
)
_NAMES = st.from_regex(r"\A[a-z][a-z0-9_]{0,12}\Z").map(lambda name: "x_" + name)
_MODELS = st.text(min_size=1, max_size=30).filter(lambda name: not name.startswith("-"))


@st.composite
def any_profile(draw: st.DrawFn) -> ServingProfile:
    """Any engine arguments, any texts, any numbers that a measurement can have."""
    seqs = draw(st.integers(1, 2**20))
    number = st.floats(0, 1e12)
    spread = SpreadSection(**{name: draw(number) for name in SpreadSection.__struct_fields__})
    return profile(
        engine=draw(st.dictionaries(_NAMES, _VALUES, max_size=4))
        | {"model": draw(_MODELS), "max_num_seqs": seqs}
        | {"max_num_batched_tokens": seqs + draw(st.integers(0, 2**20))},
        curve=(msgspec.structs.replace(step(seqs, goodput_rps=draw(number)), tpot_ms=spread),),
        reason=draw(_TEXT),
        warnings=draw(st.lists(_TEXT, max_size=2)),
        device=draw(st.dictionaries(_TEXT, _VALUES, max_size=2)),
    )

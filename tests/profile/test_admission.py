"""What a server may let in before its users wait for too long."""

import pytest

from tests.support.places import ROOT
from tests.support.profiles import ENGINE, profile
from tuner.profile import admission
from tuner.profile.numbers import Admission, EngineShapeSection, StepLawSection, Twin
from tuner.profile.profile import dump, load, parse, seal
from tuner.profile.schema import ServingProfile
from tuner.profile.stored_twin import law_of


def with_twin(*, ttft_ms: float | None = 500.0, max_num_seqs: int = 16) -> ServingProfile:
    """A step takes 10 ms with 16 sequences, and 1 ms more for every 10 prompt tokens."""
    twin = Twin(
        law=StepLawSection(
            decode_seqs=[0, 8, 16],
            decode_s=[0.0, 0.006, 0.010],
            prefill_token_s=0.0001,
            prefill_token_squared_s=0.0,
            prefill_seq_s=0.0,
            context_token_s=0.0,
            prefill_context_s=0.0,
        ),
        shape=EngineShapeSection(
            max_num_batched_tokens=116,
            block_size=16,
            kv_blocks=100,
            max_model_len=4096,
            late_release=False,
            prefix_caching=False,
            reserves_prompts=False,
        ),
        extrapolated_from=16,
        lag_s=0.0,
        hit_share=0.0,
        speed_sd=0.0,
        length_s=60.0,
        data="",
    )
    engine = {**ENGINE, "max_num_seqs": max_num_seqs}
    found = profile(engine=engine)
    slo = found.decision.slo.model_copy(update={"ttft_ms": ttft_ms})
    decision = found.decision.model_copy(update={"slo": slo})
    return seal(
        engine=engine,  # type: ignore[arg-type]
        decision=decision,
        curve=found.curve,
        promise=found.promise,
        admission=admission.limits(decision, found.promise, twin),
        validity=found.validity,
        provenance=found.provenance,
        twin=twin,
    )


def limits(profile_: ServingProfile) -> Admission:
    assert profile_.admission is not None
    return profile_.admission


def test_the_tokens_are_those_computed_within_the_ttft_limit() -> None:
    # 100 of 116 tokens prefill in 10 + 10 ms: 5000 a second, 2500 in half a second.
    found = limits(with_twin())
    assert found.max_num_queued_tokens == 2500
    assert found.reasons[0] == (
        "max_num_queued_tokens 2500: a TTFT limit of 500 ms x 5000 prompt tokens/s beside 16 "
        "decoding sequences"
    )


def test_the_requests_are_the_slots_and_those_that_come_free() -> None:
    # 100 output tokens of 10 ms hold a slot for 1 s: half of 16 come free in half a second.
    found = limits(with_twin())
    assert found.max_num_queued_reqs == 24
    assert found.reasons[1].startswith("max_num_queued_reqs 24: 16 slots, and those that come free")


def test_a_stricter_limit_lets_in_less() -> None:
    assert limits(with_twin(ttft_ms=100.0)).max_num_queued_tokens == 500


@pytest.mark.parametrize(("slots", "step_s"), [(0, 0.0), (4, 0.003), (12, 0.008), (24, 0.014)])
def test_a_step_is_linear_between_what_was_seen_and_beyond(slots: int, step_s: float) -> None:
    twin = with_twin().twin
    assert twin is not None
    law = law_of(twin.law).up_to(slots)
    assert law.decode_s[slots] == pytest.approx(step_s)


def test_without_a_limit_or_a_law_there_is_nothing_to_derive() -> None:
    assert with_twin(ttft_ms=None).admission is None
    without = profile()
    assert admission.limits(without.decision, without.promise, without.twin) is None


def test_the_profile_keeps_the_limits_and_their_reasons() -> None:
    sealed = with_twin()
    assert parse(dump(sealed), source="p").admission == limits(sealed)


def test_the_shipped_profiles_limits_follow_from_its_own_numbers() -> None:
    """They are a function of the rest, so nobody can have put them there by hand."""
    path = ROOT / "profiles" / "translation-tiny-cpu.yaml"
    shipped = load(path)
    assert shipped.admission is not None
    assert shipped.admission == admission.limits(shipped.decision, shipped.promise, shipped.twin)

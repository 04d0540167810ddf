"""The sections of a serving profile; ``tuner sweep --json`` prints the same ones.

``tuner.profile.profile`` seals, writes and reads them.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue

from tuner.engines import sampling as drawing
from tuner.engines.sampling import GREEDY, Sampling
from tuner.errors import ProfileError
from tuner.profile.numbers import (
    Admission,
    Baseline,
    Count,
    CurveStep,
    Fraction,
    FrontEndSection,
    Limit,
    Number,
    Promise,
    Section,
    Seqs,
    SeqsRange,
    Signed,
    Twin,
)
from tuner.traffic.slo import Slo

Verdict = Literal["knee", "plateau", "kv_bound", "not_reached", "overloaded", "inconclusive"]


class SloSection(Section):
    """The limits one request must meet; None is no limit."""

    ttft_ms: Limit | None
    ttft_ms_per_input_token: Limit | None
    tpot_ms: Limit | None
    e2el_ms: Limit | None
    derived: bool
    """From the trace's own unloaded latencies, not given by the user."""

    @property
    def slo(self) -> Slo:
        """The same in seconds."""

        def seconds(ms: float | None) -> float | None:
            return None if ms is None else ms / 1e3

        return Slo(
            ttft_s=seconds(self.ttft_ms),
            ttft_s_per_input_token=seconds(self.ttft_ms_per_input_token) or 0.0,
            tpot_s=seconds(self.tpot_ms),
            e2el_s=seconds(self.e2el_ms),
            derived=self.derived,
        )


class RequirementSection(Section):
    """A requirement of the choice, in the words of ``--require``. Times are in seconds."""

    text: str
    at_worst: Number | None
    """What 95 % of the twin's draws stay on the good side of; None where it did not decide."""

    measured: Number | None
    """In the confirming replay at its load."""

    kept: bool


class Decision(Section):
    verdict: Verdict
    max_num_seqs: Seqs
    interval: SeqsRange
    confidence: Fraction
    reason: str
    busy: str | None = None
    """By what it was seen that others used the machine meanwhile; None where nobody did."""

    objective: str
    slo: SloSection
    requirements: list[RequirementSection] = Field(default_factory=list)
    """What was required besides."""

    @property
    def broken(self) -> list[RequirementSection]:
        return [one for one in self.requirements if not one.kept]


class Validity(Section):
    """For which traffic the profile holds."""

    peak_concurrency: Count | None
    """Most requests in flight during the replay at the chosen value."""

    validated_load: Limit
    headroom_attainment: Fraction | None = None
    """What the choice served within the SLO where windows were replayed with the headroom, at most
    where that was cut; None where none were."""

    trace_digest: str
    window: str
    """The part of the trace that was tuned for, START+LENGTH."""

    windows: list[str]
    """What was replayed of it."""

    arrival_rate_rps: Number
    retune_when: list[str]


class EngineSeconds(Section):
    starts: Number
    replay: Number


def _is_drawn(given: dict[str, float]) -> dict[str, float]:
    for fault in drawing.faults(given):
        raise ValueError(fault)
    return given


Drawn = Annotated[
    dict[str, Signed], AfterValidator(_is_drawn), Field(json_schema_extra=drawing.SCHEMA)
]
"""How tokens are drawn: whoever made a profile has nothing else to say of a request."""


class Provenance(Section):
    """The provenance of the numbers."""

    engine: Literal["vllm", "serve", "sim"]
    """What was measured on: vLLM in tuner's own process, vLLM behind a server, or a simulation."""

    device: dict[str, JsonValue]
    versions: dict[str, str]
    environment: dict[str, str] | None = None
    """The variables that change how an engine computes; None for a simulation."""

    model: str
    model_digest: str | None
    given: list[str] = Field(default_factory=list)
    """The engine arguments that the user or ``tuner refine`` chose; vLLM came to all others."""

    tuner: str
    seed: int
    created: str
    """ISO 8601 in UTC."""

    wall_s: Number
    engine_starts: Count
    engine_seconds: EngineSeconds
    warnings: list[str]
    ranks: Count = 1
    """Of a data-parallel server, of which one was measured: every number is one rank's."""

    replicas: Seqs = 1
    """Servers that share the trace's traffic; every number is one's."""

    router: Literal["least", "rr", "random", "session"] | None = None
    """How it is shared; None where one server gets all of it."""

    confirm: Literal["inproc", "server"] | None = None
    """Where the engine ran that confirmed the choice: in tuner's process, or behind a server;
    None where none did."""

    start_parts_s: dict[str, Number] = Field(default_factory=dict)
    """What all starts took to download, load, compile and capture, where the engines told."""

    kv_blocks: dict[str, Count] = Field(default_factory=dict)
    """Of the ladder's engine and of the confirming one, which has fewer slots."""

    sampling: Drawn | None = None
    """How tokens were drawn, by vLLM's names; None for a simulation."""

    @property
    def of_ranks(self) -> str | None:
        """Say that every number is one rank's; None where it is a whole server's."""
        if self.ranks == 1:
            return None
        return f"max_num_seqs and every number are those of one of {self.ranks} data-parallel ranks"


_ENGINE: dict[str, JsonValue] = {
    "required": ["model", "max_num_seqs", "max_num_batched_tokens"],
    "propertyNames": {"pattern": "^[a-z][a-z0-9_]*$"},
    "properties": {
        "model": {"type": "string", "pattern": "^[^-]"},
        "tokenizer": {"pattern": "^[^-]|^$"},
        "max_num_seqs": {"type": "integer", "minimum": 1},
        "max_num_batched_tokens": {"type": "integer", "minimum": 1},
    },
}
"""For the published schema; ``contradictions`` says the same to whoever loads a profile."""


class ServingProfile(Section):
    schema_version: Literal[1]
    engine: Annotated[dict[str, JsonValue], Field(json_schema_extra=_ENGINE)]
    """vLLM's argument names → values, all meant for production."""

    decision: Decision
    baseline: Baseline | None = None
    """None where nothing is known of what is set now."""

    curve: list[CurveStep]
    promise: Promise
    front_end: FrontEndSection | None = None
    """None where no server confirmed."""

    admission: Admission | None
    """None where the SLO has no limit on the TTFT, or the windows alone decided."""

    validity: Validity
    provenance: Provenance
    digest: Annotated[str, Field(json_schema_extra={"pattern": "^sha256:[0-9a-f]{64}$"})]
    """``sha256:…`` over the canonical JSON of everything else."""

    twin: Twin | None
    """None where the windows alone decided. Last: it is long, and not for people."""

    @property
    def model(self) -> str:
        return str(self.engine["model"])

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest request. Raises ProfileError where the profile does not say."""
        found = self.engine.get("max_model_len")
        if type(found) is not int or found < 1:
            raise ProfileError(
                f"engine.max_model_len: is {str(found)[:40]!r}, no number of tokens",
                hint="Sweep again: tuner writes what the engine came to.",
            )
        return found

    @property
    def sampling(self) -> Sampling:
        """The sampling by which it was measured; what is held against it samples alike."""
        stored_sampling = self.provenance.sampling
        return GREEDY if stored_sampling is None else drawing.as_sent(stored_sampling)


Contradiction = tuple[tuple[str | int, ...], str]
"""The path of a value, and what is wrong with it."""


def contradictions(profile: ServingProfile) -> Iterator[Contradiction]:
    """Yield what no single field can show."""
    yield from _engine_contradictions(profile.engine, profile.decision.max_num_seqs)
    low, high = profile.decision.interval
    if low > high:
        yield ("decision", "interval"), f"begins at {low}, above its end {high}"
    for index, (one, other) in enumerate(
        zip(profile.curve, profile.curve[1:], strict=False), start=1
    ):
        if one.max_num_seqs >= other.max_num_seqs:
            yield (
                ("curve", index, "max_num_seqs"),
                f"is {other.max_num_seqs} after {one.max_num_seqs}: steps must ascend",
            )
    if not _is_utc(profile.provenance.created):
        yield ("provenance", "created"), f"is no time in UTC: {profile.provenance.created!r}"


def _engine_contradictions(
    engine: Mapping[str, JsonValue], decided: int
) -> Iterator[Contradiction]:
    for name in engine:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            yield ("engine", name), "is not spelt like a vLLM engine argument"
    yield from _name_contradictions(engine)
    numbers = {}
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        value = engine.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            yield ("engine", name), "must be a whole number of at least 1"
            return
        numbers[name] = value
    seqs, tokens = numbers.values()
    if seqs != decided:
        yield ("engine", "max_num_seqs"), f"is {seqs}, but decision.max_num_seqs is {decided}"
    if tokens < seqs:
        yield ("engine", "max_num_batched_tokens"), f"is {tokens}, less than max_num_seqs {seqs}"
    if engine.get("max_num_active_seqs") not in (None, seqs):
        yield ("engine", "max_num_active_seqs"), f"must be max_num_seqs ({seqs}) or absent"


def _name_contradictions(engine: Mapping[str, JsonValue]) -> Iterator[Contradiction]:
    model = engine.get("model")
    if not isinstance(model, str) or not model:
        yield ("engine", "model"), "must name a model"
    for name in ("model", "tokenizer"):
        value = engine.get(name)
        if isinstance(value, str) and value.startswith("-"):
            yield ("engine", name), "begins with a hyphen, as flags do"


def _is_utc(text: str) -> bool:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return False
    return moment.tzinfo is not None and moment.astimezone(UTC).utcoffset() == moment.utcoffset()

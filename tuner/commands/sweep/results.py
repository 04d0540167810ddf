"""The JSON of ``tuner sweep`` of several traces, and of kinds of nodes."""

from tuner.profile.numbers import Count, Fraction, Number, Section, Seqs, SeqsRange, Signed
from tuner.profile.schema import EngineSeconds
from tuner.runs.result import SweepResult


class ChangeResult(Section):
    """A change, with its 95 % interval."""

    value: Signed
    low: Signed
    high: Signed


class PriceResult(Section):
    """The price that a trace pays for a cap that is not its own."""

    trace: str
    max_num_seqs: Seqs
    """Its own choice."""

    loss: Signed | None
    """In tolerances: 1 is too much; None where the shared cap was cut."""

    attainment: Fraction
    changes: dict[str, ChangeResult]


class SharedResult(Section):
    """The cap that serves several traces."""

    verdict: str
    max_num_seqs: Seqs
    interval: SeqsRange
    confidence: Fraction
    reason: str
    prices: list[PriceResult]
    losses: dict[str, dict[str, Signed | None]]
    """Trace → cap → what it loses there, in tolerances."""

    profile: str | None


class SeveralResult(Section):
    """The result of a sweep of several traces: each as for itself, and the cap that they share."""

    shared: SharedResult
    traces: dict[str, SweepResult]
    engine_starts: Count
    engine_seconds: EngineSeconds
    run_dir: str


class KindResult(SweepResult):
    """The result of a sweep on one kind of node."""

    takes: str
    """Of a node, for an engine."""

    price_per_hour: Number | None
    cost_per_million_output_tokens: Number | None


class FailedKind(Section):
    """A kind of node on which nothing was found."""

    takes: str
    price_per_hour: Number | None
    failed: str


class KindsResult(Section):
    """The result of a sweep on a cluster: each kind of node as for itself."""

    kinds: dict[str, KindResult | FailedKind]
    run_dir: str

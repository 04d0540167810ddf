"""What ``tuner sweep --json`` prints of several traces, and of kinds of nodes."""

from tuner.profile.numbers import Count, Fraction, Number, Section, Seqs, SeqsRange, Signed
from tuner.profile.schema import EngineSeconds
from tuner.runs.result import SweepResult


class ChangeResult(Section):
    """A change, with its 95 % interval."""

    value: Signed
    low: Signed
    high: Signed


class PriceResult(Section):
    """What a trace pays for a cap that is not its own."""

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
    """What a sweep of several traces prints: each as for itself, and what they share."""

    shared: SharedResult
    traces: dict[str, SweepResult]
    engine_starts: Count
    engine_seconds: EngineSeconds
    run_dir: str


class KindResult(SweepResult):
    """What a sweep found on one kind of node."""

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
    """What a sweep on a cluster prints: each kind of node as for itself."""

    kinds: dict[str, KindResult | FailedKind]
    run_dir: str

"""The JSON of ``tuner sweep --ray``: each kind of node as for itself."""

from tuner.profile.numbers import Number, Section
from tuner.runs.result import SweepResult


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

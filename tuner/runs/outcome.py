"""The outcome of a sweep or a refinement, before it is written anywhere. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from tuner.engines.seam import EngineFacts
from tuner.replay.measure import Measurement
from tuner.traffic.slo import Slo
from tuner.traffic.window import Part, Window
from tuner.twin.check import Check
from tuner.twin.draws import PredictedRanges, spread_of
from tuner.twin.forecast import Forecast, Range, StepChange
from tuner.twin.front_end import FrontEnd
from tuner.twin.uncertainty import Block
from tuner.twin.verdict_text import Verdict

Source = Literal["measured", "twin", "both"]


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One cap of the curve."""

    numbers: Measurement
    """The twin's over the whole part; where it is not believed, as measured in the windows."""

    measured: Measurement | None
    """As measured in the windows; None where none were replayed."""

    source: Source
    intervals: Mapping[str, Range]
    changes: Mapping[str, StepChange]
    """What it gives more than the step below; empty for the first, and where it was cut."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The conclusion from the measurements of a run."""

    verdict: Verdict
    curve: tuple[CurvePoint, ...]
    view: Forecast | None
    """The twin; None when the budget ended the run before it was made."""

    by_twin: bool
    """Whether the twin decided, and not the windows alone."""

    blocks: tuple[Block, ...] = ()
    """The rungs, as the windows decided by them; none where the twin did."""

    def step(self, cap: int) -> CurvePoint:
        return next(one for one in self.curve if one.numbers.max_num_seqs == cap)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The twin's numbers of the chosen cap at one load: the middle of what a fresh engine gives
    again, with 95 % intervals."""

    load: float
    numbers: Measurement
    intervals: Mapping[str, Range]


def predictions_of(view: Forecast, cap: int) -> tuple[Prediction, ...]:
    """Return what the twin predicts of a cap, at the recorded load and with headroom."""
    loads = (1.0,) if view.headroom == 1 else (1.0, view.headroom)
    return tuple(prediction_of(view, cap, load) for load in loads)


def prediction_of(view: Forecast, cap: int, load: float = 1.0) -> Prediction:
    """Return what the twin says of a cap at a load, today's or the headroom's."""
    numbers = view.measurement(cap, raised=load > 1)
    promised_ranges = view.promised(cap, raised=load > 1)
    middle = promised_ranges.middle
    numbers = replace(
        numbers,
        attainment=middle["attainment"],
        goodput_rps=middle["attainment"] * numbers.arrival_rate_rps,
        ttft_s=spread_of(middle, "ttft"),
        tpot_s=spread_of(middle, "tpot"),
        e2el_s=spread_of(middle, "e2el"),
        queue_s=spread_of(middle, "queue"),
    )
    return Prediction(load, numbers, _ranges(promised_ranges, numbers.arrival_rate_rps))


def _ranges(promised_ranges: PredictedRanges, rate_rps: float) -> dict[str, Range]:
    """Return the 95 % intervals in the profile's units."""
    found = {}
    for name, (low, high) in promised_ranges.ranges.items():
        if name.endswith("_s"):
            found[f"{name.removesuffix('_s')}_ms"] = (low * 1e3, high * 1e3)
        else:
            found[name] = (low, high)
    low, high = promised_ranges.ranges["attainment"]
    return {**found, "goodput_rps": (low * rate_rps, high * rate_rps)}


@dataclass(frozen=True, slots=True)
class CheckRecord:
    """The twin against the confirming replay."""

    unseen: bool
    """Whether it was of windows that the ladder did not replay."""

    foretold: Check
    """What was foretold before it began; without numbers where nothing was."""

    at_own_speed: Check
    """The twin at the speed that the engine had."""

    ttft_errors: tuple[float, ...] = ()
    tpot_errors: tuple[float, ...] = ()
    """Log of measured / predicted mean of each unseen window."""


@dataclass(frozen=True, slots=True)
class InUse:
    """The cap that is set where the traffic is served now, and what that gives."""

    max_num_seqs: int
    source: Literal["base", "default"]
    """The file after ``--base``, or what vLLM takes where nothing is said."""

    never_filled: bool
    """Whether the traffic never fills so many slots."""

    numbers_at: int
    """The cap that the numbers are of: the largest tried where it stands for more."""

    numbers: Measurement | None
    """None where nothing is known of so many slots."""


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """Everything a run found."""

    conclusion: Conclusion
    slo: Slo
    part: Part
    windows: tuple[Window, ...]
    arrival_rate_rps: float
    """Of the part."""

    confirmed: Measurement | None
    """The chosen cap on its own fresh engine at the captured load."""

    with_headroom: Measurement | None
    """The same at ``headroom`` times the load."""

    predictions: tuple[Prediction, ...]
    """At the captured load and with headroom; none where the twin is not believed, or its forecast
    of the confirming replay failed: then that replay is the promise."""

    checked: CheckRecord | None
    """None where nothing confirmed, or there is no twin."""

    facts: EngineFacts
    """Of the confirming engine where there was one, else of the ladder's."""

    ladder_engine: str
    """What the ladder was measured on, as ``facts.engine`` says of the confirming one."""

    starts_s: tuple[float, ...]
    replay_s: float
    dropped: Mapping[str, int]
    warnings: tuple[str, ...]
    unconfirmed: str | None = None
    """Why no fresh engine confirmed the choice; None where one did, or none was to."""

    busy: str | None = None
    """By what it was seen that the machine was busy; None where it was not."""

    in_use: InUse | None = None
    """None where nothing is known of what is set now."""

    front_end: FrontEnd | None = None
    """What stands before the confirming engine; None where that was no server."""

    kv_blocks: Mapping[str, int] = field(default_factory=dict)
    """Of the ladder's engine, and of the confirming one."""

    start_parts_s: Mapping[str, float] = field(default_factory=dict)
    """What all starts took to download, load, compile and capture, where they told."""

    @property
    def verdict(self) -> Verdict:
        return self.conclusion.verdict

    @property
    def curve(self) -> tuple[CurvePoint, ...]:
        return self.conclusion.curve

    @property
    def chosen(self) -> CurvePoint:
        return self.conclusion.step(self.verdict.max_num_seqs)


def with_measured(
    verdict: Verdict, confirmed: Measurement | None, with_headroom: Measurement | None
) -> Verdict:
    """Return the verdict with what the confirming replays measured of all that is required."""
    checks = []
    for required in verdict.requirements:
        one = required.requirement
        seen = with_headroom if one.at_headroom else confirmed
        told = seen is not None and (seen.cut is None or one.name == "attainment")
        value = one.value_in(seen) if told else required.measured
        checks.append(replace(required, measured=value))
    return replace(verdict, requirements=tuple(checks))

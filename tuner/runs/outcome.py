"""The outcome of a sweep or a refinement, before it is written anywhere. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tuner.engines.seam import EngineFacts
from tuner.replay.measure import Measurement, Spread
from tuner.traffic.slo import Slo
from tuner.traffic.window import Part, Window
from tuner.twin.check import Check
from tuner.twin.forecast import Forecast
from tuner.twin.front_end import FrontEnd
from tuner.twin.samples import NUMBERS, SHARES, Range, StepChange
from tuner.twin.verdict import Verdict
from tuner.twin.windows import Block

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
    raised = load > 1
    numbers, samples = view.measurement(cap, raised=raised), view.promised(cap)

    def middle(name: str) -> float:
        return samples.middle(name, cap, raised=raised)

    def spread_of(name: str) -> Spread | None:
        found = Spread(*(middle(f"{name}_{each}_s") for each in ("mean", *SHARES)))
        return None if math.isnan(found.mean) else found

    numbers = replace(
        numbers,
        attainment=middle("attainment"),
        goodput_rps=middle("attainment") * numbers.arrival_rate_rps,
        ttft_s=spread_of("ttft"),
        tpot_s=spread_of("tpot"),
        e2el_s=spread_of("e2el"),
        queue_s=spread_of("queue"),
    )
    names = ("goodput_rps", *NUMBERS)
    return Prediction(load, numbers, samples.intervals(cap, raised=raised, names=names))


@dataclass(frozen=True, slots=True)
class CheckRecord:
    """The twin against the confirming replay."""

    unseen: bool
    """Whether it was of windows that the ladder did not replay."""

    predicted: Check
    """What was predicted before it began; without numbers where nothing was."""

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

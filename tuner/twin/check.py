"""The twin against what was really measured, number by number. Pure.

*Foretold*: the prediction of a replay, made before it began, its machine's speed included. *At its
own speed*: the twin at the speed that the engine had in that very replay, within stated tolerances;
what is left is the scheduler model's error.

A check fails when one number is more than ALARM half-widths off, on the side of the miss, or when
OUTSIDE of them lie outside. p99 TTFT is not checked: one late request is all of it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from tuner.engines.scheduler.state import Floats, StepLaw
from tuner.engines.seam import IterationLog
from tuner.replay.iterations import joined, time_mean
from tuner.replay.measure import percentile
from tuner.replay.records import Replay, e2el_s, ttft_s
from tuner.traffic.slo import Slo
from tuner.twin.draws import MachineHistory, draws_of, ends_of, scaled, slowdown_of
from tuner.twin.front_end import FrontEnd, simulate_behind
from tuner.twin.simulation import (
    EngineShape,
    MachineClock,
    Slowdown,
    Traffic,
    TwinReplay,
    met,
)

ALARM = 1.63
"""Half-widths of a 95 % interval: z > 3.2."""

OUTSIDE = 3
"""Numbers outside of their 95 % of which one check in ten has as many by chance."""

TTFT_OFF, TPOT_OFF = 1.35, 1.12
"""Factors within which TTFT and TPOT are at the engine's own speed, in 95 % of honest windows."""

RANK_ERRORS = 2.0
"""Standard errors by which the rank of a percentile may be off besides. Where a queue begins to
form, two neighboring ranks are seconds apart: which request came last into it is chance."""

LEAST_MS = {"ttft": 1.0, "tpot": 0.1, "e2el": 1.0}
"""Smaller differences are those of the clocks."""

FEWEST = 2.0
"""Requests more or less in the SLO that are no miss, counted in the windows that stand for most."""

CHECKED = {"ttft": (50, 95), "tpot": (50, 95), "e2el": (95,)}
"""Percentiles."""

ENGINES_OWN = ("running_mean", "waiting_mean", "preemptions")
"""Numbers that no client sees."""

Range = tuple[float, float]


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """One replayed window as its clients saw it. Seconds from the start of the replay; arrays have
    one entry per request, NaN where it did not come to that."""

    max_num_seqs: int
    traffic: Traffic
    scored: "np.ndarray[tuple[int], np.dtype[np.bool_]]"
    ttft_s: Floats
    tpot_s: Floats
    e2el_s: Floats
    output_tokens: int
    end_s: float
    """When the last token came, or when the replay was cut."""

    iterations: IterationLog
    """What the engine did, from which the machine's speed in this window is taken."""

    cut: bool
    max_num_batched_tokens: int | None = None
    """Where it was another than the engine's own."""

    span_s: Range = (-math.inf, math.inf)
    """Of the scored part, in which iterations count."""

    weight: float = 1.0
    attainment_bound: float = 1.0
    """The most that it could have attained, where it was cut."""

    cut_by: Slo | None = None
    """What it was cut by, and its bound is of; None where that was not kept."""

    @property
    def planned(self) -> "PlannedWindow":
        """The window as it was sent."""
        counted = np.asarray(self.scored & ~np.isnan(self.e2el_s))
        return PlannedWindow(self.traffic, counted, self.span_s, self.weight)


@dataclass(frozen=True, slots=True)
class PlannedWindow:
    """A window before it is replayed, as it will be sent."""

    traffic: Traffic
    counted: NDArray[np.bool_]
    """Which requests count: scored, and not given up by their client."""

    span_s: Range
    """Of the scored part, on the traffic's clock."""

    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Foretold:
    """One number before it was measured: its middle and the ends of its 95 %."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Number:
    """One number of a check, in milliseconds, or as a share or a count."""

    name: str
    predicted: float
    low: float
    high: float
    measured: float

    @property
    def held(self) -> bool:
        return self.low <= self.measured <= self.high

    @property
    def off(self) -> float:
        """The distance of measured from predicted, in half-widths on the side of the miss."""
        miss = self.measured - self.predicted
        half = self.high - self.predicted if miss > 0 else self.predicted - self.low
        return miss / half if half > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Check:
    """The numbers of a replay, each as the twin foretold it and as it was measured."""

    numbers: tuple[Number, ...]

    @property
    def held(self) -> int:
        return sum(one.held for one in self.numbers)

    @property
    def worst(self) -> Number:
        return max(self.numbers, key=lambda one: abs(one.off))

    @property
    def is_far_off(self) -> bool:
        return bool(self.numbers) and abs(self.worst.off) > ALARM

    @property
    def failed(self) -> bool:
        return self.is_far_off or len(self.numbers) - self.held >= OUTSIDE


def observed(replay_: Replay, *, max_num_batched_tokens: int | None = None) -> Observed:
    """Return a replay as arrays. Requests that were cancelled or failed count as cut off there."""
    sent = replay_.requests
    given_up = sent["outcome"] == "aborted"
    tokens = np.where(given_up, sent["output_tokens"], sent["output_length"])
    return Observed(
        max_num_seqs=replay_.max_num_seqs,
        traffic=Traffic(
            sent["planned_s"].copy(),
            sent["input_length"].copy(),
            np.maximum(1, tokens),
            np.maximum(0, sent["cached_tokens"]),
        ),
        scored=sent["scored"].copy(),
        ttft_s=ttft_s(sent),
        tpot_s=sent["tpot_s"].copy(),
        e2el_s=e2el_s(sent),
        output_tokens=int(sent["output_tokens"].sum()),
        end_s=float(sent["end_s"].max(initial=0.0)),
        iterations=replay_.iterations,
        cut=replay_.cut is not None,
        max_num_batched_tokens=max_num_batched_tokens,
        span_s=(replay_.scored_from_s, replay_.scored_from_s + replay_.window_s),
        weight=replay_.weight,
        attainment_bound=replay_.attainment_bound,
        cut_by=replay_.slo,
    )


Drive = Callable[[Observed], TwinReplay]


def driven(
    window: Observed,
    law: StepLaw,
    shape: EngineShape,
    *,
    to_end: bool = False,
    front_end: FrontEnd | None = None,
) -> TwinReplay:
    """Return the twin's replay of a window at the speed that the machine had then: until it was
    over, or by the clock of its iterations to the last token, with its log. ``front_end`` is what
    its requests came through: how it slowed the engine is in that speed."""
    slowdown: Slowdown | MachineClock | None = slowdown_of(window.iterations, law)
    if to_end and len(window.iterations):
        slowdown = MachineClock.of(window.iterations, law)
    tokens = window.max_num_batched_tokens or shape.max_num_batched_tokens
    shape = replace(shape, max_num_batched_tokens=tokens)
    return simulate_behind(
        None if front_end is None else replace(front_end, contention=1.0),
        window.traffic,
        law,
        shape,
        max_num_seqs=window.max_num_seqs,
        slowdown=slowdown,
        until_s=np.inf if to_end else window.end_s,
        log=to_end,
    )


def driver(law: StepLaw, shape: EngineShape, front_end: FrontEnd | None = None) -> Drive:
    """Return what drives windows by the clock of their iterations, each of them once."""
    return cache(partial(driven, law=law, shape=shape, to_end=True, front_end=front_end))


def lag_s(windows: Sequence[Observed], law: StepLaw, shape: EngineShape) -> float:
    """Return how long a request is under way before the scheduler knows it: the median, over the
    requests that did not have to wait, of measured minus predicted TTFT."""
    at_once = replace(shape, lag_s=0.0)
    later = [later_s(one, driven(one, law, at_once), law) for one in windows]
    found = np.concatenate([np.zeros(0), *later])
    return max(0.0, float(np.median(found))) if len(found) else 0.0


def later_s(window: Observed, twin: TwinReplay, law: StepLaw) -> Floats:
    """Return, of requests that did not have to wait for the scheduler, how much later than
    predicted their first tokens came."""
    at_once = twin.queue_s <= 2 * law.decode_s[-1]
    later_s = (window.ttft_s - twin.ttft_s)[at_once]
    return np.asarray(later_s[~np.isnan(later_s)])


def foretell(  # noqa: PLR0913 - what is sent, on what, and what is asked of it
    windows: Sequence[PlannedWindow],
    laws: Sequence[StepLaw],
    machine: MachineHistory,
    shape: EngineShape,
    slo: Slo,
    *,
    max_num_seqs: int,
) -> tuple[dict[str, Foretold], list[tuple[float, float]]]:
    """Return what a replay of these windows at a cap will show, over the draws of a run for each
    law: its numbers, and of each window the mean TTFT and TPOT in seconds."""
    rows, means = [], []
    for draw in draws_of(laws, machine, [one.traffic for one in windows]):
        asked = partial(draw.replay, shape=shape, max_num_seqs=max_num_seqs, log=True)
        clock = draw.slowdown.clock()
        served = [_served(one, asked(one.traffic, clock=clock), slo) for one in windows]
        numbers = _numbers(served)
        rows.append(_longer(numbers, draw.ttft_factor, draw.tpot_factor, max_num_seqs))
        means.append([(_mean(one.ttft_s), _mean(one.tpot_s)) for one in served])
    middle = np.median(np.array(means), axis=0)
    known = np.nan_to_num(middle)
    return _over(rows, windows), [(float(ttft), float(tpot)) for ttft, tpot in known]


def least_attainment(  # noqa: PLR0913 - as foretell
    windows: Sequence[PlannedWindow],
    laws: Sequence[StepLaw],
    machine: MachineHistory,
    shape: EngineShape,
    slo: Slo,
    *,
    max_num_seqs: int,
) -> float:
    """Return the lower end of the attainment that ``foretell`` predicts; 0 where it predicts
    none."""
    found, _ = foretell(windows, laws, machine, shape, slo, max_num_seqs=max_num_seqs)
    return found["attainment"].low if "attainment" in found else 0.0


def check_foretold(
    predictions: Mapping[str, Foretold], windows: Sequence[Observed], slo: Slo
) -> Check:
    """Hold what was foretold against the replay of all its windows. Nothing is compared where one
    was cut because of another SLO."""
    cut = [one for one in windows if one.cut]
    if any(one.cut_by is not None and not one.cut_by.is_like(slo) for one in cut):
        return Check(())
    if cut:  # of a replay that had lost only what it could have attained is known
        numbers = {"attainment": min(one.attainment_bound for one in cut)}
    else:
        numbers = _numbers([_served(one.planned, one, slo) for one in windows])
        if not any(len(one.iterations) for one in windows):  # only its clients tell of it
            numbers = {name: one for name, one in numbers.items() if name not in ENGINES_OWN}
    return Check(
        tuple(
            Number(name, prediction.middle, prediction.low, prediction.high, numbers[name])
            for name, prediction in predictions.items()
            if name in numbers
        )
    )


def check_at_own_speed(windows: Sequence[Observed], slo: Slo, drive: Drive) -> Check:
    """Compare the twin at the engine's speed with these windows, within TTFT_OFF and TPOT_OFF.

    Those cut are left out, and those of which only clients report.
    """
    windows = [
        one for one in windows if not one.cut and one.planned.counted.any() and len(one.iterations)
    ]
    if not windows:
        return Check(())
    rows = []
    for power in (0, -1, 1):
        ttft, tpot = TTFT_OFF**power, TPOT_OFF**power
        replays = [scaled(drive(one), one.traffic, ttft, tpot) for one in windows]
        served = [_served(one.planned, it, slo) for one, it in zip(windows, replays, strict=True)]
        numbers = _numbers(served, rank_errors=power * RANK_ERRORS)
        rows.append(_longer(numbers, ttft, tpot, windows[0].max_num_seqs))
    return check_foretold(_over(rows, [one.planned for one in windows]), windows, slo)


@dataclass(frozen=True, slots=True)
class _Served:
    """The requests of a window that count, and the iterations of its scored part."""

    ttft_s: Floats
    tpot_s: Floats
    e2el_s: Floats
    met: NDArray[np.bool_]
    work: IterationLog
    preemptions: int
    weight: float


def _served(window: PlannedWindow, replay: TwinReplay | Observed, slo: Slo) -> _Served:
    kept, work = window.counted, replay.iterations
    inside = (work["start_s"] >= window.span_s[0]) & (work["start_s"] < window.span_s[1])
    return _Served(
        replay.ttft_s[kept],
        replay.tpot_s[kept],
        replay.e2el_s[kept],
        met(window.traffic, replay, slo)[kept],
        work[inside],
        int(work["preemptions"].sum()),
        window.weight,
    )


def _numbers(windows: Sequence[_Served], *, rank_errors: float = 0.0) -> dict[str, float]:
    """Return the numbers of a replay of these windows, those that it has. The ranks of percentiles
    are moved by so many of their standard errors."""
    found = dict[str, float]()
    weights = np.concatenate([np.full(len(one.met), one.weight) for one in windows])
    for name, percentiles in CHECKED.items():
        values = np.concatenate([getattr(one, f"{name}_s") for one in windows])
        known = ~np.isnan(values)
        for percent in percentiles if weights[known].sum() > 0 else ():
            rank = _moved(percent / 100, weights[known], rank_errors)
            found[f"{name}_p{percent}_ms"] = 1e3 * percentile(values[known], weights[known], rank)
    if weights.sum() > 0:
        good = np.concatenate([one.met for one in windows])
        found["attainment"] = float(good @ weights / weights.sum())
    work = joined(one.work for one in windows)
    return found | {
        "running_mean": time_mean(work, "running"),
        "waiting_mean": time_mean(work, "waiting"),
        "preemptions": float(sum(one.preemptions for one in windows)),
    }


def _moved(rank: float, weights: Floats, errors: float) -> float:
    """Return a rank moved by so many standard errors of a share of these requests."""
    count = float(weights.sum() ** 2 / np.square(weights).sum())
    return min(1.0, max(0.0, rank + errors * math.sqrt(rank * (1 - rank) / count)))


def _longer(
    numbers: Mapping[str, float], ttft_factor: float, tpot_factor: float, cap: int
) -> dict[str, float]:
    """Return the numbers with the queue and the batch that longer requests make (Little's law)."""
    return {
        **numbers,
        "running_mean": min(float(cap), tpot_factor * numbers["running_mean"]),
        "waiting_mean": ttft_factor * numbers["waiting_mean"],
    }


def _over(
    rows: Sequence[Mapping[str, float]], windows: Sequence[PlannedWindow]
) -> dict[str, Foretold]:
    """Return middle and ends of every number over the draws; the ends stay as far apart as anybody
    would call a difference."""
    weight = sum(one.weight * float(one.counted.sum()) for one in windows)
    request = max(one.weight for one in windows) / max(1.0, weight)
    found = {}
    for name in rows[0]:
        values = np.array([row[name] for row in rows if name in row])
        middle, (low, high) = float(np.median(values)), ends_of(values)
        least = LEAST_MS.get(name.split("_")[0], 1.0)
        least = FEWEST * request if name == "attainment" else least
        low, high = max(0.0, min(low, middle - least)), max(high, middle + least)
        found[name] = Foretold(middle, low, min(1.0, high) if name == "attainment" else high)
    return found


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan

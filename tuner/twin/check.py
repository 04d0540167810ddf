"""The model against what was really measured, number by number. Pure.

*Predicted*: the prediction of a replay, made before it began, its machine's speed included. *At its
own speed*: the model at the speed that the engine had in that very replay, within stated
tolerances; what is left is the scheduler model's error.

A check fails when one number is more than ALARM half-widths off, on the side of the miss, or when
OUTSIDE of them lie outside. p99 TTFT is not checked: one late request is all of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tuner.engines.scheduler.state import Floats, StepLaw
from tuner.engines.seam import IterationLog
from tuner.replay.numbers import percentile, time_mean
from tuner.replay.records import Replay, e2el_s, ttft_s
from tuner.traffic.constants import (
    ALARM,
    FEW_REQUESTS_APART,
    LEAST_MS,
    OUTSIDE,
    RANK_ERRORS,
    TPOT_OFF,
    TTFT_OFF,
)
from tuner.traffic.slo import Slo
from tuner.twin.front_end import FrontEnd
from tuner.twin.samples import Machine, draws_of, ends_of, lengthened
from tuner.twin.simulation import Clock, EngineShape, Traffic, TwinReplay, met, simulate

CHECKED = {"ttft": (50, 95), "tpot": (50, 95), "e2el": (95,)}
"""Percentiles."""

ENGINES_OWN = ("running_mean", "waiting_mean", "preemptions")
"""Numbers that no client sees."""


@dataclass(frozen=True, slots=True)
class PlannedWindow:
    """A window as it is sent."""

    traffic: Traffic
    counted: NDArray[np.bool_]
    """Which requests count: scored, and not given up by their client."""

    span_s: tuple[float, float]
    """Of the scored part, on the traffic's clock."""

    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Predicted:
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

    @property
    def words(self) -> str:
        """The miss for people.

        >>> Number("ttft_p95_ms", 420.0, 400.0, 450.0, 20100.0).words
        'p95 TTFT 20,100 ms instead of 420 ms'
        >>> Number("attainment", 0.99, 0.98, 1.0, 0.9).words
        '90.0% met the SLO instead of 99.0%'
        """
        if self.name == "attainment":
            return f"{self.measured:.1%} met the SLO instead of {self.predicted:.1%}"
        if not self.name.endswith("_ms"):
            name = self.name.removesuffix("_mean")
            return f"mean {name} {self.measured:,.1f} instead of {self.predicted:,.1f}"
        time, share, _ = self.name.split("_")
        digits = 0 if max(self.measured, self.predicted) >= 100 else 1
        measured, predicted = (f"{ms:,.{digits}f} ms" for ms in (self.measured, self.predicted))
        return f"{share} {time.upper()} {measured} instead of {predicted}"


@dataclass(frozen=True, slots=True)
class Check:
    """The numbers of a replay, each as it was predicted and as it was measured."""

    numbers: tuple[Number, ...]

    @property
    def held(self) -> int:
        return sum(number.held for number in self.numbers)

    @property
    def worst(self) -> Number:
        return max(self.numbers, key=lambda item: abs(item.off))

    @property
    def is_far_off(self) -> bool:
        return bool(self.numbers) and abs(self.worst.off) > ALARM

    @property
    def failed(self) -> bool:
        return self.is_far_off or len(self.numbers) - self.held >= OUTSIDE


def as_sent(replay: Replay) -> PlannedWindow:
    """Return the window that was replayed. A request that was given up generates what came."""
    sent = replay.requests
    given_up = sent["outcome"] == "aborted"
    tokens = np.where(given_up, sent["output_tokens"], sent["output_length"])
    traffic = Traffic(
        sent["planned_s"].copy(),
        sent["input_length"].copy(),
        np.maximum(1, tokens),
        np.maximum(0, sent["cached_tokens"]),
    )
    counted = np.asarray(sent["scored"] & ~np.isnan(sent["last_s"]))
    span_s = (replay.scored_from_s, replay.scored_from_s + replay.window_s)
    return PlannedWindow(traffic, counted, span_s, replay.weight)


def driven(
    window: Replay,
    law: StepLaw,
    shape: EngineShape,
    *,
    front_end: FrontEnd | None = None,
    log: bool = True,
) -> TwinReplay:
    """Return the model's replay of a window at the speed that the machine had then, to its last
    token. ``front_end`` is what its requests came through: how it slowed the engine is in that
    speed."""
    work = window.iterations
    tokens = window.token_budget or shape.max_num_batched_tokens
    return simulate(
        as_sent(window).traffic,
        law,
        replace(shape, max_num_batched_tokens=tokens),
        max_num_seqs=window.max_num_seqs,
        clock=Clock.of_iterations(work, law) if len(work) else None,
        front_end=None if front_end is None else replace(front_end, contention=1.0),
        log=log,
    )


def lag_s(windows: Sequence[Replay], law: StepLaw, shape: EngineShape) -> float:
    """Return how long a request is under way before the scheduler knows it: the median, over the
    requests that did not have to wait, of measured minus predicted TTFT."""
    later = [np.zeros(0)]
    for window in windows:
        twin = driven(window, law, replace(shape, lag_s=0.0), log=False)
        at_once = twin.queue_s <= 2 * law.decode_s[-1]
        later.append((ttft_s(window.requests) - twin.ttft_s)[at_once])
    known = np.concatenate(later)
    known = known[~np.isnan(known)]
    return max(0.0, float(np.median(known))) if len(known) else 0.0


def predict(  # noqa: PLR0913 - what is sent, on what, and what is asked of it
    windows: Sequence[PlannedWindow],
    laws: Sequence[StepLaw],
    machine: Machine,
    shape: EngineShape,
    slo: Slo,
    *,
    max_num_seqs: int,
) -> tuple[dict[str, Predicted], list[tuple[float, float]]]:
    """Return what a replay of these windows at a cap will show, over the draws of a run for each
    law: its numbers, and of each window the mean TTFT and TPOT in seconds."""
    rows, means = [], []
    for draw in draws_of(laws, machine, [window.traffic for window in windows]):
        replayed = partial(draw.replay, shape=shape, max_num_seqs=max_num_seqs, log=True)
        served = [_served(window, replayed(window.traffic), slo) for window in windows]
        numbers = _numbers(served)
        rows.append(_longer(numbers, draw.ttft_factor, draw.tpot_factor, max_num_seqs))
        means.append(
            [(_mean(each.times_s["ttft"]), _mean(each.times_s["tpot"])) for each in served]
        )
    known = np.nan_to_num(np.median(np.array(means), axis=0))
    return _over(rows, windows), [(float(ttft), float(tpot)) for ttft, tpot in known]


def check_predicted(
    predictions: Mapping[str, Predicted], windows: Sequence[Replay], slo: Slo
) -> Check:
    """Compare what was predicted with the replay of all its windows. Nothing is compared where one
    was cut because of another SLO."""
    cut = [window for window in windows if window.cut is not None]
    if any(each.is_cut_under_another(slo) for each in cut):
        return Check(())
    if cut:  # of a replay that had lost only what it could have attained is known
        numbers = {"attainment": min(each.attainment_bound for each in cut)}
    else:
        numbers = _numbers([_seen(window, slo) for window in windows])
        if not any(len(window.iterations) for window in windows):  # only its clients tell of it
            numbers = {name: each for name, each in numbers.items() if name not in ENGINES_OWN}
    return Check(
        tuple(
            Number(name, each.middle, each.low, each.high, numbers[name])
            for name, each in predictions.items()
            if name in numbers
        )
    )


def check_at_own_speed(
    windows: Sequence[Replay],
    slo: Slo,
    law: StepLaw,
    shape: EngineShape,
    front_end: FrontEnd | None = None,
) -> Check:
    """Compare the model at the engine's speed with these windows, within TTFT_OFF and TPOT_OFF.

    Those cut are left out, and those of which only clients report.
    """
    windows = [window for window in windows if window.cut is None and len(window.iterations)]
    planned = [as_sent(window) for window in windows]
    if not any(each.counted.any() for each in planned):
        return Check(())
    twins = [driven(window, law, shape, front_end=front_end) for window in windows]
    rows = []
    for power in (0, -1, 1):
        ttft, tpot = TTFT_OFF**power, TPOT_OFF**power
        served = [
            _served(each, lengthened(twin, each.traffic, ttft, tpot), slo)
            for each, twin in zip(planned, twins, strict=True)
        ]
        numbers = _numbers(served, rank_errors=power * RANK_ERRORS)
        rows.append(_longer(numbers, ttft, tpot, windows[0].max_num_seqs))
    return check_predicted(_over(rows, planned), windows, slo)


@dataclass(frozen=True, slots=True)
class _Served:
    """The requests of a window that count, and the iterations of its scored part."""

    times_s: Mapping[str, Floats]
    met: NDArray[np.bool_]
    work: IterationLog
    preemptions: int
    weight: float


def _served(window: PlannedWindow, replay: TwinReplay, slo: Slo) -> _Served:
    kept, work = window.counted, replay.iterations
    times_s = {name: getattr(replay, f"{name}_s")[kept] for name in CHECKED}
    inside = (work["start_s"] >= window.span_s[0]) & (work["start_s"] < window.span_s[1])
    good = met(window.traffic, replay, slo)[kept]
    return _Served(times_s, good, work[inside], int(work["preemptions"].sum()), window.weight)


def _seen(replay: Replay, slo: Slo) -> _Served:
    """Return what a real replay showed, in the form of the model's."""
    sent = replay.requests
    seen = TwinReplay(
        max_num_seqs=replay.max_num_seqs,
        ttft_s=ttft_s(sent),
        tpot_s=sent["tpot_s"],
        e2el_s=e2el_s(sent),
        iterations=replay.iterations,
    )
    return _served(as_sent(replay), seen, slo)


def _numbers(windows: Sequence[_Served], *, rank_errors: float = 0.0) -> dict[str, float]:
    """Return the numbers of a replay of these windows, those that it has. The ranks of percentiles
    are moved by so many of their standard errors."""
    result = dict[str, float]()
    weights = np.concatenate([np.full(len(window.met), window.weight) for window in windows])
    for name, percentiles in CHECKED.items():
        values = np.concatenate([window.times_s[name] for window in windows])
        known = ~np.isnan(values)
        for percent in percentiles if weights[known].sum() > 0 else ():
            rank = _moved(percent / 100, weights[known], rank_errors)
            result[f"{name}_p{percent}_ms"] = 1e3 * percentile(values[known], weights[known], rank)
    if weights.sum() > 0:
        good = np.concatenate([window.met for window in windows])
        result["attainment"] = float(good @ weights / weights.sum())
    work = np.concatenate([window.work for window in windows])
    return result | {
        "running_mean": time_mean(work, "running"),
        "waiting_mean": time_mean(work, "waiting"),
        "preemptions": float(sum(window.preemptions for window in windows)),
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
) -> dict[str, Predicted]:
    """Return middle and ends of every number over the draws; the ends stay as far apart as anybody
    would call a difference."""
    weight = sum(window.weight * float(window.counted.sum()) for window in windows)
    request = max(window.weight for window in windows) / max(1.0, weight)
    result = {}
    for name in rows[0]:
        values = np.array([row[name] for row in rows if name in row])
        middle, ends = float(np.median(values)), ends_of(values)
        least = LEAST_MS.get(name.split("_")[0], 1.0)
        least = FEW_REQUESTS_APART * request if name == "attainment" else least
        low, high = (middle, middle) if ends is None else ends
        low, high = max(0.0, min(low, middle - least)), max(high, middle + least)
        result[name] = Predicted(middle, low, min(1.0, high) if name == "attainment" else high)
    return result


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan

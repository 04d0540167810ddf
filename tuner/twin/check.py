"""Holds the twin against what was really measured: twelve numbers, each by itself. Pure.

It does so twice. *Foretold*: what was predicted of a replay before it began, its machine's speed
included. That tests the prediction. *At its own speed*: the twin at the speed that the engine had
in that very replay. What is left is the scheduler model's error.

A check fails when one number is more than ALARM half-widths off, on the side of the miss, or when
OUTSIDE of them lie outside their 95 %. Honest runs fail in at most one of ten (docs/deciding.md).
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
from tuner.replay.measure import spread
from tuner.replay.records import Replay, e2el_s, ttft_s
from tuner.traffic.slo import Slo
from tuner.twin import draws as drawn
from tuner.twin.draws import UNKNOWN, Draw, MachineHistory, draws_of, ends_of, slowdown_of
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

TICK_MS = 1.0
TPOT_TICK_MS = 0.1
"""Smaller differences are those of the clocks."""

FEWEST = 2.0
"""Requests more or less in the SLO that are no miss, counted in the windows that stand for most."""

OWN_SPEED_DRAWS = 40

ENGINES_OWN = ("running_mean", "waiting_mean", "kv_blocks_mean", "preemptions")
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
        rows.append(_at_length(_numbers(served), draw, max_num_seqs))
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
    """Return the lower end of the attainment that ``foretell`` says of the same; 0 where it says
    none. It takes a fraction of the time, because no iteration is looked at."""
    rows = []
    for draw in draws_of(laws, machine, [one.traffic for one in windows]):
        asked = partial(draw.replay, shape=shape, max_num_seqs=max_num_seqs)
        clock = draw.slowdown.clock()
        good = [
            met(one.traffic, asked(one.traffic, clock=clock), slo)[one.counted] for one in windows
        ]
        rows.append(_attained(good, [one.weight for one in windows]))
    found = _over(rows, windows)
    return found["attainment"].low if "attainment" in found else 0.0


def check_foretold(told: Mapping[str, Foretold], windows: Sequence[Observed], slo: Slo) -> Check:
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
            Number(name, said.middle, said.low, said.high, numbers[name])
            for name, said in told.items()
            if name in numbers
        )
    )


def check_at_own_speed(windows: Sequence[Observed], law: StepLaw, slo: Slo, drive: Drive) -> Check:
    """Hold the twin at the engine's speed, and with its delays of single requests, against these
    windows. Those cut are left out, and those that only clients tell of."""
    windows = [
        one for one in windows if not one.cut and one.planned.counted.any() and len(one.iterations)
    ]
    if not windows:
        return Check(())
    cap = windows[0].max_num_seqs
    planned = [one.planned for one in windows]
    replays = [drive(one) for one in windows]
    delays = [later_s(one, it, law) for one, it in zip(windows, replays, strict=True)]
    own = _of_engine([_served(one, it, slo) for one, it in zip(planned, replays, strict=True)])
    replays = [replace(it, iterations=it.iterations[:0]) for it in replays]
    factors = draws_of([law] * OWN_SPEED_DRAWS, UNKNOWN, ())
    rng = np.random.default_rng(0)
    rows = []
    for draw in factors:
        late = [drawn.delayed(it, each, rng) for it, each in zip(replays, delays, strict=True)]
        served = [
            _served(one, drawn.scaled(it, one.traffic, draw.ttft_factor, draw.tpot_factor), slo)
            for one, it in zip(planned, late, strict=True)
        ]
        rows.append(_at_length({**_of_clients(served), **own}, draw, cap))
    return check_foretold(_over(rows, planned), windows, slo)


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


def _numbers(windows: Sequence[_Served]) -> dict[str, float]:
    """Return the twelve numbers of a replay of these windows, those that it has."""
    return {**_of_clients(windows), **_of_engine(windows)}


def _of_clients(windows: Sequence[_Served]) -> dict[str, float]:
    """Return those that clients see."""
    found = dict[str, float]()
    for name, shares in (
        ("ttft", ("p50", "p95", "p99")),
        ("tpot", ("p50", "p95")),
        ("e2el", ("p95", "p99")),
    ):
        values = np.concatenate([getattr(one, f"{name}_s") for one in windows])
        weights = np.concatenate([np.full(len(one.met), one.weight) for one in windows])
        known = ~np.isnan(values)
        if (one := spread(values[known], weights[known])) is not None:
            found |= {f"{name}_{share}_ms": 1e3 * getattr(one, share) for share in shares}
    return found | _attained([one.met for one in windows], [one.weight for one in windows])


def _of_engine(windows: Sequence[_Served]) -> dict[str, float]:
    """Return those that only the engine knows, ENGINES_OWN."""
    work = joined(one.work for one in windows)
    return {
        "running_mean": time_mean(work, "running"),
        "waiting_mean": time_mean(work, "waiting"),
        "kv_blocks_mean": time_mean(work, "kv_blocks_used"),
        "preemptions": float(sum(one.preemptions for one in windows)),
    }


def _attained(served: Sequence[NDArray[np.bool_]], weights: Sequence[float]) -> dict[str, float]:
    """Return the share of these requests of windows of such weights that met the SLO; nothing where
    there are none."""
    windows = list(zip(served, weights, strict=True))
    counts = np.array([weight * len(one) for one, weight in windows])
    if not counts.sum() > 0:
        return {}
    good = sum(weight * float(one.sum()) for one, weight in windows)
    return {"attainment": good / float(counts.sum())}


def _at_length(numbers: Mapping[str, float], draw: Draw, cap: int) -> dict[str, float]:
    """Return the numbers with the queue and the batch that longer requests make (Little's law)."""
    return {
        **numbers,
        "running_mean": min(float(cap), draw.tpot_factor * numbers["running_mean"]),
        "waiting_mean": draw.ttft_factor * numbers["waiting_mean"],
        "kv_blocks_mean": draw.tpot_factor * numbers["kv_blocks_mean"],
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
        least = FEWEST * request if name == "attainment" else _least(name)
        low, high = max(0.0, min(low, middle - least)), max(high, middle + least)
        found[name] = Foretold(middle, low, min(1.0, high) if name == "attainment" else high)
    return found


def _least(name: str) -> float:
    """Return the least half-width of a number: of a mean one sequence or block, of a count one."""
    if name.startswith("tpot"):
        return TPOT_TICK_MS
    return TICK_MS if name.endswith("_ms") else 1.0


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan

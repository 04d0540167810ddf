"""Replays of several approaches → what each of them does, and how they compare. Pure.

Definitions: docs/journey.md.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.compare.load_levels import Lengths
from tuner.device_use import DeviceUse, device_use
from tuner.engines.seam import IterationLog
from tuner.measure import Spread, spread
from tuner.records import Replay
from tuner.uncertainty import student_t_975

BIN_S = 0.1
"""How finely it is asked whether the engine was busy: a request's gap between two is seen."""

IDLE = 0.05


@dataclass(frozen=True, slots=True)
class Busy:
    """Share of time in which the engine had an iteration in hand, over stretches of 0.1 s."""

    mean: float
    sd: float
    idle_share: float
    """Share of the stretches in which it was less than 5 % busy."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times the baseline's, with its 95 % interval; None where one block was measured."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Numbers:
    """What one approach did with one traffic, its repeats together. Times in seconds."""

    blocks: int
    requests: int
    completed: int
    unfinished: int
    """Still waiting or running when the replay was ended."""

    failed: int
    failures: tuple[str, ...]
    """What the failed ones were told, each text once."""

    offered_rps: float
    requests_per_s: float
    output_tokens_per_s: float
    """Of the requests that were finished in the window."""

    e2el_p95_s: float | None
    e2el_at_least: bool
    """Whether requests were still unfinished, so that the truth is longer."""

    e2el_mean_s: float | None
    ttft_p95_s: float | None
    tpot_s: Spread | None
    busy: Busy | None
    iteration_s: float | None
    """Median iteration that only decoded."""

    held_mean_s: float | None
    queue_mean_s: float | None
    transfer_s: Spread | None
    device: DeviceUse | None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    approach: str
    title: str
    max_num_seqs: int | None
    """None where it never started."""

    numbers: Numbers | None
    """None where nothing was measured."""

    ratio: Ratio | None
    notes: tuple[str, ...]
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """All approaches with one traffic."""

    load: str
    in_flight: int | None
    lengths: Lengths
    rows: tuple[Row, ...]


def numbers_of(replays: Sequence[Replay]) -> Numbers:
    """Return what these replays of one traffic by one approach say together."""
    every = [one for replay in replays for one in replay.records]
    records = [one for one in every if one.scored]
    done = [one for one in every if one.outcome == "ok"]  # the run-in too: of the engine's speed
    window_s = sum(replay.window_s for replay in replays)
    inside = [
        one
        for replay in replays
        for one in replay.records
        if one.outcome == "ok"
        and replay.scored_from_s <= one.end_s < replay.scored_from_s + replay.window_s
    ]
    waits = [
        one.e2el_s if one.e2el_s is not None else one.end_s - one.planned_s
        for one in records
        if one.outcome in {"ok", "cut"}
    ]
    e2el = spread(waits)
    firsts = spread(one.ttft_s for one in records if one.ttft_s is not None)
    works = [_scored(replay) for replay in replays]
    return Numbers(
        blocks=len(replays),
        requests=len(records),
        completed=sum(one.outcome == "ok" for one in records),
        unfinished=sum(one.outcome == "cut" for one in records),
        failed=sum(one.outcome == "failed" for one in records),
        failures=tuple(dict.fromkeys(one.error for one in records if one.error)),
        offered_rps=len(records) / window_s,
        requests_per_s=len(inside) / window_s,
        output_tokens_per_s=sum(one.output_tokens for one in inside) / window_s,
        e2el_p95_s=e2el.p95 if e2el else None,
        e2el_at_least=any(one.outcome == "cut" for one in records),
        e2el_mean_s=e2el.mean if e2el else None,
        ttft_p95_s=firsts.p95 if firsts else None,
        tpot_s=spread(one.tpot_s for one in done if one.tpot_s is not None),
        busy=_busy(replays),
        iteration_s=_decode_iteration_s(works),
        held_mean_s=_mean([one.held_s for one in done]),
        queue_mean_s=_mean([one.queue_s for one in done]),
        transfer_s=spread(one.transfer_s for one in done if one.transfer_s is not None),
        device=device_use([replay.device for replay in replays]),
    )


def ratios(rates: Mapping[str, Mapping[int, float]], baseline: str) -> dict[str, Ratio]:
    """Return approach → its rate over the baseline's, paired by block.

    ``rates`` is approach → block → requests per second. The interval is Student's t on the
    logarithms, with one noise for all approaches: two or three blocks alone could not tell it.
    Empty where the baseline served nothing.
    """
    base = {block: rate for block, rate in rates.get(baseline, {}).items() if rate > 0}
    logs = {
        name: found
        for name, by_block in rates.items()
        if (
            found := [
                math.log(rate / base[block])
                for block, rate in by_block.items()
                if block in base and rate > 0
            ]
        )
    }
    others = [np.asarray(found) for name, found in logs.items() if name != baseline]
    freedom = sum(len(found) - 1 for found in others)
    squares = sum(float(((found - found.mean()) ** 2).sum()) for found in others)
    result = {}
    for name, found in logs.items():
        middle = float(np.mean(found))
        low = high = None
        if freedom > 1 and name != baseline:
            reach = student_t_975(freedom) * math.sqrt(squares / freedom / len(found))
            low, high = math.exp(middle - reach), math.exp(middle + reach)
        result[name] = Ratio(math.exp(middle), low, high)
    return result


def notes_on(one: Numbers, *, alone: Numbers | None) -> tuple[str, ...]:
    """Return what was seen of an approach; ``alone`` is one worker, where this is two of them."""
    found = []
    if one.unfinished:
        found.append(
            f"served {one.requests_per_s:.2f} of {one.offered_rps:.2f} req/s: "
            f"{one.unfinished / one.requests:.0%} unfinished at the end"
        )
    if one.failed:
        found.append(f"{one.failed / one.requests:.1%} failed: {'; '.join(one.failures)}")
    if one.held_mean_s and one.e2el_mean_s and one.held_mean_s >= 0.01 * one.e2el_mean_s:
        found.append(
            f"head of line: finished requests waited {_shown(one.held_mean_s)} for their batch"
        )
    if one.transfer_s is not None:
        found.append(
            f"queue: {_shown(one.transfer_s.mean)} a request to pickle and transfer "
            f"(p95 {_shown(one.transfer_s.p95)})"
        )
    if alone is not None and one.iteration_s and alone.iteration_s:
        found.append(
            f"contention: an iteration took {one.iteration_s / alone.iteration_s:.2f} times as "
            "long as one worker's alone"
        )
    if one.queue_mean_s is not None and one.e2el_mean_s:
        share = one.queue_mean_s / one.e2el_mean_s
        if share >= 0.05:
            found.append(f"{_shown(one.queue_mean_s)} of waiting before the engine began")
    return tuple(found)


def _shown(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _scored(replay: Replay) -> IterationLog:
    starts = replay.iterations["start_s"]
    end_s = replay.scored_from_s + replay.window_s
    return replay.iterations[(starts >= replay.scored_from_s) & (starts < end_s)]


def _decode_iteration_s(works: Sequence[IterationLog]) -> float | None:
    log = np.concatenate(list(works))
    durations = log["duration_s"][(log["prefill_tokens"] == 0) & (log["decode_seqs"] > 0)]
    return float(np.median(durations)) if len(durations) else None


def _busy(replays: Sequence[Replay]) -> Busy | None:
    shares = np.concatenate([_busy_shares(replay) for replay in replays])
    if not len(shares):
        return None
    return Busy(float(shares.mean()), float(shares.std()), float(np.mean(shares < IDLE)))


def _busy_shares(replay: Replay) -> NDArray[np.float64]:
    """Return the share of each stretch of the window in which some iteration ran; several engines'
    iterations may overlap."""
    begin_s = replay.iterations["start_s"]
    order = np.argsort(begin_s, kind="stable")
    begin_s = begin_s[order]
    end_s = np.maximum.accumulate(begin_s + replay.iterations["duration_s"][order])
    begin_s = np.maximum(begin_s, np.concatenate(([-np.inf], end_s[:-1])))
    busy_s = np.concatenate(([0.0], np.cumsum(np.maximum(0.0, end_s - begin_s))))
    edges = replay.scored_from_s + BIN_S * np.arange(int(replay.window_s / BIN_S + 1e-9) + 1)
    if not len(begin_s):
        return np.zeros(len(edges) - 1)
    # time alternates between idle and busy: at begin_s[i] busy_s[i] have passed, at end_s[i] more
    times = np.stack((begin_s, end_s), axis=1).ravel()
    so_far = np.stack((busy_s[:-1], busy_s[1:]), axis=1).ravel()
    return np.diff(np.interp(edges, times, so_far)) / BIN_S

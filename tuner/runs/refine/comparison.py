"""The comparison of what was found with the knee, in turns: only a gain proven here replaces it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from tuner.replay.measure import Measurement, measure
from tuner.runs.refine.acceptance import (
    PairedRatio,
    PairedResult,
    acceptance,
    is_futile,
    paired_ratio,
)
from tuner.runs.refine.knobs import CAP, LIVE, TOKENS, Configuration, frees, number, restart_key
from tuner.runs.refine.objective import OBJECTIVES, Objective
from tuner.runs.refine.scoring import has_room
from tuner.runs.refine.trials import Build, FinishedTrial, Trials, in_words
from tuner.traffic.slo import Slo
from tuner.traffic.window import Window
from tuner.traffic.workload import Workload

SIDES = ("refined", "knee", "knee", "refined")
"""Order of the replays, over and over: each side is first as often as second, so that a machine
that drifts favours neither."""

COMPARING = ("refined", "knee")
"""Purposes of the two halves of a pair."""


def windows_of_pairs(workload: Workload, pairs: int) -> tuple[tuple[Window, ...], ...]:
    """Return the windows of each pair: as many and as long as the search's, evenly spaced over the
    requests from a random start, so that together they stand for all of the traffic.

    They overlap where the part has no room for all; each pair has the search's where it has none
    for two of them.
    """
    part, own = workload.part, workload.windows
    count, each_s = pairs * len(own), sum(one.replay_s for one in own)
    if 2 * each_s > part.length_s:
        return (own,) * pairs
    has_room = pairs * each_s <= part.length_s
    offset = np.random.default_rng(0).uniform()
    requests, free_s = workload.requests, part.begin_s
    found: list[list[Window]] = [[] for _ in range(pairs)]
    for place in range(count):
        like = own[place // pairs]
        at_s = requests[int(len(requests) * (place + offset) / count)].arrival_s
        start_s = min(max(at_s, free_s, part.begin_s + like.run_in_s), part.end_s - like.length_s)
        free_s = start_s + like.length_s if has_room else part.begin_s
        found[place % pairs].append(replace(like, start_s=start_s, weight=1.0))
    return tuple(map(tuple, found))


async def compare(  # noqa: PLR0913 - what is compared, on what
    trials: Trials,
    one: Configuration,
    knee: Configuration,
    *,
    workloads: Sequence[Workload],
    objective: Objective,
    forecasts: Mapping[str, float],
) -> PairedResult:
    """Replay both in turns: on one engine whose limits change live, or else on a fresh one each
    time, as no two starts are alike.

    ``workloads`` has what each pair replays. ``forecasts`` (aim → log gain) are the twin's, which
    stand beside what the pairs say. Raises EngineError when engines keep failing.
    """
    slo, pairs = workloads[0].slo, len(workloads)
    windows = {window for workload in workloads for window in workload.windows}
    trials.watcher.stage(
        f"comparing {in_words(one)} with the knee, in turns: {pairs} pairs, "
        f"{len(windows)} windows of the trace"
    )
    sides = {"refined": one, "knee": knee}
    while len(done := trials.served(*COMPARING)) < 2 * pairs:
        less = _serves_with_less(done, slo, one, knee)
        if len(done) == pairs and is_futile(
            objective, ratios_of(done, slo, {}), pairs=pairs, frees_memory=less
        ):
            break
        place = len(done)
        side = SIDES[place % len(SIDES)]
        build = _build(one, knee, turn=place, side=sides[side])
        await trials.trial(side, sides[side], workloads[place // 2], build)
    ratios = ratios_of(done, slo, forecasts)
    less = _serves_with_less(done, slo, one, knee)
    accepted = None
    if len(done) == 2 * pairs:
        accepted = acceptance(objective, ratios, frees_memory=less)
    return PairedResult(ratios, accepted, len(done) // 2)


def ratios_of(
    done: Sequence[FinishedTrial], slo: Slo, forecasts: Mapping[str, float]
) -> dict[str, PairedRatio]:
    """Return refined / knee of every aim over these halves of pairs."""
    pairs = _pairs(done, slo)
    found = {
        name: paired_ratio(aim, pairs, forecasts.get(name)) for name, aim in OBJECTIVES.items()
    }
    return {name: one for name, one in found.items() if one is not None}


def _serves_with_less(
    done: Sequence[FinishedTrial], slo: Slo, one: Configuration, knee: Configuration
) -> bool:
    """Whether the refined one has less memory, and kept its KV cache off the limit."""
    return frees(one, knee) and all(has_room(refined) for _, refined in _pairs(done, slo))


def half_s(done: Iterable[FinishedTrial], sides: Sequence[Configuration]) -> float:
    """Return how long half of a pair takes, by trials of its sides: of these each counts as much.

    An engine that is overloaded drains for longer than its windows are, on one side more than on
    the other. 0 where there was no trial of either.
    """
    took: dict[int, list[float]] = {}
    for one in done:
        if one.configuration in sides:
            place = sides.index(one.configuration)
            took.setdefault(place, []).append(sum(replay.elapsed_s for replay in one.replays))
    return fmean(map(fmean, took.values())) if took else 0.0


def is_live(one: Configuration, other: Configuration) -> bool:
    """Whether one engine can serve both."""
    return restart_key(one) == restart_key(other)


def _build(one: Configuration, knee: Configuration, *, turn: int, side: Configuration) -> Build:
    if is_live(one, knee):
        cap, tokens = (max(number(one[name]), number(knee[name])) for name in LIVE)
        return Build(cap, tokens, turn=1)
    return Build(number(side[CAP]), number(side[TOKENS]), turn=1 + turn)


def _pairs(done: Sequence[FinishedTrial], slo: Slo) -> list[tuple[Measurement, Measurement]]:
    """Return (knee, refined), pair by pair."""
    found = []
    for first, second in zip(done[::2], done[1::2], strict=False):
        by_side = {half.purpose: measure(half.replays, slo) for half in (first, second)}
        found.append((by_side["knee"], by_side["refined"]))
    return found

"""The ladder: the next cap to measure, and for how long. Pure."""

import math
from collections import Counter
from collections.abc import Collection, Sequence

from tuner.traffic.constants import CONFIDENT, DRIFT_LIMIT, EQUAL_ATTAINMENT, EQUAL_TAIL, HALF
from tuner.twin.forecast import Forecast
from tuner.twin.verdict import Verdict, best_of, ladder_is_done, moved, verdict_by_windows
from tuner.twin.windows import Block, Trial, drift, noise, pooled

MAX_EXTRA_BLOCKS = 2
"""Replays more, at most, while the windows are not CONFIDENT: each costs a step, and what is then
still unsure is said to be inconclusive (docs/decisions)."""

SHORT_REPLAY_S = 5.0
SHORT_SHARE = 1 / 12
"""A cap that cannot be the answer is replayed for its iterations alone, and seconds hold enough of
them: five of a step of 60 s, and the same share of a shorter one (docs/numbers.md)."""

STEPS = 20 / 3
"""Steps that a sweep may replay: a ramp, three whole rungs, two confirming replays, and short ones.
At 60 s a step that is 400 s."""

DRIFT_RAMP_SHARE = 0.25
"""Share of a step for the ramp at the end, which shows whether the machine has changed. A longer
one would show less of that change more surely, and leave less for the rungs."""

MAX_RAMPS = 3
"""Ramps until the choice is CONFIDENT: on simulated machines it mostly is after one
(docs/deciding.md). Each takes the time of a rung."""


def doubling(ceiling: int) -> tuple[int, ...]:
    """Return the caps to try.

    >>> doubling(48)
    (1, 2, 4, 8, 16, 32, 48)
    """
    caps = [1]
    while caps[-1] * 2 <= ceiling:
        caps.append(caps[-1] * 2)
    return tuple(caps) if caps[-1] == ceiling else (*caps, ceiling)


def cut_floor(best: float) -> float:
    """Return the attainment under which a replay has lost already to the best so far."""
    return max(HALF, best - EQUAL_ATTAINMENT)


def short_s(step_s: float) -> float:
    """Return how long a step that cannot be the answer is replayed, for its iterations."""
    return min(SHORT_REPLAY_S, SHORT_SHARE * step_s)


def next_for_twin(
    done: Sequence[Trial],
    view: Forecast | None,
    *,
    ceiling: int,
    steps_left: float,
    disturbed: Collection[int] = (),
) -> Trial | None:
    """Return what to measure next so that the twin can be asked, or None when it can.

    First the ramp, again until the choice is sure. Then up the ladder, as far as ``steps_left``
    allows: whole windows at the choice and beside it, a short replay of what is below. Then these
    once more during which something else was at work (``disturbed`` caps), the choice first. Last
    a ramp that shows drift.
    """
    counts = Counter(trial.purpose for trial in done)
    unsure = view is None or view.choice.confidence < CONFIDENT
    if view is None or (unsure and counts["ramp"] < MAX_RAMPS and steps_left >= 1.0):
        return Trial(ceiling, "ramp")
    rung = _next_rung(done, view.choice.best, ceiling=ceiling, steps_left=steps_left)
    if rung is not None:
        return rung
    again = {trial.max_num_seqs for trial in done if trial.purpose == "tie_break"}
    todo = [cap for cap in _neighbors(view.choice.best, ceiling) if cap in {*disturbed} - again]
    if todo and steps_left >= 1.0:
        return Trial(todo[0], "tie_break")
    most = 2 if abs(moved(view)) > DRIFT_LIMIT else 1
    return Trial(ceiling, "drift_ramp") if counts["drift_ramp"] < most else None


def _neighbors(choice: int, ceiling: int) -> list[int]:
    """Return the choice, the cap above it and the cap below, where there are such."""
    caps = doubling(ceiling)
    place = caps.index(choice)
    return [choice, *caps[place + 1 : place + 2], *caps[max(0, place - 1) : place]]


def _next_rung(
    done: Sequence[Trial], choice: int, *, ceiling: int, steps_left: float
) -> Trial | None:
    """Return the lowest rung up to the one above the choice that is still to be replayed."""
    whole = {trial.max_num_seqs for trial in done if trial.purpose == "ladder"}
    seen = whole | {trial.max_num_seqs for trial in done if trial.purpose == "short"}
    caps = doubling(ceiling)
    place = caps.index(choice)
    affordable = int(steps_left - DRIFT_RAMP_SHARE) if whole else max(1, int(steps_left))
    missing = [cap for cap in _neighbors(choice, ceiling) if cap not in whole][: max(0, affordable)]
    for cap in caps[: place + 2]:
        if cap in missing:
            return Trial(cap, "ladder")
        if cap not in seen:
            return Trial(cap, "short")
    return None


def next_trial(blocks: Sequence[Block], *, ceiling: int) -> Trial | None:
    """Return what to measure next, or None when a decision can be taken.

    Up the ladder until more slots cannot help. Then each plausible cap once more on the way down,
    so that a steady drift falls on all alike. Then the first cap again, to show drift. Then, while
    the decision is unsure, the caps that it lies between.
    """
    tried = {block.trial.max_num_seqs for block in blocks if block.trial.purpose == "ladder"}
    rest = [cap for cap in doubling(ceiling) if cap not in tried]
    if rest and not ladder_is_done(blocks):
        return Trial(rest[0], "ladder")
    repeated = {block.trial.max_num_seqs for block in blocks if block.trial.purpose == "repeat"}
    plausible = _plausible(blocks)
    todo = sorted(plausible - repeated, reverse=True)
    if todo:
        return Trial(todo[0], "repeat")
    drifts = sum(block.trial.purpose == "drift_replay" for block in blocks)
    if len(tried) > 1 and drifts < (2 if abs(drift(blocks)) > DRIFT_LIMIT else 1):
        return Trial(blocks[0].trial.max_num_seqs, "drift_replay")
    extra = sum(block.trial.purpose == "tie_break" for block in blocks)
    if extra < MAX_EXTRA_BLOCKS and len(plausible) > 1:
        verdict = verdict_by_windows(blocks, ceiling=ceiling)
        if verdict.confidence < CONFIDENT:
            return Trial(_least_sure(blocks, verdict), "tie_break")
    return None


def _plausible(blocks: Sequence[Block]) -> set[int]:
    """Return the caps that noise could make the best, and the neighbours of the choice. One that
    was cut may only have met a bad moment, so it is plausible unless arithmetic rules it out."""
    curve = pooled(blocks)
    alive = {cap: one for cap, one in curve.items() if one.cut is None}
    if not alive:
        return set()
    attainment_sd, _ = noise(blocks, "attainment")
    tail_sd, _ = noise(blocks, "e2el_p99_s")
    most = max(one.attainment for one in alive.values()) - EQUAL_ATTAINMENT - 3 * attainment_sd
    tails_s = {
        cap: one.e2el_s.p99
        for cap, one in alive.items()
        if one.attainment >= most and one.e2el_s is not None
    }
    longest_s = min(tails_s.values()) * EQUAL_TAIL * math.exp(3 * tail_sd)
    caps, best = {cap for cap, tail_s in tails_s.items() if tail_s <= longest_s}, best_of(alive)
    above = [cap for cap in curve if cap > best]
    below = [cap for cap, one in curve.items() if cap < best and not one.ruled_out]
    return {*caps, best, *above[:1], *below[-1:]}


def _least_sure(blocks: Sequence[Block], verdict: Verdict) -> int:
    """Return which of the choice and its rivals has the fewest blocks."""
    counts = {cap: one.blocks for cap, one in pooled(blocks).items() if one.cut is None}
    rivals = {verdict.max_num_seqs, *verdict.interval} & counts.keys()
    return min(rivals, key=lambda cap: (counts[cap], cap))

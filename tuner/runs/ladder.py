"""The ladder: the next cap to measure, and for how long. Pure."""

from collections import Counter
from collections.abc import Sequence

from tuner.traffic.constants import CONFIDENT, DRIFT_LIMIT, EQUAL_ATTAINMENT, HALF
from tuner.twin.forecast import Forecast
from tuner.twin.verdict import choice_by_windows, ladder_is_done, moved
from tuner.twin.windows import Block, Trial, drift, pooled

SHORT_REPLAY_S, SHORT_SHARE = 5.0, 1 / 12
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
    return (*(2**power for power in range((ceiling - 1).bit_length())), ceiling)


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
) -> Trial | None:
    """Return what to measure next so that the twin can decide, or None when it can.

    First the ramp, again until the choice is sure. Then up the ladder, as far as ``steps_left``
    allows: whole windows at the choice and beside it, a short replay of what is below. Last a ramp
    that shows drift.
    """
    counts = Counter(trial.purpose for trial in done)
    unsure = view is None or view.choice.confidence < CONFIDENT
    if view is None or (unsure and counts["ramp"] < MAX_RAMPS and steps_left >= 1.0):
        return Trial(ceiling, "ramp")
    caps, choice = doubling(ceiling), view.choice.best
    near = neighbors(choice, caps)
    tried = {trial.max_num_seqs for trial in done if trial.purpose == "ladder"}
    seen = tried | {trial.max_num_seqs for trial in done if trial.purpose == "short"}
    affordable = int(steps_left - DRIFT_RAMP_SHARE) if tried else max(1, int(steps_left))
    missing = [cap for cap in near if cap not in tried][: max(0, affordable)]
    for cap in caps[: caps.index(choice) + 2]:
        if cap in missing:
            return Trial(cap, "ladder")
        if cap not in seen:
            return Trial(cap, "short")
    most = 2 if abs(moved(view)) > DRIFT_LIMIT else 1
    return Trial(ceiling, "drift_ramp") if counts["drift_ramp"] < most else None


def neighbors(choice: int, caps: Sequence[int]) -> list[int]:
    """Return the choice, the cap above it and the cap below, where there are any."""
    place = caps.index(choice)
    return [choice, *caps[place + 1 : place + 2], *caps[max(0, place - 1) : place]]


def next_trial(blocks: Sequence[Block], *, ceiling: int) -> Trial | None:
    """Return what to measure next so that the windows can decide alone, or None when they can.

    Up the ladder until more slots cannot help. Then the best cap and those beside it once more on
    the way down, so that a steady drift falls on all alike. Then the first cap again, to show
    drift.
    """
    tried = {block.trial.max_num_seqs for block in blocks if block.trial.purpose == "ladder"}
    rest = [cap for cap in doubling(ceiling) if cap not in tried]
    if rest and not ladder_is_done(blocks):
        return Trial(rest[0], "ladder")
    curve = pooled(blocks)
    alive = {cap: numbers for cap, numbers in curve.items() if numbers.cut is None}
    near = neighbors(choice_by_windows(blocks).best, tuple(curve)) if alive else []
    again = {block.trial.max_num_seqs for block in blocks if block.trial.purpose == "repeat"}
    for cap in sorted({*near} - again, reverse=True):
        return Trial(cap, "repeat")
    drifts = sum(block.trial.purpose == "drift_replay" for block in blocks)
    if len(tried) > 1 and drifts < (2 if abs(drift(blocks)) > DRIFT_LIMIT else 1):
        return Trial(blocks[0].trial.max_num_seqs, "drift_replay")
    return None

"""What to measure next, where the knee is, and why. Pure: numbers in, a verdict out.

The objective, in words: serve the most requests within the SLO; among equals the shortest tail;
among equals the fewest slots. docs/decisions says why, and what would change our mind.
"""

import heapq
import math
from collections.abc import Iterable, Sequence

from tuner.reasons import (
    Verdict,
    headline,
    kind_of,
    kv_warnings,
    overloaded,
    unfinished,
)
from tuner.slo import Slo, Unloaded
from tuner.trace import TraceRequest
from tuner.uncertainty import (
    EQUAL_ATTAINMENT,
    EQUAL_TAIL,
    Block,
    Point,
    Trial,
    certainty,
    choose,
    drift,
    never_binds,
    noise,
    points,
)

OBJECTIVE = "most requests within the SLO, then the shortest p99 E2EL, then the fewest slots"

HOPELESS = 0.5
CONFIDENT = 0.95
DEFENSIBLE = 0.80
"""Below this share of draws that agree the verdict is inconclusive."""

MAX_EXTRA_BLOCKS = 2
DRIFT_LIMIT = 0.10
FASTEST = 0.8
"""How long a slot is held at least, of what the probes say: they were few, on a busy machine."""

RULED_OUT_REPLAY_S = 5.0
"""How long a step that arithmetic has ruled out is replayed, for its iterations."""


def doubling(ceiling: int) -> tuple[int, ...]:
    """Return the caps to try.

    >>> doubling(48)
    (1, 2, 4, 8, 16, 32, 48)
    """
    caps = [1]
    while caps[-1] * 2 <= ceiling:
        caps.append(caps[-1] * 2)
    return tuple(caps) if caps[-1] == ceiling else (*caps, ceiling)


def cut_floor(blocks: Sequence[Block]) -> float:
    """Return the attainment under which a replay has lost already."""
    whole = (block.measurement for block in blocks if not block.measurement.cut)
    best = max((one.attainment for one in whole), default=0.0)
    return max(HOPELESS, best - EQUAL_ATTAINMENT)


def littles_bound(
    requests: Iterable[TraceRequest],
    unloaded: Unloaded,
    slo: Slo,
    *,
    cap: int,
    scored_from_s: float,
) -> float:
    """Return the most that ``cap`` can attain of the requests from ``scored_from_s`` on (those
    before only hold slots) if each holds its slot hardly longer than on an idle engine.

    First come first served over ``cap`` slots: no real schedule starts them earlier. Aborted ones
    take no slot and are all taken for good, which can only raise the bound.
    """
    free = [-math.inf] * cap
    good = total = 0
    for one in requests:
        scored = one.arrival_s >= scored_from_s
        total += scored
        if one.status != "ok":
            good += scored
            continue
        residence_s = FASTEST * unloaded.residence_s(one.input_length, max(1, one.output_length))
        starts_s = []
        for _ in range(one.n):
            starts_s.append(max(one.arrival_s, heapq.heappop(free)))
            heapq.heappush(free, starts_s[-1] + residence_s)
        in_time = min(starts_s) - one.arrival_s <= slo.ttft_limit_s(one.input_length)
        good += scored and in_time
    return good / total if total else 1.0


def next_trial(blocks: Sequence[Block], *, ceiling: int) -> Trial | None:
    """Return what to measure next, or None when a decision can be taken.

    Up the ladder until more slots cannot help; then each plausible cap once more on the way down,
    so that a steady drift falls on all alike; then the first cap again as a control; then, while
    the decision is unsure, the caps that it lies between.
    """
    climbed = {block.trial.max_num_seqs for block in blocks if block.trial.purpose == "ladder"}
    rest = [cap for cap in doubling(ceiling) if cap not in climbed]
    if rest and not _ladder_is_done(blocks):
        return Trial(rest[0], "ladder")
    repeated = {block.trial.max_num_seqs for block in blocks if block.trial.purpose == "repeat"}
    plausible = _plausible(blocks)
    todo = sorted(plausible - repeated, reverse=True)
    if todo:
        return Trial(todo[0], "repeat")
    controls = sum(block.trial.purpose == "bracket" for block in blocks)
    if len(climbed) > 1 and controls < (2 if abs(drift(blocks)) > DRIFT_LIMIT else 1):
        return Trial(blocks[0].trial.max_num_seqs, "bracket")
    extra = sum(block.trial.purpose == "again" for block in blocks)
    if extra < MAX_EXTRA_BLOCKS and len(plausible) > 1:
        verdict = decide(blocks, ceiling=ceiling)
        if verdict.confidence < CONFIDENT:
            return Trial(_least_sure(blocks, verdict), "again")
    return None


def decide(blocks: Sequence[Block], *, ceiling: int, complete: bool = True) -> Verdict:
    """Return the verdict that these blocks support.

    ``complete`` is False when the budget ended the run before ``next_trial`` did.
    """
    curve = points(blocks)
    alive = [point for point in curve if not point.cut]
    if not complete and not _ladder_is_done(blocks) and curve[-1].cap < ceiling:
        return unfinished(curve, _best(alive).cap if alive else curve[-1].cap, ceiling)
    if not alive or max(point.attainment for point in alive) < HOPELESS:
        return overloaded(curve)
    best = _best(alive)
    interval, confidence = certainty(blocks, best.cap)
    kind, why = kind_of(best, curve, ceiling)
    warnings = [*_drift_warnings(blocks), *kv_warnings(best)]
    if confidence < DEFENSIBLE:
        kind = "inconclusive"
        why = (
            f"between {interval[0]} and {interval[1]} the differences are within the noise; "
            "a longer --window or a quieter machine would settle it"
        )
    elif confidence < CONFIDENT:
        warnings.append(f"confidence {confidence:.2f} is below {CONFIDENT}: rivals are close")
    return Verdict(
        kind=kind,
        max_num_seqs=best.cap,
        interval=interval,
        confidence=confidence,
        reason=f"{headline(kind, best.cap, interval)}: {why}",
        warnings=tuple(warnings),
    )


def _best(alive: Sequence[Point]) -> Point:
    cap = choose({point.cap: (point.attainment, point.log_tail) for point in alive})
    return next(point for point in alive if point.cap == cap)


def _ladder_is_done(blocks: Sequence[Block]) -> bool:
    """Whether a larger cap cannot help: the top never bound, or is worse than the best for sure."""
    curve = points(blocks)
    alive = [point for point in curve if not point.cut]
    if not alive:
        return False
    top, best = curve[-1], _best(alive)
    if top.cut:
        return top.last.attainment_bound < best.attainment - EQUAL_ATTAINMENT
    if never_binds(top.last):
        return True
    tail_sd, _ = noise(blocks, "e2el_p99_ms")
    sure = math.log(EQUAL_TAIL) + 1.645 * math.sqrt(2) * tail_sd
    return top.log_tail > best.log_tail + sure and top.attainment <= best.attainment


def _plausible(blocks: Sequence[Block]) -> set[int]:
    """Return the caps that noise could make the best, and the neighbours of the choice: one that
    was cut may only have met a bad moment, unless arithmetic rules it out."""
    alive = [point for point in points(blocks) if not point.cut]
    if not alive:
        return set()
    attainment_sd, _ = noise(blocks, "attainment")
    tail_sd, _ = noise(blocks, "e2el_p99_ms")
    most = max(point.attainment for point in alive) - EQUAL_ATTAINMENT - 3 * attainment_sd
    kept = [point for point in alive if point.attainment >= most]
    shortest = min(point.log_tail for point in kept) + math.log(EQUAL_TAIL) + 3 * tail_sd
    caps = {point.cap for point in kept if point.log_tail <= shortest}
    best = _best(alive)
    above = [point.cap for point in points(blocks) if point.cap > best.cap]
    below = [p.cap for p in points(blocks) if p.cap < best.cap and not p.last.ruled_out]
    return {*caps, best.cap, *above[:1], *below[-1:]}


def _least_sure(blocks: Sequence[Block], verdict: Verdict) -> int:
    """Return which of the choice and its rivals has the fewest blocks."""
    counts = {point.cap: point.blocks for point in points(blocks) if not point.cut}
    rivals = {verdict.max_num_seqs, *verdict.interval} & counts.keys()
    return min(rivals, key=lambda cap: (counts[cap], cap))


def _drift_warnings(blocks: Sequence[Block]) -> list[str]:
    moved = drift(blocks)
    if abs(moved) <= DRIFT_LIMIT:
        return []
    return [
        (
            f"the machine drifted: decode time of the first step was {moved:+.0%} when measured "
            "again; the noise estimate includes it"
        )
    ]

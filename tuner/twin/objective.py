"""The choice of a cap, for the recorded load and for the headroom. Pure; the one rule that decides.

  today  = caps with A(1, m) >= max A(1, .) - tol, of these those with p99 E2EL <= 1.05 x the
           shortest
  choice = the smallest m of today with A(h, m) >= max over today of A(h, .) - tol

with A the attainment at a load, 1 and h = headroom, and tol = 0.01, or two requests where these are
more. Where no candidate serves half at the headroom, or there is no headroom, it is the smallest of
today. docs/decisions says why, and what would change our mind.

An answer is *right* where nobody could distinguish it from the choice for any practical purpose
(``right_caps``); a load *holds* where it costs next to nothing (``holds``).
"""

import math
from collections.abc import Collection, Mapping, Sequence

OBJECTIVE = (
    "most requests within the SLO today, then the shortest p99 E2EL; of these most within the SLO "
    "with headroom, then the fewest slots"
)

EQUAL_ATTAINMENT, EQUAL_TAIL = 0.01, 1.05
"""Caps within these of the best count as equal to it."""

GOOD_ATTAINMENT, GOOD_TAIL = 0.02, 1.10
"""An answer within these of the true best is right for every practical purpose."""

FEW_REQUESTS = 2
"""So many more or less served are no difference, however few there are in all."""

HALF = 0.5
"""Attainment below which a cap does not serve a load."""

INTERVAL = 0.95

Values = Mapping[int, tuple[float, float]]
"""Cap → (attainment, log of p99 E2EL in seconds), at the recorded load."""

Shares = Mapping[int, float]
"""Cap → attainment at the headroom load; empty where there is none: then today alone decides."""

NOT_ASKED: Shares = {}


def candidates(values: Values, *, requests: int | None = None) -> list[int]:
    """Return the caps that serve the recorded load as well as any, ascending.

    >>> candidates({8: (0.80, 0.0), 16: (0.990, 0.02), 32: (0.992, 0.0)})
    [16, 32]
    """
    least = max(share for share, _ in values.values()) - _within(EQUAL_ATTAINMENT, requests)
    kept = {cap: tail for cap, (share, tail) in sorted(values.items()) if share >= least}
    longest = min(kept.values()) + math.log(EQUAL_TAIL)
    return [cap for cap, tail in kept.items() if tail <= longest]


def choose(values: Values, raised: Shares = NOT_ASKED, *, requests: int | None = None) -> int:
    """Return the cap to take. ``raised`` holds the candidates at least, or nothing.

    >>> served = {8: (0.991, 0.0), 16: (0.992, 0.0), 32: (0.90, 0.0)}
    >>> choose(served), choose(served, {8: 0.93, 16: 0.98, 32: 0.99})
    (8, 16)
    """
    found = candidates(values, requests=requests)
    most = _most(found, raised)
    if most < HALF:
        return found[0]
    return min(cap for cap in found if raised[cap] >= most - _within(EQUAL_ATTAINMENT, requests))


def right_caps(
    values: Values, raised: Shares = NOT_ASKED, *, requests: int | None = None
) -> set[int]:
    """Return the caps that are as good as the choice for every practical purpose: today, and where
    a candidate serves half of it with headroom. ``raised`` holds all caps, or nothing.

    >>> served = {4: (0.975, 0.0), 8: (0.985, 0.09), 16: (0.999, 0.0), 32: (0.99, 0.2)}
    >>> right_caps(served), right_caps(served, {4: 0.9, 8: 0.9, 16: 0.97, 32: 0.98})
    ({8, 16}, {16})
    """
    share, tail = values[choose(values, raised, requests=requests)]
    good = {
        cap
        for cap, (attainment, log_tail) in values.items()
        if attainment >= share - GOOD_ATTAINMENT and log_tail <= tail + math.log(GOOD_TAIL)
    }
    most = _most(candidates(values, requests=requests), raised)
    if most < HALF:
        return good
    return {cap for cap in good if raised[cap] >= most - _within(GOOD_ATTAINMENT, requests)}


def holds(today: float, raised: float) -> bool:
    """Whether a cap with so much attainment today still holds a load with so much.

    >>> holds(0.99, 0.975), holds(0.99, 0.96), holds(0.45, 0.45)
    (True, False, False)
    """
    return raised >= HALF and raised >= today - GOOD_ATTAINMENT


def interval_of(
    best: int, right: Sequence[Collection[int]], caps: Sequence[int]
) -> tuple[int, int]:
    """Return the caps between which 95 % of draws have a right one: the choice, and the neighbor
    that is right in most of the other draws, again and again.

    >>> interval_of(8, [{8}] * 18 + [{16}] + [{4}], (2, 4, 8, 16))
    (8, 16)
    """
    caps = sorted(caps)
    low = high = caps.index(best)
    while True:
        others = [draw for draw in right if not {*caps[low : high + 1]} & {*draw}]
        if len(others) <= (1 - INTERVAL) * len(right) + 1e-9:
            return caps[low], caps[high]
        # of equal neighbors the one on whose side more of the others lie, then the larger
        below = [sum(not {*side}.isdisjoint(draw) for draw in others)
                 for side in (caps[max(0, low - 1) : low], caps[:low])]  # fmt: skip
        above = [sum(not {*side}.isdisjoint(draw) for draw in others)
                 for side in (caps[high + 1 : high + 2], caps[high + 1 :])]  # fmt: skip
        low, high = (low - 1, high) if below > above else (low, high + 1)


def _most(caps: Collection[int], raised: Shares) -> float:
    return max((raised[cap] for cap in caps), default=0.0) if raised else 0.0


def _within(tolerance: float, requests: int | None) -> float:
    return tolerance if not requests else max(tolerance, FEW_REQUESTS / requests)

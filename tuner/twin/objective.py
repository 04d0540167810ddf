"""The choice of a cap, for today's load and for the headroom. Pure, and the one place that decides.

Of the caps that serve today's load as well as any, the fewest slots that also serve the headroom
load as well as any of them:

  today  = caps with A(1, m) >= max A(1, .) - tol, of these those with p99 E2EL <= 1.05 x the
           shortest
  choice = the smallest m of today with A(h, m) >= max over today of A(h, .) - tol

with A the attainment at a load, 1 and h = headroom, and tol = 0.01, or two requests where these are
more. Today is never traded: an equal that serves 0.002 less today than the fewest slots of today is
no candidate, however few requests that is. Where no candidate serves half at the headroom, or the
headroom is not asked about, it is the smallest of today. docs/decisions says why, and what would
change our mind.

An answer is *right* where nobody could tell it from the choice for any practical purpose
(``right_caps``); a load *holds* where it costs next to nothing (``holds``).
"""

import math
from collections.abc import Collection, Mapping, Sequence

OBJECTIVE = (
    "most requests within the SLO today, then the shortest p99 E2EL; of these most within the SLO "
    "with headroom, then the fewest slots"
)

EQUAL_ATTAINMENT = 0.01
EQUAL_TAIL = 1.05
"""Caps within these of the best count as equal to it."""

FEW_REQUESTS = 2
"""So many more or less served are no difference, however few there are in all."""

UNTRADED = 0.002
"""Attainment today that no attainment with headroom is worth."""

GOOD_ATTAINMENT = 0.02
GOOD_TAIL = 1.10
"""An answer within these of the true best is right for every practical purpose."""

INTERVAL = 0.95

HALF = 0.5
"""Attainment below which a cap does not serve a load."""

Values = Mapping[int, tuple[float, float]]
"""Cap → (attainment, log of p99 E2EL in seconds), at today's load."""

Shares = Mapping[int, float]
"""Cap → attainment at the headroom load."""

NOT_ASKED: Shares = {}
"""Of a headroom load that nobody asks about: then today alone decides."""


def equals(values: Values, *, requests: int | None = None) -> list[int]:
    """Return the caps that serve today's load as well as any, ascending.

    >>> equals({8: (0.80, 0.0), 16: (0.990, 0.02), 32: (0.992, 0.0)})
    [16, 32]
    """
    most = max(attainment for attainment, _ in values.values())
    within = _within(EQUAL_ATTAINMENT, requests)
    kept = {
        cap: tail
        for cap, (attainment, tail) in sorted(values.items())
        if attainment >= most - within
    }
    shortest = min(kept.values())
    return [cap for cap, tail in kept.items() if tail <= shortest + math.log(EQUAL_TAIL)]


def candidates(values: Values, *, requests: int | None = None) -> list[int]:
    """Return today's equals that cost nothing today against the smallest of them.

    >>> candidates({8: (0.994, 0.0), 16: (0.993, 0.0), 32: (0.986, 0.0)})
    [8, 16]
    """
    found = equals(values, requests=requests)
    return [cap for cap in found if not trades(values, found[0], cap)]


def trades(values: Values, cap: int, other: int) -> bool:
    """Whether another cap serves less of today's load than this one for what it serves of more.

    >>> trades({8: (0.994, 0.0), 16: (0.991, 0.0)}, 8, 16)
    True
    """
    return values[other][0] < values[cap][0] - UNTRADED


def choose(values: Values, raised: Shares = NOT_ASKED, *, requests: int | None = None) -> int:
    """Return the cap to take. ``raised`` holds the candidates at least, or nothing.

    >>> served = {8: (0.991, 0.0), 16: (0.992, 0.0), 32: (0.90, 0.0)}
    >>> choose(served), choose(served, {8: 0.93, 16: 0.98, 32: 0.99})
    (8, 16)
    """
    found = candidates(values, requests=requests)
    most = max((raised[cap] for cap in found), default=0.0) if raised else 0.0
    if most < HALF:
        return found[0]
    return min(cap for cap in found if raised[cap] >= most - _within(EQUAL_ATTAINMENT, requests))


def right_caps(
    values: Values, raised: Shares = NOT_ASKED, *, requests: int | None = None
) -> set[int]:
    """Return the caps that are as good as the choice for every practical purpose: today, and where
    a candidate serves half of it with headroom. ``raised`` holds ``deciding`` ones, or nothing.

    >>> served = {4: (0.975, 0.0), 8: (0.985, 0.09), 16: (0.999, 0.0), 32: (0.99, 0.2)}
    >>> right_caps(served), right_caps(served, {4: 0.9, 8: 0.9, 16: 0.97, 32: 0.98})
    ({8, 16}, {16})
    """
    good = _as_good(values, choose(values, raised, requests=requests))
    found = candidates(values, requests=requests)
    most = max((raised[cap] for cap in found), default=0.0) if raised else 0.0
    if most < HALF:
        return good
    within = _within(GOOD_ATTAINMENT, requests)
    return {cap for cap in good if raised[cap] >= most - within}


def deciding(values: Values, *, requests: int | None = None) -> list[int]:
    """Return the caps whose attainment with headroom decides which are right, by today's load;
    none where today decides alone.

    >>> deciding({4: (0.90, 0.0), 8: (0.99, 0.0), 16: (0.99, 0.0)})
    [8, 16]
    >>> deciding({4: (0.90, 0.0), 8: (0.99, 0.0), 16: (0.95, 0.0)})
    []
    """
    found = candidates(values, requests=requests)
    asked = {*found, *(cap for one in found for cap in _as_good(values, one))}
    return sorted(asked) if len(asked) > 1 else []


def _as_good(values: Values, choice: int) -> set[int]:
    """Return the caps that serve today's load as well as the choice for every practical purpose."""
    share, tail = values[choice]
    return {
        cap
        for cap, (attainment, log_tail) in values.items()
        if attainment >= share - GOOD_ATTAINMENT and log_tail <= tail + math.log(GOOD_TAIL)
    }


def holds(today: float, raised: float) -> bool:
    """Whether a cap with so much attainment today still holds a load with so much.

    >>> holds(0.99, 0.975), holds(0.99, 0.96), holds(0.45, 0.45)
    (True, False, False)
    """
    return raised >= HALF and raised >= today - GOOD_ATTAINMENT


def worth_naming(values: Values, raised: Shares, choice: int) -> int | None:
    """Return the cap outside of today's candidates that would serve more than a tolerance more with
    headroom than the choice, the most of them; None where there is none.

    >>> worth_naming({8: (0.99, 0.0), 16: (0.95, 0.0)}, {8: 0.7, 16: 0.9}, 8)
    16
    """
    if choice not in raised:
        return None
    others: Collection[int] = raised.keys() - set(candidates(values))
    best = max(others, key=lambda cap: (raised[cap], -cap), default=None)
    if best is None or raised[best] <= raised[choice] + GOOD_ATTAINMENT:
        return None
    return best


def interval_of(
    best: int, right: Sequence[Collection[int]], caps: Sequence[int]
) -> tuple[int, int]:
    """Return the caps between which 95 % of draws have a right one: the choice, and the neighbour
    that is right in most of the other draws, again and again.

    >>> interval_of(8, [{8}] * 18 + [{16}] + [{4}], (2, 4, 8, 16))
    (8, 16)
    """
    caps = sorted(caps)
    low = high = caps.index(best)
    while True:
        inside = set(caps[low : high + 1])
        others = [one for one in right if not inside & set(one)]
        if len(others) <= (1 - INTERVAL) * len(right) + 1e-9:
            return caps[low], caps[high]
        below, above = caps[:low], caps[high + 1 :]
        # of equal neighbours the one on whose side more of the others lie, then the larger
        down = _agree(others, below[-1:]), _agree(others, below)
        up = _agree(others, above[:1]), _agree(others, above)
        low, high = (low - 1, high) if down > up else (low, high + 1)


def _agree(draws: Sequence[Collection[int]], caps: Collection[int]) -> int:
    return sum(not set(caps).isdisjoint(one) for one in draws)


def _within(tolerance: float, requests: int | None) -> float:
    return tolerance if not requests else max(tolerance, FEW_REQUESTS / requests)

"""Which windows the pairs replay: such as gain by the twin what all of the traffic gains. Pure.

Few windows gain more, or less, than all of the traffic does, and of that the twin knows the most:
what it knows need be neither left to chance nor taken out afterwards (balanced sampling: Deville
and Tillé, Biometrika 91, 2004). Every pair has windows of its own, so that how far the pairs differ
also says what the twin does not know of windows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.refine.knobs import Configuration
from tuner.refine.luck import Twin, beside, seen
from tuner.refine.objective import GOODPUT, LEAST_ATTAINMENT, OBJECTIVES, TAIL, Objective
from tuner.refine.screen import Screen
from tuner.scheduler.state import Floats, Ints
from tuner.twin.simulation import met
from tuner.window import Window, run_in_before_s
from tuner.workload import Workload

MOST_CANDIDATES = 200
SPACING = 0.5
"""From one candidate to the next, of a window's length."""

DRAWS = 10_000
"""Random choices, of which those that serve like all of the traffic are looked at closely."""

CLOSELY = 64
EVEN = 0.1
"""What it counts that both attain more, or less, than of all, beside that one does."""

TIE = 0.05
"""What the tail counts, which decides where goodput does not: few windows hardly show it."""

Windows = tuple[Window, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    window: Window
    sides: tuple[Twin, Twin]
    """What the twin says of the knee there, and of the other."""


def balanced(
    workload: Workload,
    screen: Screen | None,
    one: Configuration,
    objective: Objective,
    *,
    pairs: int,
) -> tuple[Windows, ...]:
    """Return the windows of each pair in which ``one`` is compared with the knee, as many and
    together as long as the search's: those themselves where the twin cannot tell of both, or where
    the traffic is hardly longer."""
    size = len(workload.windows)
    candidates: list[_Candidate] = []
    if screen is not None and screen.tells(one):
        candidates = _candidates(workload, screen, one)
    if screen is None or len(candidates) <= size:
        return (workload.windows,) * pairs
    sides = (screen.knee, one)
    drawn = _serving_alike(candidates, (pairs, size), screen, sides)
    worth = {TAIL.name: TIE, GOODPUT.name: 1.0, objective.name: 1.0}
    aims = [OBJECTIVES[name] for name in worth]
    lucks = np.array(
        [
            [_lucks([candidates[i] for i in pair], screen, sides, aims) for pair in each]
            for each in drawn
        ]
    )
    unlike = sum(
        worth[aim.name] * _unlike(lucks[..., place], is_share=aim.is_share) / aim.prior_sd
        for place, aim in enumerate(aims)
    )
    best = drawn[np.argmin(unlike)]
    return tuple(tuple(candidates[i].window for i in sorted(pair)) for pair in best)


def _candidates(workload: Workload, screen: Screen, one: Configuration) -> list[_Candidate]:
    """Return windows all over the traffic, with what the twin says of both there."""
    length_s = sum(window.length_s for window in workload.windows) / len(workload.windows)
    run_in_s = run_in_before_s(length_s, room_s=math.inf)
    first_s, last_s = (float(screen.traffic.arrival_s[end]) for end in (0, -1))
    room_s = last_s - first_s - run_in_s - length_s
    if room_s <= 0:
        return []
    count = min(MOST_CANDIDATES, 1 + int(room_s / (SPACING * length_s)))
    found = []
    for start_s in (first_s + run_in_s + np.linspace(0.0, room_s, count)).tolist():
        traffic = screen.traffic.between(start_s - run_in_s, start_s + length_s)
        knee, other = (
            screen.window(each, traffic, scored_from_s=start_s) for each in (screen.knee, one)
        )
        if knee.scored.any():
            found.append(_Candidate(Window(start_s, length_s, run_in_s), (knee, other)))
    return found


def _serving_alike(
    candidates: Sequence[_Candidate],
    shape: tuple[int, int],
    screen: Screen,
    sides: Sequence[Configuration],
) -> Ints:
    """Return choices, (choices, pairs, windows), in which both attain about what they do of all of
    the traffic. None has a candidate twice unless there are too few of them."""
    served = np.array(
        [
            [met(twin.traffic, twin.replay, screen.slo)[twin.scored].sum() for twin in each.sides]
            for each in candidates
        ],
        dtype=float,
    )
    scored = np.array([float(each.sides[0].scored.sum()) for each in candidates])
    size = math.prod(shape)
    often = math.ceil(size / len(candidates))
    order = np.random.default_rng(0).random((DRAWS, often * len(candidates))).argsort(axis=1)
    drawn = (order[:, :size] % len(candidates)).reshape(DRAWS, *shape)
    attained = served[drawn].sum(axis=2) / scored[drawn].sum(axis=2)[..., None]
    usual = np.array([screen.measurement(0, one).attainment for one in sides])
    lucks = (attained - usual) / np.maximum(LEAST_ATTAINMENT, usual)
    closest = np.argsort(_unlike(lucks, is_share=True), kind="stable")[:CLOSELY]
    found: Ints = drawn[closest]
    return found


def _lucks(
    candidates: Sequence[_Candidate],
    screen: Screen,
    sides: Sequence[Configuration],
    aims: Sequence[Objective],
) -> list[list[float]]:
    """Return how much better each side is there than in all of the traffic, of that, per aim."""
    found = []
    for place, one in enumerate(sides):
        usual = screen.measurement(0, one)
        lucks = beside(aims, seen([each.sides[place] for each in candidates], screen.slo), usual)
        served = max(LEAST_ATTAINMENT, usual.attainment)
        found.append(
            [luck / served if aim.is_share else luck for aim, luck in zip(aims, lucks, strict=True)]
        )
    return found


def _unlike(lucks: Floats, *, is_share: bool) -> Floats:
    """Return how far choices, (choices, pairs, sides), are from gaining what all of the traffic
    gains: the twin may be wrong of all of its windows alike, and of each by itself."""
    more = lucks[..., 1] - lucks[..., 0]
    each = np.sqrt((more**2).mean(axis=1) / more.shape[1])
    uneven = abs(lucks[..., 0].mean(axis=1)) if is_share else 0.0
    unlike: Floats = abs(more.mean(axis=1)) + each + EVEN * uneven
    return unlike

"""The choice of windows for the pairs: such as stand, by the twin, for all of the traffic. Pure.

A few windows gain more, or less, than all of the traffic does. Where the twin knows of that, it
need not be left to chance: of many random choices of windows the one is taken that by the twin is
most like all of the traffic (balanced sampling: Deville and Tillé, Biometrika 91, 2004). Every pair
has windows of its own, so that how far the pairs differ also shows what the twin does not know. The
test of the pairs knows nothing of this choice, which both sides replay.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.engines.scheduler.state import Floats, Ints
from tuner.runs.refine.knobs import Configuration
from tuner.runs.refine.objective import (
    GOODPUT,
    LEAST_ATTAINMENT,
    OBJECTIVES,
    TAIL,
    TAIL_PER_LOG,
    Objective,
)
from tuner.runs.refine.surrogate import Surrogate, WindowForecast, beside, pooled
from tuner.traffic.window import Window, run_in_before_s
from tuner.traffic.workload import Workload
from tuner.twin.simulation import met

MOST_TILES = 200
DRAWS = 10_000
CLOSELY = 64
"""Random choices that are made, and those of them that are looked at closely because they serve
most like all of the traffic: about a second's work."""

Windows = tuple[Window, ...]


@dataclass(frozen=True, slots=True)
class _Tile:
    window: Window
    sides: tuple[WindowForecast, WindowForecast]
    """What the twin says of the knee there, and of the other."""

    @property
    def requests(self) -> int:
        return int(self.sides[0].scored.sum())


def balanced(  # noqa: PLR0913 - what is compared, by which twin, on what
    workload: Workload,
    surrogate: Surrogate | None,
    one: Configuration,
    objective: Objective,
    *,
    pairs: int,
    hash_block_size: int,
) -> tuple[Windows, ...]:
    """Return the windows of each pair in which ``one`` is compared with the knee, as many and
    together as long as the search's.

    The search's own, for all pairs, where these stand for all of the traffic as well as any, where
    the twin cannot tell of both, and where the traffic is hardly longer.
    """
    if surrogate is None or not surrogate.tells(one):
        return (workload.windows,) * pairs
    look = _Look(workload, surrogate, one, hash_block_size)
    size = len(workload.windows)
    tiles = look.tiles()
    if len(tiles) <= size:
        return (workload.windows,) * pairs
    choices = [
        [[tiles[i] for i in sorted(pair)] for pair in choice]
        for choice in look.serving_alike(tiles, (pairs, size)).tolist()
    ]
    choices.append([[look.at(window) for window in workload.windows]])
    best = min(choices, key=lambda choice: look.unlike(choice, objective))
    return tuple(tuple(tile.window for tile in best[pair % len(best)]) for pair in range(pairs))


@dataclass(frozen=True, slots=True)
class _Look:
    """The twin, asked about windows."""

    workload: Workload
    surrogate: Surrogate
    one: Configuration
    hash_block_size: int

    def tiles(self) -> list[_Tile]:
        """Return windows all over the traffic, none of which overlap, with a whole run-in each."""
        windows, arrival_s = self.workload.windows, self.surrogate.traffic.arrival_s
        length_s = sum(window.length_s for window in windows) / len(windows)
        run_in_s = run_in_before_s(length_s, room_s=math.inf)
        room_s = float(np.ptp(arrival_s)) - run_in_s
        if room_s < length_s:
            return []
        first_s, count = float(arrival_s[0]) + run_in_s, int(room_s / length_s)
        apart_s = room_s / min(MOST_TILES, count)
        starts_s = (first_s + apart_s * place for place in range(min(MOST_TILES, count)))
        found = [self.at(Window(start_s, length_s, run_in_s)) for start_s in starts_s]
        return [tile for tile in found if tile.requests]

    def at(self, window: Window) -> _Tile:
        """Return what the twin says of both there: of a replay with a cache that is empty."""
        traffic = self.surrogate.sent_in(
            self.workload, window, hash_block_size=self.hash_block_size
        )
        knee, other = (self.surrogate.served(each, traffic, window) for each in self._sides())
        return _Tile(window, (knee, other))

    def serving_alike(self, tiles: Sequence[_Tile], shape: tuple[int, int]) -> Ints:
        """Return choices of tiles, (choices, pairs, tiles of each), in which both sides attain
        about what they do of all of the traffic.

        Tiles are drawn with a probability that goes by their requests. None is twice in a pair,
        nor in two pairs unless there are too few of them.
        """
        requests = np.array([float(tile.requests) for tile in tiles])
        good = np.array([[self._met(served) for served in tile.sides] for tile in tiles])
        rng, (pairs, size) = np.random.default_rng(0), shape
        if pairs * size <= len(tiles):
            order = (rng.exponential(size=(DRAWS, len(tiles))) / requests).argsort(axis=-1)
            drawn: Ints = order[:, : pairs * size].reshape(DRAWS, pairs, size)
        else:
            least = rng.exponential(size=(DRAWS, pairs, len(tiles))) / requests
            drawn = least.argpartition(size - 1, axis=-1)[:, :, :size]  # in whatever order
        attained = good[drawn].sum(axis=2) / requests[drawn].sum(axis=2)[..., None]
        of_all = np.array([self.surrogate.measurement(0, one).attainment for one in self._sides()])
        unlike = _unlike((attained - of_all) / np.maximum(LEAST_ATTAINMENT, of_all))
        return drawn[np.argsort(unlike, kind="stable")[:CLOSELY]]

    def unlike(self, choice: Sequence[Sequence[_Tile]], objective: Objective) -> float:
        """Return how far what is gained in the windows may be from what is gained of all, of all
        aims that an acceptance may rest on: of the tail so much as gains count it."""
        worth = {TAIL.name: TAIL_PER_LOG, GOODPUT.name: 1.0, objective.name: 1.0}
        aims = [OBJECTIVES[name] for name in worth]
        off = np.array([self._off(pair, aims) for pair in choice])
        return sum(
            worth[aim.name] * float(_unlike(off[..., place])) for place, aim in enumerate(aims)
        )

    def _off(self, pair: Sequence[_Tile], aims: Sequence[Objective]) -> list[list[float]]:
        """Return per side and aim how much better windows are than all of the traffic: a share of
        what that is."""
        found, times = [], {aim.time for aim in aims}
        for place, one in enumerate(self._sides()):
            of_all = self.surrogate.measurement(0, one)
            now = pooled([tile.sides[place] for tile in pair], self.surrogate.slo, times=times)
            attained = max(LEAST_ATTAINMENT, of_all.attainment)
            off = zip(aims, beside(aims, now, of_all), strict=True)
            found.append([each / attained if aim.is_share else each for aim, each in off])
        return found

    def _met(self, served: WindowForecast) -> float:
        return float(met(served.traffic, served.replay, self.surrogate.slo)[served.scored].sum())

    def _sides(self) -> tuple[Configuration, Configuration]:
        return self.surrogate.knee, self.one


def _unlike(off: Floats) -> Floats:
    """Return how far choices of windows are from all of the traffic, by what both sides are off:
    in what one gains over the other, in each side by itself, and in each pair by itself.
    (…, pairs, sides) → (…).

    >>> [float(_unlike(np.array(one)).round(2)) for one in ([[0.3, 0], [0, 0.3]], [[0.1, -0.1]])]
    [0.3, 0.32]
    """
    more, mean = off[..., 1] - off[..., 0], off.mean(axis=-2)
    of_each = (more**2).mean(axis=-1) / more.shape[-1]
    found: Floats = np.sqrt(more.mean(axis=-1) ** 2 + (mean**2).sum(axis=-1) + of_each)
    return found

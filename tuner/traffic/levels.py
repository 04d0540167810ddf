"""Count how many intervals hold at each time, a part at a time: ten million fit. Pure."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.trace.columns import Floats, Ints

CHUNK = 2**15
"""Intervals at a time: so many stay in a core's cache."""

DENSE = 2**22
"""Up to so many levels are counted in a table; more are hostile, and are sorted."""

LOOKS = 2**20
"""Times at which a long trace is looked at, where putting its events in order would take too
long."""

Counts = NDArray[Any]
"""Whole numbers, of 32 bits where they suffice."""


@dataclass(frozen=True, slots=True)
class Held:
    """The time that each level held, in order of the levels; those that never did are left out."""

    level: Ints
    seconds: Floats

    def mean(self) -> float:
        return float(self.level @ self.seconds / self.seconds.sum())

    def quantiles(self, *shares: float) -> tuple[int, ...]:
        """Return for each share of the time the least level that held for so much of it."""
        time_s = np.cumsum(self.seconds)
        at = np.searchsorted(time_s, np.array(shares) * time_s[-1] * (1 - 1e-12))
        return tuple(self.level[at].tolist())

    def max(self) -> int:
        return int(self.level[-1])

    def share_above(self, level: int) -> float:
        return float(self.seconds[self.level > level].sum() / self.seconds.sum())


@dataclass(frozen=True, slots=True)
class Levels:
    """The requests in flight, one entry for each stretch of time, in order."""

    level: Counts
    duration_s: NDArray[np.float32]
    start_s: float
    """When the first of them begins."""

    def held(self) -> Held:
        found = _Sum()
        for level, duration_s, _ in self._parts():
            found.add(level, duration_s)
        return found.held()

    def longest_above_s(self, level: int) -> float:
        """Return the longest time without a break with more than ``level`` in flight."""
        longest_s = lasting_s = 0.0
        for part, duration_s, _ in self._parts():
            above = part > level
            begins = np.flatnonzero(np.diff(above, prepend=not above[0]))
            runs_s = np.add.reduceat(duration_s, begins)
            if above[0]:
                runs_s[0] += lasting_s
            longest_s = max(longest_s, float(np.max(runs_s, where=above[begins], initial=0.0)))
            lasting_s = float(runs_s[-1]) if above[-1] else 0.0
        return longest_s

    def highest_in(self, edges_s: Floats) -> list[int | None]:
        """Return the most in flight between each two edges; None where nothing is known."""
        ended = np.zeros(len(edges_s), np.int64)  # stretches that end at or before each edge
        begun = np.where(edges_s > self.start_s, 1, 0)  # and those that begin before it
        for _, _, ends_s in self._parts():
            ended += np.searchsorted(ends_s, edges_s, side="right")
            begun += np.searchsorted(ends_s, edges_s, side="left")
        begun = np.minimum(begun, len(self.level))
        return [
            int(self.level[first:last].max()) if first < last else None
            for first, last in zip(ended[:-1].tolist(), begun[1:].tolist(), strict=True)
        ]

    def _parts(self) -> Iterator[tuple[Counts, Floats, Floats]]:
        """Yield levels, durations and ends, some at a time."""
        at_s = self.start_s
        for begin in range(0, len(self.level), CHUNK):
            duration_s = self.duration_s[begin : begin + CHUNK].astype(np.float64)
            ends_s = at_s + np.cumsum(duration_s)
            yield self.level[begin : begin + CHUNK], duration_s, ends_s
            at_s = float(ends_s[-1])


def count_levels(
    begins_s: Floats, ends_s: Floats, weight: Counts | None, *, start_s: float, end_s: float
) -> Levels | None:
    """Return how many of the intervals hold at each time in [start_s, end_s); None for no time.

    Each counts as often as ``weight`` says, None for once. The arrays are the caller's no more.
    """
    most = len(begins_s) if weight is None else int(weight.sum(dtype=np.int64))
    level = np.empty(2 * len(begins_s) + 1, np.int32 if most < 2**31 else np.int64)
    duration_s = np.empty(len(level), np.float32)
    filled = 0
    for every, each_s in _stretches(begins_s, ends_s, weight, start_s, end_s):
        lasting = each_s > 0  # nothing is in flight for no time: ends come before starts
        held, lasted_s = every[lasting], each_s[lasting]
        level[filled : filled + len(held)] = held
        duration_s[filled : filled + len(held)] = lasted_s
        filled += len(held)
    return Levels(level[:filled], duration_s[:filled], start_s) if filled else None


def count_held(
    begins_s: Floats, ends_s: Floats, weight: Counts | None, *, start_s: float, end_s: float
) -> Held | None:
    """Return how long each level held: ``count_levels`` without the order of things, in less
    memory."""
    found = _Sum()
    for level, lasted_s in _stretches(begins_s, ends_s, weight, start_s, end_s):
        found.add(level, lasted_s)
    held = found.held()
    return held if len(held.level) else None


def look_held(
    begins_s: Floats,
    each: NDArray[Any],
    weight: Counts | None,
    *,
    starts_s: Mapping[float, float],
    end_s: float,
) -> list[Held | None]:
    """``count_held`` of intervals that last ``each`` times a factor, seen at LOOKS times that are
    evenly apart: nothing is put in order.

    ``starts_s``: for each factor the time from which on. The begins are in order.
    """
    first_s = float(begins_s[0])
    apart_s = (end_s - first_s) / LOOKS
    if not apart_s > 0:
        return [None] * len(starts_s)
    seen = np.zeros((1 + len(starts_s), LOOKS + 1))
    for first in range(0, len(begins_s), CHUNK):
        begins = (begins_s[first : first + CHUNK] - first_s) / apart_s
        lasts = each[first : first + CHUNK] / apart_s
        some = None if weight is None else weight[first : first + CHUNK]
        least = min(math.ceil(begins[0]), LOOKS)  # they lie near each other, as requests come
        begins -= least
        for row, factor in enumerate((0.0, *starts_s)):
            looks = lasts * factor
            looks += begins
            np.minimum(np.ceil(looks, out=looks), LOOKS - least, out=looks)
            more = np.bincount(looks.astype(np.int64), some)
            seen[row, least : least + len(more)] += more
    begun, *ended = np.cumsum(seen[:, :LOOKS], axis=1)
    return [
        _seen(begun - until, max(0, math.ceil((start_s - first_s) / apart_s)), apart_s)
        for until, start_s in zip(ended, starts_s.values(), strict=True)
    ]


def _seen(levels: Floats, first: int, apart_s: float) -> Held | None:
    if first >= len(levels):
        return None
    level, times = np.unique(levels[first:].astype(np.int64), return_counts=True)
    return Held(level, times * np.float64(apart_s))


class _Sum:
    """Adds up how long each level held."""

    def __init__(self) -> None:
        self.parts: list[tuple[Counts, Floats]] = [(np.empty(0, np.int64), np.empty(0))]

    def add(self, level: Counts, duration_s: Floats) -> None:
        if not len(level):
            return
        least = int(level.min())
        if int(level.max()) - least > DENSE:
            there, of = np.unique(level, return_inverse=True)
            seconds = np.bincount(of, weights=duration_s)
        else:
            seconds = np.bincount(level - least, weights=duration_s)
            there = np.arange(least, least + len(seconds))
        held = seconds > 0
        self.parts.append((there[held], seconds[held].astype(np.float64)))

    def held(self) -> Held:
        level, of = np.unique(
            np.concatenate([there for there, _ in self.parts]), return_inverse=True
        )
        seconds = np.concatenate([seconds for _, seconds in self.parts])
        return Held(level.astype(np.int64), np.bincount(of, weights=seconds).astype(np.float64))


def _stretches(
    begins_s: Floats, ends_s: Floats, weight: Counts | None, start_s: float, end_s: float
) -> Iterator[tuple[Ints, Floats]]:
    """Yield (how many hold, for how long), in order of time, many at a time.

    Some last for no time, where several requests begin or end at once.
    """
    begun, ended = _sort(begins_s, ends_s, weight)
    done = now = 0
    at_s = start_s
    for first in range(0, len(begins_s) + 1, CHUNK):
        last = min(first + CHUNK, len(begins_s))
        upto = len(ends_s)
        if last < len(begins_s):
            upto = max(done, int(np.searchsorted(ends_s, begins_s[last])))
        begin_s, until_s = begins_s[first:last], ends_s[done:upto]
        # At one time ends come before begins.
        places = np.searchsorted(begin_s, until_s) + np.arange(upto - done)
        times_s = _merged(begin_s, until_s, places)
        if begun is None or ended is None:
            changes = np.ones(len(times_s), np.int64)
            changes[places] = -1
        else:
            changes = _merged(begun[first:last], -ended[done:upto], places)
        held = np.empty(len(changes) + 1, np.int64)
        held[0] = now
        np.cumsum(changes, out=held[1:])
        held[1:] += now
        rest_s = [end_s] if upto == len(ends_s) else []
        edges_s = np.concatenate([[at_s], times_s, rest_s])
        np.clip(edges_s, start_s, end_s, out=edges_s)
        lasted_s = np.diff(edges_s)
        yield held[: len(lasted_s)], lasted_s
        now, at_s, done = int(held[-1]), float(edges_s[-1]), upto


def _merged(begins: NDArray[Any], ends: NDArray[Any], places: Ints) -> NDArray[Any]:
    """Put ends at their places and begins in what is left, each in its own order."""
    merged = np.empty(len(begins) + len(ends), begins.dtype)
    is_begin = np.ones(len(merged), np.bool_)
    is_begin[places] = False
    merged[places], merged[is_begin] = ends, begins
    return merged


def _sort(
    begins_s: Floats, ends_s: Floats, weight: Counts | None
) -> tuple[Counts | None, Counts | None]:
    """Put both in order, in place; return the weights in the order of either."""
    if weight is None:
        if (begins_s[1:] < begins_s[:-1]).any():
            begins_s.sort()
        ends_s.sort()
        return None, None
    by_begin, by_end = (np.argsort(times_s, kind="stable") for times_s in (begins_s, ends_s))
    begins_s[:], ends_s[:] = begins_s[by_begin], ends_s[by_end]
    return weight[by_begin].astype(np.int64), weight[by_end].astype(np.int64)

"""Reads lines of JSON in which only numbers differ, as most canonical rows, in one compiled
pass."""

import re
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from tuner.system.jit import compiled

_KEY = re.compile(rb'"(\w+)":')

_LINE_END, _DOT, _ZERO, _NINE = b"\n.09"
_CLOSE = ord("}")

MOST_DIGITS = 18
"""So many fit an integer of 64 bits."""

EXACT = 2**53
"""Largest integer up to which every one is a float, as is every power of ten below it. So their
quotient is the float that is nearest to the number, as Python reads it."""

_POWERS = 10.0 ** np.arange(MOST_DIGITS + 1)


def numbers_in(
    block: bytes, fractions: Mapping[str, bool], *, needed: Collection[str]
) -> dict[str, NDArray[np.float64]] | None:
    """Return the numbers of a block's lines by their keys; None where a line has other keys, or
    the same in another order, or anything but a plain number.

    ``fractions``: the keys that may be there, and whether their numbers may have a fraction.
    """
    keys = _KEY.findall(block[: block.find(b"\n")] if b"\n" in block else block)
    names = [key.decode() for key in keys]
    if not {*needed} <= {*names} <= fractions.keys() or len({*names}) < len(names):
        return None
    marks = [b'%s"%s":' % (b"," if place else b"{", key) for place, key in enumerate(keys)]
    mark_ends = np.cumsum([len(mark) for mark in marks])
    shortest = mark_ends[-1] + len(keys)  # of all lines that can be here
    found = np.empty((len(keys), len(block) // shortest + 1))
    lines = _read(
        np.frombuffer(block, np.uint8),
        np.frombuffer(b"".join(marks), np.uint8),
        mark_ends,
        np.array([fractions[name] for name in names]),
        found,
    )
    return dict(zip(names, found[:, :lines], strict=True)) if lines else None


@compiled
def _read(  # noqa: C901, PLR0911, PLR0912 - one step after another, in one loop
    text: NDArray[np.uint8],
    marks: NDArray[np.uint8],
    mark_ends: NDArray[np.int64],
    fractions: NDArray[np.bool_],
    found: NDArray[np.float64],
) -> int:
    """Fill in the numbers of each line, one row of ``found`` a key; return how many lines there
    are, 0 where there is anything else.

    ``marks`` are what stands before each number, one behind the other.
    """
    size, at, line = len(text), 0, 0
    while True:
        mark = 0
        for key in range(found.shape[0]):
            if at + mark_ends[key] - mark >= size:
                return 0
            while mark < mark_ends[key]:
                if text[at] != marks[mark]:
                    return 0
                mark += 1
                at += 1
            begin, number, behind = at, np.int64(0), 0
            while at < size and _ZERO <= text[at] <= _NINE:
                number = number * 10 + (np.int64(text[at]) - _ZERO)
                at += 1
            digits = at - begin
            if digits == 0 or (digits > 1 and text[begin] == _ZERO):
                return 0
            if fractions[key] and at < size and text[at] == _DOT:
                at += 1
                while at < size and _ZERO <= text[at] <= _NINE:
                    number = number * 10 + (np.int64(text[at]) - _ZERO)
                    at += 1
                    behind += 1
                if behind == 0:
                    return 0
            if digits + behind > MOST_DIGITS or number > EXACT:
                return 0
            found[key, line] = number / _POWERS[behind]
        if at >= size or text[at] != _CLOSE:
            return 0
        at += 1
        line += 1
        if at == size:
            return line
        if text[at] != _LINE_END:
            return 0
        at += 1

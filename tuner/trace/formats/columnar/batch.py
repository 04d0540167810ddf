"""Rows by columns: the form in which ten million of them are read, summed up and written.

A batch has an array for each key of the canonical record that any of its rows has. Times are ms;
what is absent is NaN among them, ABSENT among whole numbers and -1 among names.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.trace.formats.reading.record import Row

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Names = tuple[NDArray[np.int32], list[str]]
"""For each row which of the names, -1 for none."""

Lists = tuple[Ints, Ints]
"""Places where each row's part begins in the second array, and at the end where the last one
ends."""

ABSENT = np.iinfo(np.int64).min

TIMES = ("timestamp", "e2e_ms", "ttft_ms", "queue_ms")
COUNTS = (
    *("input_length", "output_length", "n", "max_tokens", "turn", "priority", "replica", "stream"),
    *("cached_tokens", "num_images", "row"),
)
NAMES = (
    *("status", "request_id", "session_id", "parent_id", "finish_reason", "lora", "model"),
    "request_class",
)
LISTS = ("output_lengths", "hash_ids")
KEYS = Row.__struct_fields__
assert {*TIMES, *COUNTS, *NAMES, *LISTS} == set(KEYS)

DEFAULTS: dict[str, Any] = {"status": "ok", "n": 1, "output_lengths": (), "hash_ids": ()}

ROWS = 2**16
"""Rows of a batch that is made of single ones."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows in the order of their file."""

    times: Mapping[str, Floats]
    counts: Mapping[str, Ints] = field(default_factory=dict)
    names: Mapping[str, Names] = field(default_factory=dict)
    lists: Mapping[str, Lists] = field(default_factory=dict)
    block: int = -1
    """The number of the block of the file that holds them, where a reader knows it."""

    def __len__(self) -> int:
        return len(self.times["timestamp"])

    @staticmethod
    def of(rows: Sequence[Row]) -> "Batch":
        """Return rows as a batch."""
        columns = {key: [*map(attrgetter(key), rows)] for key in KEYS}
        for key in KEYS[1:]:
            if columns[key].count(DEFAULTS.get(key)) == len(rows):
                del columns[key]
        return Batch(
            {key: np.array(columns[key], np.float64) for key in TIMES if key in columns},
            {key: _integers(columns[key]) for key in COUNTS if key in columns},
            {
                key: names
                for key in NAMES
                if key in columns and (names := names_of(columns[key])) is not None
            },
            {key: _listed(columns[key]) for key in LISTS if key in columns},
        )

    def rows(self) -> Iterator[Row]:
        """Yield the rows one by one."""
        columns: dict[str, list[Any]] = {}
        for key, times_ms in self.times.items():
            columns[key] = [_ms_or_none(value) for value in times_ms.tolist()]
        for key, counts in self.counts.items():
            absent = DEFAULTS.get(key)
            columns[key] = [absent if one == ABSENT else one for one in counts.tolist()]
        if "stream" in columns:
            columns["stream"] = [None if one is None else bool(one) for one in columns["stream"]]
        for key, (codes, names) in self.names.items():
            known = [*names, DEFAULTS.get(key)]  # -1 is the last
            columns[key] = [known[code] for code in codes.tolist()]
        for key, (offsets, values) in self.lists.items():
            parts = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
            columns[key] = [tuple(values[begin:end].tolist()) for begin, end in parts]
        keys = tuple(columns)
        for row in zip(*columns.values(), strict=True):
            yield Row(**dict(zip(keys, row, strict=True)))

    def moved(self, times_ms: Floats) -> "Batch":
        """Return the same rows at other times."""
        return Batch(
            {**self.times, "timestamp": times_ms}, self.counts, self.names, self.lists, self.block
        )

    def take(self, chosen: NDArray[np.bool_] | Ints) -> "Batch":
        """Return some of the rows, or the rows in another order."""
        places: Ints = np.arange(len(self))[chosen]
        return Batch(
            {key: values[places] for key, values in self.times.items()},
            {key: values[places] for key, values in self.counts.items()},
            {key: (codes[places], names) for key, (codes, names) in self.names.items()},
            {key: _taken(lists, places) for key, lists in self.lists.items()},
            self.block,
        )


def _ms_or_none(value: float) -> float | None:
    return None if value != value else value  # noqa: PLR0124 - NaN alone is not itself


def _integers(values: Sequence[int | bool | None]) -> Ints:
    return np.array([ABSENT if value is None else value for value in values], np.int64)


def names_of(values: Sequence[str | int | None]) -> Names | None:
    """Return names by their codes; None where there is none."""
    if values.count(None) == len(values):
        return None
    known: dict[str, int] = {}
    codes = [-1 if one is None else known.setdefault(str(one), len(known)) for one in values]
    return np.array(codes, np.int32), list(known)


def _listed(values: Sequence[Sequence[int]]) -> Lists:
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in values])]).astype(np.int64)
    return offsets, np.array([one for part in values for one in part], np.int64)


def _taken(lists: Lists, places: Ints) -> Lists:
    offsets, values = lists
    sizes = np.diff(offsets)[places]
    begins = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    within = np.arange(begins[-1]) - np.repeat(begins[:-1], sizes)
    return begins, values[np.repeat(offsets[:-1][places], sizes) + within]


def merged(parts: Sequence[Batch], order: Ints) -> Batch:
    """Return the rows of all parts, in an order of their places one behind the other."""

    def joined(name: str, absent: float) -> dict[str, Any]:
        each = [getattr(part, name) for part in parts]
        kinds = {key: held[key].dtype for held in each for key in held}
        return {
            key: np.concatenate(
                [
                    held[key] if key in held else np.full(len(part), absent, kind)
                    for part, held in zip(parts, each, strict=True)
                ]
            )
            for key, kind in kinds.items()
        }

    counts = joined("counts", ABSENT)
    if "n" in counts:
        counts["n"] = np.where(counts["n"] == ABSENT, 1, counts["n"])
    names = {key: _joined_names(parts, key) for key in {k for part in parts for k in part.names}}
    lists = {key: _joined_lists(parts, key) for key in {k for part in parts for k in part.lists}}
    return Batch(joined("times", np.nan), counts, names, lists, parts[0].block).take(order)


def _joined_names(parts: Sequence[Batch], key: str) -> Names:
    known: dict[str, int] = {}
    joined = []
    for part in parts:
        codes, names = part.names.get(key) or (np.full(len(part), -1, np.int32), [])
        places = [known.setdefault(name, len(known)) for name in names]
        joined.append(np.array([*places, -1], np.int32)[codes])  # -1 is the last
    return np.concatenate(joined), list(known)


def _joined_lists(parts: Sequence[Batch], key: str) -> Lists:
    nothing = np.empty(0, np.int64)
    each = [part.lists.get(key) or (np.zeros(len(part) + 1, np.int64), nothing) for part in parts]
    sizes = np.concatenate([np.diff(offsets) for offsets, _ in each])
    values = np.concatenate([held[offsets[0] : offsets[-1]] for offsets, held in each])
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), values

"""Rows as they stand in a file: raw columns and objects, by dotted paths, with their lines.

``Opened`` is a file whose rows are found, ``Raw`` some of its rows, ``Tally`` the count of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tuner.trace.record import REASONS, Reason
from tuner.trace.values import Cells, as_object, is_empty

MOST_COLUMNS = 2000
SAMPLE_ROWS, ROWS = 1000, 2**16
"""Rows by which it is found how a file is read, and rows that are read at once at most."""

Object = dict[str, Any]
Numbered = Iterator[tuple[int, Object]]
"""Objects, each with the number of its line."""


@dataclass(slots=True)
class Tally:
    """The count of rows read, kept and dropped: rows_read = rows_kept + the sum of dropped."""

    place: str
    """The file, for messages."""

    unit: str = "line"
    """What numbers count: lines of text, or rows of a document or a Parquet file."""

    allow_text: bool = False
    """Rows that hold text are read without it; otherwise they refuse the file."""

    bytes_total: int = 0
    bytes_read: int = 0
    rows_read: int = 0
    rows_kept: int = 0
    dropped: dict[Reason, int] = field(default_factory=dict)
    first: dict[Reason, str] = field(default_factory=dict)
    """Where each reason first showed."""

    unknown_keys: dict[str, int] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    """What the reading assumed, in order."""

    def at(self, number: int) -> str:
        """Return the name of a row in messages."""
        return f"{self.place}:{number}" if self.unit == "line" else f"{self.place}: row {number}"

    def note(self, text: str) -> None:
        self.notes[text] = None

    def drop(self, reason: Reason, number: int, column: str = "", *, count: int = 1) -> None:
        """Count rows that cannot be used; they are counted as read elsewhere."""
        self.dropped[reason] = self.dropped.get(reason, 0) + count
        self.first.setdefault(reason, self.at(number) + (f", column {column}" if column else ""))

    def lose(self, reason: Reason, number: int) -> None:
        """Count a row that was read and cannot be used."""
        self.rows_read += 1
        self.drop(reason, number)

    def warnings(self) -> list[str]:
        """Return a line for each reason that cost rows, and one for the unknown keys."""
        most = sorted(self.dropped.items(), key=lambda item: -item[1])
        found = [
            f"{count:,} of {self.rows_read:,} rows dropped ({reason}: {REASONS[reason]}), "
            f"first at {self.first[reason]}"
            for reason, count in most
        ]
        if self.unknown_keys:
            names = ", ".join(f"{key} ({count:,})" for key, count in self.unknown_keys.items())
            found.append(f"unknown keys ignored: {names}")
        return found


@dataclass(frozen=True)
class Raw:
    """Some rows of a file: objects of JSON, or columns of text or of Arrow's types."""

    lines: NDArray[np.int64]
    """The number of each row's line."""

    objects: Sequence[Object] | None = None
    columns: Mapping[str, pa.Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.lines)

    def cells(self, paths: Sequence[str]) -> Cells | None:
        """Return the cells at the first of these paths that says anything, row by row.

        None where no row has any of them.
        """
        each = [cells for path in paths if (cells := self._at(path)) is not None]
        if len(each) < 2:
            return each[0] if each else None
        lists = [cells if isinstance(cells, list) else cells.to_pylist() for cells in each]
        return [next((one for one in row if not is_empty(one)), None) for row in zip(*lists)]  # noqa: B905

    @cached_property
    def keys(self) -> frozenset[str]:
        """The keys that any object has."""
        return frozenset(chain.from_iterable(self.objects or ()))

    def _at(self, path: str) -> Cells | None:
        if self.objects is not None and path in self.keys:
            held = [row.get(path) for row in self.objects]
            return [*map(only, held)] if list in {*map(type, held)} else held
        if self.objects is not None:
            within = any(path.startswith(f"{key}.") for key in self.keys)
            return [at(row, path) for row in self.objects] if within else None
        by_name = {name.lower(): name for name in self.columns}
        if (name := by_name.get(path.lower())) is not None:
            return self.columns[name]
        for name, column in self.columns.items():
            if path.startswith(f"{name}."):  # within cells that hold JSON
                rest = path[len(name) + 1 :]
                inner = (as_object(cell) for cell in column.to_pylist())
                return [None if one is None else at(one, rest) for one in inner]
        return None


def at(found: Mapping[str, Any], path: str) -> Any:  # noqa: ANN401 - any JSON
    """Return what stands at a dotted path, whose parts may have dots themselves."""
    if path in found:
        return only(found[path])
    for key, held in found.items():
        if path.startswith(f"{key}.") and (inner := as_object(held)) is not None:
            return at(inner, path[len(key) + 1 :])
    return None


def only(held: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return the only value of a list, as search engines give the fields of a row."""
    if type(held) is list and len(held) == 1 and not isinstance(held[0], dict | list):
        return held[0]
    return held


def flattened(
    value: Mapping[str, Any], above: str = "", depth: int = 4
) -> Iterator[tuple[str, Any]]:
    """Yield (dotted path, value) of all within, also within objects that a log wraps up as text."""
    for key, held in value.items():
        inner = as_object(held)
        if inner and depth:
            yield from flattened(inner, f"{above}{key}.", depth - 1)
        else:
            yield f"{above}{key}", only(held)


@dataclass(frozen=True)
class Opened:
    """A file whose rows are found: its headings, its first rows, and all of them as raw columns."""

    headings: tuple[str, ...]
    """Dotted paths, of JSON and of columns that hold others. Each names one column."""

    sample: tuple[tuple[Any, ...], ...]
    """The first rows, by the headings; None for what is not there."""

    raws: Callable[[Sequence[str]], Iterator[Raw]]
    """Yields all rows, with the columns in which these paths stand."""

    objects: Sequence[Object] = ()
    """The first rows, of JSON."""

    is_text: bool = False
    """Cells are parted by a delimiter, so that the headings are cells as well."""

    naive: frozenset[str] = frozenset()
    """Columns of times without a zone that are numbers by now."""

    first_line: int = 1

    def with_inside(self) -> "Opened":
        """Return the same with columns for what cells hold as JSON objects."""
        held = [dict(zip(self.headings, cells, strict=True)) for cells in self.sample]
        rows = [dict(flattened(row)) for row in held]
        paths = dict.fromkeys(path for row in rows for path in row if path not in self.headings)
        inside = tuple(paths)[:MOST_COLUMNS]
        sample = tuple(
            (*cells, *map(row.get, inside)) for cells, row in zip(self.sample, rows, strict=True)
        )
        headings = (*self.headings, *inside)
        return Opened(headings, sample, self.raws, (), self.is_text, self.naive, self.first_line)


def first_rows(opened_file: Opened, paths: Sequence[str]) -> list[Any]:
    """Return the first cells at the first of these paths that is there."""
    by_name = {heading.lower(): place for place, heading in enumerate(opened_file.headings)}
    place = next((by_name[path.lower()] for path in paths if path.lower() in by_name), None)
    return [] if place is None else [row[place] for row in islice(opened_file.sample, 100)]


def unique_names(headings: Sequence[str]) -> tuple[str, ...]:
    """Return headings of which each names one column."""
    names: dict[str, None] = {}
    for place, heading in enumerate(headings, 1):
        name = heading or f"#{place}"
        names[f"{name}#{place}" if name in names else name] = None
    return tuple(names)

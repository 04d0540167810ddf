"""Rows as they stand in a file: raw columns and objects, by dotted paths, with their lines."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

from tuner.trace.values import Cells, Ints, as_list, as_object, is_empty, number

MOST_COLUMNS = 2000
SAMPLE_ROWS, ROWS = 1000, 2**16
"""Rows that show how a file is read, and rows that are read at once at most."""

Object = dict[str, Any]
Numbered = Iterator[tuple[int, Object]]
"""Objects, each with the number of its line."""


@dataclass(frozen=True)
class Raw:
    """Some rows of a file: objects of JSON, or columns of text or of Arrow's types."""

    lines: Ints
    """The number of each row's line."""
    objects: Sequence[Object] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.lines)

    @cached_property
    def names(self) -> Iterable[str]:
        """The keys that any object has, or the columns."""
        return self.columns or frozenset(chain.from_iterable(self.objects))

    def cells(self, paths: Sequence[str]) -> Cells | None:
        """Return the cells at the first of these paths that is not empty, row by row.

        None where no row has any of them.
        """
        each = [cells for path in paths if (cells := self._at(path)) is not None]
        if len(each) < 2:
            return each[0] if each else None
        return [first(row) for row in zip(*map(as_list, each), strict=True)]

    def _at(self, path: str) -> Cells | None:
        if path in self.columns:
            return self.columns[path]
        if path in self.names:
            held = [row.get(path) for row in self.objects]
            return [*map(only, held)] if list in {*map(type, held)} else held
        top = next((name for name in self.names if path.startswith(f"{name}.")), None)
        if top is None:
            return None
        rows = self.objects or [{top: cell} for cell in self.columns[top].to_pylist()]
        return [at(row, path) for row in rows]


def first(cells: Iterable[Any]) -> Any:  # noqa: ANN401 - any JSON
    """Return the first cell that is not empty."""
    return next((cell for cell in cells if not is_empty(cell)), None)


def at(found: Mapping[str, Any], path: str) -> Any:  # noqa: ANN401 - any JSON
    """Return what stands at a dotted path, whose parts may have dots themselves."""
    if path in found:
        return only(found[path])
    if path.startswith("*"):
        return total(found, path[1:])
    for key, held in found.items():
        if path.startswith(f"{key}.") and (inner := as_object(held)) is not None:
            return at(inner, path[len(key) + 1 :])
    return None


def total(found: Mapping[str, Any], word: str) -> Any:  # noqa: ANN401 - any JSON
    """Return the sum of the counts of tokens whose key has a word: of ``*input`` at the end of a
    path."""
    keys = [key for key in found if word in key.lower() and "cost" not in key.lower()]
    held = [found[key] for key in keys if not is_empty(found[key])]
    if not held or found.get("unit") not in (None, "TOKENS"):
        return None
    known = [count for cell in held if (count := number(cell)) is not None]
    return sum(known) if len(known) == len(held) else held[0]


def only(held: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return the only text of a list, as logs have headers, and search engines fields."""
    return held[0] if type(held) is list and len(held) == 1 and type(held[0]) is str else held


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
    """A file whose rows are located."""

    sample: Sequence[Object]
    """The first rows, flat: also what cells hold as JSON objects."""
    raws: Callable[[Sequence[str]], Iterator[Raw]]
    """Yields all rows, with the columns in which these paths stand."""
    columns: Sequence[str] = ()
    """The headings of a table, which may have no rows."""
    objects: Sequence[Object] = ()
    """The first rows, as they are in JSON."""
    is_text: bool = False
    """Cells are parted by a delimiter, so that the headings are cells as well."""
    first_line: int = 1

    @cached_property
    def headings(self) -> tuple[str, ...]:
        """Dotted paths, of JSON and of columns that hold others. Each names one column."""
        paths = dict.fromkeys([*self.columns, *chain.from_iterable(self.sample)])
        return tuple(paths)[:MOST_COLUMNS]


def unique_names(headings: Sequence[str]) -> list[str]:
    """Return headings of which each names one column."""
    names: dict[str, None] = {}
    for place, heading in enumerate(headings, 1):
        name = heading or f"#{place}"
        names[f"{name}#{place}" if name in names else name] = None
    return [*names]


def within(names: Iterable[str], wanted: Sequence[str]) -> list[str]:
    """Return the columns in which dotted paths stand."""
    return [name for name in names if any(f"{path}.".startswith(f"{name}.") for path in wanted)]

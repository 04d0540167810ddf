"""The formats that are known by name: what marks a file, and which column is what.

They are rows of ``formats.toml``, and so are files that look like traces and can be none. Rows
that are no flat requests, such as spans, are made flat by a generator of ``nested`` first. Any
other table becomes a ``Format`` by its headings, in ``guess``.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from tuner.errors import TraceError, UsageError
from tuner.trace import nested
from tuner.trace.files import TraceFile
from tuner.trace.headings import SPANS, TIMES, Role
from tuner.trace.record import FIELDS, TimeUnit
from tuner.trace.rows import Numbered, Opened
from tuner.trace.values import Cells, Clock, Read, Spans, counts


@dataclass(frozen=True, slots=True)
class Column:
    """A column that has a role: its spellings, the first of which that is not empty counts."""

    paths: tuple[str, ...]
    reader: Clock | Spans | None = None
    """Reads its times; numbers without one are counts."""
    title: str = ""
    """What messages call it, if not by its first path."""

    def read(self, cells: Cells) -> Read:
        """Return numbers, and the codes of the reasons why cells are wrong."""
        return counts(cells) if self.reader is None else self.reader.read(cells)

    def __str__(self) -> str:
        name = self.title or " or ".join(dict.fromkeys(self.paths[:2]))
        return f"{name}, {self.reader}"


@dataclass(frozen=True)
class Format:
    """How the rows of a file are read, or why they are not."""

    name: str = ""
    says: str = ""
    refused: str = ""
    """Why a file of this kind can be no trace."""
    cure: str = ""
    columns: Mapping[Role, Column] = field(default_factory=dict)

    # The marks by which a file is known: all that are given hold.
    needs: Sequence[Sequence[str]] = ()
    """Its first rows have all keys of one of these."""
    one_of: Sequence[Sequence[str]] = ()
    """Its first object has a key of each of these."""
    only: Sequence[str] = ()
    """Its first object has no other keys."""
    line: str = ""
    """Its beginning has a match of this pattern."""
    missing: Sequence[str] = ()
    """What the source cannot show, such as ``aborts``."""
    block_size: int = 16
    any_block_size: bool = False
    """Tools use 16 to 1024 tokens an id, and say so nowhere in the file: their number shows it."""
    units: Sequence[TimeUnit] = ()
    """Units that the user may name for the times."""
    absolute: bool = True
    """Times count from some other moment than the trace's origin, so that the first becomes it."""
    whole_ms: bool = False
    """Times without a fraction are ms; for others the user must name the unit."""
    silent_is_error: bool = False
    """A request without output failed."""
    keeps: Sequence[str] = ()
    """Names that stay as they are, for they are pseudonyms or were published."""
    sums_of_n: bool = False
    """Of n sequences only the sum of their outputs is known."""
    generating: Sequence[str] | None = None
    """Kinds of rows that are requests, in lower case; others are not."""
    flag: bool = False
    """The status says whether it went well, so that 0 is an error."""
    prompt_is_sum: bool = False
    """Cached prompt tokens are counted beside the others."""
    token_ms: float | None = None
    """What an output token takes at the median, where that showed the unit of durations."""
    reads: str = ""
    """How times and durations are read, where the columns do not show it."""
    notes: Sequence[str] = ()
    flatten: Callable[[Numbered, TraceFile], Numbered] | None = None
    is_table: bool = True
    """Its rows have columns of its own; otherwise they are objects in JSON."""

    @property
    def clock(self) -> Clock:
        """How arrivals are read, or ends where there are no arrivals."""
        column = self.columns.get("timestamp") or self.columns["end"]
        assert isinstance(column.reader, Clock)
        return column.reader

    def of(self, unit: TimeUnit | None, file: TraceFile) -> "Format":
        """Return the format with the unit of times that the user names."""
        if unit is None:
            return self
        if unit not in self.units:
            only = f"{file.path}: the times of {self.name} have one unit"
            raise UsageError(only, hint="Leave out --time-unit.")
        column = Column(("timestamp",), replace(self.clock, unit=unit))
        return replace(self, columns={**self.columns, "timestamp": column}, whole_ms=False)

    def block_size_in(self, sample: Sequence[dict[str, Any]]) -> int:
        """Return the usual number of tokens an id, unless rows do not fit it and fit one other."""
        length, ids = (self.columns[role].paths[0] for role in ("input_length", "hash_ids"))
        rows = [(row.get(length), row.get(ids)) for row in sample[:100]]
        both = [(n, len(held)) for n, held in rows if type(n) is int and type(held) is list]
        fitting = {
            size
            for size in (self.block_size, *(1 << power for power in range(4, 11)))
            if all(count in (tokens // size, -(-tokens // size)) for tokens, count in both)
        }
        is_other = self.block_size not in fitting and len(fitting) == 1
        return fitting.pop() if is_other else self.block_size

    def how(self) -> str:
        """Return in one line how times and durations are read."""
        time, end, lasted = (self.columns.get(role) for role in ("timestamp", "end", "duration"))
        arrivals = time or f"{end}, less the duration"
        durations = lasted or "none"
        if time and end:
            durations = f"up to {end}"
        return self.reads or f"arrivals: {arrivals}; durations: {durations}"


# Formats as they stand in the file beside this one.

_ROWS = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes())
ROLE_OF: dict[str, Role] = {"e2e_ms": "duration", "ttft_ms": "ttft", "queue_ms": "queue"}
"""Fields of the record whose role has another name."""

_RECORD = {ROLE_OF.get(each.key, each.key): [each.key] for each in FIELDS}
BASES: dict[str, dict[Role, list[str]]] = {
    "": {},
    "record": _RECORD,
    "flat": {**_RECORD, "end": ["end"]},
}


def reader_of(role: Role, **how: Any) -> Clock | Spans | None:  # noqa: ANN401 - its fields
    """Return what reads the times of a role: dates, and spans in ms by default."""
    return Clock(**how) if role in TIMES else Spans(**how) if role in SPANS else None


def _format(row: dict[str, Any]) -> Format:
    base, read, is_table = row.pop("base", ""), row.pop("read", {}), row.pop("is_table", False)
    flatten = vars(nested).get(row.pop("flatten", ""))
    columns = {**BASES[base], **row.pop("columns", {})}
    return Format(
        **row,
        flatten=flatten,
        columns={
            role: Column(tuple(paths), reader_of(role, **read.get(role, {})))
            for role, paths in columns.items()
        },
        is_table=not base and ("refused" not in row or is_table),
    )


_ALL = tuple(map(_format, _ROWS["format"]))
FORMATS = tuple(known for known in _ALL if known.name)
CANONICAL = FORMATS[0]
TABLE = Format("table", "Any table of requests, by its headings: CSV, TSV, JSON lines, Parquet")


def named(name: str) -> Format:
    """Return the format that the user names. Raises UsageError."""
    by_name = {known.name: known for known in (*FORMATS, TABLE)}
    if name not in by_name:
        raise UsageError(f"no trace format {name!r}", hint=f"Known: {', '.join(by_name)}.")
    return by_name[name]


HEAD_BYTES = 2**18
"""A server's banner may stand above its first line of log."""


def detected(opened: Opened, file: TraceFile) -> Format | None:
    """Return the format whose marks a file has; None for any other table.

    Raises TraceError for a file that looks like a trace and can be none.
    """
    is_json = not opened.columns
    first = opened.first[0] if is_json and opened.first else {}
    keys = {*opened.headings, *(key for key, held in first.items() if not isinstance(held, str))}
    text = file.head[:HEAD_BYTES].decode(errors="replace")
    for known in _ALL:
        if (
            (known.needs or known.line)
            and (not known.needs or any({*need} <= keys for need in known.needs))
            and all(first.keys() & {*each} for each in known.one_of)
            and (not known.only or first.keys() <= {*known.only})
            and (not known.line or re.search(known.line, text, re.MULTILINE | re.IGNORECASE))
            and (known.is_table or is_json or not known.needs)
        ):
            if known.refused:
                raise TraceError(f"{file.path}: {known.refused}", hint=known.cure)
            return known
    return None

"""The formats that are known by name: what marks a file, and which column is what.

They are rows of ``formats.toml``, and so are files that look like traces and can be none. Rows
that are no flat requests, such as spans, are made flat by a generator of ``nested`` first. Any
other table becomes a ``Format`` by its headings, in ``guess``.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from tuner.errors import TraceError, UsageError
from tuner.trace import nested, same
from tuner.trace.headings import Role
from tuner.trace.raw import Numbered, Opened, Tally, first_rows, flattened
from tuner.trace.record import FIELDS, Status, TimeUnit, TraceHeader
from tuner.trace.values import Clock, Counts, Reader, Spans, as_object, date_ms
from tuner.trace.words import status_in, status_of


@dataclass(frozen=True, slots=True)
class Column:
    """A column that has a role: its spellings, the first of which that says anything counts."""

    paths: tuple[str, ...]
    reader: Reader | None = None
    why: str = ""
    """Why it is read so, where that was not given."""

    title: str = ""
    """What messages call it, if not by its first path."""

    @property
    def name(self) -> str:
        return self.title or " or ".join(dict.fromkeys(self.paths[:2]))

    def __str__(self) -> str:
        return f"{self.name}, {self.reader}" + (f" ({self.why})" if self.why else "")


@dataclass(frozen=True)
class Format:
    """How the rows of a file are read."""

    name: str
    says: str
    mark: str
    """What a file is known by, for people."""

    columns: Mapping[Role, Column]
    needs: Sequence[Sequence[str]] = ()
    one_of: Sequence[Sequence[str]] = ()
    """Its first object has a key of each of these too."""

    only: Sequence[str] = ()
    """Its first object has no other keys."""

    holds: Sequence[str] = ()
    """One of these stands in its beginning."""

    missing: Sequence[str] = ()
    """What the source cannot show, such as ``aborts``."""

    block_size: int = 16
    any_block_size: bool = False
    """Ids stand for as many tokens as their number shows."""

    units: Sequence[TimeUnit] = ()
    """Units that the user may name for the times."""

    absolute: bool = True
    """Times count from some other moment than the trace's origin, so that the first becomes it."""

    whole_ms: bool = False
    """Times without a fraction are ms; for others the user must name the unit."""

    strict: bool = False
    """A wrong value of an optional field costs the row; else it is absent."""

    keeps: Sequence[str] = ()
    """Names that stay as they are, for they are pseudonyms or were published."""

    sums_of_n: bool = False
    """Of n sequences only the sum of their outputs is known."""

    silent_is_error: bool = False
    """A request without output failed."""

    generating: Sequence[str] | None = None
    """Kinds of rows that are requests, in lower case; others are not."""

    status: Callable[[object], Status | None] = status_in
    prompt_is_sum: bool = False
    """Cached prompt tokens are counted beside the others."""

    token_ms: float | None = None
    """What an output token takes at the median, where that showed the unit of durations."""

    reads: str = ""
    """How times and durations are read, where the columns do not show it."""

    notes: tuple[str, ...] = ()
    without_tokens: tuple[str, ...] = ()
    """What to say where no row has tokens, and the cure."""

    flatten: Callable[[Numbered, Tally, TimeUnit | None], Numbered] | None = None
    is_table: bool = True
    """Its rows have columns of its own; otherwise they are objects in JSON."""

    checks_text: bool = False
    """The generator looks for text itself: it stands under keys of its own."""

    settle: Callable[[list[same.Row]], same.Settled] | None = None
    """Finds the rows that are one request."""

    @property
    def clock(self) -> Clock:
        """How arrivals are read, or ends where there are no arrivals."""
        column = self.columns.get("timestamp") or self.columns["end"]
        assert isinstance(column.reader, Clock)
        return column.reader

    def paths(self) -> list[str]:
        """Return all columns that are needed."""
        return [path for column in self.columns.values() for path in column.paths]

    def header(self) -> TraceHeader:
        """Return the header of a trace of this format."""
        return TraceHeader(
            source=self.name,
            block_size=self.block_size,
            missing=tuple(self.missing),
        )

    def of(self, opened: Opened, unit: TimeUnit | None, tally: Tally) -> "Format":
        """Return the format as this file has it, with the unit that the user names."""
        found = self
        if unit is not None:
            if unit not in self.units:
                raise UsageError(
                    f"{tally.place}: the times of {self.name} have one unit",
                    hint="Leave out --time-unit.",
                )
            assert unit in ("s", "ms")
            column = Column(("timestamp",), replace(self.clock, unit=unit))
            found = replace(self, columns={**self.columns, "timestamp": column}, whole_ms=False)
        if self.any_block_size:
            found = replace(found, block_size=_block_size(self, opened, tally))
        return found

    def how(self) -> str:
        """Return in one line how times and durations are read."""
        time, end, lasted = (self.columns.get(role) for role in ("timestamp", "end", "duration"))
        arrivals = str(time) if time else f"{end}, less {lasted and lasted.name}"
        durations = f"up to {end.name}" if time and end else str(lasted or "none")
        return self.reads or f"arrivals: {arrivals}; durations: {durations}"


def _block_size(known: Format, opened: Opened, tally: Tally) -> int:
    """Return for how many tokens an id stands, as the first rows show.

    Tools of one format use 16 to 512 tokens, and say so nowhere in the file. It is the usual size,
    unless the first rows do not fit that and fit one other.
    """
    prompts, ids = (
        first_rows(opened, known.columns[role].paths) for role in ("input_length", "hash_ids")
    )
    both = [
        (tokens, len(one) if isinstance(one, list) else 1)
        for tokens, one in zip(prompts, ids, strict=False)
        if isinstance(tokens, int) and one
    ]
    fitting = [
        size
        for size in {16, 32, 64, 128, 256, 512, 1024, known.block_size}
        if all(count in (tokens // size, -(-tokens // size)) for tokens, count in both)
    ]
    if known.block_size in fitting or len(fitting) != 1:
        return known.block_size
    tally.note(f"hash_ids are taken for {fitting[0]} tokens each, by their number")
    return fitting[0]


# Formats as they stand in the file beside this one.

READERS: dict[str, Reader] = {
    "count": Counts(),
    "any-count": Counts(least=-(2**31)),
    "date": Clock(),
    "date-zoned": Clock(zoned=True),
    "date-naive": Clock(zoned=False),
    "epoch-ms": Clock("ms"),
    "since-ms": Clock("ms", dated=False),
    "since-s": Clock("s", dated=False),
    "ms": Spans("ms"),
    "s": Spans("s"),
}
KEY_OF: dict[Role, str] = {"duration": "e2e_ms", "ttft": "ttft_ms", "queue": "queue_ms"}
"""Roles whose field of the record has another name."""

ROLE_OF = {key: role for role, key in KEY_OF.items()}
KINDS = {"count": "count", "time": "ms"}
USUAL: dict[Role, str] = {
    **{ROLE_OF.get(one.key, one.key): KINDS[one.kind] for one in FIELDS if one.kind in KINDS},
    **dict.fromkeys(("timestamp", "end", "first_token"), "date"),
}
"""How the cells of a role are read, unless a format reads them otherwise."""

USUAL["priority"] = "any-count"
_ROWS = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes())
_RECORD = {ROLE_OF.get(one.key, one.key): [one.key] for one in FIELDS}
BASES: dict[str, dict[Role, list[str]]] = {
    "": {},
    "record": _RECORD,
    "flat": {**_RECORD, **{key: [key] for key in ("end", "first_token", "reason")}},
    **_ROWS["base"],
}


def _canonical_status(value: object) -> Status | None:
    return msgspec.convert(value or "ok", Status) if value in STATUSES else None


def _envoy_status(value: object) -> Status | None:
    """Return what Envoy's code means: 0 is no answer at all."""
    text = str(value).removesuffix(".0")
    return "error" if text == "0" else status_of(int(text)) if text.isdecimal() else "ok"


STATUSES = {None, "ok", "aborted", "error", "rejected"}
STATUS: dict[str, Callable[[object], Status | None]] = {
    "": status_in,
    "canonical": _canonical_status,
    "envoy": _envoy_status,
    "level": lambda level: "error" if level == "ERROR" else "ok",
}


@dataclass(frozen=True, slots=True)
class Lookalike:
    """A kind of file that is recognized only to be refused."""

    what: str
    cure: str
    keys: tuple[frozenset[str], ...] = ()
    """Its first object has all keys of one of these."""

    lists: tuple[str, ...] = ()
    """Or there is a list under one of these."""

    line: str = ""
    """Or a line of its beginning matches this."""


def _format(row: dict[str, Any]) -> Format:
    base = row.pop("base", "")
    columns = {**BASES[base], **row.pop("columns", {})}
    read = {**USUAL, **({"timestamp": "since-ms"} if base else {}), **row.pop("read", {})}
    named_ = {"flatten": vars(nested), "settle": vars(same)}
    return Format(
        **row
        | {key: of[row[key]] for key, of in named_.items() if key in row}
        | {
            "columns": {
                role: Column(tuple(paths), READERS[read[role]] if role in read else None)
                for role, paths in columns.items()
            },
            "is_table": not base,
            "status": STATUS[row.get("status", "")],
        }
    )


FORMATS: tuple[Format, ...] = tuple(map(_format, _ROWS["format"]))
LOOKALIKES = msgspec.convert(_ROWS["lookalike"], list[Lookalike])
CANONICAL = FORMATS[0]
TABLE = Format(
    "table",
    "Any table of requests, by its headings: CSV, TSV, JSON lines, Parquet",
    "a time, a prompt's and an output's tokens, in any words",
    {},
)


def named(name: str) -> Format:
    """Return the format that the user names. Raises UsageError."""
    by_name = {known.name.replace("-", "_"): known for known in (*FORMATS, TABLE)}
    found = by_name.get(name.lower().replace("-", "_"))
    if found is None:
        names = ", ".join(known.name for known in (*FORMATS, TABLE))
        raise UsageError(f"no trace format {name!r}", hint=f"Known: {names}.")
    return found


def detected(opened: Opened, head: bytes) -> Format | None:
    """Return the format whose marks a file has; None for any other table."""
    first = opened.objects[0] if opened.objects else {}
    keys = {heading.lower() for heading in (*opened.headings, *first)}
    for known in FORMATS:
        if (
            any({key.lower() for key in need} <= keys for need in known.needs)
            and all(first.keys() & {*one} for one in known.one_of)
            and (not known.only or first.keys() <= {*known.only})
            and (not known.holds or any(text.encode() in head for text in known.holds))
            and (known.is_table or opened.objects)
            and (not known.is_table or _fits(known, opened))
        ):
            return known
    return None


def _fits(known: Format, opened: Opened) -> bool:
    """Whether the times of the first rows are written as the format has them."""
    column = known.columns.get("timestamp") or known.columns["end"]
    cells = first_rows(opened, column.paths)
    dates = (cell for cell in cells if date_ms(cell) is not None)
    first = next(dates, None) if known.clock.unit is None else None
    return first is None or not known.clock.read([first])[1].any()


LOG_BYTES = 2**18
"""A server's banner may stand above its first line of log."""


def refuse_lookalikes(place: str, head: bytes, opened: Opened) -> None:
    """Raise TraceError for a file that looks like a trace and can be none."""
    first = opened.objects[0] if opened.objects else {}
    wraps = (key for key, held in first.items() if isinstance(held, str) and as_object(held))
    keys = {*first, *(path for path, _ in flattened(first))} - {*wraps}
    text = head[:LOG_BYTES].decode(errors="replace")
    for one in LOOKALIKES:
        is_one = any(need <= keys for need in one.keys)
        is_one = is_one or any(isinstance(first.get(key), list) for key in one.lists)
        if is_one or (one.line and re.search(one.line, text, re.MULTILINE | re.IGNORECASE)):
            raise TraceError(f"{place}: {one.what}", hint=one.cure)

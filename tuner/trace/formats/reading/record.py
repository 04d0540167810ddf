"""The canonical record as it stands in a file: milliseconds, one JSON object a line.

Every format's rows become ``Row``; ``Tally`` counts what became of the others.
"""

import json
from dataclasses import dataclass, field
from typing import Annotated, Literal, NoReturn

import msgspec

Status = Literal["ok", "aborted", "error", "rejected"]

SERVED: tuple[Status, ...] = ("ok", "aborted")
"""These held a slot, and are sent again; the others are only counted."""

Reason = Literal[
    "line_too_long",
    "truncated",
    "encoding",
    "malformed",
    "duplicate_key",
    "not_finite",
    "no_timestamp",
    "bad_timestamp",
    "other_unit",
    "before_origin",
    "no_tokens",
    "not_integer",
    "negative",
    "zero_tokens",
    "out_of_range",
    "bad_hash_ids",
    "bad_field",
    "negative_time",
    "several_requests",
    "same_request",
    "retried",
    "cache_hit",
    "not_generation",
]

REASONS: dict[Reason, str] = {
    "line_too_long": "the row is longer than 4 MiB; a WEKA conversation, spans, a page: 64 MiB",
    "truncated": "the last line breaks off in the middle",
    "encoding": "the line is not UTF-8",
    "malformed": "the line is no JSON object, or has too few or too many columns",
    "duplicate_key": "a key stands twice in one object",
    "not_finite": "a value is NaN or Infinity",
    "no_timestamp": "the arrival time is missing",
    "bad_timestamp": "the arrival time is no number, or no date",
    "other_unit": "the time is written otherwise than in the rows above: unit, zone or form",
    "before_origin": "the arrival time lies before the trace's origin",
    "no_tokens": "input_length or output_length is missing",
    "not_integer": "a count of tokens is not a whole number",
    "negative": "a count of tokens is negative",
    "zero_tokens": "a request that was served has no prompt tokens, or no output tokens",
    "out_of_range": "a number is too large to be true",
    "bad_hash_ids": "hash_ids are not whole numbers ≥ 0, or more than the prompt has blocks",
    "bad_field": "an optional field has a value of the wrong kind",
    "negative_time": "a duration is negative, or the end is before the start",
    "several_requests": "it sums up several requests",
    "same_request": "it is part of a request that another row stands for",
    "retried": "an attempt that failed before another one of the same request was served",
    "cache_hit": "it was answered from a gateway's cache and reached no server",
    "not_generation": "it generates no tokens: an embedding, a tool call, a link in a chain",
}
"""Reasons for which a row is not used, in words. docs/traces.md says what to do about each."""

MAX_TOKENS = 2**31 - 1
MAX_N = 16_384
"""vLLM's own limit on n."""

MAX_MS = 10**14
"""Three thousand years: larger stamps are no times."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
Ms = Annotated[int, msgspec.Meta(ge=0, le=MAX_MS)] | Annotated[float, msgspec.Meta(ge=0, le=MAX_MS)]
Priority = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
BlockId = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Row(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One request as canonical JSON has it; key = attribute, null = absent, ms and tokens."""

    timestamp: Ms
    input_length: Count | None = None
    output_length: Count | None = None
    status: Status = "ok"
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_N)] = 1
    output_lengths: tuple[Count, ...] = ()
    max_tokens: Count | None = None
    hash_ids: tuple[BlockId, ...] = ()
    request_id: str | int | None = None
    session_id: str | int | None = None
    turn: Count | None = None
    parent_id: str | int | None = None
    e2e_ms: Ms | None = None
    ttft_ms: Ms | None = None
    queue_ms: Ms | None = None
    finish_reason: str | None = None
    priority: Priority | None = None
    lora: str | None = None
    model: str | None = None
    request_class: str | None = None
    """Whose request it is, or of which kind: a pseudonym."""

    replica: Count | None = None
    stream: bool | None = None
    cached_tokens: Count | None = None
    num_images: Count | None = None
    row: Count | None = None
    """Position in the trace that this one was cut from; absent where it is the position here."""


FIELDS = frozenset(Row.__struct_fields__)


@dataclass(slots=True)
class Tally:
    """The count of rows read, kept and dropped: rows_read = rows_kept + the sum of dropped."""

    place: str
    """The file, for messages."""

    bytes_total: int = 0
    bytes_read: int = 0
    rows_read: int = 0
    rows_kept: int = 0
    dropped: dict[Reason, int] = field(default_factory=dict)
    first_line: dict[Reason, int] = field(default_factory=dict)
    first_column: dict[Reason, str] = field(default_factory=dict)
    """The heading of the column where it first showed, of a table."""

    unknown_keys: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What the reading assumed, for the header of whatever is written from it."""

    said: list[str] = field(default_factory=list)
    """How the columns of a table were read, and why."""

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def drop(self, reason: Reason, line: int, column: str = "") -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        self.first_line.setdefault(reason, line)
        if column:
            self.first_column.setdefault(reason, column)

    def lose(self, reason: Reason, line: int) -> None:
        """Count a row that was read and cannot be used."""
        self.rows_read += 1
        self.drop(reason, line)

    def first_place(self, reason: Reason) -> str:
        """Return where a reason first showed: file, line, and the column of a table."""
        column = self.first_column.get(reason)
        place = f"{self.place}:{self.first_line[reason]}"
        return f"{place}, column {column!r}" if column else place

    def warnings(self) -> list[str]:
        """Return one line for each reason that cost rows, and one for the unknown keys."""
        found = [
            f"{count:,} of {self.rows_read:,} rows dropped ({reason}: {REASONS[reason]}), "
            f"first at {self.first_place(reason)}"
            for reason, count in sorted(self.dropped.items(), key=lambda item: -item[1])
        ]
        if self.unknown_keys:
            names = ", ".join(f"{key!r} ({count:,})" for key, count in self.unknown_keys.items())
            found.append(f"unknown keys ignored: {names}")
        return found


def problem(row: Row, block_size: int) -> Reason | None:
    """Return why a row of the right types cannot be used."""
    if row.status in SERVED:
        if row.input_length is None or row.output_length is None:
            return "no_tokens"
        if row.input_length == 0 or (row.output_length == 0 and row.status == "ok"):
            return "zero_tokens"
    if row.hash_ids and len(row.hash_ids) * block_size >= (row.input_length or 0) + block_size:
        return "bad_hash_ids"
    return None


def diagnose(line: bytes) -> Reason:
    """Return why a line is not a ``Row``; slow, and only for lines that failed."""
    if reason := unreadable(line):
        return reason
    parsed = json.loads(line)
    try:
        return diagnose_object(parsed) if isinstance(parsed, dict) else "malformed"
    except UnicodeEncodeError:  # half of a surrogate pair, which only this reader lets through
        return "encoding"


def unreadable(line: bytes) -> Reason | None:
    """Return why a line is no strict JSON; None if it is."""
    try:
        json.loads(line.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        return "encoding"
    except _DuplicateKeyError:
        return "duplicate_key"
    except _NotFiniteError:
        return "not_finite"
    except (ValueError, RecursionError):
        return "malformed"
    return None


def diagnose_object(parsed: dict[str, object]) -> Reason:
    """Return why an object by canonical names is not a ``Row``."""
    if reason := _bad_stamp(parsed.get("timestamp")):
        return reason
    for key in ("input_length", "output_length"):
        if reason := _bad_count(parsed.get(key)):
            return reason
    ids = parsed.get("hash_ids")
    try:
        msgspec.convert([] if ids is None else ids, tuple[BlockId, ...])
    except msgspec.ValidationError:
        return "bad_hash_ids"
    return "bad_field"


def _bad_stamp(stamp: object) -> Reason | None:
    if stamp is None:
        return "no_timestamp"
    if isinstance(stamp, bool) or not isinstance(stamp, int | float):
        return "bad_timestamp"
    if stamp < 0:
        return "before_origin"
    return "out_of_range" if stamp > MAX_MS else None


def _bad_count(tokens: object) -> Reason | None:
    if tokens is None:
        return None  # whether that is a fault depends on the status: problem() says
    if isinstance(tokens, bool) or not isinstance(tokens, int):
        return "not_integer"
    if tokens < 0:
        return "negative"
    return "out_of_range" if tokens > MAX_TOKENS else None


def has_duplicate_key(line: bytes) -> bool:
    try:
        json.loads(line, object_pairs_hook=_unique)
    except _DuplicateKeyError:
        return True
    except (ValueError, RecursionError):  # nested deeper than this reader can follow
        return False
    return False


class _DuplicateKeyError(ValueError):
    pass


class _NotFiniteError(ValueError):
    pass


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _DuplicateKeyError
    return found


def _refuse_constant(_: str) -> NoReturn:
    raise _NotFiniteError

"""The canonical record: one request, one line of JSON, in milliseconds and tokens.

``Row`` is the table of fields: JSON, columns, limits and the schema follow from it, so that a new
field is one line here. Servers that are recorded load this module, so it needs msgspec alone.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec

VERSION = 1

Status = Literal["ok", "aborted", "error", "rejected"]
SERVED: tuple[Status, ...] = ("ok", "aborted")
"""Statuses of requests that held a slot and are sent again; the others are only counted."""

REFUSED = frozenset({400, 413, 422, 429, 503})
"""HTTP statuses that reject a request: it is too long, or the server too full."""

TimeUnit = Literal["s", "ms", "us", "ns"]
"""The unit of times that are numbers."""

SCHEDULE = "concurrency_schedule"
"""Source of a trace that was made of a concurrency schedule, in its header."""

REASONS: dict[str, str] = {
    "malformed": "not JSON, not UTF-8, cut off, or a wrong number of columns",
    "no_timestamp": "no arrival time",
    "bad_timestamp": "the arrival is not a time, or has another unit, zone or form",
    "no_tokens": "input_length or output_length is missing",
    "not_integer": "a count of tokens is not an integer",
    "negative": "a count of tokens is negative",
    "zero_tokens": "served without prompt tokens, or without output tokens",
    "out_of_range": "a number too large to be true",
    "bad_field": "an optional field of the wrong kind, or of another unit",
    "negative_time": "a negative duration, or an end before the start",
    "several_requests": "a sum of several requests, or of n > 1 sequences",
    "same_request": "part of a request that another row stands for",
    "cache_hit": "answered by a gateway's cache: no server saw it",
    "not_generation": "generates no tokens: an embedding, a tool call, a link in a chain",
}
"""Why a row is not used. docs/traces.md says what to do about each."""

CODES: dict[str, int] = {reason: code for code, reason in enumerate(REASONS, 1)}
"""The codes of reasons in arrays; 0 is no reason."""

MAX_TOKENS = 2**31 - 1
MAX_N = 16_384
"""vLLM's own limit on n."""
MAX_MS = 10**14
"""Three thousand years: larger numbers are not times."""

Ms = int | float | None
Count = int | None
Counts = tuple[int, ...]
Name = str | int | None


class Row(msgspec.Struct, omit_defaults=True, gc=False):
    """One request as a line of the canonical form has it; null is absent."""

    timestamp: Ms
    input_length: Count = None
    output_length: Count = None
    status: Status = "ok"
    n: int = 1
    output_lengths: Counts = ()
    max_tokens: Count = None
    hash_ids: Counts = ()
    request_id: Name = None
    session_id: Name = None
    turn: Count = None
    parent_id: Name = None
    e2e_ms: Ms = None
    ttft_ms: Ms = None
    queue_ms: Ms = None
    priority: Count = None
    replica: Count = None
    row: Count = None
    """Position in the trace that this one was cut from; absent where it is the position here."""


class ReadOptions(msgspec.Struct, kw_only=True):
    """What the user says of a file; nothing by default."""

    format_name: str | None = None
    time_unit: TimeUnit | None = None
    columns: str | None = None
    """``timestamp=ts,duration_ms=#7``: role, or role and unit, = heading, dotted path or number."""
    allow_text: bool = False


KINDS = {
    Ms: "time",
    int: "count",
    Count: "count",
    Counts: "list",
    **dict.fromkeys((Name, Status), "name"),
}
LIMITS = {"n": (1, MAX_N), "priority": (-(2**31), 2**31 - 1), "hash_ids": (0, 2**63 - 1)}
"""Least and most, where these are not 0 and MAX_TOKENS."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the record, as columns and checks need to know it."""

    key: str
    kind: str
    """time, name, list or count."""
    default: Any
    least: int = 0
    most: int = MAX_TOKENS

    @property
    def attribute(self) -> str:
        """The name of the field of a ``TraceRequest``, whose times are in seconds."""
        return "arrival_s" if self.key == "timestamp" else self.key.replace("_ms", "_s")


_TYPES = zip(Row.__annotations__.items(), (None, *Row.__struct_defaults__), strict=True)
FIELDS = tuple(
    Field(key, KINDS[kind], default, *LIMITS.get(key, ())) for (key, kind), default in _TYPES
)

Total = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """The header of a trace: the first line of the canonical form."""

    source: str = "unknown"
    model: str | None = None
    time_origin: str | None = None
    block_size: Annotated[int, msgspec.Meta(ge=1, le=2**20)] = 16
    """Tokens that one entry of ``hash_ids`` stands for."""
    rows_read: Total = 0
    rows_kept: Total = 0
    dropped: dict[str, Total] = field(default_factory=dict)
    """Reason → rows; rows_read = rows_kept + the sum of these."""
    missing: tuple[str, ...] = ()
    """What the source cannot show, such as ``aborts``."""
    notes: tuple[str, ...] = ()


_encode = msgspec.json.Encoder().encode


def header_line(header: TraceHeader) -> bytes:
    """Return the first line of the canonical form."""
    fields = {
        key: value
        for key, value in dataclasses.asdict(header).items()
        if value is not None and value != ()
    }
    return _encode({"tuner_trace": VERSION, "time_unit": "ms", **fields}) + b"\n"


def row_line(row: Row) -> bytes:
    """Return a row as a line of the canonical form."""
    return _encode(row) + b"\n"

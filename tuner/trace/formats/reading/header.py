"""The first line of a trace in the canonical form, and how its lines are written."""

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec

from tuner.trace.formats.reading.record import Row

VERSION = 1

TimeUnit = Literal["s", "ms", "us", "ns", "dmy", "mdy", "ymd"]
"""The user's word on times: the unit of numbers, or the order of a date's numbers."""

Positive = Annotated[int, msgspec.Meta(ge=1, le=2**20)]
Total = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """The header of a trace; the first line of the canonical form."""

    source: str = "unknown"
    model: str | None = None
    time_origin: str | None = None
    time_resolution_ms: float | None = None
    block_size: Positive = 16
    """Tokens that one entry of ``hash_ids`` stands for."""

    hash_scope: str = "trace"
    replicas: Positive = 1
    rows_read: Total = 0
    rows_kept: Total = 0
    dropped: dict[str, Total] = field(default_factory=dict)
    """Reject reason → rows; rows_read = rows_kept + the sum of these."""

    missing: tuple[str, ...] = ()
    """What the source cannot show, such as ``aborts``."""

    notes: tuple[str, ...] = ()


_encode = msgspec.json.Encoder().encode


def header_line(header: TraceHeader) -> bytes:
    fields = {
        key: value
        for key, value in dataclasses.asdict(header).items()
        if value is not None and value != ()
    }
    return _encode({"tuner_trace": VERSION, "time_unit": "ms", **fields}) + b"\n"


def row_line(row: Row) -> bytes:
    return _encode(row) + b"\n"

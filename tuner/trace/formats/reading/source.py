"""A trace file as one format reads it: its header and its rows."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec

from tuner.trace.formats.reading.record import Row

TimeUnit = Literal["s", "ms"]
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


@dataclass(frozen=True, slots=True)
class Source:
    """A trace file as one format reads it."""

    header: TraceHeader
    rows: Iterator[Row]
    """In the order of the file. The tally of the lines is complete when this is exhausted."""

    absolute: bool = False
    """Stamps are ms since 1970, without a zone, and not ms from the trace's origin."""

    undated: bool = False
    """Absolute stamps count from some zero that is no date, such as the start of a machine."""

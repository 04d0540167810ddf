"""Requests as production saw them: the canonical trace, read, checked, rebased and cut."""

from dataclasses import dataclass, field
from typing import Literal

Status = Literal["ok", "aborted", "error", "rejected"]


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request. Times are seconds from the trace's origin; lengths are tokens."""

    row: int
    """Position among the kept rows of the whole trace in arrival order; seeds the prompt, so that a
    cut of the trace sends the same prompts as the whole."""

    arrival_s: float
    input_length: int
    output_length: int
    """Generated tokens; of the longest sequence if n > 1."""

    status: Status = "ok"
    n: int = 1
    output_lengths: tuple[int, ...] = ()
    max_tokens: int | None = None
    hash_ids: tuple[int, ...] = ()
    request_id: str | None = None
    session_id: str | None = None
    turn: int | None = None
    parent_id: str | None = None
    e2e_s: float | None = None
    """As production saw it: duration from arrival to the last token, or to the abort."""

    ttft_s: float | None = None
    queue_s: float | None = None
    finish_reason: str | None = None
    priority: int | None = None
    lora: str | None = None
    model: str | None = None
    replica: int | None = None
    stream: bool | None = None
    cached_tokens: int | None = None
    num_images: int | None = None


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """What a trace says of itself; the first line of the canonical form."""

    source: str
    model: str | None = None
    time_origin: str | None = None
    time_resolution_ms: float | None = None
    block_size: int = 16
    """Tokens that one entry of ``hash_ids`` stands for."""

    hash_scope: str = "trace"
    replicas: int = 1
    rows_read: int = 0
    rows_kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    """Reject reason → rows; rows_read = rows_kept + the sum of these."""

    missing: tuple[str, ...] = ()
    """What the source cannot show, such as ``aborts``."""

    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace in memory: requests in arrival order."""

    header: TraceHeader
    requests: tuple[TraceRequest, ...]
    digest: str
    """``sha256:…`` of the canonical content of the requests."""

    warnings: tuple[str, ...] = ()

"""Rows that are one request: sequences of n > 1, and spans above one another."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.trace.record import MAX_N

MOST_BETWEEN = 100
"""Spans between a request and the one above it."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A row of a file, and what it is linked by."""

    line: int
    fields: dict[str, Any] | None
    """The request by the keys of the record; None for a link in a chain."""
    trace: str | None = None
    span: str | None = None
    parent: str | None = None
    key: str | None = None
    """Equal for sequences of one request, if it is known."""
    server: bool | None = None

    @property
    def identity(self) -> Hashable:
        return (self.trace, self.span) if self.span else self


Settled = tuple[list[Row], list[tuple[str, int]]]
"""The requests that there really are, and (reason, line) of rows that another one stands for."""


def sequences(rows: Sequence[Row]) -> Settled:
    """Return rows of one key as one request with as many sequences."""
    by_key: dict[Hashable, list[Row]] = defaultdict(list)
    for row in rows:
        if row.fields is not None:
            by_key[row.key or row.identity].append(row)
    kept: list[Row] = []
    dropped: list[tuple[str, int]] = []
    for same in by_key.values():
        own = {row.span or row: row.fields or {} for row in same[:MAX_N]}
        dropped += [("same_request", row.line) for row in same[1:]]
        fields = same[0].fields if len(own) == 1 else _together([*own.values()])
        kept.append(replace(same[0], fields=fields))
    return kept, dropped


def _together(held: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one request of its sequences."""

    def known(key: str) -> list[Any]:
        return [fields[key] for fields in held if fields.get(key) is not None]

    lengths = [
        length
        for fields in held
        for length in fields.get("output_lengths") or [fields.get("output_length")]
        if length is not None
    ]
    return held[0] | {
        "n": sum(fields.get("n") or 1 for fields in held),
        "e2e_ms": max(known("e2e_ms"), default=None),
        "ttft_ms": min(known("ttft_ms"), default=None),
        "queue_ms": min(known("queue_ms"), default=None),
        "output_length": max(lengths, default=None),
        "output_lengths": lengths,
    }


def lowest_spans(rows: Sequence[Row]) -> Settled:
    """Return the requests; of spans above one another only the lowest, nearest the engine, and
    where servers have spans only these: a client's is the same request, or went elsewhere."""
    by_id: dict[Hashable, Row] = {}
    dropped: list[tuple[str, int]] = []
    for row in rows:
        known = by_id.setdefault(row.identity, row)
        if known.fields is None:
            by_id[row.identity] = row
        elif known is not row and row.fields is not None:
            dropped.append(("same_request", row.line))  # sent twice
    requests = [row for row in by_id.values() if row.fields is not None]
    upper = {_request_above(row, by_id) for row in requests}
    if any(row.server for row in requests):
        upper |= {row for row in requests if not row.server}
    dropped += [("same_request", row.line) for row in requests if row in upper]
    kept, more = sequences([row for row in requests if row not in upper])
    return kept, [*dropped, *more]


def _request_above(row: Row, by_id: dict[Hashable, Row]) -> Row | None:
    """Return the nearest request above, through whatever lies between; spans may form a ring."""
    below = row
    for _ in range(MOST_BETWEEN):
        over = by_id.get((below.trace, below.parent))
        if over is None or over.fields is not None:
            return None if over is row else over
        below = over
    return None

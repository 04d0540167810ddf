"""Rows that are one request: sequences of n > 1, and spans above one another."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

from tuner.trace.record import MAX_N

MOST_BETWEEN = 100
"""Spans between a request and the one above it."""

LINKS = ("trace", "span", "parent", "key", "server")
"""What links rows: ``key`` is equal for sequences of one request, ``server`` is for a server's."""

Row = dict[str, Any]
"""A request by the keys of the record, unless ``is_request`` is false, and its links."""


def requests_of(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return the requests that there really are, and the rows that these stand for.

    Of spans above one another only the lowest counts, nearest the engine, and where servers have
    spans only these: a client's is the same request, or went elsewhere.
    """
    by_id: dict[Hashable, Row] = {}
    doubled: list[Row] = []
    for place, row in enumerate(rows):
        row["id"] = (row["trace"], row["span"]) if row["span"] else place
        known = by_id.setdefault(row["id"], row)
        if not known["is_request"]:
            by_id[row["id"]] = row
        elif known is not row and row["is_request"]:
            doubled.append(row)  # sent twice
    requests = [row for row in by_id.values() if row["is_request"]]
    upper = {_request_above(row, by_id) for row in requests}
    if any(row["server"] for row in requests):
        upper |= {row["id"] for row in requests if not row["server"]}
    by_key: dict[Hashable, list[Row]] = defaultdict(list)
    for row in requests:
        (doubled if row["id"] in upper else by_key[row["key"] or row["id"]]).append(row)
    for same in by_key.values():
        doubled += same[1:]
    return [_together(same[:MAX_N]) for same in by_key.values()], doubled


def _request_above(row: Row, by_id: dict[Hashable, Row]) -> Hashable:
    """Return the nearest request above, through whatever lies between; spans may form a ring."""
    below = row
    for _ in range(MOST_BETWEEN):
        over = by_id.get((below["trace"], below["parent"]))
        if over is None or over["is_request"]:
            return None if over is None or over is row else over["id"]
        below = over
    return None


def _together(held: Sequence[Row]) -> Row:
    """Return one request of its sequences."""
    if len(held) == 1:
        return held[0]

    def known(key: str) -> list[Any]:
        return [row[key] for row in held if row.get(key) is not None]

    lengths = [
        length
        for row in held
        for length in row.get("output_lengths") or [row.get("output_length")]
        if length is not None
    ]
    return held[0] | {
        "n": sum(row.get("n") or 1 for row in held),
        "e2e_ms": max(known("e2e_ms"), default=None),
        "ttft_ms": min(known("ttft_ms"), default=None),
        "queue_ms": min(known("queue_ms"), default=None),
        "output_length": max(lengths, default=None),
        "output_lengths": lengths,
    }

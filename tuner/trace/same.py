"""Rows that are one request: sequences of n > 1, spans above one another, attempts of a client."""

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.trace.record import MAX_N, SERVED, Reason

RETRY_MS = 60_000
"""Time after a failure within which the same request is another attempt: clients wait less than a
minute, and a later turn of a session is another request."""

MOST_ALIKE = 100
"""So many clients of one trace with equal counts are looked at for a server without a link."""

Fields = dict[str, Any]
"""A request by the keys of the canonical record."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a file, and what it is linked by."""

    line: int
    fields: Fields | None
    """None for a link in a chain, which is no request."""

    trace: str = ""
    span: str = ""
    parent: str = ""
    key: Hashable = None
    """Equal for what is one request; None for what stands alone."""

    server: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """The requests that there really are, and the rows that another one stands for."""

    kept: Sequence[Row]
    dropped: Sequence[tuple[Reason, int]]


def sequences(rows: list[Row]) -> Settled:
    """Return rows of one key as one request with as many sequences."""
    found: dict[Hashable, Row] = {}
    spans: dict[Hashable, set[str]] = {}
    dropped: list[tuple[Reason, int]] = []
    for place, row in enumerate(rows):
        if row.fields is None:
            continue
        key = ("alone", place) if row.key is None else row.key
        first = found.setdefault(key, row)
        if first is row:
            spans[key] = {row.span}
            continue
        fields, more = first.fields, row.fields
        assert fields is not None
        n = (fields.get("n") or 1) + (more.get("n") or 1)
        if (row.span and row.span in spans[key]) or n > MAX_N:  # sent twice
            dropped.append(("same_request" if n <= MAX_N else "bad_field", row.line))
            continue
        spans[key].add(row.span)
        lengths = [*_lengths(fields), *_lengths(more)]
        together = {"n": n, "output_length": max(lengths, default=None), "output_lengths": lengths}
        for name, choose in (("e2e_ms", max), ("ttft_ms", min), ("queue_ms", min)):
            known = [one[name] for one in (fields, more) if one.get(name) is not None]
            together[name] = choose(known) if known else None
        found[key] = replace(first, fields={**fields, **together})
        dropped.append(("same_request", row.line))
    return Settled([*found.values()], dropped)


def lowest_spans(rows: list[Row]) -> Settled:
    """Return the requests; of spans above one another only the lowest, nearest the engine.

    What an upper one knows and the lower one does not, such as the session, is handed down.
    """
    traces: dict[object, list[Row]] = {}
    for place, row in enumerate(rows):
        traces.setdefault(row.trace if row.trace and row.span else place, []).append(row)
    kept: list[Row] = []
    dropped: list[tuple[Reason, int]] = []
    for trace in traces.values():
        _lowest(trace, kept, dropped)
    settled = sequences(sorted(kept, key=lambda row: row.line))
    return Settled(settled.kept, [*dropped, *settled.dropped])


def final_attempts(rows: list[Row]) -> Settled:
    """Return the rows without failures soon after which the same key was served."""
    served: dict[Hashable, list[float]] = {}
    for row in rows:
        if row.fields and row.key is not None and _status(row.fields) in SERVED:
            served.setdefault(row.key, []).append(row.fields["timestamp"])
    for times_ms in served.values():
        times_ms.sort()
    dropped: list[tuple[Reason, int]] = []
    kept: list[Row] = []
    for row in rows:
        if row.fields is None:
            continue
        times_ms, at_ms = served.get(row.key, []), row.fields["timestamp"]
        later = bisect_left(times_ms, at_ms)
        within_ms = (row.fields.get("e2e_ms") or 0) + RETRY_MS
        is_retried = later < len(times_ms) and times_ms[later] - at_ms <= within_ms
        if _status(row.fields) not in SERVED and is_retried:
            dropped.append(("retried", row.line))
        else:
            kept.append(row)
    return Settled(kept, dropped)


def _status(fields: Fields) -> str:
    return fields.get("status") or "ok"


def _lengths(fields: Fields) -> list[int]:
    several, one = fields.get("output_lengths"), fields.get("output_length")
    return list(several) if several else [] if one is None else [one]


def _lowest(trace: list[Row], kept: list[Row], dropped: list[tuple[Reason, int]]) -> None:
    by_id: dict[str, Row] = {}
    for row in trace:
        known = by_id.get(row.span)
        if known is None or known.fields is None:
            by_id[row.span] = row
        elif row.fields is not None:  # sent twice
            dropped.append(("same_request", row.line))
    above: dict[str, Row] = {}
    ways: dict[str, Row | None] = {}
    for row in by_id.values():
        over = None if row.fields is None else _next_above(row, by_id, ways)
        if over is not None:
            above[row.span] = over
    upper = {over.span for over in above.values()}
    requests = [row for row in by_id.values() if row.fields is not None]
    _match_unlinked([row for row in requests if row.span not in upper], above, upper)
    for row in requests:
        if row.span in upper:
            dropped.append(("same_request", row.line))
        else:
            kept.append(_informed(row, above.get(row.span)))


def _next_above(row: Row, by_id: dict[str, Row], known: dict[str, Row | None]) -> Row | None:
    """Return the nearest request above, through whatever lies between; spans may form a ring.

    ``known`` keeps what was found for the spans on the way, so that no way is gone twice.
    """
    way: list[str] = []
    seen = {row.span}
    found: Row | None = None
    parent = by_id.get(row.parent)
    while parent is not None and parent.span not in seen:
        if parent.fields is not None:
            found = parent
            break
        if parent.span in known:
            found = known[parent.span]
            break
        seen.add(parent.span)
        way.append(parent.span)
        parent = by_id.get(parent.parent)
    known.update(dict.fromkeys(way, found))
    return None if found is row else found


def _match_unlinked(requests: list[Row], above: dict[str, Row], upper: set[str]) -> None:
    """Match clients with servers of one trace between whose spans a link was never exported."""
    clients: dict[object, list[Row]] = {}
    for row in requests:
        if not row.server:
            clients.setdefault(_size(row), []).append(row)
    for row in requests:
        if not row.server or row.span in above:
            continue
        for client in clients.get(_size(row), ())[:MOST_ALIKE]:
            if client.span not in upper and _holds(client.fields or {}, row.fields or {}):
                above[row.span] = client
                upper.add(client.span)
                break


def _size(row: Row) -> object:
    fields = row.fields or {}
    return fields.get("input_length"), fields.get("output_length")


def _holds(outer: Fields, inner: Fields) -> bool:
    starts_ms = [one["timestamp"] for one in (outer, inner)]
    ends_ms = [one["timestamp"] + (one.get("e2e_ms") or 0) for one in (outer, inner)]
    return bool(starts_ms[0] <= starts_ms[1] and ends_ms[0] >= ends_ms[1])


def _informed(row: Row, above: Row | None) -> Row:
    if above is None or row.fields is None or above.fields is None:
        return row
    handed = ("session_id", "model", "finish_reason", "stream", "cached_tokens")
    more = {key: above.fields.get(key) for key in handed if row.fields.get(key) is None}
    return replace(row, fields={**row.fields, **more})

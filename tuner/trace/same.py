"""Rows that are one request: sequences of n > 1, spans above one another, attempts of a client."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.trace.record import MAX_N, SERVED, Reason

RETRY_MS = 60_000
"""Time after a failure within which the same request is another attempt: clients wait less than a
minute, and a later turn of a session is another request."""

MOST_ALIKE = 100
"""So many clients of one trace with equal counts are compared with a server without a link."""

HANDED = ("session_id", "model", "finish_reason", "stream", "cached_tokens")
"""Fields that a client's span may know and the server's does not."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a file, and what it is linked by."""

    line: int
    fields: dict[str, Any] | None
    """The request by the keys of the record; None for a link in a chain."""

    trace: str = ""
    span: str = ""
    parent: str = ""
    key: Hashable = None
    """Equal for what is one request; None for what stands alone."""

    server: bool = False

    @property
    def is_served(self) -> bool:
        return ((self.fields or {}).get("status") or "ok") in SERVED

    @property
    def times_ms(self) -> tuple[float, float]:
        """When the request came and ended."""
        fields = self.fields or {}
        return fields["timestamp"], fields["timestamp"] + (fields.get("e2e_ms") or 0)

    @property
    def size(self) -> Hashable:
        fields = self.fields or {}
        return self.trace, fields.get("input_length"), fields.get("output_length")


@dataclass(frozen=True, slots=True)
class Settled:
    """The requests that there really are, and the rows that another one stands for."""

    kept: Sequence[Row]
    dropped: Sequence[tuple[Reason, int]]


def sequences(rows: Sequence[Row]) -> Settled:
    """Return rows of one key as one request with as many sequences."""
    by_key: dict[Hashable, list[Row]] = defaultdict(list)
    for row in rows:
        if row.fields is not None:
            by_key[("alone", row.line, id(row)) if row.key is None else row.key].append(row)
    kept: list[Row] = []
    dropped: list[tuple[Reason, int]] = []
    for first, *others in by_key.values():
        own = {row.span or place: row for place, row in enumerate([first, *others])}
        held = [row.fields or {} for row in own.values()][:MAX_N]
        dropped += [("same_request", row.line) for row in others[: MAX_N - 1]]
        dropped += [("bad_field", row.line) for row in others[MAX_N - 1 :]]
        kept.append(first if len(held) == 1 else replace(first, fields=_together(held)))
    return Settled(kept, dropped)


def _together(held: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one request of its sequences."""
    lengths: list[int] = []
    for one in held:
        own = [] if one.get("output_length") is None else [one["output_length"]]
        lengths += one.get("output_lengths") or own
    found = {**held[0], "n": sum(one.get("n") or 1 for one in held)}
    for name, choose in (("e2e_ms", max), ("ttft_ms", min), ("queue_ms", min)):
        found[name] = choose((one[name] for one in held if one.get(name) is not None), default=None)
    return {**found, "output_length": max(lengths, default=None), "output_lengths": lengths}


def lowest_spans(rows: Sequence[Row]) -> Settled:
    """Return the requests; of spans above one another only the lowest, nearest the engine.

    What an upper one knows and the lower one does not, such as the session, is handed down.
    """
    by_id: dict[tuple[str, str], Row] = {}
    dropped: list[tuple[Reason, int]] = []
    for place, row in enumerate(rows):
        key = (row.trace, row.span) if row.trace and row.span else ("", str(place))
        known = by_id.setdefault(key, row)
        if known is not row and known.fields is not None and row.fields is not None:
            dropped.append(("same_request", row.line))  # sent twice
        elif known.fields is None:
            by_id[key] = row
    requests = [row for row in by_id.values() if row.fields is not None]
    known_above: dict[tuple[str, str], Row | None] = {}
    above = {id(row): _request_above(row, by_id, known_above) for row in requests}
    upper = {id(over) for over in above.values()}
    clients: dict[Hashable, list[Row]] = defaultdict(list)
    for row in requests:
        if not row.server and id(row) not in upper:
            clients[row.size].append(row)
    for row in requests:  # whose link was never exported, but whose lengths are a client's
        if row.server and row.trace and above[id(row)] is None:
            start_ms, end_ms = row.times_ms
            for over in clients[row.size][:MOST_ALIKE]:
                if (
                    id(over) not in upper
                    and over.times_ms[0] <= start_ms <= end_ms <= over.times_ms[1]
                ):
                    above[id(row)] = over
                    upper.add(id(over))
                    break
    dropped += [("same_request", row.line) for row in requests if id(row) in upper]
    lowest = [_informed(row, above[id(row)]) for row in requests if id(row) not in upper]
    settled = sequences(sorted(lowest, key=lambda row: row.line))
    return Settled(settled.kept, [*dropped, *settled.dropped])


def _request_above(
    row: Row, by_id: dict[tuple[str, str], Row], known: dict[tuple[str, str], Row | None]
) -> Row | None:
    """Return the nearest request above, through whatever lies between; spans may form a ring.

    ``known`` keeps the result for the spans on the way, so that no way is gone twice.
    """
    key, way = (row.trace, row.parent), dict.fromkeys([(row.trace, row.span)])
    while key in by_id and by_id[key].fields is None and key not in known and key not in way:
        way[key] = None
        key = (row.trace, by_id[key].parent)
    found = known[key] if key in known else by_id.get(key)
    found = None if found is None or found.fields is None or found is row else found
    known.update(dict.fromkeys([*way][1:], found))
    return found


def _informed(row: Row, above: Row | None) -> Row:
    fields, more = row.fields or {}, (above and above.fields) or {}
    handed = {key: more[key] for key in HANDED if fields.get(key) is None and key in more}
    return replace(row, fields={**fields, **handed})


def final_attempts(rows: Sequence[Row]) -> Settled:
    """Return the rows without failures soon after which the same key was served."""
    served: dict[Hashable, list[float]] = defaultdict(list)
    requests = [row for row in rows if row.fields is not None]
    for row in sorted(requests, key=lambda one: one.times_ms):
        if row.key is not None and row.is_served:
            served[row.key].append(row.times_ms[0])
    retried: list[Row] = []
    for row in requests:
        times_ms, (at_ms, end_ms) = served.get(row.key, []), row.times_ms
        later = bisect_left(times_ms, at_ms)
        if not row.is_served and later < len(times_ms) and times_ms[later] <= end_ms + RETRY_MS:
            retried.append(row)
    gone = {id(row) for row in retried}
    return Settled(
        [row for row in requests if id(row) not in gone], [("retried", row.line) for row in retried]
    )

"""Rows that are one request: sequences of n > 1, spans above one another, attempts of a client.

What belongs together is looked for among the last WINDOW spans or rows, so memory is bounded; what
lies farther apart in the file is taken for two requests.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from tuner.trace.formats.reading.record import MAX_N, SERVED, Row, Tally

WINDOW = 2**17
RETRY_MS = 60_000
"""Time after a failure within which the same request is another attempt: clients wait less than a
minute, and a later turn of a session is another request."""

MOST_ALIKE = 100
"""So many clients of one trace with equal counts are looked at for a server without a link."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """A row that may turn out to be part of another."""

    row: Row
    line: int
    key: Hashable = None
    """Equal for what is one request; None for what stands alone."""

    part: str = ""
    """Which of a request's spans this is; exporters that are not sure send one twice."""


@dataclass(frozen=True, slots=True)
class Span:
    """A span, or whatever else has a parent: one request's, or only a link between others."""

    trace: str
    id: str
    parent: str
    found: Fragment | None = None
    server: bool = False


def merged(found: Iterable[Fragment], tally: Tally) -> Iterator[Row]:
    """Yield the rows, those of one key as one request with as many sequences; count them all."""
    held: dict[Hashable, Fragment] = {}
    parts: dict[Hashable, set[str]] = {}
    for one in found:
        if one.key is None:
            tally.rows_kept += 1
            yield one.row
            continue
        other = held.get(one.key)
        if other is None:
            held[one.key] = one
            if len(held) > WINDOW:
                tally.rows_kept += 1
                oldest = next(iter(held))
                parts.pop(oldest, None)
                yield held.pop(oldest).row
        elif one.part and one.part in parts.setdefault(one.key, {other.part}):
            tally.drop("same_request", one.line)
        elif other.row.n + one.row.n > MAX_N:
            tally.drop("bad_field", one.line)
        else:
            parts.setdefault(one.key, {other.part}).add(one.part)
            held[one.key] = Fragment(
                _together(other.row, one.row), other.line, one.key, part=other.part
            )
            tally.drop("same_request", one.line)
    for one in held.values():
        tally.rows_kept += 1
        yield one.row


def innermost(spans: Iterable[Span], tally: Tally) -> Iterator[Fragment]:
    """Yield the requests; of spans above one another only the lowest, which is nearest the engine.

    What an upper one knows and the lower one does not, such as the session, is handed down.
    """
    traces: dict[str, list[Span]] = {}
    held = 0
    for span in spans:
        if not span.trace or not span.id:
            if span.found is not None:
                yield span.found
            continue
        traces.setdefault(span.trace, []).append(span)
        held += 1
        while held > WINDOW:
            oldest = traces.pop(next(iter(traces)))
            held -= len(oldest)
            yield from _lowest(oldest, tally)
    for trace in traces.values():
        yield from _lowest(trace, tally)


def final_attempts(found: Iterable[Fragment], tally: Tally) -> Iterator[Row]:
    """Yield the rows without failures soon after which the same key was served; count them all."""
    failures: dict[Hashable, list[Fragment]] = {}
    served: dict[Hashable, float] = {}
    held = 0
    for one in found:
        gone: list[Fragment] = [one]  # for which there is nothing to wait any more
        if one.key is not None and one.row.status in SERVED:
            served[one.key] = one.row.timestamp
            gone += failures.pop(one.key, ())
            held -= len(gone) - 1
        elif one.key is not None and one.key not in served:
            gone = []
            failures.setdefault(one.key, []).append(one)
            held += 1
        while held > WINDOW:
            oldest = failures.pop(next(iter(failures)))
            held -= len(oldest)
            gone += oldest
        if len(served) > WINDOW:
            served.pop(next(iter(served)))
        for each in gone:
            if each.row.status not in SERVED and _again(each.row, served.get(each.key)):
                tally.drop("retried", each.line)
            else:
                tally.rows_kept += 1
                yield each.row
    for each in (one for some in failures.values() for one in some):
        tally.rows_kept += 1
        yield each.row


def _again(failed: Row, served_ms: float | None) -> bool:
    """Whether what was served so late can be a further attempt at what failed."""
    if served_ms is None:
        return False
    return 0 <= served_ms - failed.timestamp <= (failed.e2e_ms or 0) + RETRY_MS


def _together(one: Row, other: Row) -> Row:
    lengths = (*_lengths(one), *_lengths(other))
    return msgspec.structs.replace(
        one,
        n=one.n + other.n,
        output_length=max(lengths, default=None),
        output_lengths=lengths,
        e2e_ms=_known(max, one.e2e_ms, other.e2e_ms),
        ttft_ms=_known(min, one.ttft_ms, other.ttft_ms),
        queue_ms=_known(min, one.queue_ms, other.queue_ms),
    )


def _lengths(row: Row) -> tuple[int, ...]:
    if row.output_lengths or row.output_length is None:
        return row.output_lengths
    return (row.output_length,)


def _known(choose: Callable[[list[float]], float], *values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return choose(known) if known else None


def _lowest(trace: list[Span], tally: Tally) -> Iterator[Fragment]:
    by_id: dict[str, Span] = {}
    for span in trace:
        known = by_id.get(span.id)
        if known is None or known.found is None:
            by_id[span.id] = span
        elif span.found is not None:  # sent twice
            tally.drop("same_request", span.found.line)
    trace = list(by_id.values())
    above: dict[int, Fragment] = {}  # a span, by identity → the request above it
    upper: set[int] = set()
    ways: dict[str, Span | None] = {}
    for span in trace:
        over = None if span.found is None else _next_above(span, by_id, ways)
        if over is not None and over.found is not None:
            above[id(span)] = over.found
            upper.add(id(over))
    requests = [span for span in trace if span.found is not None and id(span) not in upper]
    _unlinked(requests, above, upper)
    for span in trace:
        if span.found is None:
            continue
        if id(span) in upper:
            tally.drop("same_request", span.found.line)
        else:
            yield _informed(span.found, above.get(id(span)))


def _next_above(span: Span, by_id: dict[str, Span], known: dict[str, Span | None]) -> Span | None:
    """Return the nearest request above, through whatever lies between; spans may form a ring.

    ``known`` keeps what was found for the spans on the way, so that no way is gone twice.
    """
    way: list[str] = []
    seen = {span.id}
    found: Span | None = None
    parent = by_id.get(span.parent)
    while parent is not None and parent.id not in seen:
        if parent.found is not None:
            found = parent
            break
        if parent.id in known:
            found = known[parent.id]
            break
        seen.add(parent.id)
        way.append(parent.id)
        parent = by_id.get(parent.parent)
    known.update(dict.fromkeys(way, found))
    return None if found is span else found


def _unlinked(requests: list[Span], above: dict[int, Fragment], upper: set[int]) -> None:
    """Match clients with servers of one trace between whose spans a link was never exported."""
    clients: dict[tuple[int | None, int | None], list[Span]] = {}
    for span in requests:
        if not span.server and span.found is not None:
            clients.setdefault(_size(span.found.row), []).append(span)
    for span in requests:
        if span.found is None or not span.server or id(span) in above:
            continue
        for client in clients.get(_size(span.found.row), ())[:MOST_ALIKE]:
            assert client.found is not None
            if id(client) not in upper and _holds(client.found.row, span.found.row):
                above[id(span)] = client.found
                upper.add(id(client))
                break


def _size(row: Row) -> tuple[int | None, int | None]:
    return row.input_length, row.output_length


def _holds(outer: Row, one: Row) -> bool:
    ends = outer.timestamp + (outer.e2e_ms or 0) >= one.timestamp + (one.e2e_ms or 0)
    return outer.timestamp <= one.timestamp and ends


def _informed(found: Fragment, above: Fragment | None) -> Fragment:
    if above is None:
        return found
    lower, upper = found.row, above.row
    row = msgspec.structs.replace(
        lower,
        session_id=lower.session_id if lower.session_id is not None else upper.session_id,
        model=lower.model or upper.model,
        finish_reason=lower.finish_reason or upper.finish_reason,
        stream=lower.stream if lower.stream is not None else upper.stream,
        cached_tokens=lower.cached_tokens
        if lower.cached_tokens is not None
        else upper.cached_tokens,
    )
    return Fragment(row, found.line, found.key, found.part)

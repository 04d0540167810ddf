from collections.abc import Hashable, Iterable

import pytest

from tuner.trace.formats.reading import same_request
from tuner.trace.formats.reading.record import Row, Status, Tally
from tuner.trace.formats.reading.same_request import (
    Fragment,
    Span,
    final_attempts,
    innermost,
    merged,
)


def found(key: Hashable, at_ms: float = 0, *, status: Status = "ok", output: int = 5) -> Fragment:
    return Fragment(Row(at_ms, 10, output, status=status), line=1, key=key)


def merge(rows: Iterable[Fragment]) -> tuple[list[Row], Tally]:
    tally = Tally("t")
    return list(merged(rows, tally)), tally


def test_what_stands_alone_is_passed_on_at_once() -> None:
    rows = merged(iter([found(None), found("a")]), Tally("t"))
    assert next(rows).n == 1


def test_memory_is_bounded_by_taking_what_lies_far_apart_for_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(same_request, "WINDOW", 2)
    rows, _ = merge([found("a"), found("b"), found("a"), found("c"), found("d"), found("a")])
    assert [row.n for row in rows] == [2, 1, 1, 1, 1]


def test_no_request_has_more_sequences_than_an_engine_takes() -> None:
    rows, tally = merge([Fragment(Row(0, 1, 1, n=16_000), 1, "a")] * 2)
    assert [row.n for row in rows] == [16_000]
    assert tally.dropped == {"bad_field": 1}


def test_failures_are_held_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_request, "WINDOW", 1)
    tally = Tally("t")
    lines = [
        found("a", 0, status="error"),
        found("b", 1, status="error"),
        found("b", 2),
        found("a", 3),
    ]
    rows = list(final_attempts(lines, tally))
    assert [row.timestamp for row in rows] == [0, 2, 3]
    assert tally.dropped == {"retried": 1}


def test_traces_are_held_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_request, "WINDOW", 2)
    spans = [
        Span("t1", "a", "", found(None, 1)),
        Span("t2", "b", ""),
        Span("t3", "c", ""),
        Span("t1", "d", "a", found(None, 2)),
    ]
    tally = Tally("t")
    assert [one.row.timestamp for one in innermost(spans, tally)] == [1, 2]
    assert tally.dropped == {}


def test_a_span_without_a_trace_stands_alone() -> None:
    spans = [Span("", "a", "b", found(None)), Span("", "b", "a")]
    assert len(list(innermost(spans, Tally("t")))) == 1


def test_what_the_lower_span_knows_is_kept_and_the_rest_handed_down() -> None:
    upper = Row(0, 10, 5, session_id="s0", finish_reason="stop", cached_tokens=8, stream=True)
    lower = Row(1, 11, 5, finish_reason="length", model="m0")
    spans = [Span("t", "a", "", Fragment(upper, 1)), Span("t", "b", "a", Fragment(lower, 2))]
    (one,) = innermost(spans, Tally("t"))
    assert one.row == Row(
        1, 11, 5, session_id="s0", finish_reason="length", cached_tokens=8, stream=True, model="m0"
    )


def test_a_long_chain_above_many_requests_is_gone_up_once() -> None:
    length = 30_000
    chain = [Span("t", f"l{i}", f"l{i + 1}") for i in range(length)]
    top = Span("t", f"l{length}", "", found(None, 0, output=9))
    leaves = [Span("t", f"r{i}", "l0", found(None, i)) for i in range(length)]
    tally = Tally("t")
    assert sum(1 for _ in innermost([*chain, top, *leaves], tally)) == length
    assert tally.dropped == {"same_request": 1}


def test_a_ring_of_spans_has_nothing_above_it() -> None:
    spans = [
        Span("t", "a", "b", found(None, 1)),
        Span("t", "b", "c"),
        Span("t", "c", "b"),
        Span("t", "d", "c", found(None, 2)),
        Span("t", "e", "e", found(None, 3)),
    ]
    assert len(list(innermost(spans, Tally("t")))) == 3


def test_two_requests_that_are_each_others_parents_are_both_dropped_or_kept_but_counted() -> None:
    tally = Tally("t")
    spans = [Span("t", "a", "b", found(None, 1)), Span("t", "b", "a", found(None, 2))]
    kept = len(list(innermost(spans, tally)))
    assert kept + sum(tally.dropped.values()) == 2

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.spans import START, export, request, span
from tests.support.traces import LOGS, needs_logs, write_lines
from tuner.errors import TraceError, UsageError
from tuner.trace.formats.opening import open_trace
from tuner.trace.formats.reading.record import Row, Tally
from tuner.trace.formats.reading.source import Source
from tuner.trace.trace import load

START_MS = START / 1_000_000


def read(path: Path, *lines: object) -> tuple[list[Row], Tally, Source]:
    source, tally = open_trace(write_lines(path, *lines))
    assert source.header.source == "vllm-otlp"
    return list(source.rows), tally, source


def three(**changes: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - any field of a span
    return [
        span(length_s=seconds, attributes=request("cmpl-3", output=tokens), **changes)
        for seconds, tokens in ((1.0, 10), (3.0, 30), (2.0, 20))
    ]


def test_a_span_is_a_request(tmp_path: Path) -> None:
    (row,), tally, source = read(
        tmp_path / "t", export(span(start_s=0.5, length_s=0.25, attributes=request()))
    )
    assert row == Row(
        START_MS + 500, 200, 24, e2e_ms=250, ttft_ms=52.5, queue_ms=2, max_tokens=64, replica=0
    )
    assert source.absolute
    assert "aborts" in source.header.missing
    assert tally.warnings() == []


def test_whole_numbers_may_be_text_or_numbers(tmp_path: Path) -> None:
    found = span(attributes=request())
    found["startTimeUnixNano"] = START
    for pair in found["attributes"]:
        if "intValue" in pair["value"]:
            pair["value"]["intValue"] = int(pair["value"]["intValue"])
    (row,), _, _ = read(tmp_path / "t", export(found))
    assert (row.timestamp, row.input_length, row.output_length) == (START_MS, 200, 24)


def test_spans_of_other_names_are_no_rows(tmp_path: Path) -> None:
    rows, tally, _ = read(
        tmp_path / "t", export(span("Load model")), export(span(attributes=request()))
    )
    assert (len(rows), tally.rows_read, tally.dropped) == (1, 1, {})


def test_three_spans_of_one_id_and_one_start_are_one_request_of_three(tmp_path: Path) -> None:
    (row,), tally, _ = read(tmp_path / "t", export(*three()))
    assert (row.n, row.output_length, row.output_lengths) == (3, 30, (10, 30, 20))
    assert row.e2e_ms == 3000
    assert (tally.rows_read, tally.rows_kept, tally.dropped) == (3, 1, {"same_request": 2})


def test_sequences_are_found_in_any_line_and_order(tmp_path: Path) -> None:
    one, other, third = three()
    between = span(start_s=0.5, attributes=request("cmpl-9"))
    rows, _, _ = read(tmp_path / "t", export(other), export(between), export(third, one))
    assert sorted(row.n for row in rows) == [1, 3]


def test_a_span_that_was_sent_twice_counts_once(tmp_path: Path) -> None:
    one, other, third = three()
    (row,), tally, _ = read(tmp_path / "t", export(one, other), export(one, third, other))
    assert (row.n, row.output_lengths) == (3, (10, 30, 20))
    assert (tally.rows_read, tally.dropped) == (5, {"same_request": 4})


def test_metrics_may_stand_before_the_first_span(tmp_path: Path) -> None:
    line: dict[str, object] = {"resourceMetrics": [{"resource": {}}]}
    rows, tally, _ = read(tmp_path / "t", line, export(span(attributes=request())))
    assert (len(rows), tally.rows_read) == (1, 1)


def test_one_id_at_two_times_or_on_two_replicas_is_two_requests(tmp_path: Path) -> None:
    rows, _, _ = read(
        tmp_path / "t",
        export(
            span(attributes=request("same")),
            span(start_s=1, attributes=request("same")),
        ),
        export(span(attributes=request("same")), resource={"service.instance.id": "b"}),
    )
    assert [row.n for row in rows] == [1, 1, 1]
    assert [row.replica for row in rows] == [0, 0, 1]


@pytest.mark.parametrize(
    ("changes", "attributes", "reason"),
    [
        ({"startTimeUnixNano": None}, {}, "no_timestamp"),
        ({"startTimeUnixNano": "0"}, {}, "no_timestamp"),
        ({"startTimeUnixNano": "soon"}, {}, "bad_timestamp"),
        ({"startTimeUnixNano": "-5000000"}, {}, "before_origin"),
        ({"startTimeUnixNano": "9" * 19 + "99"}, {}, "bad_timestamp"),
        ({}, {"prompt": None}, "no_tokens"),
        ({}, {"output": "-"}, "no_tokens"),
        ({}, {"output": -1}, "negative"),
        ({}, {"output": 1.5}, "not_integer"),
        ({}, {"output": 0}, "zero_tokens"),
        ({}, {"prompt": 2**40}, "out_of_range"),
        ({"endTimeUnixNano": "5000000"}, {}, "bad_field"),
    ],
)
def test_a_span_that_cannot_be_used_is_counted_under_its_reason(
    tmp_path: Path, changes: dict[str, Any], attributes: dict[str, Any], reason: str
) -> None:
    bad = span(attributes=request(**attributes), **changes)
    rows, tally, _ = read(tmp_path / "t", export(span(attributes=request())), export(bad))
    assert (len(rows), tally.rows_read, tally.dropped) == (1, 2, {reason: 1})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "malformed"),
        ('{"resourceSpans": 1}', "malformed"),
        ('{"resourceSpans": [{"scopeSpans": [{"spans": [1]}]}]}', "malformed"),
        ('{"resourceSpans": [{"scopeSpans": [{"spans": {}}]}]}', "malformed"),
        (b'{"resourceSpans": "\xff"}', "encoding"),
    ],
)
def test_a_line_that_is_no_export_is_counted(tmp_path: Path, line: object, reason: str) -> None:
    rows, tally, _ = read(tmp_path / "t", export(span(attributes=request())), line)
    assert (len(rows), tally.rows_read, tally.dropped) == (1, 2, {reason: 1})


@pytest.mark.parametrize(
    "line", ["{}", '{"resourceMetrics": []}', '{"resourceSpans": null}', '{"resourceSpans": [{}]}']
)
def test_a_line_without_spans_is_nothing(tmp_path: Path, line: str) -> None:
    rows, tally, _ = read(tmp_path / "t", export(span(attributes=request())), line)
    assert (len(rows), tally.rows_read) == (1, 1)


def test_a_document_may_be_printed_over_many_lines(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(json.dumps(export(*three()), indent=2))
    source, tally = open_trace(path)
    assert [row.n for row in source.rows] == [3]
    assert tally.rows_read == 3


def test_a_batch_may_be_longer_than_the_rows_of_other_formats(tmp_path: Path) -> None:
    spans = [span(start_s=i, attributes=request(f"cmpl-{i}")) for i in range(8000)]
    path = write_lines(tmp_path / "t", export(*spans))
    assert path.stat().st_size > 5 * 2**20
    source, tally = open_trace(path)
    assert len(list(source.rows)) == 8000
    assert tally.dropped == {}


def test_a_file_that_breaks_off_is_told(tmp_path: Path) -> None:
    text = json.dumps(export(span(attributes=request())))
    (tmp_path / "t").write_text(f"{text}\n{text[:500]}")
    source, tally = open_trace(tmp_path / "t")
    assert len(list(source.rows)) == 1
    assert tally.dropped == {"truncated": 1}


def test_spans_without_a_request_among_them_are_no_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"t: none of its 1 spans is a request's") as caught:
        read(tmp_path / "t", export(span("Load model", attributes={"vllm.x": 1})))
    assert "--otlp-traces-endpoint" in caught.value.hint


def test_a_unit_for_stamps_in_ns_is_wrong_usage(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", export(span(attributes=request())))
    with pytest.raises(UsageError, match="ns"):
        open_trace(path, time_unit="s")


@needs_logs
def test_the_seven_real_spans_are_five_requests_and_one_is_of_three() -> None:
    trace = load(LOGS / "vllm-0.32.0.otlp-json.jsonl")
    assert (trace.header.rows_read, trace.header.rows_kept) == (7, 5)
    assert trace.header.dropped == {"same_request": 2}
    assert [one.n for one in trace.requests] == [1, 1, 3, 1, 1]
    assert [one.input_length for one in trace.requests] == [200, 202, 4, 2, 3]
    assert trace.requests[2].output_lengths == (10, 10, 10)
    assert "aborts" in trace.header.missing
    assert trace.header.time_origin == "2026-11-21T10:01:13.494428"


@needs_logs
def test_the_specifications_own_sample_is_refused_with_a_cure() -> None:
    source, _ = open_trace(LOGS / "otlp-spec-trace.json")
    with pytest.raises(TraceError, match="none of its 1 spans is a request to a language model"):
        list(source.rows)


@needs_logs
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("info.text", "without debugging"),
        ("info.json", "without debugging"),
        ("debug.text", "--max-log-len"),
    ],
)
def test_real_logs_are_refused_with_what_to_capture_instead(name: str, says: str) -> None:
    with pytest.raises(TraceError, match=says) as caught:
        open_trace(LOGS / f"vllm-0.32.0.{name}.log")
    assert "TraceRecorder" in caught.value.hint

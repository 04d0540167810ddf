import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.traces import write_lines
from tuner.errors import TraceError, UsageError
from tuner.trace.formats.opening import open_trace
from tuner.trace.formats.reading.record import Row, Tally
from tuner.trace.trace import load

START_MS = 1_737_710_446_847.371  # 2025-01-24 09:20:46.847371 UTC


def spend(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any column
    """Return a row of the spend logs: a stream of 10 + 20 tokens that took 2 s."""
    return {
        "request_id": "chatcmpl-1",
        "call_type": "acompletion",
        "cache_hit": "None",
        "startTime": "2025-01-24 09:20:46.847371",
        "endTime": "2025-01-24 09:20:48.847371",
        "completionStartTime": "2025-01-24 09:20:47.347371",
        "model": "hosted_vllm/m",
        "model_group": "m",
        "model_id": "d1",
        "api_base": "http://10.0.0.1:8000/v1",
        "prompt_tokens": 10,
        "completion_tokens": 20,
        "total_tokens": 30,
        "metadata": "{}",
        "messages": "{}",
        "response": "{}",
        "status": "success",
        **changes,
    }


def payload(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any field
    """Return a standard logging payload."""
    return {
        "id": "chatcmpl-1",
        "trace_id": "t1",
        "call_type": "acompletion",
        "stream": True,
        "status": "success",
        "prompt_tokens": 10,
        "completion_tokens": 20,
        "startTime": START_MS / 1000,
        "endTime": START_MS / 1000 + 2,
        "completionStartTime": START_MS / 1000 + 0.5,
        "response_time": 0.5,
        "model": "m",
        "model_parameters": {"max_tokens": 64},
        "cache_hit": None,
        **changes,
    }


def read(path: Path, *lines: object, allow_text: bool = False) -> tuple[list[Row], Tally]:
    source, tally = open_trace(write_lines(path, *lines), allow_text=allow_text)
    assert source.header.source == "litellm"
    return list(source.rows), tally


def test_a_spend_log_is_in_utc_though_it_does_not_say_so(tmp_path: Path) -> None:
    (row,), tally = read(tmp_path / "t", spend())
    assert row == Row(START_MS, 10, 20, e2e_ms=2000, ttft_ms=500, model="m0", replica=0)
    assert tally.warnings() == []


def test_a_zone_that_is_there_is_believed(tmp_path: Path) -> None:
    (row,), _ = read(tmp_path / "t", spend(startTime="2025-01-24T11:20:46.847371+02:00"))
    assert row.timestamp == START_MS


def test_a_payload_has_seconds_and_parameters(tmp_path: Path) -> None:
    (row,), _ = read(tmp_path / "t", payload())
    assert row == Row(
        pytest.approx(START_MS, abs=0.001),  # type: ignore[arg-type]
        10, 20, e2e_ms=2000, ttft_ms=500, max_tokens=64, stream=True, model="m0",
    )  # fmt: skip


def test_without_a_stream_there_is_no_first_token(tmp_path: Path) -> None:
    row = spend()
    (found,), _ = read(tmp_path / "t", row | {"completionStartTime": row["endTime"]})
    assert found.ttft_ms is None


@pytest.mark.parametrize(
    ("hit", "kept"), [("True", 1), (True, 1), ("None", 2), ("", 2), (None, 2)], ids=repr
)
def test_what_a_cache_answered_reached_no_server(tmp_path: Path, hit: object, kept: int) -> None:
    rows, tally = read(tmp_path / "t", spend(), spend(cache_hit=hit))
    assert len(rows) == kept
    assert tally.dropped == ({"cache_hit": 1} if kept == 1 else {})


@pytest.mark.parametrize("kind", ["aembedding", "image_generation", "rerank", "moderation"])
def test_calls_that_generate_no_tokens_are_left_out(tmp_path: Path, kind: str) -> None:
    _, tally = read(tmp_path / "t", spend(), spend(call_type=kind))
    assert tally.dropped == {"not_generation": 1}


def failed(start: str, **changes: object) -> dict[str, Any]:
    return payload(
        status="failure", prompt_tokens=0, completion_tokens=0, startTime=start,
        endTime=start.replace("00Z", "00.5Z"), completionStartTime=None, **changes,
    )  # fmt: skip


def served(start: str, **changes: object) -> dict[str, Any]:
    return payload(
        startTime=start, endTime=start.replace("00Z", "09Z"), completionStartTime=None, **changes
    )


@pytest.mark.parametrize("newest_first", [False, True])
def test_an_attempt_that_failed_before_the_same_trace_was_served_is_no_request(
    tmp_path: Path, *, newest_first: bool
) -> None:
    lines = [failed("2025-01-24T09:20:00Z"), served("2025-01-24T09:21:00Z")]
    rows, tally = read(tmp_path / "t", *(lines[::-1] if newest_first else lines))
    assert [row.status for row in rows] == ["ok"]
    assert (tally.rows_read, tally.rows_kept, tally.dropped) == (2, 1, {"retried": 1})


@pytest.mark.parametrize(
    "later",
    [
        served("2025-01-24T09:21:00Z", trace_id="t2"),
        served("2025-01-24T09:21:00Z", model="another"),
        served("2025-01-24T09:19:00Z"),
        served("2025-01-24T10:20:00Z"),
    ],
    ids=["another trace", "another model", "before it", "an hour later"],
)
def test_a_failure_that_nothing_made_good_is_kept(tmp_path: Path, later: dict[str, Any]) -> None:
    rows, tally = read(tmp_path / "t", failed("2025-01-24T09:20:00Z"), later)
    assert sorted(row.status for row in rows) == ["error", "ok"]
    assert tally.dropped == {}


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, "error"),
        ({"error_information": {"error_code": "429"}}, "rejected"),
        ({"error_information": {"error_code": 503}}, "rejected"),
        ({"metadata": '{"error_information": {"error_code": "500"}}'}, "error"),
        ({"prompt_tokens": -1, "completion_tokens": -1}, "error"),
    ],
)
def test_failures_are_kept_with_their_status(
    tmp_path: Path, changes: dict[str, Any], status: str
) -> None:
    rows, tally = read(tmp_path / "t", spend(status="failure", completion_tokens=0) | changes)
    assert [row.status for row in rows] == [status]
    assert tally.dropped == {}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"startTime": None}, "no_timestamp"),
        ({"startTime": "yesterday"}, "bad_timestamp"),
        ({"startTime": 46.8}, "bad_timestamp"),
        ({"startTime": "2025-01-24"}, "bad_timestamp"),
        ({"startTime": "1925-01-24 00:00:00"}, "before_origin"),
        ({"prompt_tokens": -1}, "negative"),
        ({"prompt_tokens": None}, "no_tokens"),
        ({"completion_tokens": "many"}, "not_integer"),
        ({"completion_tokens": 0}, "zero_tokens"),
        ({"endTime": "2025-01-24 09:20:40"}, "bad_field"),
    ],
)
def test_a_row_that_cannot_be_used_is_counted_under_its_reason(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    rows, tally = read(tmp_path / "t", spend(), spend(**changes))
    assert (len(rows), tally.rows_read, tally.dropped) == (1, 2, {reason: 1})


def test_the_sum_over_n_is_split_evenly(tmp_path: Path) -> None:
    (row,), tally = read(tmp_path / "t", payload(model_parameters={"n": 2}, completion_tokens=21))
    assert (row.n, row.output_lengths, row.output_length) == (2, (11, 10), 11)
    assert len(tally.notes) == 1


def test_cached_tokens_are_in_the_usage(tmp_path: Path) -> None:
    usage = {"usage_object": {"prompt_tokens_details": {"cached_tokens": 8}}}
    (row,), _ = read(tmp_path / "t", spend(metadata=json.dumps(usage)))
    assert row.cached_tokens == 8


@pytest.mark.parametrize("key", ["messages", "response", "proxy_server_request"])
def test_text_is_refused_unless_allowed(tmp_path: Path, key: str) -> None:
    line = spend(**{key: [{"role": "user", "content": "my diagnosis"}]})
    with pytest.raises(TraceError, match=rf"t:1: holds text \({key}\)"):
        read(tmp_path / "t", line)
    (row,), tally = read(tmp_path / "t", line, allow_text=True)
    assert "diagnosis" not in f"{row} {tally}"


@pytest.mark.parametrize(
    "layout", [lambda rows: rows, lambda rows: {"data": rows, "total": 2}], ids=["array", "page"]
)
@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_and_a_page_of_the_api_are_read_in_any_layout(
    tmp_path: Path,
    layout: Any,  # noqa: ANN401 - a function
    indent: int | None,
) -> None:
    path = tmp_path / "t"
    path.write_text(json.dumps(layout([spend(), spend(prompt_tokens=11)]), indent=indent))
    source, tally = open_trace(path)
    assert [row.input_length for row in source.rows] == [10, 11]
    assert tally.rows_read == 2


def write_csv(path: Path, *rows: dict[str, Any]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_the_table_as_csv_says_the_same_as_json(tmp_path: Path) -> None:
    rows = [spend(metadata='{"a":\n "b, c"}'), spend(cache_hit="True"), spend(status="failure")]
    as_csv = load(write_csv(tmp_path / "c", *rows))
    as_json = load(write_lines(tmp_path / "j", *rows))
    assert as_csv.digest == as_json.digest
    assert as_csv.header == as_json.header
    assert as_csv.header.dropped == {"cache_hit": 1}


def test_a_csv_row_of_too_few_cells_or_an_open_quote_is_malformed(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "c", spend(), spend())
    with path.open("a") as file:
        file.write("a,b\n")
        file.write('"' + "x" * 200_000 + "\n")
    source, tally = open_trace(path)
    assert len(list(source.rows)) == 2
    assert tally.dropped == {"malformed": 2}


def test_text_in_csv_is_refused(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "c", spend(), spend(messages='[{"content": "hello"}]'))
    source, _ = open_trace(path)
    with pytest.raises(TraceError, match=r"c:3: holds text \(messages\)"):
        list(source.rows)


def test_a_unit_for_dates_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="dates"):
        open_trace(write_lines(tmp_path / "t", spend()), time_unit="s")


def test_what_is_no_row_in_a_page_is_counted(tmp_path: Path) -> None:
    _, tally = read(tmp_path / "t", {"data": [spend(), 7]})
    assert tally.dropped == {"malformed": 1}


def test_messages_that_litellm_took_away_are_no_text(tmp_path: Path) -> None:
    (row,), _ = read(
        tmp_path / "t",
        payload(
            messages=[{"role": "user", "content": "redacted-by-litellm"}],
            response={"text": "redacted-by-litellm"},
        ),
    )
    assert row.input_length == 10

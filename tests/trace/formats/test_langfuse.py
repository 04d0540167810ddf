import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.traces import write_lines
from tuner.errors import TraceError, UsageError
from tuner.trace.formats.opening import open_trace
from tuner.trace.formats.reading.record import Row, Tally

START_MS = 1_716_990_379_963.0  # 2024-05-29 13:46:19.963 UTC


def observation(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any field
    """Return an observation of the API: a stream of 100 + 20 tokens that took 2 s."""
    return {
        "id": "o1",
        "traceId": "t1",
        "type": "GENERATION",
        "startTime": "2024-05-29T13:46:19.963Z",
        "endTime": "2024-05-29T13:46:21.963Z",
        "completionStartTime": "2024-05-29T13:46:20.213Z",
        "model": "m",
        "modelParameters": {"max_tokens": 64},
        "usageDetails": {"input": 100, "output": 20, "total": 120},
        "level": "DEFAULT",
        "parentObservationId": None,
        **changes,
    }


def exported(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any field
    """Return a row of the blob export."""
    return {
        "id": "o1",
        "trace_id": "t1",
        "type": "GENERATION",
        "start_time": "2024-05-29 13:46:19.963000",
        "end_time": "2024-05-29 13:46:21.963000",
        "completion_start_time": None,
        "provided_model_name": "m",
        "usage_details": {"input": 100, "output": 20, "total": 120},
        "session_id": "alice",
        "user_id": "alice",
        "level": "DEFAULT",
        **changes,
    }


def read(path: Path, *lines: object, allow_text: bool = False) -> tuple[list[Row], Tally]:
    return read_file(write_lines(path, *lines), allow_text=allow_text)


def read_file(path: Path, *, allow_text: bool = False) -> tuple[list[Row], Tally]:
    source, tally = open_trace(path, allow_text=allow_text)
    assert source.header.source == "langfuse"
    return list(source.rows), tally


def test_an_observation_of_the_api_is_a_request(tmp_path: Path) -> None:
    (row,), tally = read(tmp_path / "t", observation())
    assert row == Row(START_MS, 100, 20, e2e_ms=2000, ttft_ms=250, max_tokens=64, model="m0")
    assert tally.warnings() == []


def test_an_exported_row_is_in_utc_though_it_does_not_say_so(tmp_path: Path) -> None:
    (row,), _ = read(tmp_path / "t", exported())
    assert row == Row(START_MS, 100, 20, e2e_ms=2000, session_id="s0", model="m0")


def test_cached_input_stands_beside_the_rest_and_is_added(tmp_path: Path) -> None:
    usage = {
        "input": 60, "input_cached_tokens": 40, "input_cache_creation": 8, "output": 15,
        "output_reasoning_tokens": 5, "total": 128,
    }  # fmt: skip
    (row,), _ = read(tmp_path / "t", observation(usageDetails=usage))
    assert (row.input_length, row.output_length, row.cached_tokens) == (108, 20, 40)


@pytest.mark.parametrize(
    "usage",
    [
        {"usageDetails": json.dumps({"input": 100, "output": 20})},
        {"usageDetails": {"prompt_tokens": 100, "completion_tokens": 20}},
        {"usageDetails": {}, "usage": {"input": 100, "output": 20, "unit": "TOKENS"}},
        {"usageDetails": None, "usage": {"promptTokens": 100, "completionTokens": 20}},
    ],
)
def test_usage_is_read_in_every_form(tmp_path: Path, usage: dict[str, Any]) -> None:
    (row,), _ = read(tmp_path / "t", observation(**usage))
    assert (row.input_length, row.output_length) == (100, 20)


def test_characters_are_no_tokens(tmp_path: Path) -> None:
    usage = {"usageDetails": None, "usage": {"input": 400, "output": 80, "unit": "CHARACTERS"}}
    _, tally = read(tmp_path / "t", observation(), observation(**usage))
    assert tally.dropped == {"no_tokens": 1}


def test_only_generations_are_requests(tmp_path: Path) -> None:
    lines = [observation(type=kind) for kind in ("SPAN", "EVENT", "TOOL", "GENERATION")]
    rows, tally = read(tmp_path / "t", *lines)
    assert (len(rows), tally.rows_read, tally.dropped) == (1, 4, {"not_generation": 3})


def test_an_observation_that_was_exported_twice_counts_once(tmp_path: Path) -> None:
    rows, tally = read(tmp_path / "t", observation(), observation())
    assert [row.n for row in rows] == [1]
    assert tally.dropped == {"same_request": 1}


def test_of_generations_above_one_another_the_lowest_counts(tmp_path: Path) -> None:
    lines = [
        observation(id="a", sessionId="s"),
        observation(id="b", type="SPAN", parentObservationId="a"),
        observation(id="c", parentObservationId="b", usageDetails={"input": 99, "output": 20}),
    ]
    rows, tally = read(tmp_path / "t", *lines)
    assert [(row.input_length, row.session_id) for row in rows] == [(99, "s0")]
    assert tally.dropped == {"not_generation": 1, "same_request": 1}


@pytest.mark.parametrize(
    ("message", "status"),
    [(None, "error"), ("Error code: 429 - slow down", "rejected"), ("HTTP 500", "error")],
)
def test_failures_are_kept_with_their_status(
    tmp_path: Path, message: str | None, status: str
) -> None:
    line = observation(level="ERROR", statusMessage=message, usageDetails={"input": -1})
    rows, tally = read(tmp_path / "t", line)
    assert [(row.status, row.input_length) for row in rows] == [(status, None)]
    assert tally.dropped == {}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"startTime": None}, "no_timestamp"),
        ({"startTime": "x"}, "bad_timestamp"),
        ({"usageDetails": {}}, "no_tokens"),
        ({"usageDetails": {"input": 5}}, "no_tokens"),
        ({"usageDetails": {"input": 5, "output": 0}}, "zero_tokens"),
        ({"usageDetails": {"input": 5, "output": -3}}, "negative"),
        ({"usageDetails": {"input": 5, "output": 0.5}}, "not_integer"),
        ({"endTime": "2024-05-29T13:46:00Z"}, "bad_field"),
    ],
)
def test_a_row_that_cannot_be_used_is_counted_under_its_reason(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    rows, tally = read(tmp_path / "t", observation(), observation(id="o2", **changes))
    assert (len(rows), tally.rows_read, tally.dropped) == (1, 2, {reason: 1})


def test_an_observation_without_an_end_is_a_request_without_an_end(tmp_path: Path) -> None:
    (row,), _ = read(tmp_path / "t", observation(endTime=None))
    assert row.e2e_ms is None


@pytest.mark.parametrize("key", ["input", "output"])
def test_text_is_refused_unless_allowed(tmp_path: Path, key: str) -> None:
    line = exported(**{key: {"messages": [{"content": "my diagnosis"}]}})
    with pytest.raises(TraceError, match=rf"t:1: holds text \({key}\)"):
        read(tmp_path / "t", line)
    (row,), tally = read(tmp_path / "t", line, allow_text=True)
    assert "diagnosis" not in f"{row} {tally}"
    assert "alice" not in f"{row} {tally}"


def test_text_in_a_page_of_the_api_is_refused_too(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="holds text"):
        read(tmp_path / "t", {"data": [observation(output="yes")]})


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("page", [False, True])
def test_arrays_and_pages_are_read_in_any_layout(
    tmp_path: Path, indent: int | None, *, page: bool
) -> None:
    found = [observation(id=str(i)) for i in range(3)]
    path = tmp_path / "t"
    path.write_text(json.dumps({"data": found, "meta": {}} if page else found, indent=indent))
    source, tally = open_trace(path)
    assert len(list(source.rows)) == tally.rows_read == 3


def test_what_is_no_observation_in_a_page_is_counted(tmp_path: Path) -> None:
    _, tally = read(tmp_path / "t", {"data": [observation(), 7]})
    assert tally.dropped == {"malformed": 1}


def test_a_unit_for_dates_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="dates"):
        open_trace(write_lines(tmp_path / "t", observation()), time_unit="s")


def test_the_sum_over_n_is_split_evenly(tmp_path: Path) -> None:
    (row,), tally = read(tmp_path / "t", observation(modelParameters='{"n": 2}'))
    assert (row.n, row.output_lengths) == (2, (10, 10))
    assert len(tally.notes) == 1


TABLE = "id,traceId,type,startTime,endTime,model,inputTokens,outputTokens,usageDetails,input\n"
CELLS = "o1,t1,GENERATION,2024-05-29T13:46:19.963Z,2024-05-29T13:46:21.963Z,m,"


@pytest.mark.parametrize(
    "line", [CELLS + "100,20,,\n", CELLS + ',,"{""input"":100,""output"":20,""total"":120}",\n']
)
def test_a_table_as_the_interface_exports_it_is_read(tmp_path: Path, line: str) -> None:
    (tmp_path / "t").write_text(TABLE + line)
    (row,), tally = read_file(tmp_path / "t")
    assert row == Row(START_MS, 100, 20, e2e_ms=2000, model="m0")
    assert tally.dropped == {}


def test_a_table_with_text_is_refused_unless_that_was_allowed(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(TABLE + CELLS + '100,20,,"[{""role"": ""user""},\n ""hello""]"\n')
    with pytest.raises(TraceError, match=r"holds text \(input\)"):
        read_file(tmp_path / "t")
    (row,), _ = read_file(tmp_path / "t", allow_text=True)
    assert row.input_length == 100


def test_a_blob_export_as_a_table_is_read(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(
        "id,trace_id,type,start_time,end_time,usage_details\n"
        'o1,t1,GENERATION,2024-05-29 13:46:19.963000,,"{""input"":100,""output"":20}"\n'
    )
    (row,), _ = read_file(tmp_path / "t")
    assert row == Row(START_MS, 100, 20)


@pytest.mark.parametrize(
    "counts",
    [
        {"promptTokens": 100, "completionTokens": 20},
        {"inputTokens": 100, "outputTokens": 20},
        {"inputUsage": 100, "outputUsage": 20},
    ],
)
def test_counts_beside_the_usage_are_found(tmp_path: Path, counts: dict[str, int]) -> None:
    (row,), _ = read(tmp_path / "t", {**observation(usageDetails={}), **counts})
    assert (row.input_length, row.output_length) == (100, 20)


def test_the_observations_of_a_whole_trace_are_read(tmp_path: Path) -> None:
    trace = {"id": "t1", "timestamp": "2024-05-29T13:46:19.963Z", "observations": [observation()]}
    (row,), _ = read(tmp_path / "t", trace)
    assert row.input_length == 100


@pytest.mark.parametrize("page", [{"data": []}, {"id": "t1", "observations": []}])
def test_a_page_of_one_endless_line_is_found_out(tmp_path: Path, page: dict[str, Any]) -> None:
    (key,) = (name for name, value in page.items() if value == [])
    text = json.dumps(page | {key: [observation(id=f"o{i}") for i in range(15_000)]})
    assert len(text) > 4.5e6
    (tmp_path / "t").write_text(text)
    rows, tally = read_file(tmp_path / "t")
    assert len(rows) == 15_000
    assert tally.dropped == {}

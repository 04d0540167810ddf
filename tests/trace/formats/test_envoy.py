import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.traces import LOGS, needs_logs, write_lines
from tuner.errors import TraceError, UsageError
from tuner.trace.formats.opening import open_trace
from tuner.trace.formats.reading.record import Row, Tally

START_MS = 1_756_572_697_894.0  # 2025-08-30T16:51:37.894Z


def entry(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any field
    """Return a line of the documented format; a double underscore stands for a dot."""
    return {
        "start_time": "2025-08-30T16:51:37.894Z",
        "duration": 1526,
        "response_code": 200,
        "response_flags": "-",
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 15,
        "gen_ai.usage.output_tokens": 7,
        "upstream_host": "10.0.0.1:8000",
        "x-envoy-origin-path": "/v1/chat/completions",
        "x-forwarded-for": "192.168.1.38",
        **{key.replace("__", "."): value for key, value in changes.items()},
    }


def read(path: Path, *lines: object) -> tuple[list[Row], Tally]:
    source, tally = open_trace(write_lines(path, *lines))
    assert source.header.source == "envoy"
    return list(source.rows), tally


def test_a_line_is_a_request_that_arrives_at_its_start(tmp_path: Path) -> None:
    (row,), tally = read(tmp_path / "t", entry())
    assert row == Row(START_MS, 15, 7, e2e_ms=1526, model="m0", replica=0)
    assert tally.warnings() == []


def test_counts_may_be_text_and_cached_ones_are_kept(tmp_path: Path) -> None:
    line = entry(gen_ai__usage__input_tokens="15", gen_ai__usage__cached_input_tokens="8")
    (row,), _ = read(tmp_path / "t", line)
    assert (row.input_length, row.cached_tokens) == (15, 8)


@pytest.mark.parametrize("nothing", [None, "-", ""])
def test_a_stream_without_usage_has_no_counts(tmp_path: Path, nothing: object) -> None:
    no_usage = entry(gen_ai__usage__input_tokens=nothing, gen_ai__usage__output_tokens=nothing)
    _, tally = read(tmp_path / "t", entry(), no_usage)
    assert tally.dropped == {"no_tokens": 1}


@pytest.mark.parametrize(
    ("code", "flags", "status"),
    [
        (200, "DC", "aborted"),
        (0, "UH,DC", "aborted"),
        (0, "UF", "error"),
        (429, "RL", "rejected"),
        (503, "UO", "rejected"),
        (400, "-", "error"),
        (504, "UT", "error"),
    ],
)
def test_what_became_of_a_request_is_in_its_code_and_flags(
    tmp_path: Path, code: int, flags: str, status: str
) -> None:
    (row,), _ = read(tmp_path / "t", entry(response_code=code, response_flags=flags))
    assert row.status == status


def test_a_failure_needs_no_counts_and_an_abort_without_them_cannot_be_replayed(
    tmp_path: Path,
) -> None:
    nothing = {"gen_ai__usage__input_tokens": None, "gen_ai__usage__output_tokens": None}
    rows, tally = read(
        tmp_path / "t", entry(response_code=503, **nothing), entry(response_flags="DC", **nothing)
    )
    assert [row.status for row in rows] == ["rejected"]
    assert tally.dropped == {"no_tokens": 1}


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/models?x=1", "/health", "/"])
def test_requests_that_generate_nothing_are_left_out(tmp_path: Path, path: str) -> None:
    other = entry() | {"x-envoy-origin-path": path}
    _, tally = read(tmp_path / "t", entry(), other)
    assert tally.dropped == {"not_generation": 1}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"start_time": None}, "no_timestamp"),
        ({"start_time": "now"}, "bad_timestamp"),
        ({"gen_ai__usage__output_tokens": -7}, "negative"),
        ({"gen_ai__usage__output_tokens": 7.5}, "not_integer"),
        ({"duration": "long"}, "bad_field"),
        ({"duration": -5}, "bad_field"),
    ],
)
def test_a_row_that_cannot_be_used_is_counted_under_its_reason(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    rows, tally = read(tmp_path / "t", entry(), entry(**changes))
    assert (len(rows), tally.rows_read, tally.dropped) == (1, 2, {reason: 1})


def test_a_log_without_counts_says_what_to_add(tmp_path: Path) -> None:
    no_usage = entry(gen_ai__usage__input_tokens=None)
    with pytest.raises(TraceError, match="t:1: no request has counts of tokens") as caught:
        read(tmp_path / "t", no_usage)
    assert "gen_ai.usage.input_tokens" in caught.value.hint


def test_a_unit_for_dates_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="dates"):
        open_trace(write_lines(tmp_path / "t", entry()), time_unit="ms")


@needs_logs
def test_the_documented_sample_over_many_lines_is_one_request() -> None:
    source, tally = open_trace(LOGS / "envoy-ai-gateway-access.json")
    assert list(source.rows) == [Row(START_MS, 15, 7, e2e_ms=1526, model="m0", replica=0)]
    assert tally.rows_read == 1


def test_what_envoy_says_of_itself_may_stand_between_the_lines(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(
        "[2026-11-21 10:00:00.000][1][info][main] starting main dispatch loop\n"
        f"{json.dumps(entry())}\n"
        "[2026-11-21 10:00:01.000][1][info][upstream] cds: add 1 cluster(s)\n"
        f"{json.dumps(entry())}\n"
    )
    source, tally = open_trace(tmp_path / "t")
    assert source.header.source == "envoy"
    assert len(list(source.rows)) == 2
    assert tally.dropped == {"malformed": 2}

from pathlib import Path
from typing import Any

import pytest

from tests.support.traces import write_lines
from tuner.errors import TraceError, UsageError
from tuner.trace.formats.opening import open_trace
from tuner.trace.formats.reading.record import Row, Tally
from tuner.trace.trace import load

END_MS = 1_795_255_273_500.0  # 2026-11-21 10:01:13.5 UTC


def entry(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any field
    """Return a line that was written 1.5 s after its request arrived, all in quotes."""
    return {
        "msec": "1795255273.500",
        "request_time": "1.500",
        "status": "200",
        "uri": "/v1/chat/completions",
        "upstream_addr": "10.0.0.1:8000",
        "remote_addr": "192.168.1.38",
        "prompt_tokens": "100",
        "completion_tokens": "20",
        **changes,
    }


def read(path: Path, *lines: object) -> tuple[list[Row], Tally]:
    source, tally = open_trace(write_lines(path, *lines))
    assert source.header.source == "nginx"
    return list(source.rows), tally


def test_the_stamp_is_the_end_so_the_arrival_lies_before_it(tmp_path: Path) -> None:
    (row,), tally = read(tmp_path / "t", entry())
    assert row == Row(END_MS - 1500, 100, 20, e2e_ms=1500, replica=0)
    assert tally.warnings() == []


def test_numbers_need_no_quotes(tmp_path: Path) -> None:
    numbers = entry(msec=1795255273.5, request_time=1.5, status=200, prompt_tokens=100)
    (row,), _ = read(tmp_path / "t", numbers)
    assert row == Row(END_MS - 1500, 100, 20, e2e_ms=1500, replica=0)


def test_lines_in_order_of_their_ends_are_sorted_by_arrival(tmp_path: Path) -> None:
    short = entry(msec="1795255273.500", request_time="0.100", prompt_tokens="1")
    long = entry(msec="1795255274.000", request_time="10.000", prompt_tokens="2")
    path = write_lines(tmp_path / "t", short, long)
    assert [(one.input_length, one.arrival_s) for one in load(path).requests] == [
        (2, 0.0),
        (1, 9.4),
    ]


@pytest.mark.parametrize(
    "stamp",
    [
        {"time_iso8601": "2026-11-21T12:01:13+02:00"},
        {"time_local": "21/Nov/2026:12:01:13 +0200"},
    ],
    ids=["iso8601", "local"],
)
def test_whole_seconds_with_a_zone_are_read_and_noted(
    tmp_path: Path, stamp: dict[str, str]
) -> None:
    line = {key: value for key, value in entry().items() if key != "msec"} | stamp
    (row,), tally = read(tmp_path / "t", line)
    assert row.timestamp == END_MS - 500 - 1500
    assert len(tally.notes) == 1


@pytest.mark.parametrize(
    ("code", "status"),
    [("200", "ok"), ("499", "aborted"), ("429", "rejected"), ("503", "rejected"), ("500", "error")],
)
def test_the_code_says_what_became_of_a_request(tmp_path: Path, code: str, status: str) -> None:
    (row,), _ = read(tmp_path / "t", entry(status=code))
    assert row.status == status


@pytest.mark.parametrize(
    "path",
    [
        {"uri": "/health"},
        {"uri": None, "request_uri": "/v1/models?limit=1"},
        {"uri": None, "request": "GET /metrics HTTP/1.1"},
    ],
)
def test_requests_that_generate_nothing_are_left_out(
    tmp_path: Path, path: dict[str, str | None]
) -> None:
    _, tally = read(tmp_path / "t", entry(), entry(**path))
    assert tally.dropped == {"not_generation": 1}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"msec": "-"}, "no_timestamp"),
        ({"msec": "soon"}, "bad_timestamp"),
        ({"msec": "nan"}, "bad_timestamp"),
        ({"msec": "-", "time_local": "31/Feb/2026:10:00:00 +0000"}, "bad_timestamp"),
        ({"request_time": "-"}, "no_timestamp"),
        ({"prompt_tokens": "-"}, "no_tokens"),
        ({"prompt_tokens": "-1"}, "negative"),
        ({"prompt_tokens": "1e3"}, "not_integer"),
        ({"completion_tokens": "0"}, "zero_tokens"),
        ({"request_time": "-2.0"}, "bad_field"),
    ],
)
def test_a_row_that_cannot_be_used_is_counted_under_its_reason(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    rows, tally = read(tmp_path / "t", entry(), entry(**changes))
    assert (len(rows), tally.rows_read, tally.dropped) == (1, 2, {reason: 1})


def test_a_log_as_nginx_writes_it_by_itself_says_what_to_add(tmp_path: Path) -> None:
    plain = entry()
    del plain["prompt_tokens"], plain["completion_tokens"]
    with pytest.raises(TraceError, match="t:1: nginx logs no tokens by itself") as caught:
        read(tmp_path / "t", plain)
    assert "log_format" in caught.value.hint


def test_bodies_in_the_log_are_text(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"holds text \(request_body\)"):
        read(tmp_path / "t", entry(request_body='{"messages": ["hello"]}'))


def test_a_unit_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="msec"):
        open_trace(write_lines(tmp_path / "t", entry()), time_unit="ms")


@pytest.mark.parametrize("key", ["timestamp", "ts", "time"])
def test_msec_may_have_a_name_of_its_own(tmp_path: Path, key: str) -> None:
    line = {"request_time": "1.5", "status": "200", "prompt_tokens": "5", "completion_tokens": "6"}
    source, tally = open_trace(write_lines(tmp_path / "t", {key: "1763726473.5", **line}))
    (row,) = source.rows
    assert (row.timestamp, row.e2e_ms) == (1_763_726_472_000, 1500)
    assert tally.notes == []

"""Traces in memory: read, cut and written. Files of all formats are in tests/outside/traces."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.traces import SAMPLES, request, trace_of
from tuner.errors import TraceError
from tuner.trace import reading
from tuner.trace.record import FIELDS, Row, TraceHeader, header_line, row_line
from tuner.trace.trace import Trace, TraceRequest, load, write

FULL = TraceRequest(
    row=0, arrival_s=0.0015, input_length=40, output_length=9, status="aborted", n=2,
    output_lengths=(9, 4), max_tokens=64, hash_ids=(7, 2**62), request_id="r", session_id="ü",
    turn=1, parent_id="p", e2e_s=1.25, ttft_s=0.0625, queue_s=0.5,
    priority=-3, replica=2,
)  # fmt: skip


def test_every_field_survives_there_and_back(tmp_path: Path) -> None:
    trace = Trace.of(TraceHeader(), [FULL, request(1, 2.0, status="rejected")])
    write(trace, tmp_path / "t")
    again = load(tmp_path / "t")
    assert again.requests == trace.requests
    assert again.digest == trace.digest


def test_lines_written_by_columns_are_those_of_rows(tmp_path: Path) -> None:
    write(Trace.of(TraceHeader(), [FULL]), tmp_path / "t")
    values = {
        field.key: value * 1000 if field.kind == "time" else value
        for field in FIELDS
        if (value := getattr(FULL, field.attribute)) is not None and field.key != "row"
    }
    values |= {"timestamp": 1.5, "e2e_ms": 1250, "ttft_ms": 62.5, "queue_ms": 500}
    expected = header_line(TraceHeader()) + row_line(Row(**values))
    assert (tmp_path / "t").read_bytes() == expected


def test_digests_are_golden() -> None:
    """Profiles hold them."""
    assert load(SAMPLES / "translation.jsonl").digest[7:19] == "c0cc9e547f46"
    assert Trace.of(TraceHeader(), [FULL]).digest[7:19] == "7e72e1b112be"


def test_a_cut_keeps_rows_and_gaps_and_moves_the_origin() -> None:
    whole = trace_of(*(request(row, float(row)) for row in range(10)))
    whole = replace(whole, header=replace(whole.header, time_origin="2026-11-21T10:00:00Z"))
    part = whole.cut(3.0, 4.0)
    assert [request.row for request in part.requests] == [3, 4, 5, 6]
    assert [request.arrival_s for request in part.requests] == [0.0, 1.0, 2.0, 3.0]
    assert part.header.time_origin == "2026-11-21T10:00:03Z"
    assert [request.row for request in part.cut(2.0, 9.0).requests] == [5, 6]
    with pytest.raises(TraceError, match="no request"):
        whole.cut(20.0, 1.0)


def test_a_file_of_endless_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_ROWS", 10)
    row = b'{"timestamp":0,"input_length":1,"output_length":1}\n'
    (tmp_path / "t").write_bytes(row * 200_000)
    with pytest.raises(TraceError, match="more than 10 rows"):
        load(tmp_path / "t")

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.traces import (
    HEADER,
    SAMPLES,
    SLICES,
    cut,
    needs_slices,
    request,
    row,
    trace_of,
    write_lines,
)
from tuner.errors import TargetError, TraceError
from tuner.trace.parts import drop_longer
from tuner.trace.trace import TraceHeader, TraceRequest, digest, load, write


def test_rows_in_any_order_are_sorted_and_equal_stamps_keep_theirs(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "t",
        HEADER,
        row(2000, request_id="late"),
        row(1000, request_id="first of two"),
        row(1000, request_id="second of two"),
    )
    found = load(path).requests
    assert [one.request_id for one in found] == ["first of two", "second of two", "late"]
    assert [one.row for one in found] == [0, 1, 2]
    assert [one.arrival_s for one in found] == [1.0, 1.0, 2.0]


def test_dates_count_from_the_first_arrival_wherever_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 00:00:01.5,20,2\n"
        "2023-11-16 00:00:00.25,10,1\n"
    )
    trace = load(path)
    assert [(one.arrival_s, one.input_length) for one in trace.requests] == [(0.0, 10), (1.25, 20)]
    assert trace.header.time_origin == "2023-11-16T00:00:00.250000"


def test_ms_become_seconds(tmp_path: Path) -> None:
    fields = row(1, e2e_ms=1190, ttft_ms=52.5, queue_ms=0.5)
    (found,) = load(write_lines(tmp_path / "t", HEADER, fields)).requests
    assert (found.e2e_s, found.ttft_s, found.queue_s) == (1.19, 0.0525, 0.0005)


def test_a_request_that_was_never_served_may_not_know_its_lengths(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", HEADER, {"timestamp": 1, "status": "rejected"})
    (found,) = load(path).requests
    assert (found.status, found.input_length, found.output_length) == ("rejected", 0, 0)


def test_counts_add_up_over_several_readings(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "t",
        {**HEADER, "rows_read": 5, "rows_kept": 3, "dropped": {"no_tokens": 2}},
        row(1),
        row(2),
        row(-1),
    )
    trace = load(path)
    assert trace.header.rows_read == 5
    assert trace.header.rows_kept == len(trace.requests) == 2
    assert trace.header.dropped == {"no_tokens": 2, "before_origin": 1}
    assert len(trace.warnings) == 1


def test_a_file_that_lost_whole_lines_is_noticed(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", {**HEADER, "rows_kept": 3}, row(1), row(2))
    assert load(path).warnings == (
        "the header counts 3 rows, the file has 2: it was cut off or edited",
    )


REQUESTS = st.builds(
    request,
    arrival_s=st.integers(0, 10**9).map(lambda us: round(us / 1e6, 6)),
    input_length=st.integers(1, 200_000),
    output_length=st.integers(1, 5000),
    status=st.sampled_from(["ok", "aborted", "error", "rejected"]),
    n=st.integers(1, 4),
    hash_ids=st.lists(st.integers(0, 2**63 - 1), max_size=1).map(tuple),
    request_id=st.none() | st.text(max_size=5),
    session_id=st.none() | st.text(max_size=5),
    e2e_s=st.none() | st.integers(0, 10**9).map(lambda us: round(us / 1e6, 6)),
    priority=st.none() | st.integers(-5, 5),
    stream=st.none() | st.booleans(),
)


@given(requests=st.lists(REQUESTS, min_size=1, max_size=6))
def test_what_is_written_reads_back(
    tmp_path_factory: pytest.TempPathFactory, requests: list[TraceRequest]
) -> None:
    ordered = sorted(requests, key=lambda one: one.arrival_s)
    trace = trace_of(*(dataclasses.replace(one, row=i) for i, one in enumerate(ordered)))
    path = tmp_path_factory.mktemp("trace") / "t"
    write(trace, path)
    found = load(path)
    assert found.requests == trace.requests
    assert found.digest == trace.digest
    assert found.warnings == ()


def test_a_whole_header_reads_back(tmp_path: Path) -> None:
    header = TraceHeader(
        source="s",
        model="m",
        time_origin="2026-11-21T10:00:00Z",
        time_resolution_ms=0.5,
        block_size=512,
        hash_scope="session",
        replicas=4,
        rows_read=3,
        rows_kept=1,
        dropped={"no_tokens": 2},
        missing=("aborts",),
        notes=("cut",),
    )
    write(dataclasses.replace(trace_of(request()), header=header), tmp_path / "t")
    assert load(tmp_path / "t").header == header


def test_a_file_is_not_overwritten_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text("precious")
    with pytest.raises(TargetError, match="already there"):
        write(trace_of(request()), path)
    assert path.read_text() == "precious"
    write(trace_of(request()), path, force=True)
    assert len(load(path).requests) == 1


def test_the_digest_is_of_the_traffic_and_not_of_the_file(tmp_path: Path) -> None:
    plain = write_lines(tmp_path / "a", row(0), row(1000, hash_ids=[7]))
    headed = write_lines(
        tmp_path / "b",
        {**HEADER, "block_size": 512, "source": "other"},
        '{"output_length":5, "input_length":10, "timestamp":1000.0, "hash_ids":[7], "n":1}',
        row(0, session_id=None),
    )
    assert load(plain).digest == load(headed).digest


@pytest.mark.parametrize(
    "change",
    [
        {"arrival_s": 0.001},
        {"input_length": 11},
        {"output_length": 6},
        {"hash_ids": (1,)},
        {"row": 5},
    ],
)
def test_every_change_of_the_traffic_changes_the_digest(change: dict[str, Any]) -> None:
    assert digest([request()], 16) != digest([request(**change)], 16)


def test_the_size_of_blocks_is_part_of_the_traffic() -> None:
    assert digest([request()], 16) != digest([request()], 512)


def test_a_cut_keeps_gaps_and_row_numbers(tmp_path: Path) -> None:
    whole = trace_of(*(request(i, arrival_s=float(i * i)) for i in range(6)))
    part = cut(whole, tmp_path / "whole", start_s=3.0, length_s=13.0)
    assert [(one.row, one.arrival_s) for one in part.requests] == [(2, 1.0), (3, 6.0)]
    write(part, tmp_path / "t")
    assert load(tmp_path / "t").requests == part.requests


def test_a_cut_moves_the_origin(tmp_path: Path) -> None:
    whole = trace_of(request(0, 0.0), request(1, 10.0))
    header = dataclasses.replace(whole.header, time_origin="2026-11-21T10:00:00Z")
    part = cut(
        dataclasses.replace(whole, header=header), tmp_path / "t", start_s=5.0, length_s=10.0
    )
    assert part.header.time_origin == "2026-11-21T10:00:05+00:00"
    assert part.header.rows_read == part.header.rows_kept == 1


def test_an_origin_that_is_no_date_is_lost_in_a_cut(tmp_path: Path) -> None:
    whole = trace_of(request(0, 0.0))
    header = dataclasses.replace(whole.header, time_origin="yesterday")
    part = cut(dataclasses.replace(whole, header=header), tmp_path / "t", start_s=0.0, length_s=1.0)
    assert part.header.time_origin is None


def test_an_empty_cut_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no request arrives in 5s\+1s") as caught:
        cut(trace_of(request(0, 1.0), request(1, 4.0)), tmp_path / "t", start_s=5.0, length_s=1.0)
    assert caught.value.hint == "The trace runs from 1.0s to 4.0s."


def test_longer_requests_are_dropped_and_counted_never_clipped() -> None:
    whole = trace_of(
        request(0, input_length=10, output_length=6),
        request(1, input_length=11, output_length=6),
        request(2, input_length=10, output_length=5, n=2, output_lengths=(5, 7)),
    )
    kept = drop_longer(whole, max_model_len=16)
    assert [(one.row, one.input_length) for one in kept.requests] == [(0, 10)]
    assert kept.header.dropped == {"over_max_model_len": 2}
    assert drop_longer(whole, max_model_len=17) == whole


def test_a_model_that_can_take_nothing_is_an_error() -> None:
    with pytest.raises(TraceError, match="every request is longer than 14 tokens"):
        drop_longer(trace_of(request()), max_model_len=14)


@needs_slices
@pytest.mark.parametrize("name", ["azure2023_code.csv", "mooncake_synthetic.jsonl"])
def test_an_import_is_the_same_traffic(tmp_path: Path, name: str) -> None:
    whole = load(SLICES / name)
    write(whole, tmp_path / "t")
    assert load(tmp_path / "t") == whole


@needs_slices
def test_the_one_duplicate_row_of_mooncake_would_be_kept(tmp_path: Path) -> None:
    lines = (SLICES / "mooncake_conversation.jsonl").read_text().splitlines()[:3]
    path = write_lines(tmp_path / "t", *lines, lines[1])
    assert len(load(path).requests) == 4


def test_the_shipped_samples_are_read_without_a_warning() -> None:
    for name in ("translation.jsonl", "translation-uniform.jsonl"):
        trace = load(SAMPLES / name)
        assert trace.warnings == ()
        assert trace.header.model == "tuner:tiny"

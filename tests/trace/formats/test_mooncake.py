from pathlib import Path

import pytest

from tests.support.traces import SLICES, needs_slices, row, write_lines
from tuner.errors import TraceError
from tuner.trace.formats.opening import open_trace
from tuner.trace.formats.reading.header import TimeUnit


def stamps(path: Path, time_unit: TimeUnit | None = None) -> list[float]:
    return [one.timestamp for one in open_trace(path, time_unit=time_unit)[0].rows]


def test_whole_stamps_are_ms(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", row(0), row(27482))
    assert stamps(path) == [0, 27482]
    assert open_trace(path)[0].header.block_size == 512


def test_fractional_stamps_need_a_unit(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", row(0), row(1), row(61.114))
    with pytest.raises(TraceError, match=r"t:3: timestamp 61\.114 may be s or ms") as caught:
        stamps(path)
    assert caught.value.hint == (
        "tuner trace import --time-unit s (GuideLLM, vLLM) or --time-unit ms (aiperf)."
    )


@pytest.mark.parametrize(("unit", "factor"), [("s", 1000), ("ms", 1)])
def test_a_named_unit_is_believed(tmp_path: Path, unit: TimeUnit, factor: int) -> None:
    path = write_lines(tmp_path / "t", row(0.5), row(2))
    assert stamps(path, unit) == [0.5 * factor, 2 * factor]


def test_as_many_ids_as_blocks_begun_are_fine_and_more_are_not(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "t",
        row(0, input_length=1024, hash_ids=[0, 1]),
        row(0, input_length=1025, hash_ids=[0, 1]),
        row(0, input_length=1025, hash_ids=[0, 1, 2]),
        row(0, input_length=1024, hash_ids=[0, 1, 2]),
    )
    source, tally = open_trace(path)
    assert [len(one.hash_ids) for one in source.rows] == [2, 2, 3]
    assert tally.dropped == {"bad_hash_ids": 1}


@needs_slices
@pytest.mark.parametrize(("name", "rows"), [("conversation", 5550), ("synthetic", 1996)])
def test_public_slices_are_read_whole(name: str, rows: int) -> None:
    source, tally = open_trace(SLICES / f"mooncake_{name}.jsonl")
    assert all(len(one.hash_ids) == -(-(one.input_length or 0) // 512) for one in source.rows)
    assert (tally.rows_read, tally.rows_kept) == (rows, rows)
    assert tally.warnings() == []

"""The files that a recording's processes leave become one trace on one clock."""

from pathlib import Path

import pytest

from tests.support.traces import HEADER, row, write_lines
from tuner.commands.capture import run as capture_run
from tuner.commands.capture.options import JoinOptions
from tuner.errors import TargetError, TraceError, UsageError
from tuner.trace import trace

NOON = {**HEADER, "source": "vllm-middleware", "time_origin": "2026-01-01T12:00:00+00:00"}
LATER = {**NOON, "time_origin": "2026-01-01T12:00:02.500+00:00", "dropped": {"writer_behind": 3}}


def join(*files: Path, to: Path) -> None:
    capture_run.join(JoinOptions(files=files, output=to))


def test_stamps_are_moved_to_the_earliest_origin(tmp_path: Path) -> None:
    one = write_lines(tmp_path / "1.jsonl", LATER, row(0), row(1000))
    two = write_lines(tmp_path / "2.jsonl", NOON, row(2000, hash_ids=[9]))
    join(one, two, to=tmp_path / "all.jsonl")
    joined = trace.load(tmp_path / "all.jsonl")
    assert [request.arrival_s for request in joined.requests] == [2.0, 2.5, 3.5]
    assert joined.requests[0].hash_ids == (9,)
    assert joined.header.time_origin == NOON["time_origin"]


def test_what_the_parts_lost_is_still_counted(tmp_path: Path) -> None:
    parts = [
        write_lines(tmp_path / f"{place}.jsonl", LATER, row(0), row(0, input_length=None))
        for place in range(2)
    ]
    join(*parts, to=tmp_path / "all.jsonl")
    header = trace.load(tmp_path / "all.jsonl").header
    assert header.dropped == {"writer_behind": 6, "no_tokens": 2}
    assert header.rows_read == header.rows_kept + 8 == 10


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({**NOON, "block_size": 32}, "its block_size is 32, that of"),
        ({**NOON, "source": "vllm-stats"}, "its source is vllm-stats, that of"),
        ({**HEADER, "source": "vllm-middleware"}, "no time_origin in its header"),
    ],
)
def test_files_of_different_recordings_are_refused(
    tmp_path: Path, other: dict[str, object], says: str
) -> None:
    one = write_lines(tmp_path / "1.jsonl", NOON, row(0))
    two = write_lines(tmp_path / "2.jsonl", other, row(0))
    with pytest.raises(TraceError, match=says):
        join(one, two, to=tmp_path / "all.jsonl")
    assert not (tmp_path / "all.jsonl").exists()


def test_an_existing_file_stays(tmp_path: Path) -> None:
    one = write_lines(tmp_path / "1.jsonl", NOON, row(0))
    with pytest.raises(TargetError, match="already there"):
        join(one, to=one)


def test_a_file_that_is_named_twice_is_not_counted_twice(tmp_path: Path) -> None:
    one = write_lines(tmp_path / "1.jsonl", NOON, row(0))
    again = tmp_path / "." / "1.jsonl"
    with pytest.raises(UsageError, match="named twice"):
        join(one, again, to=tmp_path / "all.jsonl")

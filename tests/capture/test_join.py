"""The files that a recording's processes leave become one trace on one clock."""

from pathlib import Path

import pytest

from tests.outside.table import BAD_INPUT, OK, USAGE, Done, run
from tests.support.traces import HEADER, row, write_lines
from tuner.trace import trace

NOON = {**HEADER, "source": "vllm-middleware", "time_origin": "2026-01-01T12:00:00Z"}
LATER = {**NOON, "time_origin": "2026-01-01T12:00:02.500+00:00", "dropped": {"writer_behind": 3}}


def join(folder: Path, *names: str) -> Done:
    return run(folder, "trace import", *names, "-o", "all.jsonl")


def test_stamps_are_moved_to_the_earliest_origin(tmp_path: Path) -> None:
    write_lines(tmp_path / "1.jsonl", LATER, row(0), row(1000))
    write_lines(tmp_path / "2.jsonl", NOON, row(2000, hash_ids=[9]))
    assert join(tmp_path, "1.jsonl", "2.jsonl").code == OK
    joined = trace.load(tmp_path / "all.jsonl")
    assert [request.arrival_s for request in joined.requests] == [2.0, 2.5, 3.5]
    assert joined.requests[0].hash_ids == (9,)
    assert joined.header.time_origin == NOON["time_origin"]


def test_what_the_parts_dropped_is_still_counted(tmp_path: Path) -> None:
    for name in ("1.jsonl", "2.jsonl"):
        write_lines(tmp_path / name, LATER, row(0), row(0, input_length=None))
    assert join(tmp_path, "1.jsonl", "2.jsonl").code == OK
    header = trace.load(tmp_path / "all.jsonl").header
    assert header.dropped == {"writer_behind": 6, "no_tokens": 2}
    assert header.rows_read == header.rows_kept + 8 == 10


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({**NOON, "block_size": 32}, "block_size"),
        ({**NOON, "source": "another"}, "not the source"),
        ({**HEADER, "source": "vllm-middleware"}, "no time_origin"),
    ],
)
def test_files_of_different_recordings_are_refused(
    tmp_path: Path, header: dict[str, object], message: str
) -> None:
    write_lines(tmp_path / "1.jsonl", NOON, row(0))
    write_lines(tmp_path / "2.jsonl", header, row(0))
    done = join(tmp_path, "1.jsonl", "2.jsonl")
    assert done.code == BAD_INPUT
    assert message in done.error
    assert not (tmp_path / "all.jsonl").exists()


def test_a_file_that_is_named_twice_is_not_counted_twice(tmp_path: Path) -> None:
    write_lines(tmp_path / "1.jsonl", NOON, row(0))
    done = join(tmp_path, "1.jsonl", "./1.jsonl")
    assert done.code == USAGE
    assert "named twice" in done.error

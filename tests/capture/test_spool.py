"""A recording's files: whole rows, bounded in size and number, and never in the way."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from tests.support.places import ROOT
from tests.support.processes import wait_until
from tuner.capture.environment import Recording, recording
from tuner.capture.spool import MAX_PENDING, MAX_PENDING_TOKENS, Spool
from tuner.commands.capture import run as capture_run
from tuner.commands.capture.options import JoinOptions
from tuner.errors import UsageError
from tuner.trace import trace
from tuner.trace.formats.reading.header import TraceHeader
from tuner.trace.formats.reading.record import Row


def settings(folder: Path, **given: str) -> Recording:
    environment = {"TUNER_TRACE_OUT": str(folder), **given}
    found = recording(environment, out="TUNER_TRACE_OUT", default=None)
    assert found is not None
    return found


def row(number: int) -> Row:
    return Row(timestamp=number, input_length=1, output_length=1)


def spool(
    recorded: Recording, row_of: Callable[[int], Row] = row, *, model: str | None = None
) -> Spool[int]:
    header = TraceHeader(source="test", model=model)
    return Spool(recorded, name="trace", header=lambda: header, row_of=row_of)


def fill(target: Spool[int], count: int) -> None:
    for number in range(count):
        target.put(number)
    target.close()


def lost(reason: str) -> float:
    """Return what the server's /metrics says of the requests that were lost."""
    return REGISTRY.get_sample_value("tuner_requests_not_recorded_total", {"reason": reason}) or 0


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("trace-*.jsonl"))


def test_a_closed_recording_is_a_trace_that_counts_its_rows(tmp_path: Path) -> None:
    fill(spool(settings(tmp_path)), 3)
    (path,) = files(tmp_path)
    loaded = trace.load(path)
    assert [request.arrival_s for request in loaded.requests] == [0.0, 0.001, 0.002]
    assert (loaded.header.rows_read, loaded.header.rows_kept) == (3, 3)
    assert loaded.warnings == ()
    assert path.stat().st_mode & 0o777 == 0o600


ENDLESS = """
import sys, threading
from pathlib import Path
from tests.capture.test_spool import settings, spool
written = spool(settings(Path(sys.argv[1])))
written.put(1)
written.put(2)
threading.Event().wait()
"""


def test_a_recording_that_was_killed_is_a_trace_as_well(tmp_path: Path) -> None:
    running = subprocess.Popen([sys.executable, "-c", ENDLESS, str(tmp_path)], cwd=ROOT)
    tick = threading.Event()
    while not files(tmp_path) or files(tmp_path)[0].read_bytes().count(b"\n") < 3:
        assert running.poll() is None
        tick.wait(0.02)
    running.kill()
    running.wait()
    loaded = trace.load(files(tmp_path)[0])
    assert len(loaded.requests) == 2
    assert loaded.warnings == ()


def test_nothing_is_written_before_there_is_something(tmp_path: Path) -> None:
    spool(settings(tmp_path)).close()
    assert files(tmp_path) == []


def test_a_full_file_is_followed_by_the_next_and_the_oldest_makes_room(tmp_path: Path) -> None:
    recorded = settings(tmp_path, TUNER_TRACE_MAX_MB="1", TUNER_TRACE_MAX_FILES="2")
    long = Row(timestamp=0, input_length=1, output_length=1, finish_reason="x" * 100_000)
    fill(spool(recorded, lambda _: long), 96)
    # Nine rows of 100 kB fit below 1 MB: files 0 to 10, the last with six rows.
    assert [path.stem[-4:] for path in files(tmp_path)] == ["0009", "0010"]
    assert [trace.load(path).header.rows_kept for path in files(tmp_path)] == [9, 6]
    assert all(path.stat().st_size < 1_000_000 for path in files(tmp_path))


def test_what_the_writer_cannot_keep_up_with_is_counted(tmp_path: Path) -> None:
    go = threading.Event()

    def slow(number: int) -> Row:
        assert go.wait(30)
        return row(number)

    written = spool(settings(tmp_path), slow)
    written.put(0)
    while written.waiting:  # until the thread has taken the first
        go.wait(0.01)
    for number in range(MAX_PENDING + 5):
        written.put(number)
    go.set()
    written.close()
    (path,) = files(tmp_path)
    header = trace.load(path).header
    assert header.dropped == {"writer_behind": 5}
    assert header.rows_read == header.rows_kept + 5 == MAX_PENDING + 6


def test_prompts_that_wait_for_their_hashes_are_bounded(tmp_path: Path) -> None:
    go = threading.Event()

    def slow(number: int) -> Row:
        assert go.wait(30)
        return row(number)

    written = spool(settings(tmp_path), slow)
    written.put(0, tokens=MAX_PENDING_TOKENS)
    taken = written.has_room_for(1)
    while written.waiting and not taken:
        go.wait(0.01)
        taken = written.has_room_for(1)
    assert taken  # the first was handed over
    written.put(1, tokens=MAX_PENDING_TOKENS)
    assert not written.has_room_for(1)
    go.set()
    written.close()


@pytest.mark.attack
def test_an_item_that_makes_no_row_costs_that_item_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def only_odd(number: int) -> Row:
        if number % 2 == 0:
            raise ValueError(f"{number} is even\x1b[2J")
        return row(number)

    before = lost("not_recorded")
    fill(spool(settings(tmp_path), only_odd), 7)
    (path,) = files(tmp_path)
    loaded = trace.load(path)
    assert [request.arrival_s for request in loaded.requests] == [0.001, 0.003, 0.005]
    assert loaded.header.dropped == {"not_recorded": 4}
    assert (loaded.header.rows_read, loaded.header.rows_kept) == (7, 3)
    assert lost("not_recorded") - before == 4
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "tuner: a request is not recorded: ValueError('0 is even\\x1b[2J')"
    ]


@pytest.mark.attack
def test_counts_are_entered_into_the_file_that_was_written_whatever_has_its_name(
    tmp_path: Path,
) -> None:
    (tmp_path / "victim").write_text("mine")
    written = spool(settings(tmp_path))
    written.put(0)
    wait_until(lambda: files(tmp_path) != [] and files(tmp_path)[0].read_bytes().endswith(b"}\n"))
    (path,) = files(tmp_path)
    path.rename(tmp_path / "kept")
    path.symlink_to("victim")
    written.close()
    assert (tmp_path / "victim").read_text() == "mine"
    header = json.loads((tmp_path / "kept").read_text().splitlines()[0])
    assert '"rows_kept":1' in json.dumps(header, separators=(",", ":"))


def test_a_folder_that_is_gone_costs_what_comes_meanwhile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = lost("not_written")
    written = spool(settings(tmp_path / "gone"))
    (tmp_path / "gone").rmdir()
    for number in range(3):
        written.put(number)
    tick = threading.Event()
    while lost("not_written") - before < 3:
        tick.wait(0.01)
    (tmp_path / "gone").mkdir()
    written.put(4)
    written.close()
    (path,) = files(tmp_path / "gone")
    loaded = trace.load(path)
    assert (len(loaded.requests), loaded.header.dropped) == (1, {"not_written": 3})
    complaint = f"tuner: a request is not recorded: [Errno 2] No such file or directory: '{path}'"
    assert [one.getMessage() for one in caplog.records].count(complaint) == 1


def test_a_disk_that_takes_half_a_row_keeps_whole_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = spool(settings(tmp_path))
    real, full = os.write, threading.Event()

    def write(file: int, data: memoryview) -> int:
        if threading.current_thread().name != "tuner-trace" or not full.is_set():
            return real(file, data)
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return real(file, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", write)
    tick = threading.Event()
    written.put(0)
    while not files(tmp_path) or files(tmp_path)[0].read_bytes().count(b"\n") < 2:
        tick.wait(0.01)
    before = lost("not_written")
    full.set()
    written.put(1)
    while lost("not_written") == before:
        tick.wait(0.01)
    full.clear()
    fill(written, 3)
    loaded = trace.load(files(tmp_path)[0])
    assert [request.arrival_s for request in loaded.requests] == [0.0, 0.0, 0.001, 0.002]
    assert loaded.header.dropped == {"not_written": 1}


@pytest.mark.attack
def test_a_next_file_that_cannot_be_made_leaves_the_last_one_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once closed, its descriptor may be somebody else's."""
    real = os.open

    def open_(path: Path, *how: int) -> int:
        if str(path).endswith("-0001.jsonl"):
            raise OSError(24, "Too many open files", str(path))
        return real(path, *how)

    monkeypatch.setattr(os, "open", open_)
    long = Row(timestamp=0, input_length=1, output_length=1, finish_reason="x" * 100_000)
    fill(spool(settings(tmp_path, TUNER_TRACE_MAX_MB="1"), lambda _: long), 12)
    (path,) = files(tmp_path)
    header = trace.load(path).header
    assert (header.rows_kept, header.dropped) == (9, {"not_written": 3})


def test_a_model_with_an_endless_name_leaves_room_for_the_counts(tmp_path: Path) -> None:
    fill(spool(settings(tmp_path), model="m" * 2000), 1)
    (path,) = files(tmp_path)
    assert trace.load(path).header.rows_kept == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"TUNER_TRACE_MAX_MB": "0"}, "TUNER_TRACE_MAX_MB=0: no whole number from 1 to 1048576"),
        ({"TUNER_TRACE_MAX_FILES": "many"}, "TUNER_TRACE_MAX_FILES=many: no whole number"),
        ({"TUNER_TRACE_BLOCK_SIZE": "-16"}, "TUNER_TRACE_BLOCK_SIZE=-16: no whole number"),
        ({"TUNER_TRACE_PREFIX_IDS": "yes"}, "TUNER_TRACE_PREFIX_IDS=yes: neither 0 nor 1"),
        ({"TUNER_TRACE_KEY": "secret"}, "TUNER_TRACE_KEY: not 32 or more hexadecimal digits"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(given: Mapping[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        recording({"TUNER_TRACE_OUT": "x", **given}, out="TUNER_TRACE_OUT", default=None)


def test_every_process_has_a_key_of_its_own_unless_told_otherwise(tmp_path: Path) -> None:
    assert settings(tmp_path).key != settings(tmp_path).key
    shared = "00ff" * 16
    assert settings(tmp_path, TUNER_TRACE_KEY=shared).key == bytes.fromhex(shared)


def test_two_processes_write_a_file_each_into_one_folder_and_they_join(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom tests.capture import test_spool as here\n"
        "here.fill(here.spool(here.settings(Path(sys.argv[1]))), 3)"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "trace")]
    for process in [subprocess.Popen(words, cwd=ROOT) for _ in range(2)]:
        assert process.wait() == 0
    assert len(files(tmp_path / "trace")) == 2
    parts = tuple(files(tmp_path / "trace"))
    capture_run.join(JoinOptions(files=parts, output=tmp_path / "all.jsonl"))
    assert len(trace.load(tmp_path / "all.jsonl").requests) == 6


def test_without_a_folder_and_a_default_nothing_is_recorded() -> None:
    assert recording({}, out="TUNER_STATS_OUT", default=None) is None

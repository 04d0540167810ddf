"""The run directory keeps what was measured, whatever happens."""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.builders import iterations, record, replay_of
from tuner.errors import RunError
from tuner.runs import journal
from tuner.traffic.slo import Slo

EVENT = {
    "purpose": "ladder",
    "max_num_seqs": 4,
    "elapsed_s": 10.0,
    "window": 0,
    "trial": 0,
    "at_s": 12.5,
}
NO_PLAN = b'{"event": "plan", "format": 2, "plan": 5}\n'
PLAN = {"trace_digest": "sha256:1", "seed": 0}


def test_what_was_measured_reads_back_as_it_was(tmp_path: Path) -> None:
    result = replay_of(
        [
            record(),
            record(row=1, outcome="failed", first_s=None, gaps=0),
            record(row=2, scored=False, gaps=2),
        ],
        failures=("too long",),
        iterations=iterations([{"start_s": 1.0, "duration_s": 0.5, "decode_seqs": 3}]),
        cut="hopeless",
        unsent=7,
        attainment_bound=0.25,
        slo=Slo(ttft_s=0.1 + 0.2, ttft_s_per_input_token=1e-3, derived=True),
    )
    book = journal.create(tmp_path / "run", PLAN)
    event = book.append_replay(result, **EVENT)
    book.close()
    again = journal.resume(tmp_path / "run", PLAN)
    loaded = again.replay(event)
    again.close()
    for name in ("requests", "gaps_s", "iterations", "device"):
        assert getattr(loaded, name).tobytes() == getattr(result, name).tobytes()
    assert loaded.failures == ("too long",)
    assert (loaded.iterations == result.iterations).all()
    assert (loaded.cut, loaded.unsent, loaded.attainment_bound) == ("hopeless", 7, 0.25)
    assert loaded.slo == result.slo
    assert list(again.of("replay")) == [event]


def test_a_line_that_a_crash_cut_off_is_dropped_and_written_over(tmp_path: Path) -> None:
    book = journal.create(tmp_path, PLAN)
    book.append("probe", results=[], at_s=1.0)
    book.close()
    path = tmp_path / "journal.jsonl"
    path.write_bytes(path.read_bytes() + b'{"event": "repl')
    again = journal.resume(tmp_path, PLAN)
    assert again.clock_s == 1.0
    again.append("trial", purpose="ramp", max_num_seqs=32, at_s=2.0)
    again.close()
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == [
        "plan",
        "probe",
        "trial",
    ]


def test_a_second_run_does_not_overwrite_the_first(tmp_path: Path) -> None:
    journal.create(tmp_path, PLAN).close()
    with pytest.raises(RunError, match="holds a run already"):
        journal.create(tmp_path, PLAN)


def test_resuming_under_another_plan_names_what_differs(tmp_path: Path) -> None:
    journal.create(tmp_path, PLAN).close()
    with pytest.raises(RunError, match="seed was 0, now 1"):
        journal.resume(tmp_path, {**PLAN, "seed": 1})


def test_two_tuners_do_not_share_a_run_directory(tmp_path: Path) -> None:
    first = journal.create(tmp_path, PLAN)
    with pytest.raises(RunError, match="another tuner is at work"):
        journal.resume(tmp_path, PLAN)
    first.close()


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\n", b"[]\n", b'{"event": "probe"}\n', NO_PLAN])
def test_what_is_no_journal_is_refused_with_its_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "journal.jsonl").write_bytes(content)
    with pytest.raises(RunError, match=r"journal\.jsonl:1: "):
        journal.resume(tmp_path, PLAN)


@pytest.mark.attack
@pytest.mark.parametrize(
    "line",
    [
        '{"event": "probe", "results": [], "at_s": "x"}',
        '{"event": "probe", "results": [], "at_s": null}',
        '{"event": "probe", "results": [], "at_s": NaN}',
        '{"event": "probe", "results": [], "at_s": %s}' % ("9" * 5000),
        '{"event": "trial", "purpose": [], "max_num_seqs": 4, "at_s": 1}',
        '{"event": "trial", "purpose": "ramp", "max_num_seqs": {}, "at_s": 1}',
        json.dumps({"event": "replay", "file": "f", **EVENT, "trial": [1]}),
        json.dumps({"event": "replay", "file": "f", **EVENT, "window": {"a": 1}}),
        "[" * 100_000,
    ],
)
def test_an_event_of_the_wrong_shape_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    journal.create(tmp_path, PLAN).close()
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(RunError, match=r"journal\.jsonl:2: not an event"):
        journal.read(tmp_path)


@pytest.mark.attack
def test_a_journal_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "journal.jsonl")
    with pytest.raises(RunError, match="is not a regular file"):
        journal.read(tmp_path)


def test_there_must_be_a_run_to_resume(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run to resume"):
        journal.resume(tmp_path, PLAN)


def test_damaged_measurements_are_refused(tmp_path: Path) -> None:
    book = journal.create(tmp_path, PLAN)
    event = book.append_replay(replay_of([record()]), **EVENT)
    path = tmp_path / event["file"]
    path.write_bytes(path.read_bytes()[:-20])
    book.close()
    with pytest.raises(RunError, match="cannot be read back"):
        journal.read(tmp_path).replay(event)


def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot be written"):
        journal.create(tmp_path / "file" / "run", PLAN)


@pytest.mark.attack
def test_a_link_that_somebody_planted_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    book = journal.create(tmp_path / "run", {"load": 1})
    (tmp_path / "run" / "replays").mkdir()
    (tmp_path / "run" / "replays" / ".000.npz.partial").symlink_to(victim)
    assert book.store(replay_of([record()])) == "replays/000.npz"
    book.close()
    assert victim.read_text() == "mine"
    assert sorted(one.name for one in (tmp_path / "run" / "replays").iterdir()) == [
        ".000.npz.partial",
        "000.npz",
    ]


@pytest.mark.attack
@pytest.mark.parametrize("name", ["journal.jsonl", "replays"])
def test_a_link_in_place_of_a_part_of_a_run_is_refused(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(victim)
    if name == "replays":
        victim.mkdir()
    with (
        pytest.raises(RunError, match="cannot be written"),
        contextlib.closing(journal.create(tmp_path / "run", {"load": 1})) as book,
    ):
        book.store(replay_of([record()]))
    assert not victim.is_file()
    assert not victim.exists() or list(victim.iterdir()) == []


def unlike(place: Path, other: NDArray[Any]) -> None:
    """Write a replay again with another array in place of each of its own."""
    with np.load(place) as data:
        names = list(data)
    np.savez(place, **cast("dict[str, Any]", dict.fromkeys(names, other)))


def with_headers(place: Path, header: str, zeros: int) -> None:
    """Write a replay whose arrays say this of themselves, and hold so many zeros."""
    text = header.ljust(117) + "\n"
    start = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
    with np.load(place) as data:
        names = list(data)
    with ZipFile(place, "w", ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(f"{name}.npy", start + bytes(zeros))


def swapped(place: Path, make: Callable[[Path], object]) -> None:
    place.unlink()
    make(place)


PICKLED = b"cposix\nsystem\n(S'touch /nowhere'\ntR."
HUGE = "{'descr': '<f8', 'fortran_order': False, 'shape': (%d,)}"
HOSTILE: dict[str, Callable[[Path], object]] = {
    "a pickle": lambda at: at.write_bytes(PICKLED),
    "a text": lambda at: at.write_text("x"),
    "objects": lambda at: unlike(at, np.array([{}] * 3, dtype=object)),
    "other types": lambda at: unlike(at, np.zeros(3, "V8")),
    "texts": lambda at: unlike(at, np.array(["a"])),
    "other shapes": lambda at: unlike(at, np.zeros((2, 2, 2))),
    "more than any memory": lambda at: with_headers(at, HUGE % (1 << 60), 0),
    "fewer than none": lambda at: with_headers(at, HUGE % -1, 0),
    "less than it says": lambda at: with_headers(at, HUGE % (1 << 27), 100),
    "a header that is no dict": lambda at: with_headers(at, "__import__('os').getpid()", 0),
    "a header of brackets": lambda at: with_headers(at, "(" * 115, 0),
    "a link": lambda at: swapped(at, lambda one: one.symlink_to("/dev/zero")),
    "a pipe": lambda at: swapped(at, os.mkfifo),
    "a folder": lambda at: swapped(at, Path.mkdir),
}


@pytest.mark.attack
@pytest.mark.parametrize("what", HOSTILE)
def test_a_replay_that_tuner_did_not_write_is_refused(tmp_path: Path, what: str) -> None:
    with contextlib.closing(journal.create(tmp_path, PLAN)) as book:
        event = book.append_replay(replay_of([record()]), **EVENT)
    HOSTILE[what](tmp_path / event["file"])
    with pytest.raises(RunError, match="cannot be read back"):
        journal.read(tmp_path).replay(event)


@pytest.mark.attack
def test_a_replay_that_unpacks_to_more_than_one_ever_takes_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(journal.create(tmp_path, PLAN)) as book:
        event = book.append_replay(replay_of([record()]), **EVENT)
    assert len(journal.read(tmp_path).replay(event).requests) == 1
    monkeypatch.setattr(journal, "MOST_UNPACKED", 1000)
    with pytest.raises(RunError, match="it is damaged"):
        journal.read(tmp_path).replay(event)


@pytest.mark.attack
@pytest.mark.parametrize(
    "slo", [[1], "x", {"ttft_s": "x", "derived": False}, {"ttft_s": 1.0}, {"a": 1, "derived": True}]
)
def test_a_replay_with_an_slo_that_is_none_is_damaged(tmp_path: Path, slo: object) -> None:
    with contextlib.closing(journal.create(tmp_path, PLAN)) as book:
        event = book.append_replay(replay_of([record()], slo=Slo(ttft_s=1.0)), **EVENT)
    path = tmp_path / event["file"]
    with np.load(path, allow_pickle=False) as data:
        arrays: dict[str, Any] = dict(data)
    rest = {**json.loads(str(arrays["rest"])), "slo": slo}
    np.savez_compressed(path, **{**arrays, "rest": np.array(json.dumps(rest))})
    with pytest.raises(RunError, match="it is damaged"):
        journal.read(tmp_path).replay(event)


@pytest.mark.attack
@pytest.mark.parametrize("name", ["../r.npz", "replays/../r.npz", "/dev/zero", "r.npz", "replays"])
def test_a_run_reads_nothing_that_is_no_part_of_it(tmp_path: Path, name: str) -> None:
    journal.create(tmp_path / "run", PLAN).close()
    with pytest.raises(RunError, match="is no part of this run"):
        journal.read(tmp_path / "run").replay({"event": "replay", "file": name})


@pytest.mark.attack
def test_a_run_is_for_its_owner_alone(tmp_path: Path) -> None:
    book = journal.create(tmp_path / "run", {"load": 1})
    book.store(replay_of([record()]))
    book.close()
    made = [tmp_path / "run", *(tmp_path / "run").rglob("*")]
    assert {oct(one.stat().st_mode & 0o077) for one in made} == {"0o0"}


def test_what_a_killed_run_left_is_gone_when_it_goes_on(tmp_path: Path) -> None:
    journal.create(tmp_path / "run", {"load": 1}).close()
    (tmp_path / "run" / "replays").mkdir()
    (tmp_path / "run" / "replays" / ".000.npz.0123.partial").write_bytes(b"half")
    journal.resume(tmp_path / "run", {"load": 1}).close()
    assert list((tmp_path / "run" / "replays").iterdir()) == []


@pytest.mark.attack
def test_nothing_is_removed_through_a_link_when_a_run_goes_on(tmp_path: Path) -> None:
    journal.create(tmp_path / "run", PLAN).close()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / ".a.partial").write_text("mine")
    (tmp_path / "run" / "replays").symlink_to(tmp_path / "theirs")
    with pytest.raises(RunError, match="cannot be written"):
        journal.resume(tmp_path / "run", PLAN)
    assert (tmp_path / "theirs" / ".a.partial").read_text() == "mine"


@pytest.mark.attack
@pytest.mark.parametrize("is_read", [False, True])
def test_a_pipe_in_place_of_a_journal_is_not_waited_for(tmp_path: Path, *, is_read: bool) -> None:
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / "journal.jsonl")
    reader = os.open(tmp_path / "run" / "journal.jsonl", os.O_RDONLY | os.O_NONBLOCK)
    if not is_read:
        os.close(reader)
    with pytest.raises(RunError, match="cannot be written"):
        journal.create(tmp_path / "run", PLAN)
    if is_read:
        os.close(reader)

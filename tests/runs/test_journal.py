"""The run directory keeps what was measured, whatever happens."""

import contextlib
import json
from pathlib import Path

import pytest

from tests.support.builders import iterations, record, replay_of
from tuner.errors import RunError
from tuner.runs import journal

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
            record(row=1, outcome="failed", error="too long", first_token_s=None, itl_s=()),
            record(row=2, scored=False, itl_s=(0.25, 0.125)),
        ],
        iterations=iterations([{"start_s": 1.0, "duration_s": 0.5, "decode_seqs": 3}]),
        cut="hopeless",
        unsent=7,
        attainment_bound=0.25,
    )
    book = journal.create(tmp_path / "run", PLAN)
    event = book.append_replay(result, **EVENT)
    book.close()
    again = journal.resume(tmp_path / "run", PLAN)
    loaded = again.replay(event)
    again.close()
    assert loaded.records == result.records
    assert (loaded.iterations == result.iterations).all()
    assert (loaded.cut, loaded.unsent, loaded.attainment_bound) == ("hopeless", 7, 0.25)
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

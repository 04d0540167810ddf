"""The folder of a run keeps what was measured, whatever happens."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.builders import facts, iterations, record, replay_of
from tuner.errors import InputError, RunError
from tuner.replay.records import Replay
from tuner.runs import journal
from tuner.runs.journal import EngineStart, Gathered, Probed, Replayed, Tried
from tuner.traffic.slo import Slo

NO_PLAN = b'{"event":"plan","plan":5}\n'
LADDER = Tried("ladder", 4)
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
    with closing(journal.opened(tmp_path / "run", PLAN)) as book:
        book.add_replay(result, Tried("ladder", 4, configuration={"seed": 1}))
    with closing(journal.opened(tmp_path / "run", PLAN)) as again:
        (event,) = again.of(Replayed)
        loaded = again.replay(event)
    assert (event.purpose, event.max_num_seqs, event.configuration) == ("ladder", 4, {"seed": 1})
    for name in ("requests", "gaps_s", "iterations", "device"):
        assert getattr(loaded, name).tobytes() == getattr(result, name).tobytes()
    assert loaded.failures == ("too long",)
    assert (loaded.iterations == result.iterations).all()
    assert (loaded.cut, loaded.unsent, loaded.attainment_bound) == ("hopeless", 7, 0.25)
    assert loaded.slo == result.slo


def test_a_line_that_a_crash_cut_off_is_dropped_and_written_over(tmp_path: Path) -> None:
    with closing(journal.opened(tmp_path, PLAN)) as book:
        book.add(Probed(purpose="ladder", results=()))
    path = tmp_path / "journal.jsonl"
    path.write_bytes(path.read_bytes() + b'{"event":"repl')
    with closing(journal.opened(tmp_path, PLAN)) as again:
        again.add(Gathered(complete=True))
    names = [json.loads(line)["event"] for line in path.read_text().splitlines()]
    assert names == ["plan", "probe", "gathered"]


@pytest.mark.parametrize("content", [b"\xff\xfe\n", b"[]\n", b'{"event":"probe"}\n', NO_PLAN])
def test_what_is_no_journal_is_refused_with_its_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "journal.jsonl").write_bytes(content)
    with pytest.raises(RunError, match=r"journal\.jsonl:1: "):
        journal.opened(tmp_path, PLAN)


@pytest.mark.attack
@pytest.mark.parametrize(
    "line",
    [
        '{"event":"gathered","complete":true,"at_s":NaN}',
        '{"event":"gathered","complete":[]}',
        '{"event":"gathered"}',
        '{"event":"gathered","complete":true,"more":1}',
        '{"event":"rung"}',
        "[" * 100_000,
    ],
)
def test_an_event_of_the_wrong_shape_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    journal.opened(tmp_path, PLAN).close()
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(RunError, match=r"journal\.jsonl:2: not an event"):
        journal.read(tmp_path)


def linked(place: Path) -> None:
    place.unlink()
    place.symlink_to("/dev/zero")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "its end is missing": lambda at: at.write_bytes(at.read_bytes()[:-20]),
    "a pickle": lambda at: at.write_bytes(b"cposix\nsystem\n(S'touch /nowhere'\ntR."),
    "other arrays": lambda at: np.savez(at, rest=np.zeros(3), iterations=np.zeros(3)),
    "a link": linked,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_replay_that_is_damaged_is_refused(tmp_path: Path, damage: str) -> None:
    with closing(journal.opened(tmp_path, PLAN)) as book:
        book.add_replay(replay_of([record()]), LADDER)
        (event,) = book.of(Replayed)
    DAMAGE[damage](tmp_path / event.file)
    with pytest.raises(RunError, match="cannot be read back"):
        journal.read(tmp_path).replay(event)


@pytest.mark.attack
def test_a_run_is_for_its_owner_alone_and_reads_nothing_else(tmp_path: Path) -> None:
    with closing(journal.opened(tmp_path / "run", PLAN)) as book:
        book.add_replay(replay_of([record()]), LADDER)
        for name in ("../r.npz", "replays/../r.npz", "/dev/zero", "replays"):
            event = Replayed(file=name, purpose="ladder", max_num_seqs=4, elapsed_s=1.0)
            with pytest.raises(RunError, match="is no part of this run"):
                book.replay(event)
    made = [tmp_path / "run", *(tmp_path / "run").rglob("*")]
    assert {oct(each.stat().st_mode & 0o077) for each in made} == {"0o0"}


@pytest.mark.attack
def test_what_a_killed_run_left_is_removed_and_never_through_a_link(tmp_path: Path) -> None:
    journal.opened(tmp_path / "run", PLAN).close()
    replays, theirs = tmp_path / "run" / "replays", tmp_path / "theirs"
    replays.mkdir()
    (replays / ".tuner-0123.tmp").write_bytes(b"half")
    journal.opened(tmp_path / "run", PLAN).close()
    assert list(replays.iterdir()) == []
    replays.rmdir()
    theirs.mkdir()
    replays.symlink_to(theirs)
    with pytest.raises(InputError, match="is a link"):
        journal.opened(tmp_path / "run", PLAN)


WHOLE = replay_of([record(row) for row in range(10)])
LOST = replay_of([record(10, outcome="cut")], cut="hopeless", unsent=9, attainment_bound=0.5)
OTHERS = replace(LOST, slo=Slo(ttft_s=0.5))


@pytest.mark.parametrize(
    ("replays", "expected"),
    [
        ([LOST], (0.0, "hopeless")),
        ([LOST, WHOLE], (1.0, None)),
        ([OTHERS], None),  # another SLO had cut it: nothing is known under this one
        ([OTHERS, WHOLE], (1.0, None)),
    ],
)
def test_what_was_replayed_to_its_end_counts_and_not_what_was_cut(
    tmp_path: Path, replays: list[Replay], expected: tuple[float, str | None] | None
) -> None:
    with closing(journal.opened(tmp_path, PLAN)) as book:
        for replay in replays:
            book.add_replay(replay, LADDER)
    seen = journal.read(tmp_path).measured(Slo(ttft_s=2.0)).get(4)
    assert (seen and (seen.attainment, seen.cut)) == expected


def test_engines_of_another_environment_are_not_of_the_same_run(tmp_path: Path) -> None:
    """Which of several cards it is makes no difference, and of some nothing is known."""
    one_thread = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "0"}
    with closing(journal.opened(tmp_path / "run", PLAN)) as book:
        for like in (None, one_thread, {**one_thread, "CUDA_VISIBLE_DEVICES": "3"}, None):
            result = facts(environment=like)
            book.check_machine(result)
            book.add(EngineStart("server", 8, result))
        with pytest.raises(RunError, match="OMP_NUM_THREADS was 1, now 2"):
            book.check_machine(facts(environment={**one_thread, "OMP_NUM_THREADS": "2"}))

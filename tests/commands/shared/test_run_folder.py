"""The folder of a run, as its commands say it: made, found again, refused where it cannot be."""

from pathlib import Path

import pytest

from tuner.commands.shared.run_folder import (
    Where,
    check_command,
    goes_on,
    kept,
    open_each,
    open_run,
)
from tuner.commands.sweep.options import SweepOptions
from tuner.errors import EngineError, Interrupted, RunError, TunerError, UsageError
from tuner.runs import journal


def where(run_dir: Path, *, resume: bool = False) -> Where:
    return Where(Path("prod.jsonl"), run_dir, resume=resume)


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", ["file", "file/run", "file/a/run"])
def test_a_file_where_a_folder_belongs_is_said_so(tmp_path: Path, name: str, resume: bool) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(RunError) as refused:
        open_run(where(tmp_path / name, resume=resume), {})
    assert str(refused.value) == f"--run-dir {tmp_path / name}: {file} is a file, not a folder"
    assert file.read_text() == "mine"


def test_a_name_that_no_file_system_takes_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="file name too long"):
        open_run(where(tmp_path / ("x" * 300)), {})


def interrupted(book: journal.Journal, run_dir: Path) -> str:
    with pytest.raises(Interrupted) as ended, kept(book, where(run_dir)):
        raise KeyboardInterrupt
    return str(ended.value)


@pytest.mark.parametrize(
    ("replays", "said"), [(0, "0 replays are"), (1, "1 replay is"), (2, "2 replays are")]
)
def test_one_replay_is_kept_and_two_replays_are(tmp_path: Path, replays: int, said: str) -> None:
    book = open_run(where(tmp_path / "run"), {})
    for _ in range(replays):
        book.append("replay")
    assert interrupted(book, tmp_path / "run") == f"{said} kept in {tmp_path / 'run'}"


def test_the_command_that_continues_a_run_holds_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["tuner", "sweep", "--set", "hf-token=hf_secret"])
    with pytest.raises(Interrupted) as ended, kept(open_run(where(tmp_path), {}), where(tmp_path)):
        raise KeyboardInterrupt
    assert "secret" not in str(ended.value) + ended.value.hint


def refused(
    book: journal.Journal, run_dir: Path, *parts: journal.Journal, error: TunerError
) -> None:
    with pytest.raises(type(error)), kept(book, where(run_dir), parts):
        raise error


TOO_SMALL = UsageError("--budget 1s is too small", hint="Give more.")


def test_a_run_that_is_refused_leaves_no_folder_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    new, again = (Where(Path("prod.jsonl"), None, resume=resume) for resume in (False, True))
    book = open_run(new, {"ceiling": 8})
    run_dir = book.run_dir
    (run_dir / "trace.jsonl").write_text("{}")
    (run_dir / "study.log").write_text("")
    parts = open_each(book, {"day": {}, "night": {}})
    refused(book, run_dir, *parts.values(), error=TOO_SMALL)
    assert not run_dir.exists()
    with pytest.raises(RunError, match="there is no run to resume"):
        open_run(again, {"ceiling": 8})


def test_what_others_keep_in_the_folder_of_a_refused_run_stays(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text("mine")
    book = open_run(where(tmp_path), {})
    (tmp_path / "study.log").write_text("the run's")
    (tmp_path / "notes.txt").write_text("mine, too")
    refused(book, tmp_path, error=TOO_SMALL)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["notes.txt", "trace.jsonl"]


@pytest.mark.parametrize("event", ["replay", "probe", "calibrated", "late"])
def test_a_run_that_has_measured_something_stays_whatever_ends_it(
    tmp_path: Path, event: str
) -> None:
    book = open_run(where(tmp_path / "run"), {})
    parts = open_each(book, {"day": {}})
    parts["day"].append(event)
    refused(book, tmp_path / "run", parts["day"], error=TOO_SMALL)
    assert (tmp_path / "run" / "journal.jsonl").exists()
    assert (tmp_path / "run" / "day" / "journal.jsonl").exists()


def test_an_engine_that_does_not_start_leaves_its_log_and_a_resumed_run_stays(
    tmp_path: Path,
) -> None:
    book = open_run(where(tmp_path / "run"), {})
    (tmp_path / "run" / "vllm.log").write_text("CUDA error")
    refused(book, tmp_path / "run", error=EngineError("no engine", hint="See vllm.log."))
    assert (tmp_path / "run" / "vllm.log").exists()
    again = open_run(where(tmp_path / "run", resume=True), {})
    refused(again, tmp_path / "run", error=TOO_SMALL)
    assert (tmp_path / "run" / "journal.jsonl").exists()


@pytest.mark.parametrize(
    ("plan", "command", "other"),
    [
        ({"ceiling": 8, "slo": None}, "sweep", "refine"),
        ({"objective": "goodput", "budget": "15m"}, "refine", "sweep"),
        ({"compare": True, "engine": "sim"}, "compare", "refine"),
    ],
)
def test_the_run_of_another_command_is_told_as_such(
    tmp_path: Path, plan: dict[str, object], command: str, other: str
) -> None:
    run_dir = tmp_path / "run"
    journal.create(run_dir, plan).close()
    resumed = Where(Path("prod.jsonl"), run_dir, resume=True, command=other)
    said = f"run: is the run of tuner {command}, not of tuner {other}$"
    with pytest.raises(RunError, match=said) as caught:
        open_run(resumed, {"budget": "20m"})
    assert caught.value.hint == f"Name the folder of a run of tuner {other}."
    check_command(journal.read(run_dir), command)


def test_a_run_knows_the_command_that_goes_on_with_it_and_its_parts_that_too(
    tmp_path: Path,
) -> None:
    run_dir, trace = tmp_path / "my run", Path("prod.jsonl")
    begins, raises = (SweepOptions(trace=trace, budget=one) for one in ("5m", "10m"))
    for asked, resume in ((begins, False), (raises, True)):
        plan = {"ceiling": 8, "budget": asked.budget}
        book = open_run(Where(trace, run_dir, resume=resume, asked=asked), plan)
        parts = open_each(book, {"day": plan})
        for one in (book, *parts.values()):
            one.close()
            told = goes_on(journal.read(one.run_dir))
            words = f"tuner sweep --trace=prod.jsonl --budget={asked.budget} --resume --run-dir"
            assert told == f"{words} '{run_dir}'"


def test_a_run_of_an_older_tuner_says_nothing_that_would_not_work(tmp_path: Path) -> None:
    book = open_run(where(tmp_path / "run"), {})
    for one in (book, *open_each(book, {"day": {}}).values()):
        one.close()
        assert goes_on(one) == ""

"""The folder of a run, as its commands say it: made, found again, refused where it cannot be."""

from pathlib import Path

import pytest

from tuner.commands.shared.run_folder import (
    Where,
    kept,
    open_each,
    open_run,
)
from tuner.errors import EngineError, Interrupted, TunerError, UsageError
from tuner.runs import journal
from tuner.runs.events import Probed


def where(run_dir: Path, *, resume: bool = False) -> Where:
    return Where(Path("prod.jsonl"), run_dir, resume=resume)


def interrupted(book: journal.Journal, run_dir: Path) -> str:
    with pytest.raises(Interrupted) as ended, kept(book, where(run_dir)):
        raise KeyboardInterrupt
    return str(ended.value)


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
    book = open_run(Where(Path("prod.jsonl"), None, resume=False), {"ceiling": 8})
    run_dir = book.run_dir
    (run_dir / "trace.jsonl").write_text("{}")
    (run_dir / "study.log").write_text("")
    parts = open_each(book, {"day": {}, "night": {}})
    refused(book, run_dir, *parts.values(), error=TOO_SMALL)
    assert not run_dir.exists()


def test_what_others_keep_in_the_folder_of_a_refused_run_stays(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text("mine")
    book = open_run(where(tmp_path), {})
    (tmp_path / "study.log").write_text("the run's")
    (tmp_path / "notes.txt").write_text("mine, too")
    refused(book, tmp_path, error=TOO_SMALL)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["notes.txt", "trace.jsonl"]


def test_a_run_that_has_measured_something_stays_whatever_ends_it(tmp_path: Path) -> None:
    book = open_run(where(tmp_path / "run"), {})
    parts = open_each(book, {"day": {}})
    parts["day"].add(Probed(purpose="ladder", results=()))
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

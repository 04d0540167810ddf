"""The folder of a run, as its commands say it: made, found again, refused where it cannot be."""

from pathlib import Path

import pytest

from tuner.commands.options import SweepOptions
from tuner.commands.shared.run_folder import kept, open_run
from tuner.errors import EngineError, Interrupted, TunerError, UsageError
from tuner.runs import journal
from tuner.runs.journal import Probed


def opened(run_dir: Path | None, plan: dict[str, object] | None = None) -> journal.Journal:
    options = SweepOptions(trace=Path("prod.jsonl"), run_dir=run_dir)
    return open_run("sweep", options, plan or {})


def test_a_journal_and_the_command_that_continues_it_hold_no_token(tmp_path: Path) -> None:
    secrets = ("hf-token=hf_secret", "hf_token=hf_secret")
    options = SweepOptions(trace=Path("prod.jsonl"), run_dir=tmp_path / "run", overrides=secrets)
    with pytest.raises(Interrupted) as ended, kept(open_run("sweep", options, {})):
        raise KeyboardInterrupt
    assert ended.value.hint.startswith("Continue with: tuner resume ")
    written = (tmp_path / "run" / "journal.jsonl").read_text()
    assert "secret" not in str(ended.value) + ended.value.hint + written


def refused(book: journal.Journal, *parts: journal.Journal, error: TunerError) -> None:
    with pytest.raises(type(error)), kept(book, *parts):
        raise error


TOO_SMALL = UsageError("--budget 1s is too small", hint="Give more.")


def test_a_run_that_is_refused_leaves_no_folder_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    book = opened(None, {"ceiling": 8})
    run_dir = book.run_dir
    (run_dir / "trace.jsonl").write_text("{}")
    (run_dir / "study.log").write_text("")
    parts = [journal.opened(run_dir / name, {}, is_part=True) for name in ("a", "b")]
    refused(book, *parts, error=TOO_SMALL)
    assert not run_dir.exists()


def test_a_folder_that_others_use_stays_when_its_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    refused(opened(tmp_path), error=TOO_SMALL)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_run_that_has_measured_something_stays_whatever_ends_it(tmp_path: Path) -> None:
    book = opened(tmp_path / "run")
    part = journal.opened(tmp_path / "run" / "day", {}, is_part=True)
    part.add(Probed(purpose="ladder", results=()))
    refused(book, part, error=TOO_SMALL)
    assert (tmp_path / "run" / "journal.jsonl").exists()
    assert (tmp_path / "run" / "day" / "journal.jsonl").exists()


def test_an_engine_that_does_not_start_leaves_its_log_and_a_resumed_run_stays(
    tmp_path: Path,
) -> None:
    book = opened(tmp_path / "run")
    (tmp_path / "run" / "vllm.log").write_text("CUDA error")
    refused(book, error=EngineError("no engine", hint="See vllm.log."))
    assert (tmp_path / "run" / "vllm.log").exists()
    again = opened(tmp_path / "run")
    refused(again, error=TOO_SMALL)
    assert (tmp_path / "run" / "journal.jsonl").exists()

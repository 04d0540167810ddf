"""The folder of a run, as its commands say it: made, found again, refused where it cannot be."""

from pathlib import Path

import pytest

from tuner import journal
from tuner.commands.run_folder import Where, kept, open_run
from tuner.errors import Interrupted, RunError


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

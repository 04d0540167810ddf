"""Folders for what is needed only while we run."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.system import scratch

OWNER = """
import sys
from tuner.system import scratch
folder = scratch.new_folder("x", sys.argv[1])
(folder / "socket").touch()
print(folder, flush=True)
sys.stdin.read()
"""


def test_the_next_one_removes_what_a_killed_process_left_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "tuner-y-other").mkdir()
    (tmp_path / "tuner-x-file").touch()
    (tmp_path / "tuner-x-link").symlink_to(tmp_path / "elsewhere")
    before = set(tmp_path.iterdir())
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as owner:  # fmt: skip
        assert owner.stdout is not None
        theirs = Path(owner.stdout.readline().rstrip())
        ours = scratch.new_folder("x", str(tmp_path))
        assert set(tmp_path.iterdir()) == {*before, theirs, ours}
        owner.kill()
        owner.wait()
    last = scratch.new_folder("x", str(tmp_path))
    assert set(tmp_path.iterdir()) == {*before, ours, last}


def test_one_that_was_removed_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock
    removed: list[Path] = []

    def late(descriptor: int, how: int) -> None:
        if not removed:
            removed.append(Path(f"/proc/self/fd/{descriptor}").readlink())
            removed[0].rmdir()
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    made = scratch.new_folder("x", str(tmp_path))
    assert made not in removed
    assert list(tmp_path.iterdir()) == [made]


def test_where_there_are_no_locks_nothing_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_descriptor: int, _how: int) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    made = {scratch.new_folder("x", str(tmp_path)) for _ in range(2)}
    assert set(tmp_path.iterdir()) == made

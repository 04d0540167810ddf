"""The last write can be taken back, byte for byte."""

import subprocess
import sys
from pathlib import Path

import pytest

from tuner.errors import TargetError
from tuner.rollout import backup
from tuner.system import files


def apply(path: Path, new: bytes) -> Path | None:
    return backup.write(path, new, was=files.content(path), profile="sha256:0")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "serve.yaml"
    path.write_bytes(b"original")
    return path


def test_behind_a_link_the_copy_stands_beside_the_real_file(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "elsewhere" / "link.yaml"
    link.parent.mkdir()
    link.symlink_to(path)
    assert apply(link, b"new") == path.with_name("serve.yaml.tuner-backup")
    assert backup.roll_back(link, force=False) == "restored"
    assert (path.read_bytes(), link.is_symlink()) == (b"original", True)


def test_a_damaged_copy_is_not_restored(path: Path) -> None:
    copy = apply(path, b"new")
    assert copy is not None
    copy.write_bytes(b"damaged")
    with pytest.raises(TargetError, match="is missing or not the copy that tuner made"):
        backup.roll_back(path, force=True)
    assert path.read_bytes() == b"new"


def test_of_two_writes_the_last_is_taken_back_and_an_edit_only_when_forced(path: Path) -> None:
    apply(path, b"first")
    apply(path, b"second")
    path.write_bytes(b"edited")
    with pytest.raises(TargetError, match="was edited after tuner wrote it"):
        backup.roll_back(path, force=False)
    assert backup.roll_back(path, force=True) == "restored"
    assert path.read_bytes() == b"first"
    with pytest.raises(TargetError, match="tuner has no backup of it"):
        backup.roll_back(path, force=False)


CUT_SHORT = """
import os, resource, sys
from pathlib import Path
from tuner.errors import TargetError
from tuner.rollout import backup

most, calls, path = int(sys.argv[2]), [0], Path(sys.argv[1])
if most < 0:  # a limit on file sizes stands in for a full disk: the same write fails, half way
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

def counted(name):
    real = getattr(os, name)
    def call(*words, **more):
        calls[0] += 1
        if calls[0] == most:
            os._exit(9)
        return real(*words, **more)
    return call

for name in ("open", "write", "fsync", "replace", "unlink", "fchmod", "close", "stat"):
    setattr(os, name, counted(name))
try:
    backup.write(path, b"x" * 2000, was=b"original", profile="sha256:0")
except TargetError as problem:
    print(problem)
"""


@pytest.mark.parametrize("calls", [-1, *range(1, 80, 6)])
def test_a_full_disk_or_a_death_leaves_the_file_whole_and_the_way_back(
    path: Path, calls: int
) -> None:
    """Death comes at one call of the system after another."""
    program = [sys.executable, "-c", CUT_SHORT, str(path), str(calls)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert ("cannot be written" in done.stdout) is (calls < 0), done.stderr
    assert path.read_bytes() in {b"original", b"x" * 2000}
    if path.read_bytes() != b"original":
        assert backup.roll_back(path, force=False) == "restored"
    assert path.read_bytes() == b"original"
    apply(path, b"again")
    assert backup.roll_back(path, force=False) == "restored"


def test_a_stranger_under_the_name_of_the_copy_is_left_alone(path: Path) -> None:
    stranger = path.with_name("serve.yaml.tuner-backup")
    stranger.write_bytes(b"precious")
    with pytest.raises(TargetError, match="is in the way of the backup"):
        apply(path, b"new")
    assert (stranger.read_bytes(), path.read_bytes()) == (b"precious", b"original")


@pytest.mark.parametrize("record", ["", "[]", '{"before": null}'])
def test_a_record_that_is_not_ours_is_refused(path: Path, record: str) -> None:
    path.with_name("serve.yaml.tuner-backup.json").write_text(record)
    for attempt in (lambda: apply(path, b"new"), lambda: backup.roll_back(path, force=True)):
        with pytest.raises(TargetError, match="is not tuner's record of a backup"):
            attempt()
    assert path.read_bytes() == b"original"

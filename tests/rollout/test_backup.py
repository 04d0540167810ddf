"""The last write can be taken back, byte for byte."""

import subprocess
import sys
from pathlib import Path

import pytest

from tuner.errors import TargetError
from tuner.rollout import backup
from tuner.system import files


def apply(path: Path, new: bytes) -> Path | None:
    return backup.write(path, new, was=files.content(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "serve.yaml"
    path.write_bytes(b"original")
    return path


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


FULL = """
import resource, sys
from pathlib import Path
from tuner.errors import TargetError
from tuner.rollout import backup

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    backup.write(Path(sys.argv[1]), b"x" * 2000, was=b"original")
except TargetError as problem:
    print(problem)
"""


def test_a_full_disk_leaves_the_file_and_the_next_write_works(path: Path) -> None:
    """A limit on file sizes stands in for it. Death at any moment is in tests/outside/interrupt."""
    program = [sys.executable, "-c", FULL, str(path)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert "cannot be written" in done.stdout
    assert path.read_bytes() == b"original"
    apply(path, b"again")
    assert backup.roll_back(path, force=False) == "restored"
    assert [each.name for each in path.parent.iterdir()] == ["serve.yaml"]

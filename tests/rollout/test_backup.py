"""The last write can be taken back, byte for byte."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tuner.errors import TargetError
from tuner.rollout import backup
from tuner.system import files


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def apply(path: Path, new: bytes) -> Path | None:
    return backup.write(path, new, was=files.content(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "serve.yaml"
    path.write_bytes(b"original")
    return path


def test_behind_a_link_the_copy_stands_beside_the_real_file(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    link = folder / "link.yaml"
    link.symlink_to(path)
    assert apply(link, b"new") == path.with_name("serve.yaml.tuner-backup")
    assert backup.roll_back(link, force=False) == "restored"
    assert path.read_bytes() == b"original"
    assert link.is_symlink()


def test_a_damaged_copy_is_not_restored(path: Path) -> None:
    copy = apply(path, b"new")
    assert copy is not None
    copy.write_bytes(b"damaged")
    with pytest.raises(TargetError, match="is missing or not the copy that tuner made"):
        backup.roll_back(path, force=True)
    assert path.read_bytes() == b"new"


def in_a_child(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(path)],
        capture_output=True,
        text=True,
        check=True,
    )


def test_of_two_writes_the_last_is_taken_back(path: Path) -> None:
    apply(path, b"first")
    apply(path, b"second")
    assert backup.roll_back(path, force=False) == "restored"
    assert path.read_bytes() == b"first"
    with pytest.raises(TargetError, match="tuner has no backup of it"):
        backup.roll_back(path, force=False)


def test_a_full_disk_leaves_the_earlier_backup(path: Path) -> None:
    apply(path, b"first")
    before = {one.name: one.read_bytes() for one in path.parent.iterdir()}
    code = """
        import resource, sys
        from pathlib import Path
        from tuner.errors import TargetError
        from tuner.rollout import backup

        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            backup.write(Path(sys.argv[1]), b"x" * 2000, was=b"first")
        except TargetError as problem:
            print(problem)
    """
    assert "cannot be written" in in_a_child(code, path).stdout
    assert {one.name: one.read_bytes() for one in path.parent.iterdir()} == before


def test_a_stranger_under_the_name_of_the_copy_is_left_alone(path: Path) -> None:
    stranger = path.with_name("serve.yaml.tuner-backup")
    stranger.write_bytes(b"precious")
    with pytest.raises(TargetError, match="is in the way of the backup"):
        apply(path, b"new")
    assert stranger.read_bytes() == b"precious"
    assert path.read_bytes() == b"original"


@pytest.mark.parametrize("record", ["", "[]", '{"version": 2}', '{"version": 1, "writes": []}'])
def test_a_record_that_is_not_ours_is_refused(path: Path, record: str) -> None:
    path.with_name("serve.yaml.tuner-backup.json").write_text(record)
    for attempt in (lambda: apply(path, b"new"), lambda: backup.roll_back(path, force=True)):
        with pytest.raises(TargetError, match="is not tuner's record of a backup"):
            attempt()
    assert path.read_bytes() == b"original"

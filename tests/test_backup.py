"""What was written can be taken back, byte for byte, as often as it was written."""

import json
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner import backup, files
from tuner.errors import TargetError


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def apply(path: Path, new: bytes) -> Path | None:
    return backup.write(path, new, was=files.content(path))


@settings(deadline=None, max_examples=50)
@given(st.none() | st.binary(max_size=20), st.lists(st.binary(max_size=20), max_size=4))
def test_as_many_rollbacks_as_writes_give_back_the_original(
    original: bytes | None, versions: list[bytes]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "serve.yaml"
        if original is not None:
            path.write_bytes(original)
        states = [original]
        for version in versions:
            if version != states[-1]:
                apply(path, version)
                states.append(version)
        while len(states) > 1:
            assert files.content(path) == states.pop()
            backup.roll_back(path, force=False)
        assert files.content(path) == original
        assert names(Path(folder)) == (["serve.yaml"] if original is not None else [])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "serve.yaml"
    path.write_bytes(b"original")
    return path


def test_the_copy_holds_the_original(path: Path) -> None:
    copy = apply(path, b"new")
    assert copy == path.with_name("serve.yaml.tuner-backup")
    assert copy.read_bytes() == b"original"


def test_a_secret_file_has_a_secret_copy(path: Path) -> None:
    path.chmod(0o600)
    copy = apply(path, b"new")
    assert copy is not None
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600


def test_behind_a_link_the_copy_stands_beside_the_real_file(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    link = folder / "link.yaml"
    link.symlink_to(path)
    assert apply(link, b"new") == path.with_name("serve.yaml.tuner-backup")
    assert backup.roll_back(link, force=False) == "restored"
    assert path.read_bytes() == b"original"
    assert link.is_symlink()


def test_without_a_backup_there_is_nothing_to_roll_back(path: Path) -> None:
    with pytest.raises(TargetError, match="tuner has no backup of it"):
        backup.roll_back(path, force=False)


def test_a_later_edit_is_not_lost_unless_forced(path: Path) -> None:
    apply(path, b"new")
    path.write_bytes(b"new and edited")
    with pytest.raises(TargetError, match="was edited after tuner wrote it"):
        backup.roll_back(path, force=False)
    assert path.read_bytes() == b"new and edited"
    assert backup.roll_back(path, force=True) == "restored"
    assert path.read_bytes() == b"original"


def test_a_deleted_file_comes_back(path: Path) -> None:
    path.chmod(0o640)
    apply(path, b"new")
    path.unlink()
    assert backup.roll_back(path, force=False) == "restored"
    assert path.read_bytes() == b"original"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_damaged_copy_is_not_restored(path: Path) -> None:
    copy = apply(path, b"new")
    assert copy is not None
    copy.write_bytes(b"damaged")
    with pytest.raises(TargetError, match="is missing or not the copy that tuner made"):
        backup.roll_back(path, force=True)
    assert path.read_bytes() == b"new"


def test_a_write_that_was_interrupted_is_forgotten(path: Path) -> None:
    """Record and copy come first: stopped there, the file is as it was."""
    apply(path, b"first")
    with pytest.raises(TargetError, match="changed while tuner was at work"):
        interrupted(path, b"second")
    assert backup.roll_back(path, force=False) == "restored"
    assert path.read_bytes() == b"original"
    assert names(path.parent) == ["serve.yaml"]


def interrupted(path: Path, new: bytes) -> None:
    """Leave what a crash just before the replacement leaves."""
    was = path.read_bytes()
    path.write_bytes(b"someone else's")
    try:
        backup.write(path, new, was=was)
    finally:
        path.write_bytes(was)


def test_a_write_that_was_refused_leaves_nothing_behind(path: Path) -> None:
    apply(path, b"new")
    path.write_bytes(b"edited")
    before = {one.name: one.read_bytes() for one in path.parent.iterdir()}
    with pytest.raises(TargetError, match="changed while tuner was at work"):
        backup.write(path, b"newer", was=b"new")
    assert {one.name: one.read_bytes() for one in path.parent.iterdir()} == before


def test_after_an_interrupted_write_the_next_one_takes_its_place(path: Path) -> None:
    with pytest.raises(TargetError):
        interrupted(path, b"first")
    apply(path, b"second")
    assert backup.roll_back(path, force=False) == "restored"
    assert path.read_bytes() == b"original"
    assert names(path.parent) == ["serve.yaml"]


def test_what_was_taken_back_by_hand_counts_as_taken_back(path: Path) -> None:
    apply(path, b"new")
    path.write_bytes(b"original")
    assert backup.roll_back(path, force=False) == "unchanged"
    assert names(path.parent) == ["serve.yaml"]


def test_a_stranger_under_the_name_of_the_copy_is_left_alone(path: Path) -> None:
    stranger = path.with_name("serve.yaml.tuner-backup")
    stranger.write_bytes(b"precious")
    with pytest.raises(TargetError, match="is in the way of the backup"):
        apply(path, b"new")
    assert stranger.read_bytes() == b"precious"
    assert path.read_bytes() == b"original"


@pytest.mark.parametrize(
    "record",
    [
        "",
        "[]",
        '{"version": 2, "writes": []}',
        json.dumps({"version": 1, "writes": [{"before": "../../etc/passwd", "after": "x"}]}),
        '{"version": 1, "writes": [], "more": 1}',
    ],
)
def test_a_record_that_is_not_ours_is_refused(path: Path, record: str) -> None:
    path.with_name("serve.yaml.tuner-backup.json").write_text(record)
    for attempt in (lambda: apply(path, b"new"), lambda: backup.roll_back(path, force=True)):
        with pytest.raises(TargetError, match="is not tuner's record of backups"):
            attempt()
    assert path.read_bytes() == b"original"

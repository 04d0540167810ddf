"""Files appear whole or not at all, and tell in one line why they could not."""

import os
import stat
from pathlib import Path

import pytest

from tuner.errors import TargetError
from tuner.system import files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"old")
    return path


def test_link_mode_and_owner_are_kept(path: Path) -> None:
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 1234, 1235)
    before = path.stat()
    link = path.with_name("link.yaml")
    link.symlink_to("a.yaml")
    files.write_atomically(link, b"new")
    assert (link.is_symlink(), path.read_bytes()) == (True, b"new")
    after = path.stat()
    assert stat.S_IMODE(after.st_mode) == 0o640
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)


def test_a_file_that_changed_meanwhile_is_left_alone(path: Path) -> None:
    for was in (b"older", None):
        with pytest.raises(TargetError, match="changed while tuner was at work"):
            files.write_atomically(path, b"ours", was=was)
    assert (path.read_bytes(), list(path.parent.iterdir())) == (b"old", [path])


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_of_a_file_that_was_not_finished(
    path: Path, error: type[BaseException]
) -> None:
    def write_half() -> None:
        with files.whole_file(path, force=True) as file:
            file.write(b"new")
            raise error

    with pytest.raises(error):
        write_half()
    assert (path.read_bytes(), list(path.parent.iterdir())) == (b"old", [path])
    with pytest.raises(TargetError, match="already there"), files.whole_file(path):
        pytest.fail("the block must not run")


@pytest.mark.attack
def test_a_link_in_place_of_a_runs_file_is_replaced_and_not_followed(path: Path) -> None:
    link = path.with_name("result.json")
    link.symlink_to(path)
    files.write_own(link, b"new")
    assert (path.read_bytes(), link.read_bytes(), link.is_symlink()) == (b"old", b"new", False)
    assert stat.S_IMODE(link.stat().st_mode) == 0o600


@pytest.mark.attack
@pytest.mark.parametrize("target", ["a.yaml", "not-there-yet", "/dev/null", ".", None])
def test_what_a_run_writes_to_is_a_file_of_its_own(path: Path, target: str | None) -> None:
    log = path.with_name("run.log")
    log.symlink_to(target) if target else os.mkfifo(log)
    with pytest.raises(TargetError, match=r"run\.log: "):
        open(log, "ab", opener=files.opened_own)  # noqa: SIM115
    assert (path.read_bytes(), log.with_name("not-there-yet").exists()) == (b"old", False)


@pytest.mark.attack
def test_what_a_run_writes_to_is_for_its_owner_alone(tmp_path: Path) -> None:
    for text in ("a", "b"):
        with open(tmp_path / "run.log", "a", opener=files.opened_own) as file:
            file.write(text)
    assert (tmp_path / "run.log").read_text() == "ab"
    assert stat.S_IMODE((tmp_path / "run.log").stat().st_mode) == 0o600
    for _ in range(2):
        files.make_own(tmp_path / "sweep")
    assert stat.S_IMODE((tmp_path / "sweep").stat().st_mode) == 0o700
    (tmp_path / "traffic").symlink_to("sweep")
    with pytest.raises(TargetError, match="is a link"):
        files.make_own(tmp_path / "traffic")

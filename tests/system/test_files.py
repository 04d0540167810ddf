"""Files appear whole or not at all, and say in one line why they could not."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.errors import TargetError
from tuner.system import files


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def refused(path: Path, content: bytes = b"new") -> str:
    with pytest.raises(TargetError) as caught:
        files.write_atomically(path, content)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_pipe_is_refused_rather_than_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TargetError, match="is not a regular file"):
        files.content(tmp_path / "pipe")
    assert "is not a regular file" in refused(tmp_path / "pipe")


def test_the_mode_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"old")
    path.chmod(0o640)
    files.write_atomically(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_the_owner_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"old")
    os.chown(path, 1234, 1235)
    files.write_atomically(path, b"new")
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 1235)


def test_a_link_stays_and_the_file_behind_it_changes(tmp_path: Path) -> None:
    real, link = tmp_path / "real.yaml", tmp_path / "link.yaml"
    real.write_bytes(b"old")
    link.symlink_to("real.yaml")
    files.write_atomically(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"


def test_a_read_only_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"old")
    path.chmod(0o444)
    assert refused(path) == f"{path}: is read-only"
    assert path.read_bytes() == b"old"


def test_a_file_that_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"theirs")
    for was in (b"old", None):
        with pytest.raises(TargetError, match="changed while tuner was at work"):
            files.write_atomically(path, b"ours", was=was)
    assert path.read_bytes() == b"theirs"
    assert names(tmp_path) == ["a.yaml"]


def test_no_room_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    """A limit on file sizes stands in for a full disk: the same write fails, half way."""
    path = tmp_path / "a.yaml"
    path.write_bytes(b"old")
    code = (
        "import resource, sys; from pathlib import Path; from tuner.system import files\n"
        "from tuner.errors import TargetError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try: files.write_atomically(Path(sys.argv[1]), b'x' * 100_000)\n"
        "except TargetError as error: print(error, error.hint, sep='|')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == (
        f"{path}: cannot be written: file too large|"
        "Check path, permissions and free space, or write elsewhere.\n"
    )
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.yaml"]


def _victim(tmp_path: Path) -> Path:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    return victim


@pytest.mark.attack
def test_a_link_in_place_of_a_runs_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim, path = _victim(tmp_path), tmp_path / "result.json"
    path.symlink_to(victim)
    files.write_own(path, b"new")
    assert (victim.read_bytes(), path.read_bytes(), path.is_symlink()) == (b"mine", b"new", False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert names(tmp_path) == ["result.json", "victim"]


@pytest.mark.attack
@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.symlink_to(_victim(path.parent)),
        lambda path: path.symlink_to("not-there-yet"),
        os.mkfifo,
        lambda path: path.mkdir(),
        lambda path: path.symlink_to("/dev/null"),
    ],
    ids=["a link", "a link to nothing", "a pipe", "a folder", "a device"],
)
def test_what_a_run_writes_to_is_a_file_of_its_own(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    make(tmp_path / "run.log")
    with pytest.raises(TargetError, match=r"run\.log: "):
        open(tmp_path / "run.log", "ab", opener=files.opened_own)  # noqa: SIM115
    assert not (tmp_path / "not-there-yet").exists()


@pytest.mark.attack
def test_what_a_run_writes_to_is_for_its_owner_alone(tmp_path: Path) -> None:
    for text in ("a", "b"):
        with open(tmp_path / "run.log", "a", opener=files.opened_own) as file:
            file.write(text)
    assert (tmp_path / "run.log").read_text() == "ab"
    assert stat.S_IMODE((tmp_path / "run.log").stat().st_mode) == 0o600


@pytest.mark.attack
def test_neither_a_pipe_nor_more_than_anybody_wrote_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", files.MOST_READ + 1)
    for name, why in (("pipe", "not a regular file"), ("large", "larger than 1024 MiB")):
        with pytest.raises(OSError, match=why):
            files.read_regular(tmp_path / name)
    (tmp_path / "mine").write_bytes(b"mine")
    assert files.read_regular(tmp_path / "mine") == b"mine"


@pytest.mark.attack
def test_a_folder_of_a_run_is_no_link_to_somebody_elses(tmp_path: Path) -> None:
    files.make_own(tmp_path / "sweep")
    files.make_own(tmp_path / "sweep")
    assert stat.S_IMODE((tmp_path / "sweep").stat().st_mode) == 0o700
    (tmp_path / "traffic").symlink_to("sweep")
    with pytest.raises(TargetError, match="is a link"):
        files.make_own(tmp_path / "traffic")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_of_a_file_that_was_not_finished(
    tmp_path: Path, error: type[BaseException]
) -> None:
    (tmp_path / "f").write_text("old")

    def write_half() -> None:
        with files.whole_file(tmp_path / "f", force=True) as file:
            file.write(b"new")
            raise error

    with pytest.raises(error):
        write_half()
    assert ((tmp_path / "f").read_text(), names(tmp_path)) == ("old", ["f"])


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="already there"), files.whole_file(tmp_path / "f"):
        (tmp_path / "f").write_text("somebody else's")
    assert ((tmp_path / "f").read_text(), names(tmp_path)) == ("somebody else's", ["f"])
    with pytest.raises(TargetError, match="already there"), files.whole_file(tmp_path / "f"):
        pytest.fail("the block must not run")


@pytest.mark.attack
def test_a_link_in_place_of_what_was_begun_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, real = _victim(tmp_path), os.open

    def open_(path: Path, *how: int) -> int:
        """Put a link there, as soon as the file is: others may write to the folder."""
        made = real(path, *how)
        if str(path).endswith(".tmp"):
            Path(path).unlink()
            Path(path).symlink_to("victim")
        return made

    monkeypatch.setattr(os, "open", open_)
    with files.whole_file(tmp_path / "f") as file:
        file.write(b"new")
    assert victim.read_bytes() == b"mine"

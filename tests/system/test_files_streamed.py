import os
import stat
from pathlib import Path

import pytest

from tuner.errors import TargetError
from tuner.system.files import whole_file


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    with whole_file(tmp_path / "f") as file:
        file.write(b"a")
        assert not (tmp_path / "f").exists()
    assert (tmp_path / "f").read_bytes() == b"a"
    assert names(tmp_path) == ["f"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_of_a_file_that_was_not_finished(
    tmp_path: Path, error: type[BaseException]
) -> None:
    (tmp_path / "f").write_text("old")

    def write_half() -> None:
        with whole_file(tmp_path / "f", force=True) as file:
            file.write(b"new")
            raise error

    with pytest.raises(error):
        write_half()
    assert (tmp_path / "f").read_text() == "old"
    assert names(tmp_path) == ["f"]


def test_a_file_in_the_way_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    with pytest.raises(TargetError, match="f: already there") as caught, whole_file(tmp_path / "f"):
        pytest.fail("the block must not run")
    assert caught.value.hint == "Overwrite it with --force."


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="already there"), whole_file(tmp_path / "f"):
        (tmp_path / "f").write_text("somebody else's")
    assert (tmp_path / "f").read_text() == "somebody else's"
    assert names(tmp_path) == ["f"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    with whole_file(tmp_path / "link", force=True) as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_the_mode_is_that_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with whole_file(tmp_path / "f"):
        pass
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "f")}
    assert len(modes) == 1


@pytest.mark.parametrize("name", ["missing/f", ".", "f" * 300])
def test_a_place_that_cannot_hold_a_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(TargetError), whole_file(tmp_path / name, force=True):
        pytest.fail("the block must not run")


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(TargetError, match="cannot be written: no space left on device") as caught,
        whole_file(tmp_path / "f"),
        Path("/dev/full").open("wb", buffering=0) as full,
    ):
        full.write(b"x")
    assert "space" in caught.value.hint
    assert names(tmp_path) == []


@pytest.mark.attack
def test_a_link_in_place_of_what_was_begun_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "victim").write_text("mine")
    real, planted = os.open, list[Path]()

    def open_(path: Path, *how: int) -> int:
        """Put a link there, as soon as the file is: others may write to the folder."""
        made = real(path, *how)
        if str(path).endswith(".tmp"):
            Path(path).unlink()
            Path(path).symlink_to("victim")
            planted.append(path)
        return made

    monkeypatch.setattr(os, "open", open_)
    with whole_file(tmp_path / "f") as file:
        file.write(b"new")
    assert len(planted) == 1
    assert (tmp_path / "victim").read_text() == "mine"

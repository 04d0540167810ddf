"""Writes that can be taken back: each keeps what was there, and ``roll_back`` undoes the last one.

Beside FILE stand ``FILE.tuner-backup``, what it was before the last write, and
``FILE.tuner-backup.json``, the record of that write.
"""

import hashlib
from pathlib import Path
from typing import Literal

import msgspec

from tuner.errors import TargetError
from tuner.system import files

RolledBack = Literal["restored", "removed", "unchanged"]


class _Write(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last write, as digests of contents; ``before`` is None where there was no file."""

    before: str | None
    after: str | None


def write(path: Path, new: bytes, *, was: bytes | None) -> Path | None:
    """Write ``new`` over ``was`` (None: no file) and return the copy of ``was``, if there was one.

    Record and copy are on the disk before the file changes. So a crash at any moment leaves the
    file whole and, once it has changed, something to go back to. Raises TargetError, and then the
    file has not changed.
    """
    files.check_writable(path)
    if files.content(path) != was:  # another apply's write, too: its record is not ours
        raise files.changed_meanwhile(path)
    copy, record = _beside(path)
    if _load(record) is None and files.content(copy) not in {None, was}:
        raise TargetError(
            f"{copy}: is in the way of the backup", hint="Move it away, then run this again."
        )
    files.write_atomically(record, msgspec.json.encode(_Write(_digest(was), _digest(new))) + b"\n")
    if was is not None:
        files.write_atomically(copy, was, like=path)
    files.write_atomically(path, new, was=was)
    return None if was is None else copy


def roll_back(path: Path, *, force: bool) -> RolledBack:
    """Undo the last write; ``unchanged`` if the file already is what it was before.

    Raises TargetError when there is none, when the file was edited since (unless ``force``), and
    when the copy is not what the record says.
    """
    present, (copy, record) = files.content(path), _beside(path)
    last = _load(record)
    if last is None:
        cure = "Only what tuner apply wrote can go back."
        raise TargetError(f"{path}: tuner has no backup of it", hint=cure)
    is_edited = present is not None and _digest(present) != last.after
    outcome: RolledBack = "restored" if last.before else "removed"
    if _digest(present) == last.before:
        outcome = "unchanged"
    elif is_edited and not force:
        cure = "Pass --force to lose the edit, or take the change back by hand."
        raise TargetError(f"{path}: was edited after tuner wrote it", hint=cure)
    elif last.before is None:
        files.remove(path)
    else:
        original = files.content(copy)
        if original is None or _digest(original) != last.before:
            raise TargetError(
                f"{copy}: is missing or not the copy that tuner made",
                hint="Restore the file from your own backup or version control.",
            )
        files.write_atomically(path, original, was=present, like=copy)
    files.remove(copy)  # first: a copy on no record is in the way
    files.remove(record)
    return outcome


def _beside(path: Path) -> tuple[Path, Path]:
    """Return where the copy and the record of a file are."""
    real = files.resolve(path) if path.is_symlink() else path
    copy = real.with_name(f"{real.name}.tuner-backup")
    return copy, copy.with_name(f"{copy.name}.json")


def _load(record: Path) -> _Write | None:
    text = files.content(record)
    try:
        return None if text is None else msgspec.json.decode(text, type=_Write)
    except msgspec.DecodeError:
        raise TargetError(
            f"{record}: is not tuner's record of a backup",
            hint="Move it away; the copy beside it can be restored by hand.",
        ) from None


def _digest(content: bytes | None) -> str | None:
    return None if content is None else f"sha256:{hashlib.sha256(content).hexdigest()}"

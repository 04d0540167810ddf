"""Writes that can be taken back: ``roll_back`` undoes the last one, byte for byte.

What a file was before the last write stands beside it, as ``FILE.tuner-backup-DIGEST``. The digest
is of what was written, so that it tells whether the file was edited since. The backup of a file
that was not there is empty.
"""

import hashlib
from pathlib import Path
from typing import Literal

from tuner.errors import TargetError
from tuner.system import files

RolledBack = Literal["restored", "removed", "unchanged"]


def write(path: Path, new: bytes, *, was: bytes | None) -> Path | None:
    """Write ``new`` over ``was`` (None: no file) and return the backup of ``was``, if there was
    one.

    It is on the disk before the file changes. So a crash at any moment leaves the file whole and,
    once it has changed, something to go back to. Raises TargetError, and then the file has not
    changed.
    """
    files.check_writable(path)
    if files.content(path) != was:
        raise files.changed_meanwhile(path)
    copy, older = _backup(path, new), _backups(path)
    files.write_atomically(copy, was or b"", like=path if was else None)
    files.write_atomically(path, new, was=was)
    for each in older:
        if each != copy:
            files.remove(each)
    return copy if was else None


def roll_back(path: Path, *, force: bool) -> RolledBack:
    """Undo the last write; ``unchanged`` if the file already is what it was before.

    Raises TargetError when there is no backup, and when the file was edited since, unless
    ``force``.
    """
    present, backups = files.content(path), _backups(path)
    if not backups:
        cure = "Only what tuner apply wrote can go back."
        raise TargetError(f"{path}: tuner has no backup of it", hint=cure)
    own = _backup(path, present or b"")
    copy = own if own in backups else backups[-1]
    before = files.content(copy)
    outcome: RolledBack = "restored" if before else "removed"
    if before == (present or b""):
        outcome = "unchanged"
    elif copy != own and present is not None and not force:
        cure = "Pass --force to lose the edit, or take the change back by hand."
        raise TargetError(f"{path}: was edited after tuner wrote it", hint=cure)
    elif before:
        files.write_atomically(path, before, was=present, like=copy)
    else:
        files.remove(path)
    for each in backups:
        files.remove(each)
    return outcome


def _backup(path: Path, written: bytes) -> Path:
    real = files.resolve(path) if path.is_symlink() else path
    digest = hashlib.sha256(written).hexdigest()[:12]
    return real.with_name(f"{real.name}.tuner-backup-{digest}")


def _backups(path: Path) -> list[Path]:
    first = _backup(path, b"")
    start = first.name.rpartition("-")[0] + "-"
    backups = [each for each in first.parent.iterdir() if each.name.startswith(start)]
    return sorted(backups, key=lambda each: each.stat().st_mtime_ns)

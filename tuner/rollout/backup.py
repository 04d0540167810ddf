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


class Override(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A refusal that was overridden: who did it, and what spoke against it."""

    who: str
    """User and machine."""

    when: str
    """ISO 8601 in UTC."""

    profile: str
    profile_digest: str
    despite: list[str]


class _Write(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The last write. Digests are of contents; ``before`` is None where there was no file."""

    before: str | None
    after: str | None
    profile: str
    """Digest of the profile that was written."""

    override: Override | None = None


def write(  # noqa: PLR0913 - what is written, over what, and what stays on record
    path: Path,
    new: bytes,
    *,
    was: bytes | None,
    profile: str,
    like: Path | None = None,
    override: Override | None = None,
) -> Path | None:
    """Write ``new`` over ``was`` (None: no file) and return the copy of ``was``, if there was one.

    Record and copy are on the disk before the file changes. So a crash at any moment leaves the
    file whole and, once it has changed, something to go back to. A new file gets the mode of
    ``like``. Raises TargetError, and then the file has not changed.
    """
    files.check_writable(path)
    real = files.resolve(path)
    if files.content(real) != was:  # another apply's write, too: its record is not ours
        raise files.changed_meanwhile(path)
    copy = real.with_name(f"{real.name}.tuner-backup")
    if _load(real) is None and files.content(copy) not in {None, was}:
        raise TargetError(
            f"{copy}: is in the way of the backup", hint="Move it away, then run this again."
        )
    record = msgspec.json.encode(_Write(_digest(was), _digest(new), profile, override))
    files.write_atomically(record_of(real), msgspec.json.format(record, indent=2) + b"\n")
    if was is not None:
        files.write_atomically(copy, was, like=real)
    files.write_atomically(path, new, was=was, like=like)
    return None if was is None else copy


def roll_back(path: Path, *, force: bool) -> RolledBack:
    """Undo the last write; ``unchanged`` if the file already is what it was before.

    Raises TargetError when there is none, when the file was edited since (unless ``force``), and
    when the copy is not what the record says.
    """
    real = files.resolve(path)
    copy = real.with_name(f"{real.name}.tuner-backup")
    record, present = _load(real), files.content(real)
    if record is None:
        cure = "Only what tuner apply wrote can go back."
        raise TargetError(f"{path}: tuner has no backup of it", hint=cure)
    is_edited = present is not None and _digest(present) != record.after
    outcome: RolledBack = "restored" if record.before else "removed"
    if _digest(present) == record.before:
        outcome = "unchanged"
    elif is_edited and not force:
        cure = "Pass --force to lose the edit, or take the change back by hand."
        raise TargetError(f"{path}: was edited after tuner wrote it", hint=cure)
    elif record.before is None:
        files.remove(real)
    else:
        original = files.content(copy)
        if original is None or _digest(original) != record.before:
            raise TargetError(
                f"{copy}: is missing or not the copy that tuner made",
                hint="Restore the file from your own backup or version control.",
            )
        files.write_atomically(path, original, was=present, like=copy)
    files.remove(copy)  # first: a copy on no record is in the way
    files.remove(record_of(real))
    return outcome


def record_of(real: Path) -> Path:
    """Return where the last write of a file is on record."""
    return real.with_name(f"{real.name}.tuner-backup.json")


def _load(real: Path) -> _Write | None:
    text = files.content(record_of(real))
    try:
        return None if text is None else msgspec.json.decode(text, type=_Write)
    except msgspec.DecodeError:
        raise TargetError(
            f"{record_of(real)}: is not tuner's record of a backup",
            hint="Move it away; the copy beside it can be restored by hand.",
        ) from None


def _digest(content: bytes | None) -> str | None:
    return None if content is None else f"sha256:{hashlib.sha256(content).hexdigest()}"

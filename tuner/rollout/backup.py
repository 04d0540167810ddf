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

    version: Literal[2]
    before: str | None
    after: str | None
    profile: str | None = None
    """Digest of the profile that was written."""

    override: Override | None = None


def write(  # noqa: PLR0913 - what is written, over what, and what stays on record
    path: Path,
    new: bytes,
    *,
    was: bytes | None,
    like: Path | None = None,
    profile: str | None = None,
    override: Override | None = None,
) -> Path | None:
    """Write ``new`` over ``was`` (None: no file) and return the copy of ``was``, if there was one.

    Record and copy are on the disk before the file changes. So a crash at any moment leaves the
    file whole and, once it has changed, something to go back to. A new file gets the mode of
    ``like``. Raises TargetError, and then the file has not changed.
    """
    files.check_writable(path)
    real = files.resolve(path)
    with files.locked(real.parent):
        if files.content(real) != was:  # another apply's write, too: its record is not ours
            raise files.changed_meanwhile(path)
        earlier, copy = _load(real), copy_of(real)
        present = files.content(copy)
        if present is not None and present != was and earlier is None:
            raise TargetError(
                f"{copy}: is in the way of the backup", hint="Move it away, then run this again."
            )
        record = _Write(2, _digest(was), _digest(new), profile, override)
        try:
            _save(real, record)
            if was is not None:
                files.write_atomically(copy, was, like=real)
            files.write_atomically(path, new, was=was, like=like)
        except TargetError:
            if files.content(real) != new:  # nothing was written, so there is nothing to take back
                _save(real, earlier)
                files.remove(copy) if present is None else files.write_atomically(copy, present)
            raise
    return None if was is None else copy


def roll_back(path: Path, *, force: bool) -> RolledBack:
    """Undo the last write; ``unchanged`` if the file already is what it was before.

    Raises TargetError when there is none, when the file was edited since (unless ``force``), and
    when the copy is not what the record says.
    """
    real = files.resolve(path)
    with files.locked(real.parent):
        record, present, copy = _load(real), files.content(real), copy_of(real)
        if record is None:
            cure = "Only what tuner apply wrote can go back."
            raise TargetError(f"{path}: tuner has no backup of it", hint=cure)
        outcome: RolledBack = "unchanged"
        if _digest(present) != record.before:
            if not force and _digest(present) not in {None, record.after}:
                cure = "Pass --force to lose the edit, or take the change back by hand."
                raise TargetError(f"{path}: was edited after tuner wrote it", hint=cure)
            if record.before is None:
                if files.content(path) != present:
                    raise files.changed_meanwhile(path)
                files.remove(real)
                outcome = "removed"
            else:
                original = files.content(copy)
                if original is None or _digest(original) != record.before:
                    raise TargetError(
                        f"{copy}: is missing or not the copy that tuner made",
                        hint="Restore the file from your own backup or version control.",
                    )
                files.write_atomically(path, original, was=present, like=copy)
                outcome = "restored"
        files.remove(copy)  # first: a copy on no record is in the way
        _save(real, None)
    return outcome


def record_of(real: Path) -> Path:
    """Return where the last write of a file is on record."""
    return real.with_name(f"{real.name}.tuner-backup.json")


def copy_of(real: Path) -> Path:
    """Return where the copy of what a file was stands."""
    return real.with_name(f"{real.name}.tuner-backup")


def _load(real: Path) -> _Write | None:
    record = record_of(real)
    text = files.content(record)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=_Write)
    except (msgspec.DecodeError, msgspec.ValidationError):
        raise TargetError(
            f"{record}: is not tuner's record of a backup",
            hint="Move it away; the copy beside it can be restored by hand.",
        ) from None


def _save(real: Path, record: _Write | None) -> None:
    if record is None:
        files.remove(record_of(real))
        return
    text = msgspec.json.format(msgspec.json.encode(record), indent=2)
    files.write_atomically(record_of(real), text + b"\n")


def _digest(content: bytes | None) -> str | None:
    return None if content is None else f"sha256:{hashlib.sha256(content).hexdigest()}"

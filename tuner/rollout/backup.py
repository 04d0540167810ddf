"""Writes that can be taken back: each keeps what was there, and ``roll_back`` undoes the last one.

Beside FILE stand ``FILE.tuner-backup.json``, the record of the writes not yet taken back, and one
copy for each of them: ``FILE.tuner-backup``, ``FILE.tuner-backup-2``, …
"""

import hashlib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tuner.errors import TargetError
from tuner.system import files

RolledBack = Literal["restored", "removed", "unchanged"]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class Override(BaseModel):
    """A refusal that was overridden: who did it, and what spoke against it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    who: str
    """User and machine."""

    when: str
    """ISO 8601 in UTC."""

    profile: str
    profile_digest: str
    despite: list[str]


class _Write(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    before: Digest | None
    """None: there was no file, so there is no copy."""

    after: Digest
    profile: str | None = None
    """Digest of the profile that was written."""

    override: Override | None = None


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: Literal[1]
    writes: list[_Write]
    """Oldest first."""


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
    ``like``. ``profile``, the digest of what was applied, and ``override`` stay on record until the
    write is taken back.

    Raises TargetError, and then the file has not changed.
    """
    files.check_writable(path)
    real = files.resolve(path)
    with files.locked(real.parent):
        if files.content(real) != was:  # another apply's write, too: its record is not ours
            raise files.changed_meanwhile(path)
        recorded = _load(real)
        writes = [
            *_made(recorded, was),
            _Write(before=_digest(was), after=_sha256(new), profile=profile, override=override),
        ]
        copy = _copy(real, len(writes))
        present = files.content(copy)
        if present not in (None, was):
            raise TargetError(
                f"{copy}: is in the way of the backup", hint="Move it away, then run this again."
            )
        try:
            _save(real, writes)
            if was is not None:
                files.write_atomically(copy, was, like=real)
            files.write_if_unchanged(path, new, was=was, like=like)
        except TargetError:
            if files.content(real) != new:  # nothing was written, so there is nothing to take back
                _save(real, recorded)
                if present is None:
                    files.remove(copy)
            raise
    return None if was is None else copy


def check_can_go_back(path: Path, *, profile: str) -> None:
    """Raise TargetError where ``roll_back`` would.

    Also where it would undo no write, or another write than that of the profile with this digest.
    """
    files.check_writable(path)
    real = files.resolve(path)
    recorded, present = _recorded(path), files.content(real)
    if len(_made(recorded, present)) < len(recorded):
        raise TargetError(
            f"{path}: already is what it was before tuner wrote it",
            hint="There is nothing to roll back.",
        )
    last = recorded[-1]
    _check_unedited(path, last, present, hint="Take the edit back, or roll back by hand.")
    if last.profile != profile:
        whose = "nothing says which profile" if last.profile is None else _short(last.profile)
        raise TargetError(
            f"{path}: what tuner wrote there last is not this profile, {_short(profile)}: {whose}",
            hint="Give the profile that was applied there, or roll back by hand: tuner apply "
            f"--rollback {path}",
        )
    if last.before is not None:
        _original(last, _copy(real, len(recorded)))


def roll_back(path: Path, *, force: bool) -> RolledBack:
    """Undo the last write that is not yet undone; ``unchanged`` if the file already is what it was.

    Raises TargetError when there is none, when the file was edited since (unless ``force``), and
    when the copy is not what the record says.
    """
    real = files.resolve(path)
    with files.locked(real.parent):
        recorded, present = _recorded(path), files.content(real)
        writes = _made(recorded, present)
        outcome: RolledBack = "unchanged"
        if writes:
            last = writes.pop()
            if not force:
                hint = "Pass --force to lose the edit, or take the change back by hand."
                _check_unedited(path, last, present, hint=hint)
            outcome = _restore(path, last, _copy(real, len(writes) + 1), present)
        for number in range(len(writes), len(recorded)):  # first: a copy on no record is in the way
            files.remove(_copy(real, number + 1))
        _save(real, writes)
    return outcome


def _recorded(path: Path) -> list[_Write]:
    recorded = _load(files.resolve(path))
    if not recorded:
        raise TargetError(
            f"{path}: tuner has no backup of it", hint="Only what tuner apply wrote can go back."
        )
    return recorded


def _check_unedited(path: Path, last: _Write, present: bytes | None, *, hint: str) -> None:
    if present is not None and _sha256(present) != last.after:
        raise TargetError(f"{path}: was edited after tuner wrote it", hint=hint)


def _original(last: _Write, copy: Path) -> bytes:
    """Return what was there before. Raises TargetError."""
    original = files.content(copy)
    if original is None or _sha256(original) != last.before:
        raise TargetError(
            f"{copy}: is missing or not the copy that tuner made",
            hint="Restore the file from your own backup or version control.",
        )
    return original


def _restore(path: Path, last: _Write, copy: Path, present: bytes | None) -> RolledBack:
    if last.before is None:
        if files.content(path) != present:
            raise files.changed_meanwhile(path)
        files.remove(files.resolve(path))
        return "removed"
    original = _original(last, copy)
    files.write_if_unchanged(path, original, was=present, like=copy)
    return "restored"


def _made(writes: list[_Write], present: bytes | None) -> list[_Write]:
    """Leave out a last write that was recorded but, as the file shows, not made, or undone."""
    if writes and _digest(present) == writes[-1].before:
        return writes[:-1]
    return list(writes)


def _load(real: Path) -> list[_Write]:
    record = record_of(real)
    text = files.content(record)
    if text is None:
        return []
    try:
        return _Record.model_validate_json(text).writes
    except ValidationError:
        raise TargetError(
            f"{record}: is not tuner's record of backups",
            hint="Move it away; the copies beside it can be restored by hand.",
        ) from None


def _save(real: Path, writes: list[_Write]) -> None:
    record = record_of(real)
    if not writes:
        files.remove(record)
        return
    text = _Record(version=1, writes=writes).model_dump_json(indent=2, exclude_defaults=True) + "\n"
    files.write_atomically(record, text.encode())


def record_of(real: Path) -> Path:
    """Return where the writes of a file are on record."""
    return real.with_name(f"{real.name}.tuner-backup.json")


def _copy(real: Path, number: int) -> Path:
    return real.with_name(f"{real.name}.tuner-backup" + (f"-{number}" if number > 1 else ""))


def _short(digest: str) -> str:
    return digest[:19]


def _digest(content: bytes | None) -> str | None:
    return None if content is None else _sha256(content)


def _sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"

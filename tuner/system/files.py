"""Files written whole or not at all."""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from tuner.errors import TargetError
from tuner.system import interruption
from tuner.system.lock import lock

_CURES = {
    errno.ENOSPC: "Free some space, or write elsewhere.",
    errno.EDQUOT: "Free some space, or write elsewhere.",
    errno.EFBIG: "Raise the limit on file sizes (ulimit -f), or write elsewhere.",
    errno.EROFS: "The file system is mounted read-only; write elsewhere.",
    errno.EACCES: "Check the folder's permissions, or write elsewhere.",
    errno.EPERM: "Check the folder's permissions, or write elsewhere.",
    errno.ENOTDIR: "A part of the path is a file, not a folder; check the path.",
    errno.ENAMETOOLONG: "Use a shorter name.",
}

_LOCK_WAIT_S = 10.0

MOST_READ = 1 << 30
"""Bytes of a run's file: the journal of a comparison has some million."""


def resolve(path: Path) -> Path:
    """Return the file that a symbolic link stands for: the link stays, the file is written.

    A deployment's file is often a link into a checkout; replacing the link would part the two.
    Raises TargetError for what cannot be written as a file.
    """
    try:
        real = path.resolve(strict=path.is_symlink())
        mode = real.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            raise TargetError(
                f"{path}: is a link to a file that does not exist",
                hint="Mend the link, or name another file.",
            ) from None
        return _new(path)
    except (OSError, RuntimeError, ValueError) as problem:  # a loop of links, a NUL in the name
        raise _explained(path, problem) from None
    if stat.S_ISDIR(mode):
        raise TargetError(f"{path}: is a directory", hint="Name a file inside it.")
    if not stat.S_ISREG(mode):
        raise TargetError(f"{path}: is not a regular file", hint="Name a regular file.")
    return real


def _new(path: Path) -> Path:
    real = path.resolve()
    if not real.parent.is_dir():
        raise TargetError(
            f"{path}: there is no folder {real.parent}", hint=f"Create it: mkdir -p {real.parent}"
        )
    return real


def content(path: Path) -> bytes | None:
    """Return what is in the file; None when there is none. Raises TargetError."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # to open a FIFO is to wait
            raise TargetError(f"{path}: is not a regular file", hint="Name a regular file.")
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise _explained(path, problem, "read") from None


def write_atomically(
    path: Path, new: bytes, *, like: Path | None = None, mode: int = 0o666
) -> None:
    """Replace the file by ``new``; after a crash it is the old one or the new one, whole.

    Mode and owner of an existing file are kept; a new file takes those of ``like``, else ``mode``
    as far as the umask lets it. Raises TargetError, and then nothing has changed.
    """
    _write(path, new, like=like, mode=mode, may_replace=lambda _: True)


def write_if_unchanged(
    path: Path, new: bytes, *, was: bytes | None, like: Path | None = None
) -> None:
    """``write_atomically``, unless the file is no longer ``was`` (None: no file)."""
    _write(path, new, like=like, mode=0o666, may_replace=lambda real: content(real) == was)


def write_own(path: Path, new: bytes) -> None:
    """Replace a file of a run, which is for its owner alone. Others may be able to write to its
    folder: a link in its place is replaced, and never followed. Raises TargetError."""
    _replace(path, path, new, old=None, mode=0o600, may_replace=lambda _: True)


def _write(
    path: Path, new: bytes, *, like: Path | None, mode: int, may_replace: Callable[[Path], bool]
) -> None:
    real = resolve(path)
    _check_unprotected(path)
    old = _status(real) or (None if like is None else _status(like))
    _replace(path, real, new, old=old, mode=mode, may_replace=may_replace)


def _replace(  # noqa: PLR0913 - what is written, where, and as whose
    path: Path,
    real: Path,
    new: bytes,
    *,
    old: os.stat_result | None,
    mode: int,
    may_replace: Callable[[Path], bool],
) -> None:
    try:
        with _temporary_beside(real) as temporary:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            descriptor = os.open(temporary, flags, mode if old is None else 0o600)
            with os.fdopen(descriptor, "wb") as stream:
                if old is not None:
                    _take_over(descriptor, old)
                stream.write(new)
                stream.flush()
                os.fsync(descriptor)
            if not may_replace(real):
                raise changed_meanwhile(path)
            temporary.replace(real)
            _sync_directory(real.parent)
    except OSError as problem:
        raise _explained(path, problem) from None


def opened_own(path: str | Path, flags: int) -> int:
    """Open a file of a run to write to it, as ``open(path, "a", opener=opened_own)``.

    A new file is for its owner alone. No link is followed, and only a regular file is opened.
    Raises TargetError.
    """
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    except OSError as problem:
        if problem.errno not in {errno.ELOOP, errno.ENXIO}:
            raise _explained(Path(path), problem) from None
    raise TargetError(
        f"{path}: is a link, or no file", hint="Remove it, or choose another folder for the run."
    )


def read_regular(path: Path) -> bytes:
    """Return what is in a file that somebody else may have put there.

    Raises OSError, also for what is no regular file (reading it might never end) and for more than
    MOST_READ bytes.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no file")
        if status.st_size > MOST_READ:
            raise OSError(errno.EFBIG, f"it is larger than {MOST_READ >> 20} MiB")
        return file.read()


@contextlib.contextmanager
def _temporary_beside(real: Path) -> Iterator[Path]:
    """Yield a path that is gone when the block or the process ends: kill -9 alone leaves it."""
    temporary = real.parent / f".tuner-{secrets.token_hex(8)}.tmp"

    def unlink() -> None:
        with contextlib.suppress(OSError):  # gone after the replacement
            temporary.unlink()

    interruption.ends_with_us(unlink)
    try:
        yield temporary
    finally:
        unlink()
        interruption.has_ended(unlink)


def changed_meanwhile(path: Path) -> TargetError:
    return TargetError(f"{path}: changed while tuner was at work", hint="Run the command again.")


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let no other tuner write in the folder meanwhile; the lock of one that was killed is gone.

    Where the file system has no locks (some network ones), go on without. Raises TargetError.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as problem:
        raise _explained(folder, problem) from None
    try:
        with contextlib.suppress(OSError):
            if not lock(descriptor, wait_s=_LOCK_WAIT_S):
                raise TargetError(
                    f"{folder}: another tuner has been writing there for {_LOCK_WAIT_S:.0f} s",
                    hint="Wait until it is done, or end it.",
                )
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def whole_file(path: Path, *, force: bool = False, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Write to a file beside ``path`` that takes its name when the block ends without an error.

    An existing file is replaced only with ``force``. That is checked before the block and again at
    the end, in one step with the naming. ``mode`` is the new file's, as far as the umask lets it.

    Raises TargetError for an existing file without ``force``, and where nothing can be written.
    """
    real = resolve(path)
    if not force and real.exists():
        raise _in_the_way(path)
    try:
        with _temporary_beside(real) as temporary:
            # never by its name again: others may be able to write to the folder
            made = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(made, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if force:
                temporary.replace(real)
            else:
                real.hardlink_to(temporary)
            _sync_directory(real.parent)
    except FileExistsError:
        raise _in_the_way(path) from None
    except OSError as problem:
        raise _explained(path, problem) from None


def _in_the_way(path: Path) -> TargetError:
    return TargetError(f"{path}: already there", hint="Overwrite it with --force.")


def remove(path: Path) -> None:
    """Remove a file, if it is there. Raises TargetError."""
    try:
        path.unlink(missing_ok=True)
        _sync_directory(path.parent)
    except OSError as problem:
        raise _explained(path, problem) from None


def other_names(path: Path) -> int:
    """Return how many hard links the file has beside this one; they keep the old content.

    Raises TargetError where it cannot be looked up.
    """
    status = _status(resolve(path))
    return 0 if status is None else status.st_nlink - 1


def check_writable(path: Path) -> None:
    """Raise TargetError where ``write_atomically`` would.

    It is tried: permissions do not tell what a folder takes (another user's, a quota, /proc).
    """
    real = resolve(path)
    _check_unprotected(path)
    probe = real.parent / f".tuner-{secrets.token_hex(8)}.tmp"
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        probe.unlink()
    except OSError as problem:
        raise _explained(path, problem) from None


def _check_unprotected(path: Path) -> None:
    """Refuse a file that its owner protects; replacing it would get round that."""
    status = _status(resolve(path))
    if status is not None and not status.st_mode & stat.S_IWUSR:
        raise TargetError(f"{path}: is read-only", hint=f"If it may change: chmod u+w {path}")


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise _explained(path, problem) from None


def _take_over(descriptor: int, old: os.stat_result) -> None:
    """Give a new file the mode and the owner of the one it replaces."""
    if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
        os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _explained(path: Path, problem: Exception, verb: str = "written") -> TargetError:
    number = getattr(problem, "errno", None)
    why = getattr(problem, "strerror", None) or str(problem) or "no reason given"
    return TargetError(
        f"{path}: cannot be {verb}: {why[0].lower()}{why[1:]}",
        hint=_CURES.get(number or 0, "Check path and permissions, or write elsewhere."),
    )

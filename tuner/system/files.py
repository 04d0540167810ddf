"""Files written completely or not at all, folders of our own, and locks that end with a process."""

import contextlib
import errno
import fcntl
import functools
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import EllipsisType
from typing import BinaryIO

from tuner.errors import InputError, TargetError
from tuner.system import interruption

MAX_BYTES = 1 << 30
"""Of a run's file: the journal of a comparison has some million."""

_NUMBAS_OWN = Path(".numba_config.yaml")
"""Numba obeys it wherever it is run: in a stranger's folder it could have any file written over."""


# Read


def resolve(path: Path) -> Path:
    """Return the file behind a symbolic link: the link stays, the file is written.

    Raises TargetError for what cannot be written as a file.
    """
    try:
        real = path.resolve(strict=path.is_symlink())
        mode = real.stat().st_mode if real.exists() else None
    except (OSError, RuntimeError, ValueError) as problem:  # a loop of links, a NUL in the name
        raise _explained(path, problem) from None
    if mode is None and not real.parent.is_dir():
        cure = f"Create it: mkdir -p {real.parent}"
        raise TargetError(f"{path}: there is no folder {real.parent}", hint=cure)
    if mode is not None and not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        raise TargetError(f"{path}: is {kind}", hint="Name a regular file.")
    return real


def read_regular(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a file that somebody else may have put there.

    Raises OSError, also for what is not a regular file (reading it might never end) and for more
    bytes than may be.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file")
        if status.st_size > max_bytes:
            raise OSError(errno.EFBIG, f"is larger than {max_bytes >> 20} MiB")
        return file.read()


def content(path: Path) -> bytes | None:
    """Return the content of the file; None when there is none. Raises TargetError."""
    try:
        return read_regular(path)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise _explained(path, problem, "read") from None


# Write


def write_atomically(
    path: Path, new: bytes, *, was: bytes | EllipsisType | None = ..., like: Path | None = None
) -> None:
    """Replace the file by ``new``; after a crash it is the old one or the new one.

    With ``was`` only where that is still its content (None: no file). Mode and owner of an existing
    file are kept; a new file takes those of ``like``. Raises TargetError, and then nothing changes.
    """
    real = check_writable(path)
    with _replacing(path, real, like=real if real.exists() else like) as file:
        file.write(new)
        if was is not ... and content(real) != was:
            raise changed_meanwhile(path)


def write_own(path: Path, new: bytes) -> None:
    """Replace a file of a run, which is for its owner alone. Others may be able to write to its
    folder: a link in its place is replaced, and never followed. Raises TargetError."""
    with _replacing(path, path, mode=0o600) as file:
        file.write(new)


@contextlib.contextmanager
def whole_file(path: Path, *, force: bool = False, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Write to a file beside ``path`` that takes its name when the block ends without an error.

    Raises TargetError for an existing file without ``force``, and where nothing can be written.
    """
    real = resolve(path)
    if not force and real.exists():
        raise TargetError(f"{path}: already there", hint="Overwrite it with --force.")
    with _replacing(path, real, mode=mode) as file:
        yield file


@contextlib.contextmanager
def _replacing(
    path: Path, real: Path, *, mode: int = 0o666, like: Path | None = None
) -> Iterator[BinaryIO]:
    """Yield a file that takes the name ``real`` at the end; kill -9 alone leaves it behind."""
    temporary = real.parent / f".tuner-{os.urandom(8).hex()}.tmp"
    unlink = functools.partial(temporary.unlink, missing_ok=True)
    interruption.ends_with_us(unlink)
    try:
        # never by its name again: others may be able to write to the folder
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(temporary, flags, 0o600 if like else mode), "wb") as file:
            if like is not None:
                old = like.stat()
                if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(file.fileno(), old.st_uid, old.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(real)
        _sync(real.parent)
    except OSError as problem:
        raise _explained(path, problem) from None
    finally:
        unlink()
        interruption.has_ended(unlink)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def opened_own(path: str | Path, flags: int) -> int:
    """Open a file of a run to write to it, as ``open(path, "a", opener=opened_own)``.

    A new file is for its owner alone. No link is followed, and only a regular file is opened.
    Raises TargetError.
    """
    try:
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
    except OSError as problem:
        raise _explained(Path(path), problem) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        cure = "Remove it, or choose another folder for the run."
        raise TargetError(f"{path}: is not a regular file", hint=cure)
    return descriptor


def remove(path: Path) -> None:
    """Remove a file, if it is there. Raises TargetError."""
    try:
        path.unlink(missing_ok=True)
        _sync(path.parent)
    except OSError as problem:
        raise _explained(path, problem) from None


def check_writable(path: Path) -> Path:
    """Return the file behind ``path``. Raises TargetError where it cannot be replaced, also for a
    read-only one: replacing it would get round that.

    It is tried: permissions do not tell what a folder takes (another user's, a quota, /proc).
    """
    real = resolve(path)
    if real.exists() and not real.stat().st_mode & stat.S_IWUSR:
        raise TargetError(f"{path}: is read-only", hint=f"If it may change: chmod u+w {path}")
    try:
        tempfile.TemporaryFile(dir=real.parent).close()
    except OSError as problem:
        raise _explained(path, problem) from None
    return real


def changed_meanwhile(path: Path) -> TargetError:
    return TargetError(f"{path}: changed while tuner was at work", hint="Run the command again.")


def _explained(path: Path, problem: Exception, verb: str = "written") -> TargetError:
    why = getattr(problem, "strerror", None) or str(problem) or "no reason given"
    return TargetError(
        f"{path}: cannot be {verb}: {why[0].lower()}{why[1:]}",
        hint="Check path, permissions and free space, or write elsewhere.",
    )


# Folders and locks


def make_own(folder: Path) -> None:
    """Make a folder inside that of a run, for its owner alone, or use the one that is there; a link
    in its place leads to somebody else's. Raises TargetError."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        is_folder = stat.S_ISDIR(folder.lstat().st_mode)
    except FileExistsError:
        is_folder = False
    except OSError as problem:
        raise _explained(folder, problem, "made") from None
    if not is_folder:
        what = f"{folder}: is a link, not a folder of the run"
        raise TargetError(what, hint="Choose another --run-dir.")


def refuse_config_of_folder() -> None:
    """Raise InputError where numba would obey the folder that tuner is run in."""
    if _NUMBAS_OWN.exists():
        raise InputError(
            f"{_NUMBAS_OWN}: would be obeyed by numba, which compiles for tuner",
            hint="Remove it if it is not yours, or set its values as NUMBA_… in the environment.",
        )


def new_folder(kind: str, place: str | None = None) -> Path:
    """Make a folder in ``place``, by default the one for temporary files.

    It is removed at the end of the process, unless there is a log in it.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"tuner-{kind}-", dir=place))

    def clear() -> None:
        if not any(folder.glob("*.log")):
            shutil.rmtree(folder, ignore_errors=True)

    interruption.ends_with_us(clear)
    return folder


own_folder = functools.cache(new_folder)
"""Returns the one temporary folder of this process for a kind."""


def lock(descriptor: int) -> bool:
    """Lock until the descriptor is closed; return False where another holds it.

    Raises OSError where the file system has no locks, as some network ones.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

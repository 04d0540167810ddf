"""The files of a server's control: the socket, and beside it the audit and the schedule.

Only the server's user and root may have a say in it, so nothing here follows a link or uses what
somebody else owns.
"""

import contextlib
import errno
import json
import os
import socket
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import TargetError
from tuner.system import files, folders
from tuner.system.lock import lock, unlock

BACKLOG = 8
MAX_SCHEDULE_BYTES = 64 * 2**10
_LONGEST_NAME = 80
"""In bytes; an address has room for 108 with the folder's descriptor before the name."""

_PROBE_S = 1.0
_LOCK_S = 10.0
_AUDIT_S = 2.0
_LEAVE_S = 1.0


@dataclass(frozen=True, slots=True)
class Place:
    """A folder that was found safe, and the names in it."""

    socket: Path
    audit: Path
    lock: Path
    """Of all ranks: held for a moment, while a socket is taken or left, or a line recorded."""

    @property
    def schedule(self) -> Path:
        return self.socket.with_name(f"{self.socket.name}.schedule.json")


def place(path: str, *, rank: int, audit: str | None) -> Place:
    """Return the place that the environment names; each further rank gets a socket of its own.

    Raises TargetError for a place that somebody else could put something else into.
    """
    named = Path(path)
    if not named.is_absolute() or named.name in {"", ".."}:
        raise TargetError(f"{path}: not the whole path of a socket", hint="Begin it with /.")
    name = named.name if rank == 0 else f"{named.name}.dp{rank}"
    if len(os.fsencode(name)) > _LONGEST_NAME:
        raise TargetError(f"{name}: the name is too long", hint="Use a shorter name.")
    if audit is not None and not Path(audit).is_absolute():
        raise TargetError(f"{audit}: not the whole path of the audit", hint="Begin it with /.")
    try:
        folder = folders.safe(named.parent, users={os.geteuid()})
    except OSError as problem:
        raise _explained(named.parent, problem) from None
    beside = folder / f"{name}.audit.jsonl" if audit is None else Path(audit)
    _check_kept(beside)
    return Place(folder / name, beside, folder / f"{named.name}.lock")


def _check_kept(audit: Path) -> None:
    """Refuse an audit in a folder where everybody may remove files. A group's, as /var/log is, will
    do. Raises TargetError."""
    try:
        mode = audit.parent.stat().st_mode
    except OSError as problem:
        raise _explained(audit.parent, problem) from None
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise TargetError(
            f"{audit.parent}: others may replace what is in it", hint=f"chmod o-w {audit.parent}"
        )


@dataclass(frozen=True, slots=True)
class Listening:
    socket: socket.socket
    file: tuple[int, int]
    """Device and inode of its name, which stay its own while it is open."""


def listen(at: Place) -> Listening:
    """Return a socket that listens there, for its owner alone.

    A socket that nobody listens at any more is replaced. Raises TargetError for one that is in use,
    and for anything that is no socket of ours.
    """
    with _folder(at) as folder, _locked(at, wait_s=_LOCK_S):
        address = f"/proc/self/fd/{folder}/{at.socket.name}"
        _clear(at.socket, folder, address)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(address)
            Path(address).chmod(0o600)  # whatever the umask; nobody can connect before listen()
            file = _file_at(at, folder)
            listening.listen(BACKLOG)
            listening.setblocking(False)
        except OSError as problem:
            listening.close()
            raise _explained(at.socket, problem) from None
        return Listening(listening, file)


def withdraw(at: Place, listening: Listening) -> None:
    """Take the name away and close. Never raises: a name left behind does no harm.

    In this order: while we listen, no other server takes the name. It may have another file now, of
    a server that was started after somebody had removed ours.
    """
    with (
        contextlib.suppress(OSError, TargetError),
        _folder(at) as folder,
        _locked(at, wait_s=_LEAVE_S),
    ):
        if _file_at(at, folder) == listening.file:
            os.unlink(at.socket.name, dir_fd=folder)
    listening.socket.close()


def append(at: Place, entry: Mapping[str, object]) -> None:
    """Add a line to the audit, on the disk on return. Raises TargetError; nothing is then added."""
    line = json.dumps(entry).encode("ascii") + b"\n"
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with _locked(at, wait_s=_AUDIT_S):  # the ranks of a server may share one
        try:
            descriptor = os.open(at.audit, flags, 0o600)
            try:
                _check_ours(at.audit, os.fstat(descriptor))
                _append(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError as problem:
            raise _explained(at.audit, problem) from None


def _append(descriptor: int, line: bytes) -> None:
    end = os.fstat(descriptor).st_size
    if end and os.pread(descriptor, 1, end - 1) != b"\n":  # a line that a crash has cut
        line = b"\n" + line
    written = 0
    try:
        written = os.write(descriptor, line)
        os.fsync(descriptor)
    finally:
        if written < len(line):
            os.ftruncate(descriptor, end)
    if written < len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def load_schedule(at: Place) -> bytes | None:
    """Return what was kept; None where there is nothing. Raises TargetError."""
    try:
        descriptor = os.open(at.schedule, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise _explained(at.schedule, problem) from None
    with os.fdopen(descriptor, "rb") as stream:
        _check_ours(at.schedule, os.fstat(descriptor))
        return stream.read(MAX_SCHEDULE_BYTES)


def keep_schedule(at: Place, content: bytes | None) -> None:
    """Replace what is kept, whole or not at all; None removes it. Raises TargetError."""
    with contextlib.suppress(FileNotFoundError):
        _check_ours(at.schedule, at.schedule.lstat())
    if content is None:
        files.remove(at.schedule)
    else:
        files.write_atomically(at.schedule, content, mode=0o600)


@contextlib.contextmanager
def _folder(at: Place) -> Iterator[int]:
    """Give a descriptor of the folder; what is done through it is done in that folder."""
    folder = at.socket.parent
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as problem:
        raise _explained(folder, problem) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _file_at(at: Place, folder: int) -> tuple[int, int]:
    status = os.stat(at.socket.name, dir_fd=folder, follow_symlinks=False)
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def _locked(at: Place, *, wait_s: float) -> Iterator[None]:
    """Let servers, and the ranks of one, do this one by one. Raises TargetError.

    The lock is a file of its own, for its owner alone: whoever can read a file or a folder can lock
    it, even for ever.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(at.lock, flags, 0o600)
    except OSError as problem:
        raise _explained(at.lock, problem) from None
    try:
        status = os.fstat(descriptor)
        _check_ours(at.lock, status)
        if status.st_mode & 0o077:
            raise TargetError(f"{at.lock}: others may lock it", hint=f"chmod 600 {at.lock}")
        if not lock(descriptor, wait_s=wait_s):
            raise TargetError(
                f"{at.lock}: another process has locked it", hint="Find it with lsof."
            )
        try:
            yield
        finally:
            unlock(descriptor)
    finally:
        os.close(descriptor)


def _clear(path: Path, folder: int, address: str) -> None:
    """Remove a socket that nobody listens at. Raises TargetError for anything else."""
    try:
        status = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise TargetError(f"{path}: is there and is no socket", hint="Move it away.")
    if status.st_uid not in {os.geteuid(), 0}:
        raise TargetError(f"{path}: belongs to another user", hint="Use another path.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(address)
        except ConnectionRefusedError:
            os.unlink(path.name, dir_fd=folder)
            return
        except OSError:
            pass  # it is busy, so it lives
    raise TargetError(
        f"{path}: a living server listens there", hint="Give each server its own path."
    )


def _check_ours(path: Path, status: os.stat_result) -> None:
    is_ours = stat.S_ISREG(status.st_mode) and status.st_uid in {os.geteuid(), 0}
    if not is_ours or status.st_nlink > 1:  # whoever may not write to a file can still link to it
        raise TargetError(
            f"{path}: is no regular file of the server's user alone", hint="Move it away."
        )
    if status.st_mode & 0o022:
        raise TargetError(f"{path}: others may write to it", hint=f"chmod go-w {path}")


def _explained(path: Path, problem: OSError) -> TargetError:
    if problem.errno in {errno.ELOOP, errno.ENXIO}:
        return TargetError(f"{path}: is a link, or no file", hint="Move it away.")
    why = (problem.strerror or str(problem)).lower()
    return TargetError(f"{path}: {why}", hint="Check the path, its permissions and the disk.")

"""The control of a running server's limits: a socket for its user alone, answered on a thread.

The thread runs inside EngineCore. It serves one client at a time, never waits for the engine while
it holds something that the engine needs, and whatever happens to it, the server goes on.
"""

import errno
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from tuner.errors import TargetError, TunerError
from tuner.live.peer import Peer, peer_of
from tuner.live.protocol import (
    MAX_LINE_BYTES,
    About,
    Answer,
    Limits,
    Refused,
    Request,
    SetLimits,
    State,
    line_of,
    parse,
)
from tuner.system.contain_errors import contain_errors

log = logging.getLogger("vllm.tuner")

BACKLOG = 8
CLIENT_S = 5.0
"""From connecting to having read the answer: others wait for it."""

PAUSE_S = 1.0
"""After a failed accept, such as when the process has no descriptor left."""

STOP_S = 2.0
PROBE_S = 1.0

LONGEST_NAME = 70
"""In bytes; an address has room for 107, with the folder's descriptor before the name."""

_FAILED = Answer(ok=False, error="the control failed", hint="See the server's log.")


class Knobs(Protocol):
    """The limits that a scheduler offers; any thread may ask."""

    @property
    def built(self) -> Limits:
        """Return the limits that it was built for."""
        ...

    @property
    def least_tokens(self) -> int:
        """The smallest max_num_batched_tokens with which every request can be served."""
        ...

    def limits(self) -> Limits: ...

    def load(self) -> tuple[int, int]:
        """Return how many requests run, and how many wait."""
        ...

    def set_limits(self, limits: Limits) -> None:
        """Set them, for the next iteration on."""
        ...


def checked(knobs: Knobs, seqs: int, tokens: int | None) -> Limits:
    """Return the limits that are meant; None leaves the tokens as they are.

    Raises Refused for limits that the server cannot have.
    """
    built, least = knobs.built, knobs.least_tokens
    tokens = knobs.limits().max_num_batched_tokens if tokens is None else tokens
    for name, wanted, most in (
        ("max_num_seqs", seqs, built.max_num_seqs),
        ("max_num_batched_tokens", tokens, built.max_num_batched_tokens),
    ):
        if wanted > most:
            raise Refused(
                f"{name} {wanted} is more than the {most} that the server was built for",
                hint=f"Start the server with {name} {wanted} or more.",
            )
    if tokens < max(seqs, least):
        needs = "this model" if least > seqs else f"max_num_seqs {seqs}"
        raise Refused(
            f"max_num_batched_tokens {tokens} is less than the {max(seqs, least)} that {needs} "
            "needs",
            hint="Leave max_num_batched_tokens as it is.",
        )
    return Limits(seqs, tokens)


def answer(knobs: Knobs, about: About, line: bytes, peer: Peer) -> Answer:
    """Do what a line asks for, unless its sender has left, and return how it went."""
    before = None
    try:
        request = parse(line)
        if isinstance(request, SetLimits):
            before = knobs.limits()
        _done(knobs, request, peer)
    except Refused as refused:
        return Answer(
            ok=False,
            state=_state(knobs, about),
            kind=refused.kind,
            error=str(refused),
            hint=refused.hint,
        )
    return Answer(ok=True, state=_state(knobs, about), before=before)


def _done(knobs: Knobs, request: Request, peer: Peer) -> None:
    """Do what is asked. Raises Refused."""
    if isinstance(request, SetLimits):
        old = knobs.limits()
        new = checked(knobs, request.max_num_seqs, request.max_num_batched_tokens)
        if peer.has_left():
            raise Refused("whoever asked has left", hint="Ask again.", kind="failed")
        if new != old:
            knobs.set_limits(new)
            log.info(
                "tuner: max_num_seqs %d -> %d, max_num_batched_tokens %d -> %d, by pid %d of user "
                "%d: %s",
                *(old.max_num_seqs, new.max_num_seqs),
                *(old.max_num_batched_tokens, new.max_num_batched_tokens),
                *(peer.pid, peer.uid, ascii(request.reason)),
            )


def _state(knobs: Knobs, about: About) -> State:
    return State(about, knobs.built, knobs.limits(), *knobs.load())


class LiveThread:
    """The thread that answers. An error on it is in vLLM's log, and nowhere else."""

    def __init__(self, knobs: Knobs, path: str, about: About) -> None:
        self._knobs, self._path, self._about = knobs, path, about
        self._stopped = threading.Event()
        self._listening: Listening | None = None
        self._thread = threading.Thread(
            target=contain_errors, args=(switched_off, self._run), name="tuner-live", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take the socket away and end, or leave a thread that hangs behind."""
        self._stopped.set()
        if self._listening is not None:
            with suppress(OSError):
                self._listening.socket.shutdown(socket.SHUT_RDWR)  # accept() returns
        self._thread.join(STOP_S)

    def _run(self) -> None:
        device = contain_errors(_unknown, _device_facts)
        about = replace(self._about, device=device)
        self._listening = listening = listen(self._path, rank=about.rank)
        log.info("tuner: live control at %s", listening.path)
        try:
            while not self._stopped.is_set():
                try:
                    client, _ = listening.socket.accept()
                except OSError:
                    self._stopped.wait(PAUSE_S)
                    continue
                with client:
                    contain_errors(_complain, self._serve, about, client)
        finally:
            withdraw(listening)

    def _serve(self, about: About, client: socket.socket) -> None:
        until_s = time.monotonic() + CLIENT_S
        peer, line = peer_of(client), bytearray()
        with suppress(TimeoutError, ConnectionError):
            while b"\n" not in line and len(line) <= MAX_LINE_BYTES:
                client.settimeout(max(0.001, until_s - time.monotonic()))
                received = client.recv(MAX_LINE_BYTES)
                if not received:
                    break
                line += received
            if not line or peer.has_left():
                return
            reply = contain_errors(
                _complain, answer, self._knobs, about, bytes(line).partition(b"\n")[0], peer
            )
            client.settimeout(max(0.001, until_s - time.monotonic()))
            client.sendall(line_of(reply or _FAILED))


def switched_off(problem: Exception) -> None:
    """Say that there is no control, or no more, and why."""
    hint = problem.hint if isinstance(problem, TunerError | Refused) else ""
    log.error("tuner: live control is off: %s: %s. %s", type(problem).__name__, problem, hint)


def _complain(problem: Exception) -> None:
    log.error("tuner: live control failed: %s: %s", type(problem).__name__, problem)


def _unknown(problem: Exception) -> None:
    log.warning("tuner: live control cannot tell the device: %s", problem)


def _device_facts() -> dict[str, object]:
    from tuner.engines import devices  # noqa: PLC0415 - a server may lack what it needs

    return dict(devices.device_facts())


def about_server(
    *, rank: int, vllm: str, arguments: Mapping[str, str | int | float | bool | None]
) -> About:
    """Return the facts of this process's server, its device not known yet."""
    return About(os.getpid(), rank, vllm, dict(arguments), None)


@dataclass(frozen=True, slots=True)
class Listening:
    socket: socket.socket
    path: Path
    file: tuple[int, int]
    """Device and inode of its name, which stay its own while it is open."""


def listen(path: str, *, rank: int) -> Listening:
    """Return a socket that listens at a path, for its owner alone; each further rank gets one of
    its own beside it.

    A socket that nobody listens at any more is replaced. Raises TargetError for one that is in use,
    for anything that is no socket, and for a folder where others may put something else.
    """
    named = Path(path)
    if not named.is_absolute() or named.name in {"", ".."}:
        raise TargetError(f"{path}: not the whole path of a socket", hint="Begin it with /.")
    name = named.name if rank == 0 else f"{named.name}.dp{rank}"
    if len(os.fsencode(name)) > LONGEST_NAME:
        raise TargetError(f"{name}: the name is too long", hint="Use a shorter name.")
    at = named.with_name(name)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _folder(at.parent) as folder:
            _check_free(at, folder)
            new = f"{name}.{os.getpid()}"
            address = f"/proc/self/fd/{folder}/{new}"
            with suppress(FileNotFoundError):
                os.unlink(new, dir_fd=folder)
            listening.bind(address)
            Path(address).chmod(0o600)  # nobody can connect before listen()
            status = os.stat(new, dir_fd=folder)
            listening.listen(BACKLOG)
            os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as problem:
        listening.close()
        raise _explained(at, problem) from None
    except TargetError:
        listening.close()
        raise
    return Listening(listening, at, (status.st_dev, status.st_ino))


def withdraw(listening: Listening) -> None:
    """Take the name away, unless it is another server's by now, and close. Never raises."""
    with suppress(OSError, TargetError), _folder(listening.path.parent) as folder:
        status = os.stat(listening.path.name, dir_fd=folder, follow_symlinks=False)
        if (status.st_dev, status.st_ino) == listening.file:
            os.unlink(listening.path.name, dir_fd=folder)
    listening.socket.close()


@contextmanager
def _folder(folder: Path) -> Iterator[int]:
    """Give a descriptor of the folder; what is done through it is done in that folder. Raises
    TargetError for one that others can change, OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if status.st_uid not in {os.geteuid(), 0}:
            raise TargetError(
                f"{folder}: belongs to another user ({status.st_uid})",
                hint="Use a folder of the server's own: install -d -m 700 …",
            )
        if status.st_mode & 0o022:
            raise TargetError(
                f"{folder}: others may replace what is in it", hint=f"chmod go-w {folder}"
            )
        yield descriptor
    finally:
        os.close(descriptor)


def _check_free(path: Path, folder: int) -> None:
    """Raise TargetError unless there is nothing, or a socket that nobody listens at."""
    try:
        status = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise TargetError(f"{path}: is there and is no socket", hint="Move it away.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_S)
        try:
            probe.connect(f"/proc/self/fd/{folder}/{path.name}")
        except ConnectionRefusedError:
            return
        except OSError:
            pass  # it is busy, so it lives
    raise TargetError(
        f"{path}: a living server listens there", hint="Give each server its own path."
    )


def _explained(path: Path, problem: OSError) -> TargetError:
    if problem.errno in {errno.ELOOP, errno.ENXIO}:
        return TargetError(f"{path}: is a link, or no file", hint="Move it away.")
    why = (problem.strerror or str(problem)).lower()
    return TargetError(f"{path}: {why}", hint="Check the path, its permissions and the disk.")

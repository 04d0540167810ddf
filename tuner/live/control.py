"""The control of a running server's limits: a socket for its user alone, one line of JSON each way.

A thread inside EngineCore answers. It serves one client at a time, never waits for the engine while
it holds something that the engine needs, and whatever happens to it, the server continues.
"""

import logging
import os
import select
import socket
import stat
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta, Struct

from tuner.errors import TargetError, TunerError
from tuner.system.contain_errors import contain_errors

log = logging.getLogger("vllm.tuner")

CLIENT_S = 5.0
"""From connecting to having read the answer: others wait for it."""

PAUSE_S = 1.0
"""After a failed accept, such as when the process has no descriptor left."""

STOP_S, PROBE_S = 2.0, 1.0
MAX_LINE_BYTES = 64 * 2**10
LONGEST_REASON = 500
LONGEST_NAME = 70
"""In bytes; an address has room for 107, with the folder's descriptor before the name."""

_CREDENTIALS = struct.Struct("3i")

Positive = Annotated[int, Meta(ge=1, le=2**31)]
Kind = Literal["request", "refused", "failed"]
"""Of a refusal: it is not understood, it must not be done, or it could not be done."""


# The protocol


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """The server's answer instead of doing it."""

    def __init__(self, message: str, *, hint: str, kind: Kind = "refused") -> None:
        super().__init__(message)
        self.hint = hint
        self.kind: Kind = kind


class Limits(Struct, frozen=True):
    """The limits of a scheduler: sequences at a time, and tokens in one iteration."""

    max_num_seqs: Positive
    max_num_batched_tokens: Positive


class AskState(Struct, frozen=True, tag_field="do", tag="state", forbid_unknown_fields=True):
    version: Literal[3] = 3


class SetLimits(Struct, frozen=True, tag_field="do", tag="set", forbid_unknown_fields=True):
    max_num_seqs: Positive
    max_num_batched_tokens: Positive | None = None
    """None leaves it as it is."""

    reason: Annotated[str, Meta(max_length=LONGEST_REASON)] = ""
    """For the server's log."""

    version: Literal[3] = 3


Request = AskState | SetLimits


class About(Struct, frozen=True):
    """The server, as it was started."""

    pid: int
    rank: int
    """Of this scheduler among those of a data-parallel server."""

    vllm: str
    arguments: dict[str, str | int | float | bool | None]
    """Engine arguments as resolved, by vLLM's names; only some."""

    device: dict[str, Any] | None = None
    """``devices.device_facts()`` of the server; None where it cannot tell."""


class State(Struct, frozen=True):
    about: About
    built: Limits
    """What the server was started with, and the most that it can be set to."""

    limits: Limits
    running: int
    waiting: int


class Answer(Struct, frozen=True):
    """``state`` is as it is now; ``before`` is set where limits were to be changed."""

    ok: bool
    state: State | None = None
    before: Limits | None = None
    kind: Kind = "failed"
    error: str = ""
    hint: str = ""


_REQUEST: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
_FAILED = Answer(ok=False, error="the control failed", hint="See the server's log.")


def line_of(message: Struct) -> bytes:
    """Return a message as it goes over the socket."""
    return msgspec.json.encode(message) + b"\n"


def _parse(line: bytes) -> Request:
    """Return the request of a line. Raises Refused."""
    fault = f"the request is longer than {MAX_LINE_BYTES} bytes"
    if len(line) <= MAX_LINE_BYTES:
        try:
            return _REQUEST.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            fault = f"the request cannot be used: {ascii(str(problem))[1:-1][:200]}"
    hint = "Ask with the tuner of the server's machine: docs/operating.md has the protocol."
    raise Refused(fault, hint=hint, kind="request")


# What is done


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


def _checked(knobs: Knobs, change: SetLimits, client: socket.socket) -> Limits:
    """Return the limits that are meant. Raises Refused for limits that the server cannot have, and
    where nobody waits for the answer."""
    tokens = change.max_num_batched_tokens or knobs.limits().max_num_batched_tokens
    wanted, built = Limits(change.max_num_seqs, tokens), knobs.built
    for name in Limits.__struct_fields__:
        value, most = getattr(wanted, name), getattr(built, name)
        if value > most:
            raise Refused(
                f"{name} {value} is more than the {most} that the server was built for",
                hint=f"Start the server with {name} {value} or more.",
            )
    least = max(wanted.max_num_seqs, knobs.least_tokens)
    if tokens < least:
        needs = f"max_num_seqs {wanted.max_num_seqs}"
        needs = "this model" if least > wanted.max_num_seqs else needs
        raise Refused(
            f"max_num_batched_tokens {tokens} is less than the {least} that {needs} needs",
            hint="Leave max_num_batched_tokens as it is.",
        )
    if has_left(client):
        raise Refused("whoever asked has left", hint="Ask again.", kind="failed")
    return wanted


def _answer(knobs: Knobs, about: About, line: bytes, client: socket.socket) -> Answer:
    """Do what a line asks for, unless its sender has left, and return how it went."""
    before, refused = None, None
    try:
        request = _parse(line)
        if isinstance(request, SetLimits):
            before, wanted = knobs.limits(), _checked(knobs, request, client)
            if wanted != before:
                knobs.set_limits(wanted)
                pid, uid = peer_of(client)
                log.info(
                    "tuner: max_num_seqs %d -> %d, max_num_batched_tokens %d -> %d, by pid %d of "
                    "user %d: %s",
                    *(before.max_num_seqs, wanted.max_num_seqs),
                    *(before.max_num_batched_tokens, wanted.max_num_batched_tokens),
                    *(pid, uid, ascii(request.reason)),
                )
    except Refused as problem:
        refused = problem
    state = State(about, knobs.built, knobs.limits(), *knobs.load())
    if refused is not None:
        return Answer(False, state, None, refused.kind, str(refused), refused.hint)
    return Answer(ok=True, state=state, before=before)


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return pid (0 for a process of another container) and user at the other end. Linux only."""
    result = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(result)
    return pid, uid


def has_left(connection: socket.socket) -> bool:
    """Whether nobody waits for the answer any more, though what was sent can still be read. One
    that has only ended its own sending, as ``socat`` does, still waits."""
    poll = select.poll()
    poll.register(connection, 0)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))


# The thread


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
        device = contain_errors(_complain, _device_facts)
        self._about = msgspec.structs.replace(self._about, device=device)
        self._listening = listening = listen(self._path, rank=self._about.rank)
        log.info("tuner: live control at %s", listening.path)
        try:
            while not self._stopped.is_set():
                try:
                    client, _ = listening.socket.accept()
                except OSError:
                    self._stopped.wait(PAUSE_S)
                    continue
                with client:
                    contain_errors(_complain, self._serve, client)
        finally:
            withdraw(listening)

    def _serve(self, client: socket.socket) -> None:
        until_s, line = time.monotonic() + CLIENT_S, bytearray()
        with suppress(TimeoutError, ConnectionError):
            while b"\n" not in line and len(line) <= MAX_LINE_BYTES:
                client.settimeout(max(0.001, until_s - time.monotonic()))
                received = client.recv(MAX_LINE_BYTES)
                if not received:
                    break
                line += received
            if not line or has_left(client):
                return
            request = bytes(line).partition(b"\n")[0]
            reply = contain_errors(_complain, _answer, self._knobs, self._about, request, client)
            client.settimeout(max(0.001, until_s - time.monotonic()))
            client.sendall(line_of(reply or _FAILED))


def switched_off(problem: Exception) -> None:
    """Say that there is no control, or no more, and why."""
    hint = problem.hint if isinstance(problem, TunerError | Refused) else ""
    log.error("tuner: live control is off: %s: %s. %s", type(problem).__name__, problem, hint)


def _complain(problem: Exception) -> None:
    log.error("tuner: live control failed: %s: %s", type(problem).__name__, problem)


def _device_facts() -> dict[str, object]:
    from tuner.engines import devices  # noqa: PLC0415 - a server may lack what it needs

    return dict(devices.device_facts())


# The socket


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
    at, new = named.with_name(name), f"{name}.{os.getpid()}"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _folder(at.parent) as folder:
            _check_free(at, folder)
            address = f"/proc/self/fd/{folder}/{new}"
            with suppress(FileNotFoundError):
                os.unlink(new, dir_fd=folder)
            listening.bind(address)
            Path(address).chmod(0o600)  # nobody can connect before listen()
            status = os.stat(new, dir_fd=folder)
            listening.listen()
            os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    except (OSError, TargetError) as problem:
        listening.close()
        if isinstance(problem, TargetError):
            raise
        why = (problem.strerror or str(problem)).lower()
        hint = "Check the path, its permissions and the disk."
        raise TargetError(f"{at}: {why}", hint=hint) from None
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

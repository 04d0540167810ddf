"""The cap of a running server over a socket for its own user and root: one line of JSON each way.

A thread inside EngineCore answers one client at a time. Whatever happens to it, the server
continues. ``ask`` is the other end.
"""

import glob
import logging
import os
import select
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta, Struct

from tuner.errors import EngineError, GateError, InputError, TargetError, TunerError
from tuner.system.contain_errors import contain_errors

log = logging.getLogger("vllm.tuner")

CLIENT_S, ANSWER_S = 5.0, 30.0
"""The longest time that a server gives to a client, and a client to the servers ahead of it."""

PAUSE_S = 1.0
"""After a failed accept, such as when the process has no descriptor left."""

STOP_S, PROBE_S = 2.0, 1.0
MAX_LINE_BYTES = 64 * 2**10
LONGEST_REASON, LONGEST_ERROR = 500, 1000

Positive = Annotated[int, Meta(ge=1, le=2**31)]
Kind = Literal["request", "refused", "failed"]
"""Of a refusal: it is not understood, it must not be done, or it could not be done."""


class Request(Struct, frozen=True, forbid_unknown_fields=True):
    """``reset`` sets what the server was started with."""

    do: Literal["state", "set", "reset"]
    max_num_seqs: Positive | None = None
    reason: Annotated[str, Meta(max_length=LONGEST_REASON)] = ""
    """For the server's log."""
    version: Literal[3] = 3


class Limits(Struct, frozen=True):
    max_num_seqs: Positive
    max_num_batched_tokens: Positive


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
    """``before`` is set where the cap was to be changed."""

    ok: bool
    state: State | None = None
    before: Limits | None = None
    kind: Kind = "failed"
    error: str = ""
    hint: str = ""


def encoded(message: Struct) -> bytes:
    return msgspec.json.encode(message) + b"\n"


# The server's end


class Knobs(Protocol):
    """The limits that a scheduler offers; any thread may ask."""

    @property
    def built(self) -> Limits: ...

    def limits(self) -> Limits: ...

    def load(self) -> tuple[int, int]:
        """Return how many requests run, and how many wait."""
        ...

    def set_max_num_seqs(self, cap: int) -> None:
        """Set it for the next iteration on."""
        ...


class LiveThread(threading.Thread):
    """The thread that answers. An error on it is in vLLM's log, and nowhere else."""

    def __init__(self, knobs: Knobs, path: str, about: About) -> None:
        super().__init__(name="tuner-live", daemon=True)
        self._knobs, self._about = knobs, about
        self._path = Path(path if about.rank == 0 else f"{path}.dp{about.rank}")
        self.listening: socket.socket | None = None
        self._stopped = threading.Event()

    def run(self) -> None:
        contain_errors(switched_off, self._serve)

    def stop(self) -> None:
        """Take the socket away and end, or leave a thread that hangs behind."""
        self._stopped.set()
        if self.listening is not None:
            with suppress(OSError):
                self.listening.shutdown(socket.SHUT_RDWR)  # accept() returns
        self.join(STOP_S)

    def _serve(self) -> None:
        device = contain_errors(_complain, _device_facts)
        self._about = msgspec.structs.replace(self._about, device=device)
        with listen(self._path) as self.listening:
            log.info("tuner: live control at %s", self._path)
            try:
                while not self._stopped.is_set():
                    try:
                        client, _ = self.listening.accept()
                    except OSError:
                        self._stopped.wait(PAUSE_S)
                        continue
                    with client:
                        contain_errors(_complain, self._reply, client)
            finally:
                self._path.unlink(missing_ok=True)

    def _reply(self, client: socket.socket) -> None:
        with suppress(TimeoutError, ConnectionError):
            line = _line(client, CLIENT_S)
            if not line or _has_left(client):
                return
            reply = contain_errors(_complain, _carry_out, self._knobs, self._about, line)
            failed = Answer(ok=False, error="the control failed", hint="See the server's log.")
            client.settimeout(CLIENT_S)
            client.sendall(encoded(reply or failed))


def _carry_out(knobs: Knobs, about: About, line: bytes) -> Answer:
    """Do what a line asks for, and return how it went."""

    def refused(kind: Kind, error: str, hint: str) -> Answer:
        state = State(about, knobs.built, knobs.limits(), *knobs.load())
        return Answer(ok=False, state=state, kind=kind, error=error, hint=hint)

    try:
        request = msgspec.json.decode(line, type=Request)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        fault = f"the request cannot be used: {ascii(str(problem))[1:-1][:200]}"
        return refused("request", fault, "Ask with the tuner of the server's machine.")
    before, most = None, knobs.built.max_num_seqs
    if request.do != "state":
        before, cap = knobs.limits(), most if request.do == "reset" else request.max_num_seqs
        if cap is None:
            return refused("request", "set lacks max_num_seqs", "Say how many.")
        if cap > most:
            fault = f"max_num_seqs {cap} is more than the {most} that the server was built for"
            return refused("refused", fault, f"Start it with max_num_seqs {cap} or more.")
        knobs.set_max_num_seqs(cap)
        reason = ascii(request.reason)
        log.info("tuner: max_num_seqs %d -> %d: %s", before.max_num_seqs, cap, reason)
    state = State(about, knobs.built, knobs.limits(), *knobs.load())
    return Answer(ok=True, state=state, before=before)


def listen(path: Path) -> socket.socket:
    """Return a socket that listens at a path. One that nobody listens at any more is replaced.
    Raises TargetError for one in use, for anything that is no socket, and what cannot be."""
    if not path.is_absolute():
        raise TargetError(f"{path}: not the whole path of a socket", hint="Begin it with /.")
    try:
        with _address(path) as address:
            _check_free(path, address)
            listening = socket.socket(socket.AF_UNIX)
            try:
                os.fchmod(listening.fileno(), 0o600)  # before it has a name that others could reach
                listening.bind(address)
                listening.listen()
            except OSError:
                listening.close()
                raise
    except OSError as problem:
        hint = "Check the path, its permissions and the disk."
        raise TargetError(f"{path}: {_why(problem)}", hint=hint) from None
    return listening


def _check_free(path: Path, address: str) -> None:
    """Take away a socket that nobody listens at. Raises TargetError for anything else there."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise TargetError(f"{path}: is there and is no socket", hint="Move it away.")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(PROBE_S)
        try:
            probe.connect(address)
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError:
            pass  # it is busy, so it lives
    raise TargetError(
        f"{path}: a living server listens there", hint="Give each server its own path."
    )


def switched_off(problem: Exception) -> None:
    """Say that there is no control, or no more, and why."""
    hint = problem.hint if isinstance(problem, TunerError) else ""
    log.error("tuner: live control is off: %s: %s. %s", type(problem).__name__, problem, hint)


def _complain(problem: Exception) -> None:
    log.error("tuner: live control failed: %s: %s", type(problem).__name__, problem)


def _device_facts() -> dict[str, object]:
    from tuner.engines import devices  # noqa: PLC0415 - a server may lack what it needs

    return dict(devices.device_facts())


# Both ends


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """Give the address of a socket through its folder's descriptor: an address has room for 107
    bytes, and a path may be longer."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _line(connection: socket.socket, within_s: float) -> bytes:
    """Return what comes up to the end of a line, or of the connection. Raises OSError."""
    until_s, received = time.monotonic() + within_s, bytearray()
    while b"\n" not in received and len(received) <= MAX_LINE_BYTES:
        connection.settimeout(max(0.001, until_s - time.monotonic()))
        if not (more := connection.recv(MAX_LINE_BYTES)):
            break
        received += more
    return bytes(received)


def _why(problem: OSError) -> str:
    return (problem.strerror or str(problem)).lower()


def _has_left(connection: socket.socket) -> bool:
    """Whether nobody waits for the answer, though what was sent can still be read. One that has
    only ended its own sending, as ``socat`` does, still waits."""
    poll = select.poll()
    poll.register(connection, 0)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))


# The client's end

_ERRORS = {"request": InputError, "refused": GateError, "failed": EngineError}


def ranks(path: Path) -> list[Path]:
    """Return the socket and those of the server's further data-parallel ranks beside it."""
    return [path, *sorted(path.parent.glob(f"{glob.escape(path.name)}.dp*"))]


def ask(path: Path, request: Request) -> tuple[State, Limits]:
    """Send one request; return the state, and the limits before it.

    Raises InputError where no live server answers or it does not understand, GateError when it
    refuses, EngineError when it tried and failed.
    """
    try:
        with _address(path) as address, socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_S)
            connection.connect(address)
            connection.sendall(encoded(request))
            answer = msgspec.json.decode(_line(connection, ANSWER_S), type=Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        answer = Answer(ok=True)
    except OSError as problem:
        hint = "Start the server with TUNER_LIVE_SOCKET (docs/operating.md); ask as its user."
        raise InputError(f"{path}: {_why(problem)}", hint=hint) from None
    if not answer.ok:
        error, hint = answer.error[:LONGEST_ERROR], answer.hint[:LONGEST_ERROR]
        raise _ERRORS[answer.kind](f"{path}: {error}", hint=hint)
    if answer.state is None:
        raise InputError(
            f"{path}: what listens there does not answer as a live server does",
            hint="Check the path; a server that runs another tuner is asked with that one.",
        )
    return answer.state, answer.before or answer.state.limits

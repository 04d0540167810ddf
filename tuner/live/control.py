"""The cap of a running server over a socket for its own user and root: one line of JSON each way.

A thread inside EngineCore answers one client at a time. Whatever happens to it, the server
continues. ``ask`` is the other end.
"""

import errno
import glob
import logging
import os
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tuner.errors import GateError, InputError
from tuner.system.contain_errors import contain_errors

log = logging.getLogger("vllm.tuner")

CLIENT_S, ANSWER_S = 5.0, 30.0
"""The longest silence of a client, and how long it waits for the clients ahead of it."""

PAUSE_S = 1.0
"""After a failed accept, such as when the process has no descriptor left."""

STOP_S = 2.0
MAX_LINE_BYTES = 64 * 2**10
NO_SENSE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Raised for a line that is no such message."""


class Request(Struct, frozen=True):
    """``reset`` sets what the server was started with; ``reason`` is for its log."""

    do: Literal["state", "set", "reset"]
    max_num_seqs: int = 0
    reason: str = ""


class State(Struct, frozen=True, kw_only=True):
    """The answer: the server as it is now."""

    vllm: str
    rank: int
    """Of this scheduler among those of a data-parallel server."""
    arguments: dict[str, str | int | float | bool | None]
    """Engine arguments as resolved when it was started, by vLLM's names; only some."""
    device: dict[str, Any]
    """``devices.device_facts()`` of the server."""
    built: int
    """``max_num_seqs`` that it was started with, and the most that it can be set to."""
    max_num_seqs: int = 0
    error: str = ""
    """Why the request changed nothing."""


# The server's end


class Control(threading.Thread):
    """The thread that answers. An error on it is in vLLM's log, and nowhere else."""

    def __init__(self, path: str, state: State, cells: NDArray[np.void]) -> None:
        """``cells`` are the scheduler's ``page.PAGE``."""
        super().__init__(name="tuner-live", daemon=True)
        self._path = Path(f"{path}.dp{state.rank}" if state.rank else path)
        self._state, self._cells = state, cells
        self.listening: socket.socket | None = None
        self._stopped = threading.Event()

    def run(self) -> None:
        contain_errors(complain, self._serve)

    def stop(self) -> None:
        """Take the socket away and end, or leave a thread that hangs behind."""
        self._stopped.set()
        if self.listening is not None:
            with suppress(OSError):
                self.listening.shutdown(socket.SHUT_RDWR)  # accept() returns
        self.join(STOP_S)

    def _serve(self) -> None:
        with socket.socket(socket.AF_UNIX) as listening:
            listen(listening, self._path)
            self.listening = listening
            log.info("tuner: live control at %s", self._path)
            while not self._stopped.is_set():
                try:
                    client, _ = listening.accept()
                except OSError:
                    self._stopped.wait(PAUSE_S)
                    continue
                with client:
                    contain_errors(complain, self._reply, client)
            self._path.unlink(missing_ok=True)

    def _reply(self, client: socket.socket) -> None:
        """Carry out what a client asks for, unless it is silent or has left."""
        client.settimeout(CLIENT_S)
        with suppress(TimeoutError, ConnectionError):
            line = client.makefile("rb").readline(MAX_LINE_BYTES)
            if line and not _has_left(client):
                client.sendall(encoded(self._carry_out(line)))

    def _carry_out(self, line: bytes) -> State:
        cells, built, error = self._cells[0], self._state.built, ""
        before = int(cells["max_num_seqs"])
        try:
            request = msgspec.json.decode(line, type=Request)
        except NO_SENSE as problem:
            request = Request("state")
            error = f"the request cannot be used: {ascii(str(problem))[1:-1][:200]}"
        cap = built if request.do == "reset" else request.max_num_seqs
        if request.do != "state" and 1 <= cap <= built:
            cells["max_num_seqs"] = cap
            log.info("tuner: max_num_seqs %d -> %d: %a", before, cap, request.reason)
        elif request.do != "state":
            error = f"max_num_seqs must be from 1 to {built}, which the server was built for"
        now = int(cells["max_num_seqs"])
        return msgspec.structs.replace(self._state, max_num_seqs=now, error=error)


def listen(listening: socket.socket, path: Path) -> None:
    """Let a socket listen at a path. One that nobody listens at any more is replaced. Raises
    OSError where anything else is there."""
    with _address(path) as address, socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # a busy server lives
        is_socket = path.is_socket() and not path.is_symlink()
        if is_socket and probe.connect_ex(address) == errno.ECONNREFUSED:
            path.unlink()
        os.fchmod(listening.fileno(), 0o600)  # before it has a name that others could reach
        listening.bind(address)
        listening.listen()


def complain(problem: Exception) -> None:
    log.error("tuner: live control failed: %r", problem)


def _has_left(connection: socket.socket) -> bool:
    """Whether nobody waits for the answer, though what was sent can still be read. One that has
    only ended its own sending, as ``socat`` does, still waits."""
    poll = select.poll()
    poll.register(connection, 0)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))


# Both ends


def encoded(message: Struct) -> bytes:
    return msgspec.json.encode(message) + b"\n"


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """Give the address of a socket through its folder's descriptor: an address has room for 107
    bytes, and a path may be longer."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


# The client's end


def ranks(path: Path) -> list[Path]:
    """Return the socket and those of the server's further data-parallel ranks beside it."""
    return [path, *sorted(path.parent.glob(f"{glob.escape(path.name)}.dp*"))]


def ask(path: Path, request: Request) -> State:
    """Send one request and return the answer. Raises InputError where no live server answers, and
    GateError where it refuses."""
    try:
        with _address(path) as address, socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_S)
            connection.connect(address)
            connection.sendall(encoded(request))
            line = connection.makefile("rb").readline(MAX_LINE_BYTES)
        state = msgspec.json.decode(line, type=State)
    except OSError as problem:
        hint = "Start the server with TUNER_LIVE_SOCKET (docs/operating.md); ask as its user."
        raise InputError(f"{path}: {problem.strerror or problem}".lower(), hint=hint) from None
    except NO_SENSE:
        raise InputError(
            f"{path}: what listens there does not answer as a live server does",
            hint="Check the path and the server's log; ask with the tuner that the server runs.",
        ) from None
    if state.error:
        raise GateError(f"{path}: {state.error}", hint="Look into the server's log.")
    return state

"""The cap of a running server over a socket for its own user and root.

A client sends a line: nothing for the state, or a cap and why. The answer is a line of JSON.

A thread inside EngineCore answers one client at a time. Whatever happens to it, the server
continues. ``ask`` is the other end.
"""

import errno
import glob
import logging
import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

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

MAX_LINE_BYTES = 64 * 2**10


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


def start(path: Path, state: State, cells: NDArray[np.void]) -> Callable[[], None]:
    """Answer at a path, on a thread of its own, and return what stops it. ``cells`` are the
    scheduler's ``page.PAGE``. Raises OSError."""
    path = path.with_name(f"{path.name}.dp{state.rank}") if state.rank else path
    listening = listen(path)
    args = (complain, _serve, listening, state, cells[0])
    threading.Thread(target=contain_errors, args=args, name="tuner-live", daemon=True).start()
    log.info("tuner: live control at %s", path)

    def stop() -> None:
        path.unlink(missing_ok=True)
        listening.shutdown(socket.SHUT_RDWR)  # accept() returns

    return stop


def listen(path: Path) -> socket.socket:
    """Return a socket that listens at a path. One that nobody listens at any more is replaced.
    Raises OSError where anything else is there."""
    with ExitStack() as stack, _address(path) as address, socket.socket(socket.AF_UNIX) as probe:
        listening = stack.enter_context(socket.socket(socket.AF_UNIX))
        probe.setblocking(False)  # a busy server lives
        is_socket = path.is_socket() and not path.is_symlink()
        if is_socket and probe.connect_ex(address) == errno.ECONNREFUSED:
            path.unlink()
        os.fchmod(listening.fileno(), 0o600)  # before it has a name that others could reach
        listening.bind(address)
        listening.listen()
        stack.pop_all()
    return listening


def complain(problem: Exception) -> None:
    """Leave an error to vLLM's log, and to nothing else."""
    log.error("tuner: live control failed: %r", problem)


def _serve(listening: socket.socket, state: State, cells: np.void) -> None:
    with listening:
        while True:
            try:
                client, _ = listening.accept()
            except OSError as problem:
                if problem.errno == errno.EINVAL:  # stopped
                    return
                time.sleep(PAUSE_S)
            else:
                with client:
                    contain_errors(complain, _reply, client, state, cells)


def _reply(client: socket.socket, state: State, cells: np.void) -> None:
    """Carry out what a client asks for, unless it is silent or has left."""
    client.settimeout(CLIENT_S)
    with suppress(TimeoutError, ConnectionError):
        line, error = client.makefile("rb").readline(MAX_LINE_BYTES), ""
        if not line or _has_left(client):
            return
        matched = re.fullmatch(rb"(\d{0,9})( .*)?\n", line)
        number, reason = matched.groups(b"") if matched else (b"0", b"")
        cap, before = int(number or 0), int(cells["max_num_seqs"])
        if 1 <= cap <= state.built:
            cells["max_num_seqs"] = cap
            log.info(
                "tuner: max_num_seqs %d -> %d: %a", before, cap, reason.decode("utf-8", "replace")
            )
        elif number:
            error = f"max_num_seqs must be from 1 to {state.built}, which the server was built for"
        now = msgspec.structs.replace(state, max_num_seqs=int(cells["max_num_seqs"]), error=error)
        client.sendall(msgspec.json.encode(now) + b"\n")


def _has_left(connection: socket.socket) -> bool:
    """Whether nobody waits for the answer, though what was sent can still be read. One that has
    only ended its own sending, as ``socat`` does, still waits."""
    poll = select.poll()
    poll.register(connection, 0)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))


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


# The client's end


def ranks(path: Path) -> list[Path]:
    """Return the socket and those of the server's further data-parallel ranks beside it."""
    return [path, *sorted(path.parent.glob(f"{glob.escape(path.name)}.dp*"))]


def ask(path: Path, cap: int | None = None, reason: str = "") -> State:
    """Return the state of a server, after a change where a cap is given, and why. Raises InputError
    where no live server answers, and GateError where it refuses."""
    line = f"{cap or ''} {reason}\n".encode("utf-8", "replace")
    try:
        with _address(path) as address, socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_S)
            connection.connect(address)
            connection.sendall(line)
            answer = connection.makefile("rb").readline(MAX_LINE_BYTES)
        state = msgspec.json.decode(answer, type=State)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise InputError(
            f"{path}: no live server answers: {ascii(str(problem))[1:-1][:200]}",
            hint="Start the server with TUNER_LIVE_SOCKET (docs/operating.md); ask as its user.",
        ) from None
    if state.error:
        raise GateError(f"{path}: {state.error}", hint="Look into the server's log.")
    return state

"""The other end of a live server's control socket."""

import os
import re
import socket
import stat
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tuner.errors import EngineError, GateError, InputError, TunerError
from tuner.live.peer import peer_of
from tuner.live.protocol import (
    Answer,
    AskState,
    Kind,
    Request,
    SetLimits,
    State,
    line_of,
)

ANSWER_S = 30.0
"""Longest wait for an answer: it takes the server's disk, and at most two seconds of its engine."""

MAX_ANSWER_BYTES = 2**20

_LONGEST = 1000
"""Characters of what a server says that are shown."""

_TIME = struct.Struct("ll")
"""Seconds and microseconds."""

_ERRORS: dict[Kind, type[TunerError]] = {
    "request": InputError,
    "refused": GateError,
    "failed": EngineError,
}


def ranks(path: Path) -> list[Path]:
    """Return the socket and those of the server's further data-parallel ranks beside it."""
    named = re.compile(re.escape(path.name) + r"\.dp([1-9][0-9]{0,5})")
    try:
        names = [one.name for one in path.parent.iterdir()]
    except OSError:
        names = []
    matches = filter(None, map(named.fullmatch, names))
    found = [(int(match[1]), path.with_name(match[0])) for match in matches]
    return [path, *(beside for _, beside in sorted(found))]


def state(path: Path) -> State:
    """Return the state of a server. Raises InputError where no live one answers."""
    answer = ask(path, AskState())
    assert answer.state is not None  # ask has checked
    return answer.state


def set_all(changes: Sequence[tuple[Path, SetLimits]]) -> list[Answer]:
    """Set the limits of every server, one after the other. Raises as ``ask`` does, and says which
    servers were set before."""
    answers: list[Answer] = []
    for path, change in changes:
        try:
            answers.append(ask(path, change))
        except TunerError as problem:
            if not answers:
                raise
            done = ", ".join(str(one) for one, _ in changes[: len(answers)])
            raise type(problem)(
                f"{problem}; already set: {done}", hint=f"{problem.hint} Then run it again."
            ) from None
    return answers


def ask(path: Path, request: Request) -> Answer:
    """Send one request. The answer is ok and has a state.

    Raises InputError where no live server answers or it does not understand, GateError when it
    refuses, EngineError when it tried and failed.
    """
    line = _exchange(path, line_of(request))
    try:
        answer = msgspec.json.decode(line, type=Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InputError(
            f"{path}: what listens there does not answer as a live server does",
            hint="Check the path; a server that runs another tuner is asked with that one.",
        ) from None
    if not answer.ok:
        message, hint = answer.error[:_LONGEST], answer.hint[:_LONGEST]
        raise _ERRORS[answer.kind](f"{path}: {message}", hint=hint)
    if answer.state is None:
        raise InputError(f"{path}: answers without its state", hint="Check the path.")
    return answer


def _exchange(path: Path, line: bytes) -> bytes:
    until_s = time.monotonic() + ANSWER_S
    received = bytearray()
    try:
        file = path.stat()
        if not stat.S_ISSOCK(file.st_mode):
            raise InputError(f"{path}: is no socket", hint="See TUNER_LIVE_SOCKET of the server.")
        with _connected(path) as connection:
            users = {path.lstat().st_uid, file.st_uid, peer_of(connection).uid}
            _check_server(path, users)
            connection.sendall(line)
            while not received.endswith(b"\n") and len(received) <= MAX_ANSWER_BYTES:
                connection.settimeout(max(0.001, until_s - time.monotonic()))
                got = connection.recv(2**16)
                if not got:
                    break
                received += got
    except OSError as problem:
        raise _explained(path, problem) from None
    return bytes(received)


def _check_server(path: Path, users: set[int]) -> None:
    """Refuse a socket, or one who listens there, of somebody who has no say in the server. Root may
    ask the user whose folder it is. Raises InputError and OSError."""
    strangers = users - {os.geteuid(), 0}
    if os.geteuid() == 0:
        folder = path.parent.stat()
        strangers -= set() if folder.st_mode & 0o022 else {folder.st_uid}
    if strangers:
        raise InputError(
            f"{path}: is of user {min(strangers)}, who may be anybody",
            hint="Ask as the user that the server runs as; root may where the folder is that "
            "user's and closed to others.",
        )


def _connected(path: Path) -> socket.socket:
    """Return a connection to the socket. The path leads through its folder's descriptor: an address
    has room for 107 bytes, and a path may be longer."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Not settimeout(): where others wait already, connect() would then fail instead of waiting.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME.pack(int(ANSWER_S), 0))
        connection.connect(f"/proc/self/fd/{folder}/{path.name}")
    except OSError:
        connection.close()
        raise
    finally:
        os.close(folder)
    return connection


def _explained(path: Path, problem: OSError) -> InputError:
    if isinstance(problem, FileNotFoundError | NotADirectoryError):
        return InputError(
            f"{path}: no such socket",
            hint="Start the server with TUNER_LIVE_SOCKET and --scheduler-cls (docs/operating.md).",
        )
    if isinstance(problem, PermissionError):
        return InputError(
            f"{path}: permission denied", hint="Be the user that the server runs as, or root."
        )
    if isinstance(problem, ConnectionRefusedError):
        return InputError(
            f"{path}: nobody listens there any more",
            hint="Is the server running? If this rank is gone for good, remove the socket.",
        )
    if isinstance(problem, TimeoutError | BlockingIOError):
        return InputError(
            f"{path}: no answer within {ANSWER_S:g} s",
            hint=f"See what holds: tuner live --socket {path}",
        )
    return InputError(
        f"{path}: {(problem.strerror or str(problem)).lower()}", hint="Is the server running?"
    )

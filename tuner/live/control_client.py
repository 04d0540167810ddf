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
from tuner.live.control import Answer, AskState, Kind, Request, SetLimits, State, line_of, peer_of

ANSWER_S = 30.0
"""Longest wait for an answer: it takes the server's disk, and at most two seconds of its engine."""

MAX_ANSWER_BYTES = 2**20
LONGEST = 1000
"""Characters of what a server says that are shown."""

_ERRORS: dict[Kind, type[TunerError]] = {
    "request": InputError,
    "refused": GateError,
    "failed": EngineError,
}
_FAULTS: tuple[tuple[tuple[type[OSError], ...], str, str], ...] = (
    (
        (FileNotFoundError, NotADirectoryError), "no such socket",
        "Start the server with TUNER_LIVE_SOCKET and --scheduler-cls (docs/operating.md).",
    ),
    ((PermissionError,), "permission denied", "Be the user that the server runs as, or root."),
    (
        (ConnectionRefusedError,), "nobody listens there any more",
        "Is the server running? If this rank is gone for good, remove the socket.",
    ),
    (
        (TimeoutError, BlockingIOError), f"no answer within {ANSWER_S:g} s",
        "See what holds: tuner live --socket PATH",
    ),
)  # fmt: skip


def ranks(path: Path) -> list[Path]:
    """Return the socket and those of the server's further data-parallel ranks beside it."""
    named = re.compile(re.escape(path.name) + r"\.dp([1-9][0-9]{0,5})")
    try:
        names = [each.name for each in path.parent.iterdir()]
    except OSError:
        names = []
    matches = sorted(filter(None, map(named.fullmatch, names)), key=lambda match: int(match[1]))
    return [path, *(path.with_name(match[0]) for match in matches)]


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
            done = ", ".join(str(each) for each, _ in changes[: len(answers)])
            raise type(problem)(
                f"{problem}; already set: {done}", hint=f"{problem.hint} Then run it again."
            ) from None
    return answers


def ask(path: Path, request: Request) -> Answer:
    """Send one request. The answer is ok and has a state.

    Raises InputError where no live server answers or it does not understand, GateError when it
    refuses, EngineError when it tried and failed.
    """
    try:
        answer = msgspec.json.decode(_exchange(path, line_of(request)), type=Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        answer = Answer(ok=True)
    except OSError as problem:
        for kinds, why, hint in _FAULTS:
            if isinstance(problem, kinds):
                raise InputError(f"{path}: {why}", hint=hint) from None
        why = (problem.strerror or str(problem)).lower()
        raise InputError(f"{path}: {why}", hint="Is the server running?") from None
    if not answer.ok:
        raise _ERRORS[answer.kind](f"{path}: {answer.error[:LONGEST]}", hint=answer.hint[:LONGEST])
    if answer.state is None:
        raise InputError(
            f"{path}: what listens there does not answer as a live server does",
            hint="Check the path; a server that runs another tuner is asked with that one.",
        )
    return answer


def _exchange(path: Path, line: bytes) -> bytes:
    until_s, received = time.monotonic() + ANSWER_S, bytearray()
    file = path.stat()
    if not stat.S_ISSOCK(file.st_mode):
        raise InputError(f"{path}: is no socket", hint="See TUNER_LIVE_SOCKET of the server.")
    with _connected(path) as connection:
        _check_server(path, {path.lstat().st_uid, file.st_uid, peer_of(connection)[1]})
        connection.sendall(line)
        while not received.endswith(b"\n") and len(received) <= MAX_ANSWER_BYTES:
            connection.settimeout(max(0.001, until_s - time.monotonic()))
            got = connection.recv(2**16)
            if not got:
                break
            received += got
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
        timeout = struct.pack("ll", int(ANSWER_S), 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        connection.connect(f"/proc/self/fd/{folder}/{path.name}")
    except OSError:
        connection.close()
        raise
    finally:
        os.close(folder)
    return connection

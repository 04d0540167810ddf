"""The other end of a live server's control socket: asked, and changed in all ranks or in none."""

import os
import re
import secrets
import socket
import stat
import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from pydantic import ValidationError

from tuner.engines.server.peer import peer_of
from tuner.engines.server.protocol import (
    VERSION,
    Answer,
    AskState,
    Change,
    Kind,
    PutBack,
    Refused,
    Request,
    State,
    line_of,
    strict_json,
)
from tuner.errors import EngineError, GateError, InputError, TunerError
from tuner.system import folders, interruption

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
    told = ask(path, AskState(version=VERSION, do="state")).state
    assert told is not None  # ask has checked
    return told


def change_all(changes: Sequence[tuple[Path, Change]]) -> list[Answer]:
    """Change every server, or none: when one fails, or we are stopped, the others are put back.

    Raises as ``ask`` does.
    """
    answers: list[Answer] = []
    with interruption.held(), ExitStack() as undo:  # putting back takes precedence
        for path, unnamed in changes:
            change = unnamed.model_copy(update={"id": secrets.token_hex(16)})
            try:
                answers.append(ask(path, change))
            except (TunerError, KeyboardInterrupt, SystemExit) as problem:
                if not isinstance(problem, GateError | EngineError):  # no answer: it may be done
                    undo.callback(_put_back_if_done, path, change)
                if not isinstance(problem, TunerError) or not any(one.changed for one in answers):
                    raise
                more = "what was changed before it is put back"
                raise type(problem)(f"{problem}; {more}", hint=problem.hint) from None
            if answers[-1].changed:
                undo.callback(_put_back, path, change)
        undo.pop_all()
    return answers


def _put_back_if_done(path: Path, change: Change) -> None:
    """Undo a change that may have been made. A server that has not made it, or was restarted since,
    refuses."""
    with suppress(TunerError):
        ask(path, _putting_back(change))


def _putting_back(change: Change) -> PutBack:
    assert change.id is not None
    reason = "another server or rank failed"
    return PutBack(version=VERSION, do="put_back", of=change.id, reason=reason)


def _put_back(path: Path, change: Change) -> None:
    """Undo this change and nobody else's."""
    try:
        ask(path, _putting_back(change))
    except TunerError as problem:
        raise EngineError(
            f"{path}: was changed, and could not be put back: {problem}",
            hint=f"See what holds: tuner apply --live --socket {path}",
        ) from None


def ask(path: Path, request: Request) -> Answer:
    """Send one request. The answer is ok and has a state.

    Raises InputError where no live server answers or it does not understand, GateError when it
    refuses, EngineError when it tried and failed.
    """
    line = _exchange(path, line_of(request))
    try:
        answer = Answer.model_validate(strict_json(line))
    except (Refused, ValidationError):
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
    """Refuse a socket, or one who listens there, of somebody who has no say in the server.

    Root acts for the user whose folder it is. Raises InputError and OSError.
    """
    strangers = users - {os.geteuid(), 0}
    if strangers and os.geteuid() == 0 and (theirs := folders.owner(path.parent)) is not None:
        folders.safe(path.parent, users={theirs})
        strangers.discard(theirs)
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
            hint="Start the server with TUNER_LIVE_SOCKET and --scheduler-cls: see docs/live.md.",
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
            hint=f"See what holds: tuner apply --live --socket {path}",
        )
    return InputError(
        f"{path}: {(problem.strerror or str(problem)).lower()}", hint="Is the server running?"
    )

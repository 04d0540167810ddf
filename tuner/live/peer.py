"""The process at the other end of a Unix socket, as the kernel names it."""

import functools
import select
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end, as the kernel names it."""

    pid: int
    """0 for a process of another container."""

    uid: int
    has_left: Callable[[], bool] = field(default=lambda: False, compare=False)
    """Whether nobody waits for the answer any more, though what was sent can still be read."""


def peer_of(connection: socket.socket) -> Peer:
    """Return who is at the other end of a Unix socket. Linux only. Raises OSError."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    return Peer(pid, uid, functools.partial(_has_left, connection))


def _has_left(connection: socket.socket) -> bool:
    """Whether a peer has left. One that has only ended its own sending, as ``socat`` does, still
    waits for the answer."""
    poll = select.poll()
    poll.register(connection, 0)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))

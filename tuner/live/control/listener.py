"""The thread behind a control socket: few clients, short lines, little time for each.

A client sends one line and gets one line. Whatever it does else, it holds up nobody but itself, and
never the engine: the thread only waits, and what it answers is computed between two waits.
"""

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tuner.engines.server.peer import Peer, peer_of
from tuner.engines.server.protocol import MAX_LINE_BYTES

MOST_CLIENTS = 8
CLIENT_S = 10.0
"""From connecting to having read the answer."""

_PAUSE_S = 1.0
"""After a failed accept, such as when the process has no descriptor left."""


@dataclass(slots=True, eq=False)
class _Client:
    socket: socket.socket
    peer: Peer
    until_s: float
    received: bytearray = field(default_factory=bytearray)
    to_send: bytes = b""


class Listener:
    """Serves clients. ``answer`` turns a line into a line; ``tick`` does what is due and returns
    for how long nothing is, in seconds.

    Both are called on the thread that calls ``run``.
    """

    def __init__(
        self,
        listening: socket.socket,
        *,
        answer: Callable[[bytes, Peer], bytes],
        refuse: Callable[[Peer], None],
        tick: Callable[[], float],
    ) -> None:
        self._listening = listening
        self._answer = answer
        self._refuse = refuse
        self._tick = tick
        self._clients: list[_Client] = []
        self._accepts_from_s = 0.0
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = socket.socketpair()
        self._stopped = threading.Event()

    def run(self) -> None:
        """Serve until ``stop``."""
        with self._selector, self._wake, self._waker:
            self._selector.register(self._wake, selectors.EVENT_READ)
            try:
                while not self._stopped.is_set():
                    self._turn(self._tick())
            finally:
                self._stopped.set()
                for client in list(self._clients):
                    self._close(client)

    def stop(self) -> None:
        """End ``run`` soon; any thread may."""
        self._stopped.set()
        with contextlib.suppress(OSError):  # it has ended already
            self._waker.send(b".")

    def _turn(self, idle_s: float) -> None:
        now_s = time.monotonic()
        may_accept = len(self._clients) < MOST_CLIENTS and now_s >= self._accepts_from_s
        self._listen(wanted=may_accept)
        ends_s = [client.until_s for client in self._clients]
        if now_s < self._accepts_from_s:
            ends_s.append(self._accepts_from_s)
        wait_s = min([idle_s, *(max(0.0, end_s - now_s) for end_s in ends_s)])
        for key, _ in self._selector.select(wait_s):
            if key.fileobj is self._listening:
                self._accept()
            elif isinstance(key.data, _Client):
                begun_s = time.monotonic()
                self._serve(key.data)
                self._allow(time.monotonic() - begun_s)
        for client in [one for one in self._clients if time.monotonic() >= one.until_s]:
            self._close(client)

    def _listen(self, *, wanted: bool) -> None:
        registered = self._listening in self._selector.get_map()
        if wanted and not registered:
            self._selector.register(self._listening, selectors.EVENT_READ)
        elif registered and not wanted:
            self._selector.unregister(self._listening)

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except BlockingIOError:  # it has left already
            return
        except OSError:
            self._accepts_from_s = time.monotonic() + _PAUSE_S
            return
        try:
            connection.setblocking(False)
            peer = peer_of(connection)
        except OSError:
            connection.close()
            return
        client = _Client(connection, peer, time.monotonic() + CLIENT_S)
        if peer.uid not in {os.geteuid(), 0}:
            self._refuse(peer)
            connection.close()
            return
        self._clients.append(client)
        self._selector.register(connection, selectors.EVENT_READ, client)

    def _serve(self, client: _Client) -> None:
        try:
            if client.to_send:
                self._send(client)
            else:
                self._receive(client)
        except BlockingIOError:
            pass
        except OSError:  # it has left
            self._close(client)

    def _receive(self, client: _Client) -> None:
        got = client.socket.recv(MAX_LINE_BYTES)
        client.received += got
        line, end, _ = bytes(client.received).partition(b"\n")
        if not client.received or client.peer.has_left():  # while it waited to be served
            self._close(client)
        elif end or not got or len(line) > MAX_LINE_BYTES:
            client.to_send = self._answer(line[: MAX_LINE_BYTES + 1], client.peer)
            self._selector.modify(client.socket, selectors.EVENT_WRITE, client)
            self._send(client)

    def _send(self, client: _Client) -> None:
        sent = client.socket.send(client.to_send)
        client.to_send = client.to_send[sent:]
        if not client.to_send:
            self._close(client)

    def _allow(self, spent_s: float) -> None:
        """Give the others the time that an answer took: the disk may be slow."""
        for client in self._clients:
            client.until_s += spent_s

    def _close(self, client: _Client) -> None:
        self._clients.remove(client)
        self._selector.unregister(client.socket)
        client.socket.close()

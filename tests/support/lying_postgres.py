"""A server that speaks PostgreSQL's protocol and lies in it, on a real socket."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import repeat

ODD = b"\x1b]0;owned\x07\x1b[31mred\xe2\x80\xaegnp"
"""Sets a terminal's title and colour, and turns the direction of what follows."""

Lie = Callable[[bytes], Iterator[bytes]]
"""What is asked, empty for the log-in → what is said, a piece at a time."""

UNHEARD_S = 0.5
"""A client that has not read for so long has hung up, whatever its socket says."""

READY = b"Z\0\0\0\5I"


def message(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack(">I", len(content) + 4) + content


WELCOME = (
    message(b"R", struct.pack(">I", 0))
    + message(b"S", b"server_version\x0015.0\0")
    + message(b"S", b"client_encoding\0UTF8\0")
    + message(b"S", b"standard_conforming_strings\0on\0")
    + message(b"K", struct.pack(">II", 1, 1))
    + READY
)
ACCEPTED = message(b"1", b"") + message(b"2", b"")


def described(names: list[bytes]) -> bytes:
    """Return the head of a table of text."""
    fields = (name + b"\0" + struct.pack(">IhIhih", 0, 0, 25, -1, -1, 0) for name in names)
    return message(b"T", struct.pack(">H", len(names)) + b"".join(fields))


def row(*cells: bytes) -> bytes:
    inner = b"".join(struct.pack(">I", len(cell)) + cell for cell in cells)
    return message(b"D", struct.pack(">H", len(cells)) + inner)


def error(text: bytes) -> bytes:
    return message(b"E", b"SFATAL\0C42P01\0M" + text + b"\0\0")


def told(cell: bytes) -> bytes:
    """Return a table of one cell, whole."""
    return ACCEPTED + described([b"version"]) + row(cell) + message(b"C", b"SELECT 1\0") + READY


def at_once(content: bytes) -> Lie:
    """Say this instead of a welcome."""
    return lambda _: iter([content])


def for_ever(head: bytes, piece: bytes) -> Lie:
    """Welcome, and answer whatever is asked without end."""
    many = piece * max(1, 2**16 // len(piece))

    def lie(asked: bytes) -> Iterator[bytes]:
        yield head if asked else WELCOME
        yield from repeat(many) if asked else ()

    return lie


def whatever_is_asked(answer: bytes) -> Lie:
    return lambda asked: iter([answer if asked else WELCOME])


LIES: dict[str, Lie] = {
    "nothing": at_once(b""),
    "no protocol": at_once(b"HTTP/1.1 200 OK\r\n\r\n" * 100),
    "an error with escapes": at_once(error(ODD)),
    "an error of 5 MB": at_once(error(b"A" * 5_000_000)),
    "a message of 2 GB": at_once(b"R\x7f\xff\xff\xff" + b"A" * 1000),
    "a message of less than nothing": at_once(b"R\xff\xff\xff\xff"),
    "an unknown log-in": at_once(message(b"R", struct.pack(">I", 99))),
    "a log-in by Kerberos": at_once(message(b"R", struct.pack(">I", 7))),
    "welcomes without end": lambda _: repeat(message(b"S", b"a" * 900 + b"\0b\0")),
    "rows without end": for_ever(ACCEPTED + described([b"version"]), row(b"A" * 1000)),
    "notices without end": for_ever(ACCEPTED, message(b"N", b"SNOTICE\0M" + ODD + b"\0\0")),
    "settings without end": for_ever(ACCEPTED, message(b"S", b"a" * 900 + b"\0b\0")),
    "news without end": for_ever(ACCEPTED, message(b"A", b"\0\0\0\1name\0" + b"a" * 900 + b"\0")),
    "its files are asked of us": whatever_is_asked(ACCEPTED + message(b"G", b"\0\0\1\0\0") + READY),
    "a copy is sent": for_ever(ACCEPTED + message(b"H", b"\0\0\1\0\0"), message(b"d", b"A" * 1000)),
    "65,535 columns": whatever_is_asked(ACCEPTED + described([b"a"] * 65_535) + READY),
    "a row of other columns": whatever_is_asked(
        ACCEPTED + described([b"a"]) + row(b"1", b"2", b"3") + READY
    ),
    "a cell of 2 GB": whatever_is_asked(
        ACCEPTED + described([b"a"]) + b"D\x7f\xff\xff\xff\0\1\x7f\xff\xff\xf0" + b"A" * 1000
    ),
    "a version of escapes": whatever_is_asked(told(ODD)),
    "a version that is none": whatever_is_asked(told(b"\xff\xfe")),
    "a version of 5 MB": whatever_is_asked(told(b"PostgreSQL " + b"9" * 5_000_000)),
    "every table is there and empty": whatever_is_asked(told(b"PostgreSQL 15.0 on x, compiled")),
    "every question fails": whatever_is_asked(error(ODD * 1000) + READY),
}


class _Client(threading.Thread):
    """Talks to one client until one of the two has enough."""

    def __init__(self, client: socket.socket, lie: Lie) -> None:
        super().__init__(daemon=True)
        self.client, self.lie = client, lie
        self.speaks = False

    def run(self) -> None:
        with suppress(OSError, struct.error), self.client:
            while self._asks_for_encryption():
                self.client.sendall(b"N")
            self._say(b"")
            while True:
                kind, size = struct.unpack(">cI", self._read(5))
                content = self._read(size - 4)
                if kind in b"QS":
                    self._say(content or kind)

    def _say(self, asked: bytes) -> None:
        self.speaks = True
        self.client.settimeout(UNHEARD_S)
        try:
            for piece in self.lie(asked):
                self.client.sendall(piece)
        finally:
            self.speaks = False
        self.client.settimeout(None)

    def _read(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            content += (piece := self.client.recv(size - len(content)))
            if not piece:
                raise OSError("it has hung up")
        return content

    def _asks_for_encryption(self) -> bool:
        size, number = struct.unpack(">II", self._read(8))
        self._read(size - 8)
        return number in {80877103, 80877104}


@contextmanager
def lying(lie: Lie) -> Iterator[tuple[str, list[_Client]]]:
    """Yield the URL of a database there, and everybody who is talked to."""
    clients = list[_Client]()

    def serve() -> None:
        with suppress(OSError):
            while True:
                accepted, _ = listening.accept()
                clients.append(_Client(accepted, lie))
                clients[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        port = listening.getsockname()[1]
        try:
            yield f"postgresql://ann:s3cret@127.0.0.1:{port}/x?sslmode=disable", clients
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            for one in clients:
                with suppress(OSError):
                    one.client.shutdown(socket.SHUT_RDWR)

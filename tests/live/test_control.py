"""The control socket of a live server: what it does, refuses and survives."""

import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.live_servers import Server, answered, serving
from tuner.errors import InputError
from tuner.live import control
from tuner.live.control import listen


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "tuner.sock") as served:
        yield served


def cap(path: Path) -> int:
    return control.ask(path).max_num_seqs


def test_the_socket_is_for_its_owner_alone_and_goes_with_the_server(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with serving(tmp_path / "tuner.sock") as server:
            assert stat.S_IMODE(server.path.stat().st_mode) == 0o600
    finally:
        os.umask(before)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.attack
def test_only_the_socket_of_a_server_that_is_gone_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 30) / "tuner.sock"  # an address has room for 107 bytes
    path.parent.mkdir()

    def is_replaced() -> bool:
        with suppress(OSError):
            listen(path).close()
            return True
        return False

    for planted in (lambda: path.write_text("mine"), lambda: path.symlink_to("theirs")):
        planted()
        assert not is_replaced()
        path.unlink()
    with serving(path):
        assert not is_replaced()
    assert is_replaced()  # and left behind, as by a server that was killed
    with pytest.raises(InputError, match="Connection refused"):
        cap(path)
    with serving(path):
        assert cap(path) == 32


@pytest.mark.attack
@pytest.mark.parametrize(
    "line",
    [
        *(b"0\n", b"33\n", b"-1\n", b"8x\n", b"8.0\n", b"9" * 5000 + b"\n", b"\xff\n", b"set 8\n"),
        *(b"\xd9\xa8\n", b'{"do": "set", "max_num_seqs": 8}\n'),
    ],
)
def test_whatever_a_line_asks_for_is_answered_in_words_and_changes_nothing(
    server: Server, line: bytes
) -> None:
    assert "max_num_seqs must be from 1 to 32" in answered(server.path, line)["error"]
    now = answered(server.path, b"\n")
    assert (now["max_num_seqs"], now["error"]) == (32, "")


@pytest.mark.parametrize("how", ["slow", "closed", "shut down"])
def test_a_client_that_is_slow_or_gave_up_changes_nothing(
    server: Server, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "CLIENT_S", 0.2)
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as client:
        first.connect(str(server.path))  # is served first, and says nothing yet
        client.connect(str(server.path))
        client.sendall(b"8 why\n"[: -3 if how == "slow" else None])
        if how == "shut down":
            client.shutdown(socket.SHUT_RDWR)
        elif how == "closed":
            client.close()
        assert cap(server.path) == 32


@contextmanager
def answering(path: Path, reply: bytes) -> Iterator[None]:
    """Listen at a path, and answer one client with this."""

    def serve() -> None:
        client, _ = listening.accept()
        with client:
            client.recv(2**16)
            client.sendall(reply)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join(20)


@pytest.mark.parametrize(
    "reply",
    [
        *(b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\n", b"{}\n", b"[" * 60_000 + b"\n"),
        b'{"vllm": "\\ud800"}\n',
    ],
)
def test_what_answers_otherwise_is_no_live_server(tmp_path: Path, reply: bytes) -> None:
    path = tmp_path / "other.sock"
    with answering(path, reply), pytest.raises(InputError, match="no live server answers"):
        control.ask(path)

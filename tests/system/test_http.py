"""A request over HTTP to a server that may answer anything, or nothing, or for ever."""

import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from tuner.errors import InputError, UsageError
from tuner.system import http
from tuner.system.http import HttpRequest, ask

OK = b"HTTP/1.1 200 OK\r\n"
Behaviour = Callable[[socket.socket, threading.Event], object]


@contextmanager
def serving(behave: Behaviour) -> Iterator[str]:
    """Let every client meet this, once what it sends has been read."""
    ended = threading.Event()

    def serve() -> None:
        while True:
            accepted, _ = listening.accept()
            accepted.settimeout(20)
            with accepted, suppress(OSError):  # it has hung up
                if ended.is_set():
                    return
                while (got := accepted.recv(2**16)) and not got.endswith(b"\r\n\r\n"):
                    pass
                behave(accepted, ended)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            ended.set()
            socket.create_connection(("127.0.0.1", port)).close()
            thread.join(20)
            assert not thread.is_alive()


def says(content: bytes) -> Behaviour:
    return lambda client, _: client.sendall(content)


def dribbles(begin: bytes, piece: bytes) -> Behaviour:
    """Send a piece twenty times a second until somebody has enough of it."""

    def behave(client: socket.socket, ended: threading.Event) -> None:
        client.sendall(begin)
        while not ended.wait(0.05):
            client.sendall(piece)
            if not piece:
                client.recv(1)

    return behave


def got(url: str, *, timeout_s: float = 20) -> bytes:
    answer = ask(HttpRequest(url, most_bytes=50), timeout_s=timeout_s)
    if answer.status != 200:
        raise InputError(f"{url}: answers {answer.status}", hint="Why?")
    return answer.content


@pytest.mark.attack
@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"", b""),
        (OK + b"X-Long: ", b"x"),
        (OK + b"Content-Length: 1000000\r\n\r\n", b"x"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"x: y\r\n"),
    ],
)
def test_one_deadline_holds_for_all_of_an_answer(begin: bytes, piece: bytes) -> None:
    with serving(dribbles(begin, piece)) as url:
        begun_s = time.monotonic()
        with pytest.raises(InputError, match="no complete answer in time"):
            got(f"{url}/metrics", timeout_s=0.2)
        assert time.monotonic() - begun_s < 5


@pytest.mark.attack
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "no answer"),
        (b"SSH-2.0-OpenSSH_9.2p1\x1b[2J\r\n", "answers, but not as a web server does"),
        (OK + b"Content-Length: 3\r\n\r\nhi", "the answer is cut short"),
        (OK + b"Content-Length: 99\r\n\r\n" + b"x" * 99, "answers too much"),
        (
            OK + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"hi", mtime=0),
            "answers compressed",
        ),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n", "answers 302"),
    ],
)
def test_what_is_no_answer_is_one_line(answer: bytes, message: str) -> None:
    with serving(says(answer)) as url, pytest.raises(InputError) as refused:
        got(f"{url}/metrics")
    assert str(refused.value) == f"{url}/metrics: {message}"
    assert refused.value.hint


def test_a_server_on_this_machine_is_reached_past_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serving(says(OK + b"\r\nhi")) as url:
        assert got(url.replace("127.0.0.1", "localhost")) == b"hi"


@pytest.mark.attack
@pytest.mark.parametrize(
    "url",
    [
        "http://ann:s3cr3t@host",
        "ann:s3cr3t@127.0.0.1:9090",
        "http://host/?token=s3cr3t",
        "http://host:s3cr3t",
        "s3cr3t:s3cr3t",
    ],
)
def test_no_part_of_an_address_that_may_be_a_secret_is_shown(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        http.check_address(url, option="--url")
    assert "s3cr3t" not in str(refused.value) + refused.value.hint

"""One question over HTTP, to a server that may answer anything, or nothing, or for ever."""

import gzip
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tuner.errors import InputError, UsageError
from tuner.system import http
from tuner.system.http import HttpRequest, ask

OK = b"HTTP/1.1 200 OK\r\n"
Behaviour = Callable[[socket.socket, threading.Event], object]


@contextmanager
def serving(
    behave: Behaviour, *, family: int = socket.AF_INET, tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Let every client meet this, once what it asks has been read."""
    ended = threading.Event()

    def serve() -> None:
        while True:
            accepted, _ = listening.accept()
            accepted.settimeout(20)
            with accepted, suppress(OSError):  # it has hung up
                if ended.is_set():
                    return
                client = accepted if tls is None else tls.wrap_socket(accepted, server_side=True)
                with client:
                    while (got := client.recv(2**16)) and b"\r\n\r\n" not in got:
                        pass
                    behave(client, ended)

    host = "::1" if family == socket.AF_INET6 else "127.0.0.1"
    with socket.create_server((host, 0), family=family) as listening:
        port = listening.getsockname()[1]
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            scheme, shown = "http" if tls is None else "https", f"[{host}]" if ":" in host else host
            yield f"{scheme}://{shown}:{port}"
        finally:
            ended.set()
            socket.create_connection((host, port)).close()
            thread.join(20)
            assert not thread.is_alive()


def says(content: bytes) -> Behaviour:
    return lambda client, _: client.sendall(content)


def dribbles(begin: bytes, piece: bytes) -> Behaviour:
    """Send a piece ten times a second until somebody has enough of it."""

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


LATE = "no complete answer within 0.2 s"


@pytest.mark.attack
@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"", b""),
        (OK + b"X-Long: ", b"x"),
        (OK + b"Content-Length: 1000000\r\n\r\n", b"x"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"x: y\r\n"),
        (OK + b"\r\n", b"x"),
    ],
)
def test_one_deadline_holds_for_all_of_an_answer(begin: bytes, piece: bytes) -> None:
    with serving(dribbles(begin, piece)) as url:
        begun_s = time.monotonic()
        with pytest.raises(InputError) as refused:
            got(f"{url}/metrics", timeout_s=0.2)
        assert time.monotonic() - begun_s < 5
        assert str(refused.value) == f"{url}/metrics: {LATE}"


def test_a_name_server_that_is_silent_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def resolve(*_: object, **__: object) -> list[object]:
        answered.wait(20)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    begun_s = time.monotonic()
    with pytest.raises(InputError, match="no complete answer within"):
        got("http://silent/metrics", timeout_s=0.2)
    assert time.monotonic() - begun_s < 10
    answered.set()


class Moved(BaseHTTPRequestHandler):
    """Moves a client once, and answers with what it asks then."""

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if self.path == "/here":
            self.send_response(307)
            self.send_header("Location", "there")
            self.end_headers()
            return
        said = f"{self.path} {self.headers['Authorization']} {asked}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_redirect_to_another_path_is_followed_with_all_that_was_asked() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Moved) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/here"
        question = HttpRequest(url, 50, form={"query": "up[5m]"}, authorization="Bearer t")
        try:
            assert ask(question, timeout_s=20).content == b"/there Bearer t query=up%5B5m%5D"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.attack
@pytest.mark.parametrize("status", [301, 307])
def test_no_redirect_leads_to_another_server(status: int) -> None:
    met = list[bytes]()
    with serving(lambda client, _: met.append(client.recv(1))) as there:
        moved = f"HTTP/1.1 {status} Moved\r\nLocation: {there}/leak\r\n\r\n".encode()
        with serving(says(moved)) as url, pytest.raises(InputError) as refused:
            ask(HttpRequest(url, 50, authorization="Bearer t"), timeout_s=20)
    assert str(refused.value) == f"{url}: redirects to another server"
    assert met == []


def redirect(target: bytes) -> bytes:
    return b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: " + target + b"\r\n\r\n"


@pytest.mark.attack
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "no answer: it closes the connection"),
        (b"SSH-2.0-OpenSSH_9.2p1\x1b[2J\r\n", "answers, but not as a web server does"),
        (OK + b"X: " + b"y" * 200_000, "answers, but not as a web server does"),
        (OK + b"Content-Length: 3\r\n\r\nhi", "the answer is cut short"),
        (OK + b"Content-Length: 99\r\n\r\n" + b"x" * 99, "answers too much"),
        (OK + b"\r\n" + b"x" * 99, "answers too much"),
        (
            OK + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"hi", mtime=0),
            "answers compressed, which was not asked for",
        ),
        (b"HTTP/1.1 401 No\r\n\r\n", "answers 401"),
        (b"HTTP/1.1 302 Found\r\n\r\n", "answers 302"),
        (redirect(b"/"), "redirects again and again"),
        (redirect(b"file:///etc/passwd"), "redirects to another server"),
        (redirect(b"http://a..b/"), "redirects to another server"),
        (redirect(b"http://127.0.0.1:x/"), "no address that can be asked"),
        (redirect(b"http://[::1/"), "no address that can be asked"),
    ],
)
def test_what_is_no_answer_is_said_in_one_line(answer: bytes, message: str) -> None:
    with serving(says(answer)) as url, pytest.raises(InputError) as refused:
        got(f"{url}/metrics")
    assert str(refused.value) == f"{url}/metrics: {message}"
    assert refused.value.hint


def test_a_port_where_nobody_listens_and_one_without_tls_are_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(InputError, match="no answer: nobody listens there"):
        got(f"http://127.0.0.1:{port}/metrics")

    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            client, _ = listening.accept()
            with client:
                client.recv(2**16)
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(InputError, match="speaks no TLS"):
            got(f"https://127.0.0.1:{listening.getsockname()[1]}/metrics")
        thread.join()


def test_over_tls_it_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("no openssl to make a certificate with")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    with serving(says(OK + b"\r\nhi"), tls=context) as url:
        with pytest.raises(InputError, match=r"certificate is not trusted \(SSL_CERT_FILE"):
            got(url)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert got(url) == b"hi"


@pytest.fixture
def dead_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment whose proxy is at a port where nobody listens."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("dead_proxy")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_server_on_this_machine_is_asked_past_a_proxy(host: str) -> None:
    with serving(says(OK + b"\r\nhi")) as url:
        assert got(url.replace("127.0.0.1", host)) == b"hi"


@pytest.mark.attack
@pytest.mark.parametrize(
    "url",
    [
        "http://ann:s3cr3t@host",
        "http://ann:s3cr3t@[::1",
        "ann:s3cr3t@127.0.0.1:9090",
        "http://ann:s3cr3t@ex\u2100mple",
        "http://host/?token=s3cr3t",
        "http://host:s3cr3t",
        "http://host/#s3cr3t",
        "http://host s3cr3t",
        "s3cr3t:s3cr3t",
    ],
)
def test_no_part_of_an_address_that_may_be_a_secret_is_shown(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        http.check_address(url, option="--url")
    assert "s3cr3t" not in str(refused.value) + refused.value.hint

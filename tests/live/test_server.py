"""What is asked of a server that may answer anything, or nothing, or for ever."""

import gzip
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tuner.errors import InputError, UsageError
from tuner.live import server as live_server

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


LATE = "no whole answer within 0.5 s"


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"", b""),
        (b"", b"H"),
        (OK + b"X-Long: ", b"x"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (OK + b"Content-Length: 1000000\r\n\r\n", b"x"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"x: y\r\n"),
        (OK + b"\r\n", b"x"),
    ],
)
def test_one_deadline_holds_for_all_of_an_answer(begin: bytes, piece: bytes) -> None:
    with serving(dribbles(begin, piece)) as url:
        begun_s = time.monotonic()
        with pytest.raises(InputError) as refused:
            live_server.get(f"{url}/metrics", timeout_s=0.5)
        assert time.monotonic() - begun_s < 5
        assert str(refused.value) == f"{url}/metrics: {LATE}"
        assert_its_threads_end()


@pytest.mark.parametrize(
    ("begin", "message"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n", "redirects again and again"),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 1000000\r\n\r\n", "answers 500"),
    ],
)
def test_what_follows_a_refusal_is_not_waited_for(begin: bytes, message: str) -> None:
    with serving(dribbles(begin, b"x")) as url:
        with pytest.raises(InputError) as refused:
            live_server.get(f"{url}/metrics", timeout_s=20)
        assert str(refused.value) == f"{url}/metrics: {message}"
        assert_its_threads_end()


def assert_its_threads_end() -> None:
    """Of a connection that was closed."""
    for one in threading.enumerate():
        if one.name == "tuner-get":
            one.join(5)
            assert not one.is_alive()


def test_a_deadline_that_the_socket_notices_first_is_the_same_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    join = threading.Thread.join
    with serving(dribbles(b"", b"")) as url:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "join", lambda thread, _: join(thread, 20))
            with pytest.raises(InputError) as refused:
                live_server.get(url, timeout_s=0.5)
        assert str(refused.value) == f"{url}: {LATE}"


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Content-Length: 2\r\n\r\nhi",
        OK + b"Content-Length: 2\r\nConnection: keep-alive\r\n\r\nhi",
        OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nhi",
        OK + b"Content-Encoding: identity\r\nContent-Length: 2\r\n\r\nhi",
    ],
)
def test_every_way_to_send_an_answer_is_read(answer: bytes) -> None:
    with serving(says(answer)) as url:
        assert live_server.get(url) == "hi"


def test_a_server_without_an_older_address_is_asked_too() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    with serving(says(OK + b"\r\nhi"), family=socket.AF_INET6) as url:
        assert live_server.get(f"{live_server.base_of(url)}/metrics") == "hi"


def test_a_redirect_is_followed() -> None:
    with serving(says(OK + b"\r\nhi")) as there:
        moved = f"HTTP/1.1 307 Moved\r\nLocation: {there}/metrics\r\n\r\n".encode()
        with serving(says(moved)) as url:
            assert live_server.get(url) == "hi"


def redirect(target: bytes) -> bytes:
    return b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: " + target + b"\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "no answer: it closes the connection"),
        (b"SSH-2.0-OpenSSH_9.2p1\x1b[2J\r\n", "answers, but not as a web server does"),
        (b"\x00\xff" * 999, "answers, but not as a web server does"),
        (OK + b"X: y\r\n" * 500 + b"\r\n", "answers, but not as a web server does"),
        (OK + b"X: " + b"y" * 99999, "answers, but not as a web server does"),
        (OK + b"Content-Length: 3\r\n\r\nhi", "answers a part only"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhi", "answers a part only"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhi", "answers a part only"),
        (OK + b"Content-Length: 99\r\n\r\n" + b"x" * 99, "answers too much"),
        (OK + b"\r\n" + b"x" * 99, "answers too much"),
        (
            OK + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"hi", mtime=0),
            "answers compressed, which was not asked for",
        ),
        (b"HTTP/1.1 401 No\r\n\r\n", "answers 401"),
        (b"HTTP/1.1 403 No\r\n\r\n", "answers 403"),
        (b"HTTP/1.1 404 No\r\n\r\n", "answers 404"),
        (b"HTTP/1.1 503 No\r\n\r\n", "answers 503"),
        (b"HTTP/1.1 302 Found\r\n\r\n", "answers 302"),
        (redirect(b"/"), "redirects again and again"),
        (redirect(b"file:///etc/passwd"), "no address that can be asked"),
        (redirect(b"ftp://127.0.0.1/"), "no address that can be asked"),
        (redirect(b"data:text/plain,hi"), "no address that can be asked"),
        (redirect(b"http://a..b/"), "no address that can be asked"),
        (redirect(b"http://127.0.0.1:x/"), "no address that can be asked"),
        (redirect(b"http://[::1/"), "no address that can be asked"),
    ],
)
def test_what_is_no_answer_is_said_in_one_line(
    answer: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_server, "MAX_ANSWER_BYTES", 50)
    with serving(says(answer)) as url, pytest.raises(InputError) as refused:
        live_server.get(f"{url}/metrics")
    assert str(refused.value) == f"{url}/metrics: {message}"
    assert refused.value.hint


def test_a_port_where_nobody_listens_and_one_without_tls_are_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(InputError, match="no answer: nobody listens there"):
        live_server.get(f"http://127.0.0.1:{port}/metrics")

    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            client, _ = listening.accept()
            with client:
                client.recv(2**16)
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(InputError, match="speaks no TLS") as refused:
            live_server.get(f"https://127.0.0.1:{listening.getsockname()[1]}/metrics")
        thread.join()
    assert "http://" in refused.value.hint


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
        with pytest.raises(InputError, match="its certificate is not trusted") as refused:
            live_server.get(url)
        assert "SSL_CERT_FILE" in refused.value.hint
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert live_server.get(url) == "hi"
    with (
        serving(dribbles(OK + b"X-Long: ", b"x"), tls=context) as url,
        pytest.raises(InputError, match=LATE),
    ):
        live_server.get(url, timeout_s=0.5)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "--url: neither http:// nor https://"),
        ("localhost:8000", "--url localhost:8000: neither http:// nor https://"),
        ("http://", "--url http://: no address"),
        ("http://[::1", "--url http://[::1: no address"),
        ("http://::1:8000", "--url http://::1:8000: no address"),
        ("http://h:x", "--url http://h:x: no address"),
        ("http://h:0", "--url http://h:0: no address"),
        ("http://h:70000", "--url http://h:70000: no address"),
        ("http://h h", "--url http://h h: no address"),
        ("http://h\n", "--url http://h\n: no address"),
        ("http://h?a=b", "--url http://h?a=b: an address has no ? and no # here"),
        ("http://h/#a", "--url http://h/#a: an address has no ? and no # here"),
        ("http://me:secret@h", "--url: a login cannot be given in an address"),
    ],
)
def test_what_is_no_address_is_a_usage_error(url: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        live_server.base_of(url)
    assert str(refused.value) == message


@pytest.mark.parametrize("path", ["", "/", "/metrics", "/v1", "/v1/", "/metrics/"])
def test_a_servers_address_may_end_in_what_people_copy(path: str) -> None:
    assert live_server.base_of(f"http://h:8000{path}") == "http://h:8000"

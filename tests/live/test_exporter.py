"""tuner's own metrics, and clients that hold on to them."""

import socket
from collections.abc import Iterator
from contextlib import closing, suppress

import httpx
import pytest

from tests.support.processes import wait_until
from tuner.live import exporter
from tuner.live.exporter import MOST_CLIENTS, Exporter


@pytest.fixture
def port() -> Iterator[int]:
    with closing(Exporter(0)) as open_:
        yield open_.port


def client(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def test_a_scrape_has_the_metrics(port: int) -> None:
    answer = httpx.get(f"http://127.0.0.1:{port}/metrics")
    assert "tuner_in_flight 0.0" in answer.text


@pytest.mark.attack
def test_clients_that_say_nothing_take_no_more_threads_than_there_are_places(port: int) -> None:
    idle = [client(port) for _ in range(MOST_CLIENTS)]
    with client(port) as turned_away:
        assert turned_away.recv(1) == b""
    for one in idle:
        one.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        while one.recv(1 << 16):
            pass
        one.close()
    wait_until(lambda: is_answered(port))


@pytest.mark.attack
def test_a_client_that_sends_a_byte_now_and_then_keeps_no_place(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "CLIENT_S", 0.5)
    with client(port) as slow:
        slow.settimeout(0.05)
        for _ in range(200):
            with suppress(BrokenPipeError):
                slow.sendall(b"G")
            try:
                assert slow.recv(1) == b""
                break
            except (TimeoutError, ConnectionResetError):
                continue
        else:
            pytest.fail("it still has its place after 10 s")


def is_answered(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/metrics").status_code == 200
    except httpx.TransportError:
        return False

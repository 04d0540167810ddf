"""Which addresses of a server are taken, and what is asked there."""

import pytest

from tests.system.test_http import OK, says, serving
from tuner.errors import InputError, UsageError
from tuner.live import server as live_server


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "--url: neither http:// nor https://"),
        ("localhost:8000", "--url localhost:8000: neither http:// nor https://"),
        ("http://", "--url: no address"),
        ("http://[::1", "--url: no address"),
        ("http://::1:8000", "--url: no address"),
        ("http://h:x", "--url: no address"),
        ("http://h:0", "--url http://h:0: no address"),
        ("http://h:70000", "--url http://h:70000: no address"),
        ("http://h h", "--url: no address"),
        ("http://h\n", "--url: no address"),
        ("http://h?a=b", "--url: an address has no ? and no # here"),
        ("http://h/#a", "--url: an address has no ? and no # here"),
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


@pytest.mark.parametrize(
    ("status", "cure"),
    [(401, "behind that"), (403, "not open"), (404, "a vLLM server's"), (503, "not ready")],
)
def test_a_refusal_is_said_with_its_cure(status: int, cure: str) -> None:
    answer = f"HTTP/1.1 {status} No\r\n\r\n".encode()
    with serving(says(answer)) as url, pytest.raises(InputError) as refused:
        live_server.get(f"{url}/metrics")
    assert str(refused.value) == f"{url}/metrics: answers {status}"
    assert cure in refused.value.hint


def test_a_text_is_read_whatever_its_bytes_are() -> None:
    with serving(says(OK + b"\r\nh\xff")) as url:
        assert live_server.get(url) == "h\ufffd"

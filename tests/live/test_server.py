"""Which addresses of a server are taken, and what is asked there."""

import pytest

from tuner.errors import UsageError
from tuner.live import server as live_server


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8000", "http://", "http://[::1", "http://h?a=b", "http://me:s@h"],
)
def test_what_is_no_address_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError, match="--url: not the address of a server"):
        live_server.base_of(url)


@pytest.mark.parametrize("path", ["", "/", "/metrics", "/v1", "/v1/", "/metrics/"])
def test_a_servers_address_may_end_in_what_people_copy(path: str) -> None:
    assert live_server.base_of(f"http://h:8000{path}") == "http://h:8000"

"""A question over HTTP, and what may be its address. Asking is ``tuner.system.http_client``'s.

Replay has its own streaming client in ``tuner.engines.server``.
"""

import ipaddress
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.errors import UsageError

_ADDRESS = re.compile(
    r"(?:https?://)?(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?(?:/[\w./~%+-]*)?", re.ASCII
)
"""An address that can be shown: no login, no query, and no port that may be a password."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A question to a server: GET, or POST with a form or with JSON."""

    url: str
    """With no secret in it: errors show it."""

    most_bytes: int
    """Of the answer's content."""

    form: Mapping[str, str] | None = None
    body: Mapping[str, object] | None = None
    """Sent as JSON."""

    authorization: str = ""
    """The header of that name."""

    reads_refusals: bool = False
    """Read the content of answers whose status is not 200, too."""

    direct: bool = False
    """Past the proxies that the environment names; a server on this machine is always asked so."""

    @property
    def headers(self) -> dict[str, str]:
        plain = {"Accept-Encoding": "identity"}
        return plain | ({"Authorization": self.authorization} if self.authorization else {})


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A server's answer."""

    status: int
    """Any but a redirect that was followed."""

    content: bytes
    """Empty where the status is not 200, unless that was asked for."""


def shown(url: str) -> str:
    """Return an address as it may be printed: empty where something in it may be a secret.

    >>> shown("http://prometheus:9090/api"), shown("http://ann:secret@prometheus:9090")
    ('http://prometheus:9090/api', '')
    """
    return url if _ADDRESS.fullmatch(url) else ""


def problem_of(url: str) -> str | None:
    """Return why it is no address of a server, without a part of it; None where it is one."""
    if not url.startswith(("http://", "https://")):
        return "neither http:// nor https://"
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "no address"
    if not host or port == 0 or any(c.isspace() or not c.isprintable() for c in url):
        return "no address"
    if parts.username is not None:
        return "a login cannot be given in an address"
    if parts.query or parts.fragment:
        return "an address has no ? and no # here"
    return None


def is_loopback(url: str) -> bool:
    """Whether an address is this machine's own.

    >>> is_loopback("http://localhost:8000"), is_loopback("http://[::1]/v1"), is_loopback("http://a")
    (True, True, False)
    """
    host = urllib.parse.urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_address(url: str, *, option: str) -> str:
    """Return the address of a server without a slash at its end. Raises UsageError."""
    problem = problem_of(url)
    if problem is not None:
        raise UsageError(
            f"{option} {shown(url)}".rstrip() + f": {problem}",
            hint=f"Give the server's address: {option} http://localhost:8000",
        )
    return url.rstrip("/")

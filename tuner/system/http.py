"""A request over HTTP: one deadline for all of it, a bound on its size, and no other server.

Replay has its own streaming client in ``tuner.engines.server``.
"""

import asyncio
import ipaddress
import re
import ssl
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.errors import AnswerTooLongError, InputError, UsageError

_OK = 200
_CHECK = "Is the server running? Check the address and the port (vLLM's is 8000)."
_ADDRESS = re.compile(
    r"https?://(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?(?:/[\w./~%+-]*)?", re.ASCII
)
"""No login, no query, and no port that may be a password: it can be shown."""

_REASONS = {
    "ClientProxyConnectionError": "no answer from the proxy (HTTP_PROXY, HTTPS_PROXY, NO_PROXY)",
    "ClientHttpProxyError": "the proxy does not let it through",
    "SSLCertVerificationError": "its certificate is not trusted (SSL_CERT_FILE names authorities)",
    "SSLError": "speaks no TLS; give http:// instead of https://",
    "gaierror": "no such host",
    "ClientConnectorDNSError": "no such host",
    "ConnectionRefusedError": "no answer: nobody listens there",
    "ClientPayloadError": "the answer is cut short",
    "ClientResponseError": "answers, but not as a web server does",
    "TimeoutError": "no complete answer in time; is it overloaded?",
}
"""Name of an exception → what it means; nothing of it is the server's own words."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request to a server: GET, or POST with a form."""

    url: str
    """With no secret in it: errors show it."""

    most_bytes: int
    """Of the answer's content."""

    form: Mapping[str, str] | None = None
    authorization: str = ""
    """The header of that name."""

    reads_refusals: bool = False
    """Read the content also where the status is not 200."""

    direct: bool = False
    """Past the proxies that the environment names; a server on this machine always is."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A server's answer."""

    status: int
    content: bytes
    """Empty where the status is not 200, without ``reads_refusals``."""


def is_loopback(url: str) -> bool:
    """Whether an address is this machine's own.

    >>> is_loopback("http://localhost:8000"), is_loopback("http://[::1]/v1"), is_loopback("http://a")
    (True, True, False)
    """
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_address(url: str, *, option: str) -> str:
    """Return the address of a server without a slash at its end.

    Raises UsageError, which does not show it: what is no address may hold a secret.
    """
    if not _ADDRESS.fullmatch(url):
        raise UsageError(
            f"{option}: not the address of a server, without login, query and fragment",
            hint=f"Give the server's address: {option} http://localhost:8000",
        )
    return url.rstrip("/")


def ask(request: HttpRequest, *, timeout_s: float) -> HttpResponse:
    """Send a request and return the response; no redirect is followed.

    ``timeout_s`` is for all of it, to the last byte. Raises InputError, of one line, with the
    address and nothing that the server sent.
    """
    try:
        return asyncio.run(asyncio.wait_for(_ask(request), timeout_s))
    except (OSError, ValueError) as problem:  # what aiohttp raises is one of these, or holds one
        causes = (problem, problem.__cause__, getattr(problem.__cause__, "os_error", None))
        kinds = {kind.__name__ for each in causes for kind in type(each).__mro__}
        why = next((why for name, why in _REASONS.items() if name in kinds), "no answer")
        raise InputError(f"{request.url}: {why}", hint=_CHECK) from None


async def _ask(request: HttpRequest) -> HttpResponse:
    import aiohttp  # noqa: PLC0415 - it takes as long to import as all of a small command

    url, content = request.url, bytearray()
    headers = {"Accept-Encoding": "identity"}
    if request.authorization:
        headers["Authorization"] = request.authorization
    try:
        async with (
            aiohttp.ClientSession(
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # one for all
                trust_env=not (request.direct or is_loopback(url)),
            ) as session,
            session.request(
                "GET" if request.form is None else "POST", url, data=request.form, headers=headers,
                allow_redirects=False,
                # trust the authorities of the system, or of SSL_CERT_FILE
                ssl=ssl.create_default_context() if url.startswith("https:") else True,
            ) as answer,
        ):  # fmt: skip
            if answer.status != _OK and not request.reads_refusals:
                return HttpResponse(answer.status, b"")
            if "Content-Encoding" in answer.headers:
                raise InputError(f"{url}: answers compressed", hint="Is a proxy in front of it?")
            async for piece in answer.content.iter_any():
                content += piece
                if len(content) > request.most_bytes:
                    raise AnswerTooLongError(f"{url}: answers too much", hint=_CHECK)
            return HttpResponse(answer.status, bytes(content))
    except aiohttp.ClientError as problem:
        raise OSError from problem

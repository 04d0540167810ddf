"""Ask over HTTP: one deadline for all of it, a bound on its size, and no other server.

httpx takes as long to import as all of a small command: who asks imports this when it asks.
"""

import asyncio
import socket
import ssl
from collections.abc import Coroutine, Iterator

import httpx

from tuner.errors import AnswerTooLongError, InputError
from tuner.system.http import HttpRequest, HttpResponse, is_loopback

MOST_REDIRECTS = 5

_REDIRECTS = {301, 302, 303, 307, 308}
_CHECK = "Check the address."
_PORT = "Is that the server's port? vLLM's is 8000 unless --port says another."


def ask(question: HttpRequest, *, timeout_s: float) -> HttpResponse:
    """Return the answer.

    ``timeout_s`` is for all of it, from the name of the host to the last byte. Redirects are
    followed to the same scheme, host and port only, so that ``authorization`` goes nowhere else.
    Raises InputError, of one line, with the address and nothing that the server said.
    """
    return _run(_within(question, timeout_s))


def _run(work: Coroutine[None, None, HttpResponse]) -> HttpResponse:
    """Run a coroutine to its end; unlike ``asyncio.run`` this does not wait for a name server."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(work)
    try:
        return loop.run_until_complete(task)
    finally:
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        loop.close()


async def _within(question: HttpRequest, timeout_s: float) -> HttpResponse:
    url = question.url
    try:
        async with asyncio.timeout(timeout_s), _client(question) as client:
            return await _follow(client, question)
    except TimeoutError:
        raise InputError(
            f"{url}: no whole answer within {timeout_s:g} s",
            hint="Is the server running, and not overloaded? Is something else listening there?",
        ) from None
    except (httpx.HTTPError, httpx.InvalidURL, ImportError, OSError, ValueError) as problem:
        raise _explained(url, problem) from None


def _client(question: HttpRequest) -> httpx.AsyncClient:
    """Trust the authorities of the system, or of SSL_CERT_FILE; over plain HTTP nobody."""
    is_tls = question.url.startswith("https:")
    trusted = ssl.create_default_context() if is_tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx.AsyncClient(
        verify=trusted,
        headers=question.headers,
        timeout=None,  # noqa: S113 - one for all
        trust_env=not (question.direct or is_loopback(question.url)),
    )


async def _follow(client: httpx.AsyncClient, question: HttpRequest) -> HttpResponse:
    url, form, body = question.url, question.form, question.body
    first = address = httpx.URL(url)
    method = "GET" if form is None and body is None else "POST"
    for _ in range(MOST_REDIRECTS):
        async with client.stream(method, address, data=form, json=body) as answer:
            status, target = answer.status_code, answer.headers.get("Location")
            if status not in _REDIRECTS or not target:
                is_read = status == httpx.codes.OK or question.reads_refusals
                return HttpResponse(status, await _read(question, answer) if is_read else b"")
        address = address.join(target)
        if _server_of(address) != _server_of(first):
            raise InputError(
                f"{url}: redirects to another server",
                hint="Give that server's address, if it is the one to ask.",
            )
    raise InputError(f"{url}: redirects again and again", hint=_CHECK)


def _server_of(address: httpx.URL) -> tuple[str, str, int | None]:
    port = address.port or {"http": 80, "https": 443}.get(address.scheme)
    return address.scheme, address.host, port


async def _read(question: HttpRequest, answer: httpx.Response) -> bytes:
    url, content = question.url, bytearray()
    if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise InputError(
            f"{url}: answers compressed, which was not asked for",
            hint="Give the server's own address, not that of what is in front of it.",
        )
    try:
        async for piece in answer.aiter_raw():
            content += piece
            if len(content) > question.most_bytes:
                raise AnswerTooLongError(f"{url}: answers too much", hint=_CHECK)
    except (httpx.RemoteProtocolError, httpx.ReadError):
        raise InputError(f"{url}: answers a part only", hint="Ask again.") from None
    return bytes(content)


_WHY: tuple[tuple[type[BaseException], str, str], ...] = (
    (socket.gaierror, "no such host", _CHECK),
    (
        ConnectionRefusedError,
        "no answer: nobody listens there",
        "Is the server running, and on that port?",
    ),
    (
        ssl.SSLCertVerificationError,
        "its certificate is not trusted",
        "SSL_CERT_FILE=FILE names authorities to trust.",
    ),
    (ssl.SSLError, "speaks no TLS", "Give http:// in place of https://."),
    (
        ImportError,  # httpx speaks SOCKS with another package
        "a SOCKS proxy is not spoken here",
        "Unset ALL_PROXY, or name the host in NO_PROXY.",
    ),
    (
        httpx.ProxyError,
        "the proxy does not let it through",
        "Check HTTP_PROXY, HTTPS_PROXY and NO_PROXY.",
    ),
    (httpx.RemoteProtocolError, "answers, but not as a web server does", _PORT),
    (ConnectionResetError, "no answer: it closes the connection", _PORT),
    (httpx.ReadError, "no answer: it closes the connection", _PORT),
    (OSError, "no answer", "Is the server running?"),
    (httpx.NetworkError, "no answer", "Is the server running?"),
    (BaseException, "no address that can be asked", "Check the address, and its redirects."),
)
"""Kind of error, what is said, and its cure: the first that fits one of the causes. Nothing of it
is the server's own words."""


def _explained(url: str, problem: BaseException) -> InputError:
    causes = list(_causes(problem))
    if isinstance(problem, httpx.RemoteProtocolError) and "disconnected" in str(problem):
        causes = [httpx.ReadError("")]  # of h11: not a byte came
    _, why, hint = next(row for row in _WHY if any(isinstance(one, row[0]) for one in causes))
    return InputError(f"{url}: {why}", hint=hint)


def _causes(problem: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what it comes from; of several addresses that failed, the first."""
    while problem is not None:
        yield problem
        inner = problem.exceptions[0] if isinstance(problem, BaseExceptionGroup) else None
        problem = inner or problem.__cause__ or problem.__context__

"""What a running vLLM server says of itself: its version, models, and part of its configuration."""

import contextlib
import functools
import http.client
import json
import socket
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field

from tuner.engines.seam import ArgumentValue
from tuner.errors import InputError, UsageError
from tuner.live import prometheus
from tuner.profile import served_models
from tuner.profile.served_models import ServedModel
from tuner.rollout.targets.command_line.flags import typed

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 8 * 2**20
"""A hundred times what an engine says; to read so much takes seconds."""
MOST_REDIRECTS = 5

_REDIRECTS = {301, 302, 303, 307, 308}
_CHECK = "Check that this is a vLLM server's address."
_HINTS = {
    401: "It asks for a login: give an address behind that; vLLM itself leaves /metrics open.",
    403: "It is not open to this machine: give an address that is.",
    503: "It is not ready, or has too much to do: ask again when /health answers.",
}

_NAMES = {"cache_dtype": "kv_cache_dtype"}
"""vLLM's names of what an argument became."""

_WORDS: dict[str, ArgumentValue] = {"True": True, "False": False, "None": None}


@dataclass(frozen=True, slots=True)
class LiveServer:
    """What it tells without being asked for secrets."""

    version: str | None
    arguments: dict[str, ArgumentValue]
    """Engine arguments as resolved, and other settings of the cache beside them."""

    served: tuple[ServedModel, ...] = ()
    """Without ``root`` where ``/v1/models`` is not open, as with ``--api-key``."""


def ask(url: str) -> LiveServer:
    """Read ``/version``, ``/v1/models`` and ``/metrics``. Raises InputError where no vLLM answers,
    and UsageError for no address."""
    base = base_of(url)
    metrics = prometheus.parse(get(f"{base}/metrics"), source=f"{base}/metrics")
    found = {
        _NAMES.get(name, name): _WORDS[text] if text in _WORDS else typed(text)
        for name, text in metrics.cache_config.items()
        if name != "engine"
    }
    served = served_models.listed(_if_told(f"{base}/v1/models"))
    lengths = {one.max_model_len for one in served}
    if len(lengths) == 1 and (length := lengths.pop()) is not None:
        found["max_model_len"] = length
    named = tuple(ServedModel(name) for name in metrics.models)
    return LiveServer(_version(_if_told(f"{base}/version")), found, served or named)


def base_of(url: str, *, option: str = "--url") -> str:
    """Return the address that a server's paths begin with. Raises UsageError."""
    problem = _problem_of(url)
    if problem is not None:
        shown = f"{option} {url}" if url and "@" not in url else option  # @ follows a password
        raise UsageError(
            f"{shown}: {problem}",
            hint=f"Give the server's address: {option} http://localhost:8000",
        )
    return url.rstrip("/").removesuffix("/metrics").removesuffix("/v1")


def _problem_of(url: str) -> str | None:
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


def _if_told(url: str) -> str:
    """Return what is there, or nothing: a gateway in front may not pass it on."""
    try:
        return get(url)
    except InputError:
        return ""


def _version(text: str) -> str | None:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return None
    version = answer.get("version") if isinstance(answer, dict) else None
    return version[:100] if isinstance(version, str) else None


def get(url: str, *, timeout_s: float = TIMEOUT_S) -> str:
    """Return the text at an address. Raises InputError, of one line.

    ``timeout_s`` is for all of it, from the name of the host to the last byte: a socket's own
    timeout is one of each piece, and a server that sends one piece a second would never end.
    """
    exchange = _Exchange(url, time.monotonic() + timeout_s)
    thread = threading.Thread(target=exchange.run, name="tuner-get", daemon=True)
    thread.start()
    thread.join(timeout_s)
    text, problem = exchange.end()
    if problem is not None:
        raise problem
    if text is None:
        raise InputError(
            f"{url}: no whole answer within {timeout_s:g} s",
            hint="Is the server running, and not overloaded? Is something else listening there?",
        )
    return text


@dataclass(slots=True)
class _Exchange:
    """A question and its answer, on a thread of its own, which can be left at any time."""

    url: str
    until_s: float
    text: str | None = None
    problem: InputError | None = None
    ended: bool = False
    opened: list[socket.socket] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        try:
            self.text = self._follow()
        except InputError as problem:
            self.problem = problem
        except (OSError, ValueError, OverflowError, http.client.HTTPException) as problem:
            # a socket's own timeout is as late as the whole, and either may be noticed first
            if not isinstance(_cause_of(problem), TimeoutError):
                self.problem = _explained(self.url, problem)

    def end(self) -> tuple[str | None, InputError | None]:
        """Return what there is, and let go of the rest."""
        said = self.text, self.problem  # what it makes of our hanging up is no news
        with self.lock:
            self.ended = True
            for one in self.opened:
                with contextlib.suppress(OSError):  # the kernel's: TLS has nothing to say any more
                    socket.socket.shutdown(one, socket.SHUT_RDWR)
        return said

    def keep(self, connection: socket.socket) -> None:
        with self.lock:
            if self.ended:
                raise TimeoutError
            self.opened.append(connection)

    def _follow(self) -> str:
        opener = urllib.request.OpenerDirector()
        for handler in (
            *(urllib.request.ProxyHandler(), urllib.request.UnknownHandler()),
            *(urllib.request.HTTPDefaultErrorHandler(), urllib.request.HTTPErrorProcessor()),
            *(_Http(self), _Https(self)),
        ):
            opener.add_handler(handler)
        address = self.url
        for _ in range(MOST_REDIRECTS):
            left_s = max(0.001, self.until_s - time.monotonic())
            try:
                with opener.open(address, timeout=left_s) as answer:
                    return _read(self.url, answer)
            except urllib.error.HTTPError as refused:
                with refused:  # what it says with it is not read
                    target = refused.headers.get("Location")
                if refused.code not in _REDIRECTS or not target:
                    raise InputError(
                        f"{self.url}: answers {refused.code}",
                        hint=_HINTS.get(refused.code, _CHECK),
                    ) from None
                address = urllib.parse.urljoin(address, target)
                if not address.startswith(("http://", "https://")):
                    raise http.client.InvalidURL from None
        raise InputError(f"{self.url}: redirects again and again", hint=_CHECK)


class _Plain(http.client.HTTPConnection):
    def __init__(self, host: str, *, exchange: _Exchange, timeout: float) -> None:
        super().__init__(host, timeout=timeout)
        self._exchange = exchange

    def connect(self) -> None:
        super().connect()
        self._exchange.keep(self.sock)


class _Tls(http.client.HTTPSConnection):
    def __init__(self, host: str, *, exchange: _Exchange, timeout: float) -> None:
        super().__init__(host, timeout=timeout)
        self._exchange = exchange

    def connect(self) -> None:
        super().connect()
        self._exchange.keep(self.sock)


class _Http(urllib.request.HTTPHandler):
    def __init__(self, exchange: _Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(functools.partial(_Plain, exchange=self._exchange), req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, exchange: _Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(functools.partial(_Tls, exchange=self._exchange), req)


def _read(url: str, answer: http.client.HTTPResponse) -> str:
    coding = answer.headers.get("Content-Encoding", "identity")
    if coding.lower() != "identity":
        raise InputError(
            f"{url}: answers compressed, which was not asked for",
            hint="Give the server's own address, not that of what is in front of it.",
        )
    whole, content = answer.length, bytearray()
    while len(content) <= MAX_ANSWER_BYTES and (piece := answer.read1(2**20)):
        content += piece
    if len(content) > MAX_ANSWER_BYTES:
        raise InputError(f"{url}: answers too much", hint=_CHECK)
    if whole is not None and len(content) < whole:
        raise InputError(f"{url}: answers a part only", hint="Ask again.")
    return content.decode("utf-8", "replace")


_WHY: tuple[tuple[type[Exception], str, str], ...] = (
    (socket.gaierror, "no such host", "Check the address."),
    (
        ConnectionRefusedError,
        "no answer: nobody listens there",
        "Is the server running, and on that port?",
    ),
    (http.client.IncompleteRead, "answers a part only", "Ask again."),
    (ConnectionError, "no answer: it closes the connection", "Is the server running?"),
    (
        ssl.SSLCertVerificationError,
        "its certificate is not trusted",
        "SSL_CERT_FILE=FILE names authorities to trust.",
    ),
    (ssl.SSLError, "speaks no TLS", "Give http:// in place of https://."),
    (
        http.client.InvalidURL,
        "no address that can be asked",
        "Check the address, and where it redirects to.",
    ),
    (
        http.client.HTTPException,
        "answers, but not as a web server does",
        "Is that the server's port? vLLM's is 8000 unless --port says another.",
    ),
    (OSError, "no answer", "Is the server running?"),
    (Exception, "no address that can be asked", "Check the address, and where it redirects to."),
)
"""The first that fits is said, and nothing in the server's own words, which may be anything."""


def _cause_of(problem: Exception) -> Exception:
    reason = getattr(problem, "reason", None)  # of a URLError
    return reason if isinstance(reason, Exception) else problem


def _explained(url: str, problem: Exception) -> InputError:
    cause = _cause_of(problem)
    kind, why, hint = next(one for one in _WHY if isinstance(cause, one[0]))
    if kind is OSError and isinstance(cause, OSError) and cause.strerror:
        why = f"{why}: {cause.strerror.lower()}"
    return InputError(f"{url}: {why}", hint=hint)

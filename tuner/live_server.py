"""What a running vLLM server says of itself: its version, and a part of its configuration."""

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass

from tuner import prometheus
from tuner.engines.seam import ArgumentValue
from tuner.errors import InputError, UsageError
from tuner.targets.flags import typed

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 32 * 2**20

_NAMES = {"cache_dtype": "kv_cache_dtype"}
"""vLLM's names of what an argument became."""

_WORDS: dict[str, ArgumentValue] = {"True": True, "False": False, "None": None}


@dataclass(frozen=True, slots=True)
class LiveServer:
    """What it tells without being asked for secrets."""

    version: str | None
    arguments: dict[str, ArgumentValue]
    """Engine arguments as resolved, and other settings of the cache beside them."""


def ask(url: str) -> LiveServer:
    """Read ``/version`` and ``/metrics``. Raises InputError where no vLLM answers."""
    base = base_of(url)
    metrics = prometheus.parse(get(f"{base}/metrics"), source=f"{base}/metrics")
    found = {
        _NAMES.get(name, name): _WORDS[text] if text in _WORDS else typed(text)
        for name, text in metrics.cache_config.items()
        if name != "engine"
    }
    return LiveServer(_version(base), found)


def base_of(url: str, *, option: str = "--url") -> str:
    """Return the address that a server's paths begin with. Raises UsageError."""
    if not url.startswith(("http://", "https://")):
        raise UsageError(
            f"{option} {url}: neither http:// nor https://",
            hint=f"Give the server's address: {option} http://localhost:8000",
        )
    try:
        host = urllib.parse.urlsplit(url).hostname
    except ValueError:
        host = None
    if not host:
        raise UsageError(
            f"{option} {url}: no address",
            hint=f"Give the server's address: {option} http://localhost:8000",
        )
    return url.rstrip("/").removesuffix("/metrics").removesuffix("/v1")


def _version(base: str) -> str | None:
    try:
        answer = json.loads(get(f"{base}/version"))
    except (InputError, ValueError):  # a gateway in front may not pass it on
        return None
    version = answer.get("version") if isinstance(answer, dict) else None
    return version if isinstance(version, str) else None


def get(url: str, *, timeout_s: float = TIMEOUT_S) -> str:
    """Return the text at an address. Raises InputError."""
    request = urllib.request.Request(url)  # noqa: S310 - http or https, see base_of
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
            whole = answer.length
            content = _read(answer, time.monotonic() + timeout_s)
    except urllib.error.HTTPError as problem:
        problem.close()
        raise InputError(
            f"{url}: answers {problem.code}", hint="Check that this is a vLLM server's address."
        ) from None
    except (OSError, ValueError, http.client.HTTPException) as problem:
        why = getattr(problem, "reason", None) or problem
        raise InputError(f"{url}: no answer: {why}", hint="Is the server running?") from None
    if whole is not None and len(content) < min(whole, MAX_ANSWER_BYTES):
        raise InputError(f"{url}: answers a part only", hint="Ask again.")
    if len(content) > MAX_ANSWER_BYTES:
        raise InputError(f"{url}: answers too much", hint="Check the address.")
    return bytes(content).decode("utf-8", "replace")


def _read(answer: http.client.HTTPResponse, until_s: float) -> bytes:
    """Return the body; the timeout of a socket is one of each piece alone."""
    pieces, size = list[bytes](), 0
    while size <= MAX_ANSWER_BYTES and (piece := answer.read1(2**20)):
        if time.monotonic() > until_s:
            raise TimeoutError("too slow")
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)

"""A running vLLM server: its version, models and configuration, and its metrics over time."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from tuner.engines.seam import ArgumentValue
from tuner.engines.vllm.values import typed
from tuner.errors import InputError
from tuner.live import prometheus
from tuner.live.prometheus import ServerMetrics
from tuner.profile import served_models
from tuner.profile.served_models import ServedModel
from tuner.system import http

LEAST_TIMEOUT_S, TIMEOUT_S = 1.0, 10.0
MAX_ANSWER_BYTES = 8 * 2**20
"""A hundred times what an engine exports; to read so much takes seconds."""

_HINTS = {
    401: "It asks for a login: give an address behind that; vLLM itself leaves /metrics open.",
    403: "It is not open to this machine: give an address that is.",
    503: "It is not ready, or has too much to do: try again when /health answers.",
}
_NAMES = {"cache_dtype": "kv_cache_dtype"}
"""vLLM's names of what an argument became."""

_WORDS: dict[str, ArgumentValue] = {"True": True, "False": False, "None": None}


@dataclass(frozen=True, slots=True)
class LiveServer:
    """A server's own account, as far as it is open without a login."""

    version: str | None
    arguments: dict[str, ArgumentValue]
    """Engine arguments as resolved, and other settings of the cache beside them."""

    served: tuple[ServedModel, ...] = ()
    """Without ``root`` where ``/v1/models`` is not open, as with ``--api-key``."""


def ask(url: str, *, direct: bool = False) -> LiveServer:
    """Read ``/version``, ``/v1/models`` and ``/metrics``, ``direct``: past every proxy.

    Raises InputError where no vLLM answers, and UsageError for what is not an address.
    """
    base = base_of(url)
    source = f"{base}/metrics"
    engines = list(prometheus.parse(get(source, direct=direct), source=source).values())
    result = {
        _NAMES.get(name, name): _WORDS[text] if text in _WORDS else typed(text)
        for name, text in engines[0].cache_config.items()
        if name != "engine"
    }
    served = served_models.listed(_if_open(f"{base}/v1/models", direct=direct))
    lengths = {model.max_model_len for model in served}
    if len(lengths) == 1 and (length := lengths.pop()) is not None:
        result["max_model_len"] = length
    named = tuple(ServedModel(name) for name in engines[0].models)
    version = _version(_if_open(f"{base}/version", direct=direct))
    return LiveServer(version, result, served or named)


def base_of(url: str) -> str:
    """Return the address that a server's paths begin with. Raises UsageError."""
    return http.check_address(url, option="--url").removesuffix("/metrics").removesuffix("/v1")


def _if_open(url: str, *, direct: bool) -> str:
    """Return what is there, or nothing: a gateway in front may not pass it on."""
    try:
        return get(url, direct=direct)
    except InputError:
        return ""


def _version(text: str) -> str | None:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return None
    version = answer.get("version") if isinstance(answer, dict) else None
    return version[:100] if isinstance(version, str) else None


def get(url: str, *, timeout_s: float = TIMEOUT_S, direct: bool = False) -> str:
    """Return the text at an address. Raises InputError, of one line, for any status but 200."""
    question = http.HttpRequest(url, MAX_ANSWER_BYTES, direct=direct)
    return text_of(http.ask(question, timeout_s=timeout_s), url)


def text_of(answer: http.HttpResponse, url: str) -> str:
    """Return the text of an answer. Raises InputError, of one line, for any status but 200."""
    if answer.status != 200:
        hint = _HINTS.get(answer.status, "Check that this is a vLLM server's address.")
        raise InputError(f"{url}: answers {answer.status}", hint=hint)
    return answer.content.decode("utf-8", "replace")


def read_engines(url: str, *, timeout_s: float = TIMEOUT_S) -> Mapping[str, ServerMetrics]:
    """Return the metrics of each engine of a server.

    Raises InputError, and UsageError for what is not an address.
    """
    address = f"{base_of(url)}/metrics"
    text = get(address, timeout_s=timeout_s)
    engines = prometheus.parse(text, source=address)
    models = {name for engine in engines.values() for name in engine.models}
    if len(models) > 1:
        raise InputError(
            f"{address}: {len(models)} models: {', '.join(sorted(models))[:100]}",
            hint="Give the address of a server of one model.",
        )
    return engines


class Clock(Protocol):
    """Seconds on one clock that never jumps."""

    def now_s(self) -> float: ...

    def sleep_until(self, at_s: float) -> None: ...


class MonotonicClock:
    def now_s(self) -> float:
        return time.monotonic()

    def sleep_until(self, at_s: float) -> None:
        time.sleep(max(0.0, at_s - self.now_s()))


@dataclass(frozen=True, slots=True)
class Reading:
    """One answer of a server."""

    at_s: float
    engines: Mapping[str, ServerMetrics]
    """Empty where there was none."""

    problem: str = ""


def readings(url: str, *, every_s: float, for_s: float, clock: Clock) -> Iterator[Reading]:
    """Yield readings at steady times until ``for_s`` have passed; those whose time passed while
    the server was slow are left out."""
    timeout_s = min(TIMEOUT_S, max(LEAST_TIMEOUT_S, every_s))
    begin_s, place = clock.now_s(), 0
    while place * every_s <= for_s:
        clock.sleep_until(begin_s + place * every_s)
        sent_s, engines, problem = clock.now_s(), {}, ""
        try:
            engines = dict(read_engines(url, timeout_s=timeout_s))
        except InputError as error:
            problem = str(error)
        yield Reading((sent_s + clock.now_s()) / 2, engines, problem)
        place = max(place + 1, int((clock.now_s() - begin_s) // every_s) + 1)

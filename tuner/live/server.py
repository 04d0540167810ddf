"""A running vLLM server's own account: its version, models, and part of its configuration."""

import json
from dataclasses import dataclass

from tuner.engines.seam import ArgumentValue
from tuner.engines.vllm.values import typed
from tuner.errors import InputError
from tuner.live import prometheus
from tuner.profile import served_models
from tuner.profile.served_models import ServedModel
from tuner.system import http

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 8 * 2**20
"""A hundred times what an engine says; to read so much takes seconds."""

_OK = 200
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
    """A server's own account, as far as it goes without being asked for secrets."""

    version: str | None
    arguments: dict[str, ArgumentValue]
    """Engine arguments as resolved, and other settings of the cache beside them."""

    served: tuple[ServedModel, ...] = ()
    """Without ``root`` where ``/v1/models`` is not open, as with ``--api-key``."""


def ask(url: str, *, direct: bool = False) -> LiveServer:
    """Read ``/version``, ``/v1/models`` and ``/metrics``, ``direct``: past every proxy.

    Raises InputError where no vLLM answers, and UsageError for no address.
    """
    base = base_of(url)
    metrics = prometheus.parse(get(f"{base}/metrics", direct=direct), source=f"{base}/metrics")
    found = {
        _NAMES.get(name, name): _WORDS[text] if text in _WORDS else typed(text)
        for name, text in metrics.cache_config.items()
        if name != "engine"
    }
    served = served_models.listed(_if_told(f"{base}/v1/models", direct=direct))
    lengths = {one.max_model_len for one in served}
    if len(lengths) == 1 and (length := lengths.pop()) is not None:
        found["max_model_len"] = length
    named = tuple(ServedModel(name) for name in metrics.models)
    version = _version(_if_told(f"{base}/version", direct=direct))
    return LiveServer(version, found, served or named)


def base_of(url: str) -> str:
    """Return the address that a server's paths begin with. Raises UsageError."""
    return http.check_address(url, option="--url").removesuffix("/metrics").removesuffix("/v1")


def _if_told(url: str, *, direct: bool) -> str:
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
    answer = http.ask(question, timeout_s=timeout_s)
    return text_of(answer, url)


def text_of(answer: http.HttpResponse, url: str) -> str:
    """Return the text of an answer. Raises InputError, of one line, for any status but 200."""
    if answer.status != _OK:
        hint = _HINTS.get(answer.status, "Check that this is a vLLM server's address.")
        raise InputError(f"{url}: answers {answer.status}", hint=hint)
    return answer.content.decode("utf-8", "replace")

"""A running vLLM server: its version, models and configuration, and its metrics."""

from dataclasses import dataclass

import msgspec
from msgspec import Struct

from tuner.engines.seam import ArgumentValue
from tuner.engines.vllm.flags import typed
from tuner.errors import InputError
from tuner.live import prometheus
from tuner.live.prometheus import ServerMetrics
from tuner.profile import served_models
from tuner.profile.served_models import ServedModel
from tuner.system import http

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 8 * 2**20
"""A hundred times what an engine exports; to read so much takes seconds."""

_WORDS: dict[str, ArgumentValue] = {"True": True, "False": False, "None": None}


@dataclass(frozen=True, slots=True)
class LiveServer:
    """A server's own account, as far as it is open without a login."""

    version: str | None
    arguments: dict[str, ArgumentValue]
    """Engine arguments as resolved, and other settings of the cache beside them."""
    served: tuple[ServedModel, ...] = ()
    """Without ``root`` where ``/v1/models`` is not open, as with ``--api-key``."""


class _Version(Struct):
    version: str


def ask(url: str, *, direct: bool = False) -> LiveServer:
    """Read ``/version``, ``/v1/models`` and ``/metrics``, ``direct``: past every proxy.

    Raises InputError where no vLLM answers, and UsageError for what is not an address.
    """
    metrics, base = read(url, direct=direct), base_of(url)
    arguments = {
        name: _WORDS[text] if text in _WORDS else typed(text)
        for name, text in metrics.cache_config.items()
        if name != "engine"
    }
    if "cache_dtype" in arguments:  # vLLM's name of what the argument became
        arguments["kv_cache_dtype"] = arguments.pop("cache_dtype")
    served = served_models.listed(_if_open(f"{base}/v1/models", direct=direct))
    lengths = {model.max_model_len for model in served}
    if len(lengths) == 1 and (length := lengths.pop()) is not None:
        arguments["max_model_len"] = length
    version = None
    try:
        text = _if_open(f"{base}/version", direct=direct)
        version = msgspec.json.decode(text, type=_Version).version[:100]
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        pass
    return LiveServer(version, arguments, served or tuple(map(ServedModel, metrics.models)))


def read(url: str, *, timeout_s: float = TIMEOUT_S, direct: bool = False) -> ServerMetrics:
    """Return the metrics of a server. Raises InputError, and UsageError for what is not an
    address."""
    address = f"{base_of(url)}/metrics"
    return prometheus.parse(get(address, timeout_s=timeout_s, direct=direct), source=address)


def base_of(url: str) -> str:
    """Return the address that a server's paths begin with. Raises UsageError."""
    return http.check_address(url, option="--url").removesuffix("/metrics").removesuffix("/v1")


def _if_open(url: str, *, direct: bool) -> str:
    """Return what is there, or nothing: a gateway in front may not pass it on."""
    try:
        return get(url, direct=direct)
    except InputError:
        return ""


def get(url: str, *, timeout_s: float = TIMEOUT_S, direct: bool = False) -> str:
    """Return the text at an address. Raises InputError for any status but 200."""
    question = http.HttpRequest(url, MAX_ANSWER_BYTES, direct=direct)
    return text_of(http.ask(question, timeout_s=timeout_s), url)


def text_of(answer: http.HttpResponse, url: str) -> str:
    """Return the text of an answer. Raises InputError for any status but 200."""
    if answer.status != 200:
        hint = "Give a vLLM server's own address, that is open and past every login."
        raise InputError(f"{url}: answers {answer.status}", hint=hint)
    return answer.content.decode("utf-8", "replace")

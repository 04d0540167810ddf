"""A running vLLM server: its version, models and configuration, and its metrics."""

import re
from dataclasses import dataclass

from tuner.engines.arguments import typed
from tuner.engines.seam import ArgumentValue
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

    metrics: ServerMetrics
    version: str | None
    arguments: dict[str, ArgumentValue]
    """Engine arguments as resolved, and other settings of the cache beside them."""
    served: tuple[ServedModel, ...]
    """Without ``root`` where ``/v1/models`` is not open, as with ``--api-key``."""


def ask(url: str) -> LiveServer:
    """Read ``/version``, ``/v1/models`` and ``/metrics``.

    Raises InputError where no vLLM answers, and UsageError for what is not an address.
    """
    base, metrics = base_of(url), read(url)
    config = {**(metrics.cache_config or {})}
    config.pop("engine", None)
    if "cache_dtype" in config:  # vLLM's name of what the argument became
        config["kv_cache_dtype"] = config.pop("cache_dtype")
    arguments = {name: _WORDS.get(text, typed(text)) for name, text in config.items()}
    served = served_models.listed(_if_open(f"{base}/v1/models"))
    lengths = {model.max_model_len for model in served}
    if len(lengths) == 1 and (length := lengths.pop()) is not None:
        arguments["max_model_len"] = length
    version = re.search(r'"version": *"([^"]{1,100})"', _if_open(f"{base}/version"))
    names = [ServedModel(metrics.model)] if metrics.model else []
    return LiveServer(metrics, version and version[1], arguments, served or tuple(names))


def read(url: str, *, timeout_s: float = TIMEOUT_S) -> ServerMetrics:
    """Return the metrics of a server. Raises InputError, and UsageError for what is not an
    address."""
    address = f"{base_of(url)}/metrics"
    return prometheus.parse(get(address, timeout_s=timeout_s), source=address)


def base_of(url: str) -> str:
    """Return the address that a server's paths begin with. Raises UsageError."""
    return http.check_address(url, option="--url").removesuffix("/metrics").removesuffix("/v1")


def get(url: str, *, timeout_s: float = TIMEOUT_S) -> str:
    """Return the text at an address, past every proxy, as replays go. Raises InputError for any
    status but 200."""
    request = http.HttpRequest(url, MAX_ANSWER_BYTES, direct=True)
    response = http.ask(request, timeout_s=timeout_s)
    if response.status != 200:
        hint = "Give a vLLM server's own address, that is open and past every login."
        raise InputError(f"{url}: answers {response.status}", hint=hint)
    return response.content.decode("utf-8", "replace")


def _if_open(url: str) -> str:
    """Return what is there, or nothing: a gateway in front may not pass it on."""
    try:
        return get(url)
    except InputError:
        return ""

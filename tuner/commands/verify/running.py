"""The server behind ``tuner verify --url``: that it may be asked, and what it says of itself."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tuner.commands.options import VerifyOptions
from tuner.engines.arguments import WHICH_DEVICE
from tuner.engines.sampling import EVERYWHERE, Sampling
from tuner.engines.seam import EngineFacts
from tuner.engines.server.running import WARM_UPS, RunningServer
from tuner.engines.vllm import supported
from tuner.errors import GateError, InputError, UsageError
from tuner.live import prometheus
from tuner.live import server as live_server
from tuner.profile import served_models
from tuner.profile.schema import ServingProfile
from tuner.profile.served_models import ServedModel
from tuner.system import http

_MODELS_BYTES = 8 * 2**20
_BLOCK_SIZE, _ANY_LENGTH = 16, 2**31
"""vLLM's, where a server does not tell."""

_NO_PAGE = frozenset({401, 403, 404, 405, 410, 501})
"""Statuses that servers answer for their metrics where they have none, or none for others."""

KEY = "TUNER_API_KEY"
"""Variable with the key of a server."""


@dataclass(frozen=True, slots=True)
class FoundServer:
    """A server, before it is sent anything."""

    url: str
    model: str
    is_vllm: bool
    key: str | None
    facts: EngineFacts
    warnings: tuple[str, ...]


def check_options(options: VerifyOptions) -> None:
    """Raise UsageError for options that do not go together."""
    if options.url is None:
        if options.send_load is not None:
            raise UsageError("--send-load is for --url", hint="Add --url, or leave it out.")
    elif options.world is not None:
        raise UsageError("--url and --world exclude each other", hint="Leave out --world.")


def find(options: VerifyOptions, url: str, profile: ServingProfile) -> FoundServer:
    """Return what answers at the address. Raises UsageError, InputError, and GateError for another
    model or vLLM than the profile's, or while the server serves others."""
    base = live_server.base_of(url)
    key = _key()
    is_vllm = _is_vllm(base)
    if is_vllm:
        said = live_server.ask(base, direct=True)
        served, version, arguments = said.served, said.version, said.arguments
        _check_idle(base)
    else:
        served, version, arguments = _models(base, key), None, {}
    if not options.force:
        _check_same(profile, served, version)
    told = {**profile.engine, **arguments}
    lengths = [one.max_model_len for one in served if one.max_model_len is not None]
    facts = EngineFacts(
        engine="server",
        arguments={
            key: value for key, value in told.items() if isinstance(value, str | int | float | bool)
        },
        max_model_len=min(lengths, default=_whole(told.get("max_model_len"), _ANY_LENGTH)),
        vocab_size=2**15,
        block_size=_whole(told.get("block_size"), _BLOCK_SIZE),
        kv_blocks=_whole(arguments.get("num_gpu_blocks"), 0),
        start_s=0.0,
        versions={} if version is None else {"vllm": version},
        device={},
    )
    is_told = version is not None or not is_vllm
    warnings = (*_differences(profile, arguments), *_untold(profile, version=is_told))
    return FoundServer(base, _asked_for(served, profile), is_vllm, key, facts, warnings)


def allowed(options: VerifyOptions, found: FoundServer, requests: int) -> int | None:
    """Return how many requests the server may get; None: as many as a replay takes.

    Raises UsageError for a server elsewhere that is to get more than was allowed.
    """
    needed = requests + WARM_UPS
    if options.send_load is None and http.is_loopback(found.url):
        return None
    if (options.send_load or 0) < needed:
        raise UsageError(
            f"{found.url} would get {needed:,} requests of this trace's load",
            hint=f"Is nobody served there who would mind? Then add --send-load {needed}.",
        )
    return options.send_load


def asked(
    found: FoundServer,
    *,
    planned: int,
    most: int | None,
    sampling: Sampling,
) -> RunningServer:
    """Return how the server is asked: one that is no vLLM knows a part of the parameters."""
    return RunningServer(
        url=found.url,
        model=found.model,
        facts=found.facts,
        planned=planned,
        most=most,
        sampling={
            name: value for name, value in sampling.items() if found.is_vllm or name in EVERYWHERE
        },
        key=found.key,
        takes_ignore_eos=found.is_vllm,
        served=_counter(found.url) if found.is_vllm else None,
    )


def _key() -> str | None:
    key = os.environ.get(KEY)
    if key is not None and not (key and key.isascii() and key.isprintable()):
        raise UsageError(f"{KEY} holds no key", hint="Set it to the server's key, or unset it.")
    return key


def _is_vllm(base: str) -> bool:
    """Whether vLLM's metrics are there; False where no page of that name is open to us.

    Raises InputError for any other answer, and for none: of a vLLM that cannot tell now, neither
    what it serves nor its version would be known.
    """
    url = f"{base}/metrics"
    question = http.HttpRequest(url, live_server.MAX_ANSWER_BYTES, direct=True)
    answer = http.ask(question, timeout_s=live_server.TIMEOUT_S)
    if answer.status in _NO_PAGE:
        return False
    text = live_server.text_of(answer, url)
    if re.search(r"^vllm:", text, re.MULTILINE) is None:
        return False
    prometheus.parse(text, source=url)
    return True


def _models(base: str, key: str | None) -> tuple[ServedModel, ...]:
    url = f"{base}/v1/models"
    authorization = f"Bearer {key}" if key else ""
    question = http.HttpRequest(url, _MODELS_BYTES, authorization=authorization, direct=True)
    answer = http.ask(question, timeout_s=live_server.TIMEOUT_S)
    served = served_models.listed(answer.content.decode("utf-8", "replace"))
    if not served:
        cure = "Is that an OpenAI-compatible server's address?"
        if answer.status in {401, 403}:
            cure = f"Set {KEY} to its key."
        raise InputError(f"{url}: answers {answer.status} and names no model", hint=cure)
    return served


def _check_idle(base: str) -> None:
    gauges = prometheus.parse(live_server.get(f"{base}/metrics", direct=True), source=base).gauges
    busy = int(gauges.get("running", 0) + gauges.get("waiting", 0))
    if busy:
        raise GateError(
            f"{base} is serving {busy} requests: what is measured beside them is theirs too",
            hint="Wait until it is idle.",
        )


def _check_same(
    profile: ServingProfile,
    served: tuple[ServedModel, ...],
    version: str | None,
) -> None:
    mismatch = served_models.model_mismatch(profile, served)
    if mismatch is not None:
        raise GateError(
            f"the server serves {mismatch.words}",
            hint="Give that model's server, or verify it all the same: --force.",
        )
    was = supported.version_in(profile.provenance.versions)
    if was is not None and version is not None and not supported.is_same(was, version):
        raise GateError(
            f"the profile was measured with vLLM {was}, the server is {version}",
            hint="Sweep with the server's vLLM, or verify it all the same: --force.",
        )


def _asked_for(served: tuple[ServedModel, ...], profile: ServingProfile) -> str:
    """Return the name by which requests ask for the profile's model."""
    same = [one for one in served if served_models.model_mismatch(profile, [one]) is None]
    return (same or list(served) or [ServedModel(profile.model)])[0].name


def _differences(profile: ServingProfile, arguments: Mapping[str, object]) -> Iterator[str]:
    for name in sorted(profile.engine.keys() & arguments.keys()):
        was, is_ = profile.engine[name], arguments[name]
        if was is not None and was != "auto" and is_ is not None and was != is_:
            yield f"the profile has {name} {was}, the server {is_}"


def _untold(profile: ServingProfile, *, version: bool) -> Iterator[str]:
    """Say what else decides how fast the server is."""
    if not version:
        yield "the server tells no version: whether it is the vLLM of the profile is not known"
    variables = profile.provenance.environment or {}
    found = [f"{name}={value}" for name, value in variables.items() if name not in WHICH_DEVICE]
    if found:
        yield (
            f"the profile was measured with {', '.join(found)} in the environment: whether the "
            "server has that it does not tell"
        )


def _counter(base: str) -> Callable[[], float]:
    def served() -> float:
        text = live_server.get(f"{base}/metrics", direct=True)
        counters = prometheus.parse(text, source=base).counters
        return counters.get("requests", 0.0)

    return served


def _whole(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default

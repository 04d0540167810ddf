"""The server behind ``tuner verify --url``: that it may be asked, and what it reports of itself."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tuner.commands.options import VerifyOptions
from tuner.engines.arguments import WHICH_DEVICE
from tuner.engines.paged import WARM_UPS
from tuner.engines.sampling import EVERYWHERE, Sampling
from tuner.engines.seam import EngineFacts
from tuner.engines.server.running import RunningServer
from tuner.engines.vllm import supported
from tuner.errors import GateError, InputError, UsageError
from tuner.live import prometheus
from tuner.live import server as live_server
from tuner.profile import served_models
from tuner.profile.profile import ServingProfile
from tuner.profile.served_models import ServedModel
from tuner.system import http

KEY = "TUNER_API_KEY"
"""Variable with the key of a server."""
_MODELS_BYTES = 8 * 2**20
_BLOCK_SIZE, _ANY_LENGTH = 16, 2**31
"""vLLM's, where a server does not report them."""
_NO_PAGE = frozenset({401, 403, 404, 405, 410, 501})
"""Statuses that servers answer for their metrics where they have none, or none for others."""


@dataclass(frozen=True, slots=True)
class FoundServer:
    """A server, before it is sent anything."""

    url: str
    model: str
    is_vllm: bool
    key: str | None
    facts: EngineFacts
    warnings: tuple[str, ...]

    def allowed(self, requests: int, send_load: int | None) -> int | None:
        """Return how many requests the server may get; None: as many as a replay takes.

        Raises UsageError for a server elsewhere that is to get more than ``--send-load`` allows.
        """
        needed = requests + WARM_UPS
        if send_load is None and http.is_loopback(self.url):
            return None
        if (send_load or 0) < needed:
            raise UsageError(
                f"{self.url} would get {needed:,} requests of this trace's load",
                hint=f"Is nobody served there who would mind? Then add --send-load {needed}.",
            )
        return send_load

    def starter(self, *, planned: int, most: int | None, sampling: Sampling) -> RunningServer:
        """Return what asks the server: one that is not vLLM knows a part of the parameters."""
        known = {k: v for k, v in sampling.items() if self.is_vllm or k in EVERYWHERE}
        return RunningServer(
            url=self.url,
            model=self.model,
            facts=self.facts,
            planned=planned,
            most=most,
            sampling=known,
            key=self.key,
            takes_ignore_eos=self.is_vllm,
            served=_counter(self.url) if self.is_vllm else None,
        )


def find(url: str, profile: ServingProfile, options: VerifyOptions) -> FoundServer:
    """Return what answers at the address. Raises UsageError, InputError, and GateError for another
    model or vLLM than the profile's, or while the server serves others."""
    base, key = live_server.base_of(url), _key()
    version, arguments = None, dict[str, object]()
    if is_vllm := _is_vllm(base):
        here = live_server.ask(base, direct=True)
        served, version, arguments = here.served, here.version, {**here.arguments}
        _check_idle(base)
    else:
        served = _models(base, key)
    if not options.force:
        _check_same(profile, served, version)
    merged = {**profile.engine, **arguments}
    lengths = [each.max_model_len for each in served if each.max_model_len is not None]
    facts = EngineFacts(
        engine="server",
        arguments={k: v for k, v in merged.items() if isinstance(v, str | int | float | bool)},
        max_model_len=min(lengths, default=_count(merged.get("max_model_len"), _ANY_LENGTH)),
        vocab_size=2**15,
        block_size=_count(merged.get("block_size"), _BLOCK_SIZE),
        kv_blocks=_count(arguments.get("num_gpu_blocks"), 0),
        start_s=0.0,
        versions={} if version is None else {"vllm": version},
        device={},
    )
    same = [each for each in served if served_models.model_mismatch(profile, [each]) is None]
    model = (same or list(served) or [ServedModel(profile.model)])[0].name
    warnings = _warnings(profile, arguments, is_vllm=is_vllm, version=version, url=base)
    return FoundServer(base, model, is_vllm, key, facts, tuple(warnings))


def _key() -> str | None:
    key = os.environ.get(KEY)
    if key is not None and not (key and key.isascii() and key.isprintable()):
        raise UsageError(f"{KEY} holds no key", hint="Set it to the server's key, or unset it.")
    return key


def _is_vllm(base: str) -> bool:
    """Whether vLLM's metrics are there; False where no page of that name is open to us.

    Raises InputError for any other answer, and for none: of a vLLM that cannot answer now, neither
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
    engines = prometheus.parse(live_server.get(f"{base}/metrics", direct=True), source=base)
    gauges = [engine.gauges for engine in engines.values()]
    busy = int(sum(gauge.get("running", 0) + gauge.get("waiting", 0) for gauge in gauges))
    if busy:
        raise GateError(
            f"{base} is serving {busy} requests: what is measured beside them is theirs too",
            hint="Wait until it is idle.",
        )


def _check_same(
    profile: ServingProfile, served: tuple[ServedModel, ...], version: str | None
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


def _warnings(
    profile: ServingProfile,
    arguments: Mapping[str, object],
    *,
    is_vllm: bool,
    version: str | None,
    url: str,
) -> Iterator[str]:
    """Yield in what the server differs from what was measured, and what is not known of it."""
    for name in sorted(profile.engine.keys() & arguments.keys()):
        was, is_ = profile.engine[name], arguments[name]
        if was is not None and was != "auto" and is_ is not None and was != is_:
            yield f"the profile has {name} {was}, the server {is_}"
    if is_vllm and version is None:
        yield "the server reports no version: whether it is the vLLM of the profile is not known"
    variables = profile.provenance.environment or {}
    given = [f"{name}={value}" for name, value in variables.items() if name not in WHICH_DEVICE]
    if given:
        yield (
            f"the profile was measured with {', '.join(given)} in the environment: whether the "
            "server has that is not known"
        )
    if not is_vllm:
        yield f"{url} exports no metrics of vLLM: only what its clients see is gated on the SLO"


def _counter(base: str) -> Callable[[], float]:
    def served() -> float:
        text = live_server.get(f"{base}/metrics", direct=True)
        engines = prometheus.parse(text, source=base).values()
        return sum(engine.counters.get("requests", 0.0) for engine in engines)

    return served


def _count(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default

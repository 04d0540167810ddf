"""A profile's meaning for one deployment: the settings to write, and what speaks against it. Pure.

How a kind of file states arguments is the business of ``tuner.rollout.targets.kinds.registry``.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

from tuner.engines.models import shipped as models
from tuner.engines.seam import ArgumentValue
from tuner.engines.vllm import supported
from tuner.engines.vllm.allowed import not_allowed
from tuner.errors import GateError, ProfileError, TargetError, UndecidedError
from tuner.profile.schema import ServingProfile
from tuner.rollout.targets.command_line import flags
from tuner.rollout.targets.seam import Arguments, Platform, Stated, Statements

OF_THE_MODEL = frozenset(
    {
        *("code_revision", "config_format", "dtype", "hf_config_path", "hf_overrides"),
        *("load_format", "max_model_len", "model", "model_impl", "quantization", "revision"),
        *("runner", "tokenizer", "tokenizer_mode", "tokenizer_revision", "trust_remote_code"),
    }
)
"""Arguments that say which model is served, not how."""

LIMITED = {
    "max_num_active_seqs": "max_num_seqs",
    "max_num_scheduled_tokens": "max_num_batched_tokens",
}
"""Arguments that lower what another one allows; vLLM refuses one that is above the other."""

OVERRULES = {
    "kv_cache_memory_bytes": "gpu_memory_utilization",
    "num_gpu_blocks_override": "gpu_memory_utilization",
}
"""Arguments beside which vLLM ignores another one for the size of the KV cache."""


NUMERICS: dict[str, ArgumentValue] = {
    "kv_cache_dtype": "auto",
    "pipeline_parallel_size": 1,
    "quantization": None,
    "revision": None,
    "tensor_parallel_size": 1,
}
"""Arguments that a measurement stands and falls with → what vLLM takes where nothing is said."""

_SPREADS = frozenset({"pipeline_parallel_size", "tensor_parallel_size"})
"""Those of NUMERICS that a deployment decides also where it does not state them: it has one GPU for
a server."""

_SERVED: dict[str, ArgumentValue] = {
    "load_format": "auto",
    "revision": None,
    "runner": "auto",
    "tokenizer": None,
    "tokenizer_revision": None,
}
"""Other arguments that say what is served → what vLLM takes where nothing is said. They are not a
profile's to choose: whoever made it would choose weights and tokenizer."""

OF_SIMULATION = frozenset({"max_num_seqs"})
"""Arguments of which a simulated engine can tell for a real one. Its ``max_num_batched_tokens`` is
the simulated machine's own: what is deployed keeps the one that its prompts need."""

Part = Literal["traffic", "choice", "memory"]
_HOLDS: dict[str, frozenset[Part]] = {
    "driver": frozenset({"traffic", "choice", "memory"}),
    "revision": frozenset({"traffic", "choice", "memory"}),
}
"""What differs → what of the profile holds all the same; of anything else only the traffic."""


SIMULATED = (
    "the profile was measured on a simulated engine: good for trying out how a rollout goes, not "
    "for a server"
)


@dataclass(frozen=True, slots=True)
class LocalMachine:
    """This machine, as a server would find it."""

    vllm: str | None
    """Version; None where vLLM is not installed."""

    gpu: str | None
    """Name; None where vLLM would run on the CPU."""

    driver: str | None = None

    @classmethod
    def of(cls, vllm: str | None, device: Mapping[str, object]) -> Self:
        """Return the machine that has this vLLM and this device."""
        if device.get("kind") != "gpu":
            return cls(vllm, None)
        driver = device.get("driver")
        return cls(vllm, str(device.get("name")), None if driver is None else str(driver))


@dataclass(frozen=True, slots=True)
class Deployment:
    """A file's statements, and where it is used."""

    stated: Statements
    source: str
    platform: Platform = field(default_factory=Platform)
    machine: LocalMachine | None = None
    """This one; None for a file that is meant for others."""

    is_new: bool = False
    """There is no file yet."""

    model_is: str | None = None
    """What whoever applies the profile says that the file's model is."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """In what the deployment is not what the profile was measured on."""

    subject: str
    """``model``, ``gpu``, ``driver``, ``vllm``, ``origin``, or an engine argument."""

    words: str


def settings(profile: ServingProfile, *, live_knob: bool) -> dict[str, ArgumentValue]:
    """Return the engine arguments to deploy, the shipped model by its path.

    What a profile may not set is left out, and of a simulated one all but the cap. With
    ``live_knob`` the server is built for the largest cap that was measured and admits only the
    chosen one: exactly what the ladder measured, at the price of memory for the larger cap.

    Raises InputError for a model that should ship and does not, ProfileError where the token budget
    is too small for the larger cap.
    """
    engine: dict[str, ArgumentValue] = dict(profile.engine)  # type: ignore[arg-type]
    left = {*left_out(profile)}
    arguments = {name: value for name, value in engine.items() if name not in left}
    if "model" not in left:
        arguments["model"] = models.model_path(profile.model)
    if live_knob:
        chosen, tokens = profile.decision.max_num_seqs, engine["max_num_batched_tokens"]
        built_for = max(
            [chosen, *(one.max_num_seqs for one in profile.curve if one.source != "twin")]
        )
        arguments |= {"max_num_seqs": built_for, "max_num_active_seqs": chosen}
        if not isinstance(tokens, int) or built_for > tokens:
            raise ProfileError(
                f"engine.max_num_batched_tokens: is {tokens}, less than the {built_for} "
                "sequences that the ladder was built for",
                hint="Apply it without --live-knob.",
            )
    return arguments


def to_paste(profile: ServingProfile, *, source: str) -> list[str]:
    """Return the words of vLLM's flags, to be pasted behind a model that is there already.

    ``source``: the profile's path. Raises TargetError for what a command line cannot carry.
    """
    arguments = settings(profile, live_knob=False)
    own = {name: value for name, value in arguments.items() if name != "model"}
    return [word for group in flags.added((), own, source=source) for word in group]


def left_out(profile: ServingProfile) -> dict[str, str]:
    """Return the arguments of a profile that are written nowhere, and why.

    A profile may be somebody else's: what loads code, opens files, ports or addresses is not its to
    set. A simulated engine tells of the cap, and of nothing else.
    """
    engine: dict[str, ArgumentValue] = dict(profile.engine)  # type: ignore[arg-type]
    found = dict.fromkeys(not_allowed(engine), "is not a profile's to set")
    if profile.provenance.engine == "sim":
        is_shipped = models.model_path(profile.model) != profile.model
        kept = OF_SIMULATION if is_shipped else OF_SIMULATION | {"model"}
        found |= dict.fromkeys(engine.keys() - kept, "was simulated")
    return found


def check_visible(profile: ServingProfile) -> None:
    """Refuse a profile whose values hold characters that change what is seen of the others.

    Raises ProfileError.
    """
    for name, value in profile.engine.items():
        if any(not one.isprintable() for one in str(value)):
            raise ProfileError(
                f"engine.{name}: holds a character that cannot be seen",
                hint="Write the value without it; whoever reviews the deployment would not see it.",
            )


def check_together(stated: Statements, arguments: Arguments, *, source: str) -> None:
    """Refuse a file whose other arguments would undo the profile's. Raises TargetError."""
    for name, limited in LIMITED.items():
        found, wanted = stated.get(name), arguments.get(limited)
        if found is not None and name not in arguments and str(found.value) != str(wanted):
            raise TargetError(
                f"{source}:{found.line}: {name} is {found.value}, but the profile was measured "
                f"with {limited} {wanted} and nothing below it",
                hint=f"Remove {name} from the file"
                + (", or pass --live-knob." if name == "max_num_active_seqs" else "."),
            )
    tokens, cap = stated.get("max_num_batched_tokens"), arguments.get("max_num_seqs")
    if tokens is not None and "max_num_batched_tokens" not in arguments and _below(tokens, cap):
        raise TargetError(
            f"{source}:{tokens.line}: max_num_batched_tokens is {tokens.value}, less than the "
            f"max_num_seqs {cap} of the profile: vLLM would not start",
            hint="Raise it in the file first; a simulated profile has none to give it.",
        )
    for name, ignored in OVERRULES.items():
        found = stated.get(name)
        if found is not None and name not in arguments and arguments.get(ignored) is not None:
            raise TargetError(
                f"{source}:{found.line}: {name} is set, and vLLM would then ignore {ignored}",
                hint=f"Remove {name} from the file, or sweep with --base {source}.",
            )


def _below(tokens: Stated, cap: ArgumentValue) -> bool:
    return isinstance(tokens.value, int) and isinstance(cap, int) and tokens.value < cap


def model_mismatch(profile: ServingProfile, here: Deployment) -> str | None:
    """Return, in words, that the deployment serves another model, or one that cannot be told.

    None where it is the profile's, or where there is no file yet.
    """
    found = here.stated.get("model")
    if found is None:
        return None if here.is_new else f"model {profile.model}, {here.source} names none"
    place = _at(here.source, found)
    if found.unknown:
        return f"model {profile.model}, {place} has {found.value}, which {found.unknown}"
    if is_model_of(profile, str(found.value)):
        return None
    return f"model {profile.model}, {place} has {found.value}"


def is_model_of(profile: ServingProfile, name: str) -> bool:
    """Whether a name is one of the profile's model."""
    return name in {profile.model, models.model_path(profile.model), profile.provenance.model}


def mismatches(profile: ServingProfile, here: Deployment) -> list[Mismatch]:
    """Return the ways in which a deployment is not what the profile was measured on.

    A machine without vLLM will not serve: the file is for another one, and it alone counts.
    """
    found = list(_of_file(profile, here))
    if profile.provenance.engine != "sim":
        found += _of_origin(profile)
        found += _of_platform(profile, here)
        if here.machine is not None and here.machine.vllm:
            found += _of_machine(profile, here.machine)
    return found


def _of_origin(profile: ServingProfile) -> Iterator[Mismatch]:
    """Yield what a profile does not say of where it was measured: then it cannot be held against
    anything."""
    silent = [
        what
        for what, facts in (
            ("device", profile.provenance.device),
            ("vLLM", _vllm(profile)),
        )
        if not facts
    ]
    if silent:
        yield Mismatch("origin", f"no {' and no '.join(silent)}: the profile does not say which")


def _of_platform(profile: ServingProfile, here: Deployment) -> Iterator[Mismatch]:
    vllm, gpu = _vllm(profile), _gpu(profile)
    found = here.platform.vllm
    if vllm and found and not supported.is_same(vllm, str(found.value)):
        place = _at(here.source, found)
        yield Mismatch("vllm", f"vLLM {vllm}, {place} has {found.value}")
    found = here.platform.gpu
    if profile.provenance.device and found and _label(gpu or "") != _label(str(found.value)):
        words = f"{gpu or 'a CPU'}, {_at(here.source, found)} has {found.value}"
        yield Mismatch("gpu", words)


def _of_machine(profile: ServingProfile, machine: LocalMachine) -> Iterator[Mismatch]:
    vllm, gpu, device = _vllm(profile), _gpu(profile), profile.provenance.device
    if vllm and machine.vllm and not supported.is_same(vllm, machine.vllm):
        yield Mismatch("vllm", f"vLLM {vllm}, here is {machine.vllm}")
    if device and gpu != machine.gpu:
        yield Mismatch("gpu", f"{gpu or 'a CPU'}, here is {machine.gpu or 'a CPU'}")
    driver = device.get("driver")
    if driver and machine.driver and gpu == machine.gpu and driver != machine.driver:
        yield Mismatch("driver", f"driver {driver}, here is {machine.driver}")


def _vllm(profile: ServingProfile) -> str | None:
    return supported.version_in(profile.provenance.versions)


def _gpu(profile: ServingProfile) -> str | None:
    device = profile.provenance.device
    return str(device.get("name", "an unnamed GPU")) if device.get("kind") == "gpu" else None


def _of_file(profile: ServingProfile, here: Deployment) -> Iterator[Mismatch]:
    stated, source = here.stated, here.source
    another = model_mismatch(profile, here)
    if another is not None and here.model_is is None:
        yield Mismatch("model", another)
    for name, default in NUMERICS.items():
        wanted, found = profile.engine.get(name, default), stated.get(name)
        if found is not None and (found.unknown or str(found.value) != str(wanted)):
            why = f", which {found.unknown}" if found.unknown else ""
            words = f"{name} {wanted}, {_at(source, found)} has {found.value}{why}"
            yield Mismatch(name, words)
        elif found is None and name in _SPREADS and wanted != default and not here.is_new:
            yield Mismatch(name, f"{name} {wanted}, {source} has {default}")
    if another is None or here.model_is is not None:
        yield from _of_served(profile, here)


def _of_served(profile: ServingProfile, here: Deployment) -> Iterator[Mismatch]:
    """Yield what a profile says of what is served, and its deployment does not."""
    written = profile.engine.keys() - left_out(profile).keys()
    for name, default in _SERVED.items():
        found = here.stated.get(name)
        is_told = found is not None and name in NUMERICS  # has been compared
        is_needed = name == "load_format" and models.is_shipped(profile.model)
        if name not in written or is_told or is_needed or (found is None and here.is_new):
            continue
        wanted, has = profile.engine[name], default if found is None else found.value
        unknown = "" if found is None else found.unknown
        if unknown or str(has) != str(default if wanted is None else wanted):
            place = here.source if found is None else _at(here.source, found)
            why = f", which {unknown}" if unknown else ""
            yield Mismatch(name, f"{name} {wanted}, {place} has {_or_none(has)}{why}")


def _or_none(value: ArgumentValue) -> ArgumentValue:
    return "none" if value is None else value


def _at(source: str, stated: Stated) -> str:
    """Return the place in a file; a server has no lines."""
    return f"{source}:{stated.line}" if stated.line else source


def refusal(profile: ServingProfile, found: Sequence[Mismatch]) -> GateError | None:
    """Return the refusal, with what does not fit and what still holds; None where all fits."""
    if not found:
        return None
    parts = frozenset.intersection(
        *(_HOLDS.get(one.subject, frozenset({"traffic"})) for one in found)
    )
    peak = profile.validity.peak_concurrency
    words: dict[Part, str] = {
        "traffic": "what the traffic asks for"
        + ("" if peak is None else f" ({peak} requests at a time at most)"),
        "choice": f"max_num_seqs {profile.decision.max_num_seqs}",
        "memory": "the size of the KV cache",
    }
    holds = ", ".join(text for part, text in words.items() if part in parts)
    named = f" If it is that model: --model-is {shlex.quote(profile.model)}."
    by_model = {one.subject for one in found} == {"model"}
    return GateError(
        f"the profile was measured elsewhere: {'; '.join(one.words for one in found)}",
        hint=f"Still holds: {holds}.{named if by_model else ''} Sweep there, or pass --force: what "
        "is deployed then keeps its own of these, and the override is recorded.",
    )


def cautions(
    profile: ServingProfile, found: Sequence[Mismatch], here: Deployment | None = None
) -> tuple[str, ...]:
    """Return what to beware of when the profile is rolled out all the same."""
    warnings = []
    if (said := profile.provenance.of_ranks) is not None:
        warnings.append(said)
    if found:
        what = "; ".join(one.words for one in found)
        warnings.append(f"the profile was measured elsewhere: {what}")
    if here is not None and profile.provenance.engine != "sim":
        warnings += _not_compared(profile, here)
    if here is not None:
        warnings += _left_alone(profile)
    if profile.provenance.engine == "sim":
        warnings.append(SIMULATED)
    if profile.decision.verdict in ("overloaded", "inconclusive"):
        warnings.append(verdict(profile))
    return tuple(warnings)


def _left_alone(profile: ServingProfile) -> Iterator[str]:
    left = [name for name, why in left_out(profile).items() if why == "is not a profile's to set"]
    if left:
        yield (
            f"not a profile's to set, and left as the deployment has it: {', '.join(sorted(left))}"
        )


def _not_compared(profile: ServingProfile, here: Deployment) -> Iterator[str]:
    vllm, image = _vllm(profile), here.platform.image
    if vllm and image is not None:
        place = _at(here.source, image)
        which = f"{str(image.value)[:200]} does not tell" if image.value else "no image tells"
        yield (
            f"{place}: {which} which vLLM will serve; the profile was measured with {vllm}, "
            "make sure that it is that"
        )


def verdict(profile: ServingProfile) -> str:
    """Return verdict and reason; most reasons begin with the verdict already."""
    word, reason = profile.decision.verdict, profile.decision.reason
    return reason if reason.startswith(word) else f"{word}: {reason}"


def undecided(profile: ServingProfile, *, source: str, force: bool) -> UndecidedError | None:
    """Return the refusal of a profile without a verdict; None of another, or where it is forced."""
    if profile.decision.verdict != "inconclusive" or force:
        return None
    return UndecidedError(
        f"{source}: {verdict(profile)}",
        hint="Sweep with a larger --budget; --force applies max_num_seqs "
        f"{profile.decision.max_num_seqs}, which is safe but not shown to be best.",
    )


def of_the_file(found: Sequence[Mismatch]) -> frozenset[str]:
    """Return the arguments that an overridden refusal leaves as the file has them."""
    subjects = {one.subject for one in found}
    own = subjects & (NUMERICS.keys() | _SERVED.keys())
    return (OF_THE_MODEL if "model" in subjects else frozenset()) | own


def _label(name: str) -> str:
    """Return a GPU's name as node labels spell it."""
    return name.replace(" ", "-").lower()

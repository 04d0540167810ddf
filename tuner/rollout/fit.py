"""A profile's meaning for one deployment: what to write, and what speaks against it. Pure."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from tuner.engines.arguments import ArgumentValue
from tuner.engines.models import shipped as models
from tuner.engines.vllm import supported
from tuner.engines.vllm.allowed import not_allowed
from tuner.errors import GateError, ProfileError, TargetError, UndecidedError
from tuner.profile.schema import ServingProfile
from tuner.rollout.edit import alike, spelled
from tuner.rollout.server import Arguments
from tuner.rollout.words import is_elsewhere

OF_THE_MODEL = {
    *("code_revision", "config_format", "dtype", "hf_config_path", "hf_overrides"),
    *("load_format", "max_model_len", "model", "model_impl", "quantization", "revision"),
    *("runner", "tokenizer", "tokenizer_mode", "tokenizer_revision", "trust_remote_code"),
}
"""Arguments that say which model is served, not how."""

UNDONE_BY = {
    "max_num_active_seqs": "max_num_seqs",
    "max_num_scheduled_tokens": "max_num_batched_tokens",
    "kv_cache_memory_bytes": "gpu_memory_utilization",
    "num_gpu_blocks_override": "gpu_memory_utilization",
}
"""Arguments that lower what another one allows, or beside which vLLM ignores it."""

_MEMORY = {"kv_cache_memory_bytes", "num_gpu_blocks_override"}

NUMERICS: dict[str, ArgumentValue] = {
    "kv_cache_dtype": "auto",
    "pipeline_parallel_size": 1,
    "quantization": None,
    "revision": None,
    "tensor_parallel_size": 1,
}
"""Arguments that a measurement stands and falls with → what vLLM takes where nothing is said."""

_SPREADS = {"pipeline_parallel_size", "tensor_parallel_size"}
"""Those that a deployment decides also where it does not state them: a server has one GPU."""

_SERVED: dict[str, ArgumentValue] = {
    "load_format": "auto",
    "revision": None,
    "runner": "auto",
    "tokenizer": None,
    "tokenizer_revision": None,
}
"""Arguments that say what is served: whoever made a profile may not choose weights or tokenizer."""

LOW_CONFIDENCE = 0.8
"""Below this, applying a profile warns: one answer in five would be another one."""

SIMULATED = (
    "the profile was measured on a simulated engine: good for trying out how a rollout goes, not "
    "for a server"
)


@dataclass(frozen=True)
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


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """What a file or a server says of itself, and where it runs; None where it says nothing."""

    arguments: Arguments
    source: str
    place: Callable[[str], str] | None = None
    """Returns where something of it stands: ``serve.yaml:7``."""

    vllm: str | None = None
    gpu: str | None = None
    image: str | None = None
    """An image whose name does not tell vLLM's version; empty where the file names none."""

    machine: LocalMachine | None = None
    """This one; None for a file that is meant for others."""

    is_new: bool = False
    """There is no file yet, or a server that tells only what it tells."""

    model_is: str | None = None
    """What whoever applies the profile says that the file's model is."""

    def at(self, needle: str) -> str:
        """Return the place of an argument, or of another part of the text."""
        return self.place(needle) if self.place and needle else self.source


@dataclass(frozen=True)
class Mismatch:
    """In what the deployment is not what the profile was measured on."""

    subject: str
    """``model``, ``gpu``, ``driver``, ``vllm``, ``origin``, or an engine argument."""

    words: str


# What to write


def settings(profile: ServingProfile, *, live_knob: bool = False) -> dict[str, ArgumentValue]:
    """Return the engine arguments of a profile that may be deployed, the shipped model by its path.

    With ``live_knob`` the server is built for the largest cap that was measured and admits only the
    chosen one. Raises InputError for a model that should ship and does not, ProfileError where the
    token budget is too small for the larger cap.
    """
    left = left_out(profile)
    arguments = {name: value for name, value in profile.engine.items() if name not in left}
    if "model" in arguments:
        arguments["model"] = models.model_path(profile.model)
    if live_knob:
        chosen, tokens = profile.decision.max_num_seqs, profile.engine["max_num_batched_tokens"]
        measured = [each.max_num_seqs for each in profile.curve if each.source != "twin"]
        arguments |= {"max_num_seqs": max(chosen, *measured, 0), "max_num_active_seqs": chosen}
        if not isinstance(tokens, int) or max(chosen, *measured, 0) > tokens:
            raise ProfileError(
                f"engine.max_num_batched_tokens: {tokens} is less than the ladder's largest cap",
                hint="Apply the profile without --live-knob.",
            )
    return arguments  # type: ignore[return-value]


def wanted(
    profile: ServingProfile, present: Arguments, *, pin: bool, live_knob: bool
) -> dict[str, ArgumentValue]:
    """Return what is written into a file with these arguments.

    That is the cap, what the file says otherwise, and what the user or ``tuner refine`` chose; with
    ``pin`` every argument. The model is the file's own.
    """
    every = settings(profile, live_knob=live_knob)
    every.pop("model", None)
    if pin:
        return every
    cap = {"max_num_seqs", "max_num_active_seqs"}
    return {
        name: value
        for name, value in every.items()
        if name in cap or name in present or name in profile.provenance.given
    }


def to_paste(profile: ServingProfile, *, pin: bool = False) -> list[str]:
    """Return the words of vLLM's flags, to be pasted behind a model that is there already."""
    arguments = wanted(profile, {}, pin=pin, live_knob=False)
    return [word for name, value in arguments.items() for word in spelled(name, value)]


def left_out(profile: ServingProfile) -> set[str]:
    """Return the arguments of a profile that are written nowhere.

    A profile may be somebody else's: what loads code, opens files, ports or addresses is not its to
    set. A simulated engine tells of the cap, and of nothing else.
    """
    if profile.provenance.engine == "sim":
        kept = {"max_num_seqs"} if models.is_shipped(profile.model) else {"max_num_seqs", "model"}
        return profile.engine.keys() - kept
    return set(not_allowed(dict(profile.engine)))  # type: ignore[arg-type]


def check_visible(profile: ServingProfile) -> None:
    """Refuse a profile whose values hold characters that change what is seen of the others.

    Raises ProfileError.
    """
    for name, value in profile.engine.items():
        if any(not each.isprintable() for each in str(value)):
            raise ProfileError(
                f"engine.{name}: holds a character that cannot be seen",
                hint="Write the value without it; whoever reviews the deployment would not see it.",
            )


# What speaks against it


def clash(here: Deployment, written: Arguments) -> TargetError | None:
    """Return why the file's other arguments would undo those of the profile, even if forced."""
    for name, undone in UNDONE_BY.items():
        has, wants = here.arguments.get(name), written.get(undone)
        if has is None or name in written or wants is None or alike(has, wants):
            continue
        what = "vLLM would then ignore" if name in _MEMORY else "that lowers"
        return TargetError(
            f"{here.at(name)}: {name} is {has}, and {what} {undone} {wants}",
            hint=f"Remove {name} from the file"
            + (", or pass --live-knob." if name == "max_num_active_seqs" else "."),
        )
    tokens, cap = here.arguments.get("max_num_batched_tokens"), written.get("max_num_seqs")
    is_left = "max_num_batched_tokens" not in written
    if is_left and isinstance(tokens, int) and isinstance(cap, int) and tokens < cap:
        return TargetError(
            f"{here.at('max_num_batched_tokens')}: max_num_batched_tokens is {tokens}, less "
            f"than the max_num_seqs {cap} of the profile: vLLM would not start",
            hint="Raise it in the file first.",
        )
    return None


def model_mismatch(profile: ServingProfile, here: Deployment) -> str | None:
    """Return that the deployment serves another model, or that its model is unknown.

    None where it is the profile's, or where there is no file yet.
    """
    found = here.arguments.get("model")
    if found is None:
        return None if here.is_new else f"model {profile.model}, {here.source} names none"
    if is_model_of(profile, str(found)):
        return None
    unknown = ", which is decided elsewhere" if is_elsewhere(found) else ""
    return f"model {profile.model}, {here.at('model')} has {found}{unknown}"


def is_model_of(profile: ServingProfile, name: str) -> bool:
    """Whether a name is one of the profile's model."""
    return name in {profile.model, models.model_path(profile.model), profile.provenance.model}


def mismatches(profile: ServingProfile, here: Deployment) -> list[Mismatch]:
    """Return the ways in which a deployment is not what the profile was measured on."""
    found = list(_of_arguments(profile, here))
    if profile.provenance.engine != "sim":
        found += _of_origin(profile, here)
    return found


def _of_arguments(profile: ServingProfile, here: Deployment) -> Iterator[Mismatch]:
    """Yield where the deployment sets otherwise what it serves, or its numerics."""
    other_model = model_mismatch(profile, here) if here.model_is is None else None
    if other_model is not None:
        yield Mismatch("model", other_model)
    written = profile.engine.keys() - left_out(profile)
    if models.is_shipped(profile.model):
        written -= {"load_format"}
    for name, default in (NUMERICS | _SERVED).items():
        is_there = name in here.arguments
        is_compared = name in NUMERICS and (is_there or name in _SPREADS)
        is_compared |= name in _SERVED and name in written and other_model is None
        if not is_compared or (here.is_new and not is_there):
            continue
        has, wants = here.arguments.get(name, default), profile.engine.get(name, default)
        wants = default if wants is None else wants
        if is_elsewhere(has) or not alike(has, wants):
            shown = ["none" if value is None else value for value in (wants, has)]
            place = here.at(name) if is_there else here.source
            yield Mismatch(name, f"{name} {shown[0]}, {place} has {shown[1]}")


def _of_origin(profile: ServingProfile, here: Deployment) -> Iterator[Mismatch]:
    """Yield where another vLLM or another device will serve. A profile that does not say what it
    was measured on cannot be compared with anything."""
    device = profile.provenance.device
    vllm = supported.version_in(profile.provenance.versions)
    gpu = str(device.get("name", "an unnamed GPU")) if device.get("kind") == "gpu" else None
    silent = [what for what, facts in (("device", device), ("vLLM", vllm)) if not facts]
    if silent:
        yield Mismatch("origin", f"no {' and no '.join(silent)}: the profile does not say which")
    machine = here.machine if here.machine is not None and here.machine.vllm else None
    there = [(here.vllm, f"{here.at(here.vllm or '')} has")]
    there += [(machine.vllm, "here is")] if machine else []
    for version, where in there:
        if vllm and version and not supported.is_same(vllm, version):
            yield Mismatch("vllm", f"vLLM {vllm}, {where} {version}")
    if device and here.gpu and _label(gpu or "") != _label(here.gpu):
        yield Mismatch("gpu", f"{gpu or 'a CPU'}, {here.at(here.gpu)} has {here.gpu}")
    if machine is not None and device and gpu != machine.gpu:
        yield Mismatch("gpu", f"{gpu or 'a CPU'}, here is {machine.gpu or 'a CPU'}")
    elif machine is not None and device.get("driver") not in {None, machine.driver}:
        yield Mismatch("driver", f"driver {device['driver']}, here is {machine.driver}")


def _label(name: str) -> str:
    """Return a GPU's name as node labels spell it; NVIDIA's plug-in marks a shared one."""
    return name.replace(" ", "-").lower().removesuffix("-shared")


def refusal(profile: ServingProfile, found: Sequence[Mismatch]) -> GateError | None:
    """Return the refusal of what does not fit; None where all fits."""
    if not found:
        return None
    by_model = {each.subject for each in found} == {"model"}
    named = f"If it is that model: --model-is {shlex.quote(profile.model)}. " if by_model else ""
    return GateError(
        f"the profile was measured elsewhere: {'; '.join(each.words for each in found)}",
        hint=f"{named}Sweep there, or pass --force: what is deployed then keeps its own of these, "
        "on record.",
    )


def cautions(
    profile: ServingProfile, found: Sequence[Mismatch], here: Deployment | None = None
) -> tuple[str, ...]:
    """Return the warnings for when the profile is rolled out all the same."""
    warnings = [ranks] if (ranks := profile.provenance.of_ranks) is not None else []
    if found:
        what = "; ".join(each.words for each in found)
        warnings.append(f"the profile was measured elsewhere: {what}")
    is_simulated = profile.provenance.engine == "sim"
    vllm = supported.version_in(profile.provenance.versions)
    if here is not None and here.image is not None and vllm and not is_simulated:
        which = f"{here.image[:200]} does not tell" if here.image else "no image tells"
        warnings.append(
            f"{here.at(here.image)}: {which} which vLLM will serve; the profile was measured with "
            f"{vllm}"
        )
    if here is not None and not is_simulated and (left := sorted(left_out(profile))):
        warnings.append(f"not a profile's to set, and left as the file has it: {', '.join(left)}")
    if is_simulated:
        warnings.append(SIMULATED)
    confidence = profile.decision.confidence
    if profile.decision.verdict in {"overloaded", "inconclusive"}:
        warnings.append(verdict(profile))
    elif confidence < LOW_CONFIDENCE:
        warnings.append(f"the confidence in {profile.decision.max_num_seqs} is {confidence:.2f}")
    return tuple(warnings)


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


def of_the_file(found: Sequence[Mismatch]) -> set[str]:
    """Return the arguments that an overridden refusal leaves as the file has them."""
    subjects = {each.subject for each in found}
    own = subjects & (NUMERICS.keys() | _SERVED.keys())
    return (OF_THE_MODEL if "model" in subjects else set()) | own

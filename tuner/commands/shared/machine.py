"""Where the engines of a command run, and whether a profile was measured there."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.engines import devices, provenance
from tuner.engines.models import shipped as models
from tuner.engines.seam import ArgumentValue, Starter
from tuner.engines.vllm.start import VllmStarter, default_log
from tuner.errors import GateError, UsageError
from tuner.profile.profile import ServingProfile
from tuner.replay.soundness import Read

if TYPE_CHECKING:
    from tuner.engines.sim.start import SimStarter

Arguments = Mapping[str, Any]
"""Engine arguments by vLLM's names."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that tuner runs on or, with ``--world``, a simulated one."""

    device: Mapping[str, ArgumentValue]
    versions: Mapping[str, str]
    world: "SimStarter | None" = None
    sampling: Mapping[str, float] | None = None

    @property
    def read(self) -> Read | None:
        """What reads the device while it is replayed on."""
        return devices.DeviceMeter().read if self.world is None else None

    def starter(
        self, engine: Arguments, changes: Arguments | None = None, *, log: Path | None = None
    ) -> Starter:
        """Return what starts engines with a profile's arguments and these changed. A simulated
        engine takes few of them."""
        if self.world is not None:
            from tuner.engines.sim.start import VARIABLE  # noqa: PLC0415 - numba

            engine = {name: engine[name] for name in VARIABLE if name in engine}
        merged = {**engine, **(changes or {})}
        given = {k: v for k, v in merged.items() if k != "max_num_seqs" and v is not None}
        if self.world is not None:
            return self.world.varied(given)
        return VllmStarter(given, log or default_log(), sampling=self.sampling)


def machine_of(
    options: Any,  # noqa: ANN401 - any command's with --world and --set
    model: str | None,
    sampling: Mapping[str, float] | None = None,
) -> Machine:
    """Return where the engines of a command run. Raises UsageError."""
    if options.world is None:
        return Machine(devices.device_facts(), provenance.versions(), sampling=sampling)
    if options.overrides or getattr(options, "base", None):
        raise UsageError(
            "--set and --base are for a real engine", hint="Write it into the world file."
        )
    from tuner.engines.sim.start import SimStarter  # noqa: PLC0415 - numba
    from tuner.engines.sim.world import read_world  # noqa: PLC0415

    world = SimStarter(read_world(options.world), model=model)
    return Machine(world.device, world.versions, world)


def differs(profile: ServingProfile, here: Machine) -> tuple[str, object, object] | None:
    """Return in what this is another machine or vLLM than the profile was measured with: what, as
    it was, as it is."""
    measured = profile.provenance
    for key in ("name", "digest"):
        was, is_ = measured.device.get(key), here.device.get(key)
        if was != is_:
            return key, was, is_
    before, now = map(provenance.vllm_in, (measured.versions, here.versions))
    same = before == now or (before and now and provenance.is_same(before, now))
    return None if same else ("vllm", before, now)


def check_machine(profile: ServingProfile, here: Machine) -> None:
    """Refuse to compare another machine with this profile's promise, before anything starts there.

    Raises GateError for another device, another vLLM, or other files of the model.
    """
    was_simulated, is_simulated = (
        str(device.get("name")).startswith("simulated:")
        for device in (profile.provenance.device, here.device)
    )
    if not was_simulated and not is_simulated and provenance.vllm_in(here.versions) is None:
        return  # no engine will start, which says how vLLM is installed
    if (difference := differs(profile, here)) is None:
        was = profile.provenance.model_digest
        is_ = None if is_simulated else provenance.model_digest(models.model_path(profile.model))
        if None not in {was, is_} and was != is_:
            raise GateError(
                "the profile was measured with other files of its model than are here",
                hint="Sweep with these, or use the profile here anyway: --force.",
            )
        return
    cure = "Sweep on this machine"
    if was_simulated != is_simulated:
        cure = "Add --world FILE" if was_simulated else "Drop --world"
    raise GateError(
        "the profile was measured with {} {}, here it is {}".format(*difference),
        hint=f"{cure}, or use the profile here anyway: --force.",
    )

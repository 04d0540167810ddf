"""Where the engines of a command run, and whether a profile may be used there: measured on the same
machine, and with nothing set that only the user may ask for."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.engines import devices, provenance
from tuner.engines.arguments import not_allowed, same
from tuner.engines.models import shipped as models
from tuner.engines.seam import ArgumentValue, Starter
from tuner.engines.vllm.start import VllmStarter, default_log
from tuner.errors import GateError, ProfileError, UsageError
from tuner.profile.profile import ServingProfile
from tuner.replay.soundness import Read

if TYPE_CHECKING:
    from tuner.engines.sim.start import SimStarter

Arguments = Mapping[str, Any]
"""Engine arguments by vLLM's names."""
MOST_SHOWN = 100
"""Characters of an argument that somebody else wrote."""


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
    options: Any,  # noqa: ANN401 - any command's with --world
    model: str | None,
    sampling: Mapping[str, float] | None = None,
) -> Machine:
    """Return where the engines of a command run. Raises UsageError."""
    if options.world is None:
        return Machine(devices.device_facts(), provenance.versions(), sampling=sampling)
    if any(getattr(options, name, None) for name in ("overrides", "base")):
        raise UsageError(
            "--set and --base are for a real engine", hint="Write it into the world file."
        )
    world = simulated(options.world, model)
    return Machine(world.device, world.versions, world)


def simulated(world: Path, model: str | None, *, ranks: int = 1) -> "SimStarter":
    """Return what starts engines of a simulated machine. Raises InputError."""
    from tuner.engines.sim.start import SimStarter  # noqa: PLC0415 - numba
    from tuner.engines.sim.world import read_world  # noqa: PLC0415

    return SimStarter(read_world(world), model=model, ranks=ranks)


def machine_for(options: Any, profile: ServingProfile) -> Machine:  # noqa: ANN401 - also --trust
    """Return where engines with a profile's arguments run. Raises UsageError, ProfileError,
    GateError."""
    machine = machine_of(options, profile.model, profile.sampling)
    if options.world is None and not options.trust:
        check_arguments(profile, options.profile)
    if not options.force:
        check_machine(profile, machine)
    return machine


def differs(profile: ServingProfile, here: Machine) -> tuple[str, object, object] | None:
    """Return in what this is another machine, vLLM or model than the profile was measured with:
    what, as it was, as it is."""
    measured = profile.provenance
    before, now = map(provenance.vllm_in, (measured.versions, here.versions))
    if before and now and provenance.is_same(before, now):
        now = before
    was = is_ = measured.model_digest
    if was is not None and not _is_simulated(here.device):
        is_ = provenance.model_digest(models.model_path(profile.model)) or was
    facts = [(key, measured.device.get(key), here.device.get(key)) for key in ("name", "digest")]
    facts += [("vllm", before, now), ("files of the model", was, is_)]
    return next((each for each in facts if each[1] != each[2]), None)


def check_machine(profile: ServingProfile, here: Machine) -> None:
    """Raise GateError where a profile's promise would be compared with another device, another
    vLLM, or other files of the model, before anything starts there."""
    is_simulated = any(map(_is_simulated, (profile.provenance.device, here.device)))
    if not is_simulated and provenance.vllm_in(here.versions) is None:
        return  # no engine will start, which says how vLLM is installed
    if (difference := differs(profile, here)) is not None:
        raise GateError(
            "the profile was measured with {} {}, here it is {}".format(*difference),
            hint="Sweep here, add or drop --world, or use the profile here anyway: --force.",
        )


def _is_simulated(device: Mapping[str, object]) -> bool:
    return str(device.get("name")).startswith("simulated:")


def check_arguments(
    profile: ServingProfile, source: Path, *, confirmed: Arguments | None = None
) -> None:
    """Raise ProfileError for what a profile sets and only the user may, unless it is
    ``confirmed``."""
    engine, same_here = profile.engine, confirmed or {}
    refused = [
        f"{name}={json.dumps(engine[name])}"[:MOST_SHOWN]
        for name in not_allowed(engine)
        if name not in same_here or not same(same_here[name], engine[name])
    ]
    if refused:
        raise ProfileError(
            f"{source}: engine: {', '.join(refused)}: may load code, open files or addresses, or "
            "send data, and whoever made the profile wrote it",
            hint="If you trust all of it: "
            + ("--trust." if confirmed is None else "give it to --base or --set too."),
        )

"""What starts engines with a profile's arguments and some of them changed.

Plain values, that go to another process as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.engines.seam import ArgumentValue, Starter
from tuner.engines.vllm.start import VllmStarter
from tuner.runs.refine.knobs import CAP, Configuration

if TYPE_CHECKING:
    from tuner.engines.sim.start import SimStarter


@dataclass(frozen=True, slots=True)
class SimVary:
    """See bench.Vary; on one simulated machine."""

    machine: "SimStarter"
    arguments: Mapping[str, ArgumentValue]
    """Those of the profile that a simulated engine has."""

    def __call__(self, one: Configuration) -> Starter:
        return self.machine.varied(_changed(self.arguments, one))


@dataclass(frozen=True, slots=True)
class VllmVary:
    """See bench.Vary."""

    arguments: Mapping[str, ArgumentValue]
    log: list[Path] = field(default_factory=list)
    """Where vLLM speaks to: the last one, once there is one."""

    def __call__(self, one: Configuration) -> Starter:
        return VllmStarter(_changed(self.arguments, one), log=self.log[-1] if self.log else None)


def _changed(arguments: Mapping[str, ArgumentValue], one: Configuration) -> dict[str, Any]:
    return {k: v for k, v in {**arguments, **one}.items() if k != CAP and v is not None}

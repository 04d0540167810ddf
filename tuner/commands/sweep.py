"""``tuner sweep``: find max_num_seqs for a trace."""

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import msgspec

from tuner.commands import forecast
from tuner.commands.options import ShowOptions, SweepOptions
from tuner.commands.shared.next_step import after, again, check_required
from tuner.commands.shared.options import in_plan, times
from tuner.commands.shared.results import keep_result
from tuner.commands.shared.run_folder import check_command, kept, making_sense, open_run, read_run
from tuner.commands.shared.traffic import one_engines, served_in, warnings_about
from tuner.engines import provenance
from tuner.engines.devices import DeviceMeter, gpus_of
from tuner.engines.engine_arguments import engine_arguments, stated_number
from tuner.engines.models import shipped as models
from tuner.engines.seam import Starter
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import RunError, UndecidedError, UsageError
from tuner.live.prometheus import Exporter
from tuner.profile import profile as profiles
from tuner.profile.profile import ServingProfile
from tuner.runs.bench import execute
from tuner.runs.journal import NO_SENSE, Journal
from tuner.runs.result import (
    SweepOutcome,
    in_use,
    json_object,
    profile_of,
    rescore,
    second_thoughts,
)
from tuner.runs.settings import SweepSettings, settings_in
from tuner.runs.sweep.sweep import sweep
from tuner.trace.record import SCHEDULE
from tuner.trace.trace import Trace, TraceRequest, load, write
from tuner.traffic.clients import turns_of
from tuner.traffic.slo import Slo, parse_slo
from tuner.traffic.window import choose_part, parse_duration_s, parse_window
from tuner.views.live import Progress
from tuner.views.page import Page
from tuner.views.profile import profile_page
from tuner.views.text import print_json, print_page

AGAIN = Path("again.yaml")
"""Where the profile of a run that is decided again may go: the run keeps its own."""
IN_PLAN = (
    *("window", "step", "router"),
    *("ceiling", "slo", "require", "budget"),
)
"""Options that every measurement rests on."""
TRACE_COPY = "trace.jsonl"
"""In the run directory: the requests that were tuned for, so that the run can be rescored."""


@dataclass(frozen=True, slots=True)
class Job:
    """A sweep of one trace on one kind of engine, checked; nothing has been started for it."""

    options: SweepOptions
    trace: Trace
    requests: list[TraceRequest]
    """What one engine gets: a replica's part, and of that one rank's."""
    starter: Starter
    plan: dict[str, Any]
    """What every measurement rests on, but for the engine's arguments at the ceiling."""
    settings: SweepSettings
    warnings: list[str]
    began_s: float


@dataclass(frozen=True, slots=True)
class Swept:
    """A finished run, or one that was decided again."""

    outcome: SweepOutcome
    settings: SweepSettings
    trace_warnings: Sequence[str]
    book: Journal
    wall_s: float

    @property
    def run_dir(self) -> Path:
        return self.book.run_dir

    @property
    def warnings(self) -> list[str]:
        """Return the warnings about the result, the trace's own last."""
        outcome = self.outcome
        doubts = second_thoughts(outcome)
        return [*outcome.verdict.warnings, *doubts, *outcome.warnings, *self.trace_warnings]


def run(options: SweepOptions) -> None:
    """Run the whole sweep, write its profile and print its result. Raises TunerError."""
    if options.ray is not None:
        from tuner.commands import kinds  # noqa: PLC0415 - what a cluster takes

        kinds.run(options)
        return
    job = prepared(options)
    if options.dry_run:
        forecast.show(job, again("sweep", options, dry_run=False))
        return
    done = swept(job)
    profile, page = written(options, done)
    _conclude(done, profile, page, options, options.output)


def prepared(options: SweepOptions) -> Job:
    """Read and check all that a sweep needs. Raises TunerError."""
    began_s = time.monotonic()
    profiles.check_output(options.output)
    trace = load(options.trace)
    return job_on(options, trace, starter_of(options, trace.header.model), began_s)


def job_on(options: SweepOptions, trace: Trace, starter: Starter, began_s: float) -> Job:
    """Return what of a trace one engine gets. Raises TraceError, UsageError."""
    requests, warnings = served_in(trace, options.trace), warnings_about(trace)
    ranks = int(getattr(starter, "ranks", 1))
    if trace.header.source == SCHEDULE:
        warnings.append(
            "the recorded concurrency is held at every step: the twin, which knows open loops "
            "only, does not decide"
        )
    elif options.closed_sessions:
        warnings.append(
            f"closed sessions: {len(turns_of(requests)):,} of {len(requests):,} requests wait for "
            "the turn before them; the others leave as recorded, and the twin, which knows open "
            "loops only, does not decide"
        )
    if ranks > 1:
        warnings.append(
            f"data_parallel_size {ranks}: one rank was measured with its share of the trace, as "
            f"--router {options.router} gives it; max_num_seqs and every number are one rank's, "
            f"and a server of {ranks} ranks has {ranks} times the slots and serves {ranks} times "
            "as much"
        )
    replicas = options.replicas * ranks
    requests = one_engines(requests, replicas=replicas, router=options.router)
    plan = {
        "trace_digest": trace.digest,
        # of what is replayed, which may be a share of it
        "requests_digest": Trace.of(trace.header, requests).digest,
        "trace_block_size": trace.header.block_size,
        "given": sorted(starter.arguments) if isinstance(starter, VllmStarter) else [],
        "confirm": "inproc" if options.world or options.ray else "server",
        **in_plan(options, *IN_PLAN),
        "headroom": _headroom(options.headroom),
        "closed_sessions": options.closed_sessions or trace.header.source == SCHEDULE,
        "replicas": replicas,
        "ranks": ranks,
    }
    settings = settings_in(plan, slo=_slo_in(options.slo))
    if parse_window(options.window) is not None:
        # refused before an engine is started for it
        choose_part(requests, options.window, length_s=1.0)
    return Job(options, trace, requests, starter, plan, settings, warnings, began_s)


def starter_of(options: SweepOptions, header_model: str | None) -> Starter:
    """Return what starts engines. Raises UsageError for options that do not go together."""
    if options.world is not None:
        if options.overrides:
            raise UsageError("--set is for a real engine", hint="Write it into the world file.")
        from tuner.engines.sim.start import SimStarter  # noqa: PLC0415 - numba
        from tuner.engines.sim.world import read_world  # noqa: PLC0415

        model, ranks = options.model or header_model, _stated(options, "data_parallel_size") or 1
        return SimStarter(read_world(options.world), model=model, ranks=ranks)
    arguments = engine_arguments(
        model=options.model,
        base=options.base,
        header_model=header_model,
        overrides=options.overrides,
    )
    given = arguments.get("data_parallel_size")
    ranks = given if isinstance(given, int) else 1
    if ranks > 1:  # how ranks find each other is nothing to one of them
        arguments = {k: v for k, v in arguments.items() if not k.startswith("data_parallel_")}
    return VllmStarter(arguments, ranks=ranks)


def _headroom(text: str) -> float:
    """Return a validation's load, as a multiple of the recorded one."""
    with suppress(ValueError):
        if 1.0 <= (value := times(text)) <= 10.0:
            return value
    raise UsageError(f"--headroom {text!r} is not from 1 to 10", hint="Give 1.25, 1.25x or 125%.")


def _stated(options: SweepOptions, name: str) -> int | None:
    return None if options.base is None else stated_number(options.base, name)


def _slo_in(text: str | None) -> Slo | None:
    return None if text is None else parse_slo(text)


def swept(job: Job) -> Swept:
    """Measure all that the run does not hold yet, and decide. Raises TunerError."""
    options, starter = job.options, job.starter
    confirming, read, began_s = None, None, None
    cap, is_stated = _stated(options, "max_num_seqs"), True
    if isinstance(starter, VllmStarter):  # simulated time is virtual
        began_s = job.began_s
        read = DeviceMeter(gpus_of(starter.resolve(max_num_seqs=1))).read
        cap, is_stated = starter.server_max_num_seqs()
    plan = {
        **job.plan,
        "engine_arguments": dict(starter.resolve(max_num_seqs=options.ceiling)),
        "now": None if cap is None else [cap, is_stated],
    }
    book = open_run("sweep", options, plan)
    progress = Progress(job.settings.budget_s)
    with kept(book), ExitStack() as stack:
        if isinstance(starter, VllmStarter):
            starter.log = book.run_dir / "vllm.log"
            confirming = replace(starter, kind="serve")
        if (port := options.metrics_port) is not None:
            progress.exporter = stack.enter_context(closing(Exporter(port)))
        for warning in job.warnings:
            progress.warn(warning)
        keep_trace(job, book)
        stack.enter_context(progress)
        work = sweep(
            job.requests,
            starter,
            job.settings,
            book,
            progress,
            read_device=read,
            confirming=confirming,
            began_s=began_s,
        )
        return finished(job, execute(work, starter, book), book)


def finished(job: Job, outcome: SweepOutcome, book: Journal) -> Swept:
    """Return a run that has just ended."""
    wall_s = time.monotonic() - job.began_s
    return Swept(_beside_now(outcome, book), job.settings, job.warnings, book, wall_s)


def _beside_now(outcome: SweepOutcome, book: Journal) -> SweepOutcome:
    """Return the outcome with what is set now: by ``--base`` or ``--set``, or by vLLM itself."""
    if (now := book.plan.get("now")) is None:
        return outcome
    cap, is_stated = now
    source: Literal["base", "default"] = "base" if is_stated else "default"
    return replace(outcome, in_use=in_use(outcome.conclusion, int(cap), source))


def keep_trace(job: Job, book: Journal) -> None:
    """Keep the requests with what is measured of them."""
    if not (path := book.run_dir / TRACE_COPY).exists():
        write(Trace.of(job.trace.header, job.requests), path, mode=0o600)


def rescored(book: Journal, *, slo: str | None = None, require: Sequence[str] = ()) -> Swept:
    """Decide one trace's stored run again, by default under its own plan. Raises RunError,
    InputError."""
    began_s, run_dir, plan = time.monotonic(), book.run_dir, book.plan
    try:
        plan = {**plan, "require": list(require) or plan["require"]}
        settings = settings_in(plan, slo=_slo_in(slo or plan["slo"]))
    except NO_SENSE as error:
        raise RunError(
            f"{run_dir}/journal.jsonl:1: the plan cannot be read ({repr(error)[:200]})",
            hint="Name the run directory of a sweep of this version of tuner.",
        ) from error
    trace = load(run_dir / TRACE_COPY)
    if trace.digest != plan["requests_digest"]:
        raise RunError(
            f"{run_dir / TRACE_COPY}: holds other requests than were replayed: it was changed",
            hint="Restore the file as tuner wrote it, or sweep the trace again.",
        )
    outcome = _beside_now(rescore(trace.requests, settings, book), book)
    wall_s = time.monotonic() - began_s
    return Swept(outcome, settings, warnings_about(trace), book, wall_s)


def sealed(done: Swept) -> ServingProfile:
    """Return the profile of a finished run, with all of its warnings."""
    settings, plan = done.settings, done.book.plan
    origin = origin_of(
        done.outcome,
        done.warnings,
        wall_s=done.wall_s,
        ranks=int(plan["ranks"]),
        given=[str(name) for name in plan["given"]],
    )
    return profile_of(
        done.outcome, {**origin, "replicas": settings.replicas, "router": settings.router}
    )


def origin_of(
    outcome: SweepOutcome,
    warnings: Sequence[str],
    *,
    wall_s: float,
    ranks: int,
    given: Sequence[str],
) -> dict[str, Any]:
    """Return what of a profile's provenance only a command knows; see ``profile_of``. ``given``:
    the engine arguments that the user chose."""
    model_digest = None  # of a model that is simulated, as of one on a hub
    if outcome.facts.engine != "sim":
        model = models.model_path(str(outcome.facts.arguments["model"]))
        model_digest = provenance.model_digest(model)
    return {
        "tuner": version("tuner"),
        "seed": 0,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "wall_s": wall_s,
        "warnings": list(warnings),
        "model_digest": model_digest,
        "ranks": ranks,
        "given": list(given),
    }


def decide_again(options: ShowOptions) -> None:
    """Decide a stored run again, under another SLO or other requirements, without an engine; write
    its profile to ``-o``. Raises TunerError."""
    output = options.output
    if output is not None:
        profiles.check_output(output)
    book = read_run(options.source)
    check_command(book, "sweep")
    with making_sense(options.source, is_stored=True):
        done = rescored(book, slo=options.slo, require=options.require)
        profile = sealed(done)
    if output is not None:
        profiles.save(profile, output)
    next_ = after(profile, output) if output else again("show", options, output=AGAIN, json=False)
    _conclude(done, profile, _page(done, profile, next_), options, output)


def written(options: SweepOptions, done: Swept) -> tuple[ServingProfile, Page]:
    """Write the profile, into the run directory first; return it and its page."""
    with making_sense(done.run_dir, is_stored=True):
        profile = sealed(done)
        page = _page(done, profile, _next(options, profile))
        profiles.keep(profile, done.run_dir)
        printed = json_object(profile, run_dir=str(done.run_dir), path=str(options.output))
        keep_result(done.run_dir, printed, page)
    profiles.check_output(options.output)
    profiles.save(profile, options.output)
    return profile, page


def _page(done: Swept, profile: ServingProfile, next_: str) -> Page:
    page = profile_page(profile, subject=f"Sweep {done.run_dir}", next_=next_)
    return msgspec.structs.replace(page, run_dir=str(done.run_dir))


def _next(options: SweepOptions, profile: ServingProfile) -> str:
    """Return what to run after a sweep: the same again where that would show more, or what comes
    next with the profile."""
    verdict = profile.decision.verdict
    anew: dict[str, Any] = {"run_dir": None, "json": False}
    if verdict == "not_reached":
        return again("sweep", options, ceiling=2 * profile.curve[-1].max_num_seqs, **anew)
    if verdict == "inconclusive":
        twice = f"{2 * parse_duration_s(options.budget, option='--budget'):g}s"
        return again("sweep", options, budget=twice, **anew)
    return after(profile, options.output, base=options.base)


def _conclude(
    done: Swept,
    profile: ServingProfile,
    page: Page,
    options: SweepOptions | ShowOptions,
    path: Path | None,
) -> None:
    """Print the answer. Raises GateError, and UndecidedError where it cannot be defended."""
    if options.json:
        written_to = None if path is None else str(path)
        print_json(json_object(profile, run_dir=str(done.run_dir), path=written_to))
    else:
        print_page(page, details=options.details if isinstance(options, ShowOptions) else None)
    verdict, source = done.outcome.verdict, path or done.run_dir
    check_required(profile, source, cure=verdict.cure, next_=page.next)
    if not verdict.is_defended:
        hint = f"{source} is safe to serve but not defended; give a larger --budget."
        if verdict.kind == "overloaded":
            hint = "Add replicas or relax the SLO; a larger --budget may make it sure."
        raise UndecidedError(verdict.reason, hint=hint)

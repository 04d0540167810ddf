"""``tuner sweep``: find max_num_seqs for a trace."""

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs

from tuner.commands.options import ShowOptions, SweepOptions
from tuner.commands.shared.machine import simulated
from tuner.commands.shared.next_step import after, again, check_required
from tuner.commands.shared.options import in_plan, times
from tuner.commands.shared.run_folder import (
    check_command,
    finish,
    keep_result,
    kept,
    making_sense,
    open_run,
    read_run,
)
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
from tuner.profile.summary import minutes
from tuner.runs.bench import execute
from tuner.runs.journal import Journal
from tuner.runs.result import SweepOutcome, json_object, rescore
from tuner.runs.sweep.conclusion import SweepSettings, doubling, settings_in
from tuner.runs.sweep.sweep import STEPS, sweep
from tuner.trace.record import SCHEDULE
from tuner.trace.trace import Trace, TraceRequest, load, write
from tuner.traffic.slo import parse_slo
from tuner.traffic.window import choose_part, parse_duration_s, parse_window
from tuner.traffic.workload import affordable_step_s
from tuner.twin.verdict import Verdict
from tuner.views.live import Progress
from tuner.views.page import Page
from tuner.views.profile import profile_page
from tuner.views.text import print_json, print_page

TRACE_COPY = "trace.jsonl"
"""In the run directory: the requests that were tuned for, so that the run can be decided again."""


class Job(NamedTuple):
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


class Swept(NamedTuple):
    """A sweep that has ended, or was decided again."""

    profile: ServingProfile
    verdict: Verdict
    page: Page

    def with_next(self, command: str) -> "Swept":
        return self._replace(page=structs.replace(self.page, next=command))


def run(options: SweepOptions) -> None:
    """Run the whole sweep, write its profile and print its result. Raises TunerError."""
    if options.ray is not None:
        from tuner.commands import kinds  # noqa: PLC0415 - imports ray

        kinds.run(options)
        return
    job = prepared(options)
    if options.dry_run:
        _show_plan(job, again("sweep", options, dry_run=False))
    else:
        _conclude(swept(job), options, options.output)


def _show_plan(job: Job, command: str) -> None:
    """Print what a sweep would run. Raises UsageError for a budget that is too small for any."""
    ceiling, starter = job.options.ceiling, job.starter
    settings, warnings = job.settings, list(job.warnings)
    if isinstance(starter, VllmStarter):  # which only vLLM resolves
        arguments = {**starter.given, "max_num_seqs": ceiling}
    else:
        arguments = {**starter.resolve(max_num_seqs=ceiling)}
    lengths = np.array([(each.input_length, each.output_length) for each in job.requests])
    prompt, output = lengths.mean(0)
    length_s = job.requests[-1].arrival_s - job.requests[0].arrival_s
    step_s = affordable_step_s(
        settings.step_s, steps=STEPS, budget_s=settings.budget_s, starts_s=0.0
    )
    facts = {
        "trace": f"{len(lengths):,} requests in {minutes(length_s)}, on average {prompt:,.0f} "
        f"tokens in and {output:,.0f} out",
        "steps": f"max_num_seqs {', '.join(map(str, doubling(settings.ceiling)))} for "
        f"{minutes(step_s)} each, then the choice on a fresh engine",
        "time": f"at most {minutes(settings.budget_s)}, with two engine starts",
        "engine": ", ".join(f"{key}={value}" for key, value in arguments.items()),
        "memory": "how many KV blocks there are is known once the engine has started",
    }
    result: dict[str, Any] = {"dry_run": True, "engine_arguments": arguments, "next": command}
    blocks, size = arguments.get("num_gpu_blocks_override"), arguments.get("block_size")
    if isinstance(blocks, int) and isinstance(size, int):
        taken = np.ceil(lengths.sum(1) / size)
        fits, longest_fit = int(blocks / taken.mean()), int(blocks // taken.max())
        result |= {"kv_blocks": blocks, "mean_fit": fits, "longest_fit": longest_fit}
        facts["memory"] = (
            f"{blocks:,} KV blocks of {size} tokens: {fits:,} sequences of this trace's mean "
            f"length, {longest_fit:,} of the longest"
        )
        if fits < ceiling:
            warnings.insert(
                0,
                f"max_num_seqs {ceiling} is more than the {fits:,} sequences that fit into memory: "
                "the largest steps will wait for KV blocks or preempt",
            )
    title = "Dry run: nothing was started"
    page = Page(
        subject=title, title=title, facts=list(facts.items()), warnings=warnings, next=command
    )
    finish(job.options, {**result, "facts": facts, "warnings": warnings}, page)


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
    is_closed = options.closed_sessions or trace.header.source == SCHEDULE
    if is_closed:
        warnings.append(
            "requests wait for others, as in closed sessions or at a recorded concurrency: the "
            "twin, which knows open loops only, does not decide"
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
        **in_plan(options, "window", "step", "router", "ceiling", "slo", "require", "budget"),
        "headroom": _headroom(options.headroom),
        "closed_sessions": is_closed,
        "replicas": replicas,
        "ranks": ranks,
    }
    settings = settings_in(plan, slo=parse_slo(options.slo) if options.slo else None)
    if parse_window(options.window) is not None:
        # refused before an engine is started for it
        choose_part(requests, options.window, length_s=1.0)
    return Job(options, trace, requests, starter, plan, settings, warnings, began_s)


def starter_of(options: SweepOptions, header_model: str | None) -> Starter:
    """Return what starts engines. Raises UsageError for options that do not go together."""
    if options.world is not None:
        if options.overrides:
            raise UsageError("--set is for a real engine", hint="Write it into the world file.")
        model, ranks = options.model or header_model, _stated(options, "data_parallel_size") or 1
        return simulated(options.world, model, ranks=ranks)
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


def swept(job: Job) -> Swept:
    """Measure all that the run does not hold yet, decide, and write the profile, into the run
    directory first. Raises TunerError."""
    options, starter = job.options, job.starter
    confirming, read = None, None
    cap, is_stated = _stated(options, "max_num_seqs"), True
    if isinstance(starter, VllmStarter):
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
        progress.warn(*job.warnings)
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
        )
        done = sealed(execute(work, starter, book), job.warnings, job.began_s)
    done = done.with_next(_next(options, done.profile))
    profiles.keep(done.profile, book.run_dir)
    keep_result(book.run_dir, _json(done, options.output), done.page)
    profiles.check_output(options.output)
    profiles.save(done.profile, options.output)
    return done


def keep_trace(job: Job, book: Journal) -> None:
    """Keep the requests with what is measured of them."""
    if not (path := book.run_dir / TRACE_COPY).exists():
        write(Trace.of(job.trace.header, job.requests), path, mode=0o600)


def sealed(outcome: SweepOutcome, trace_warnings: Sequence[str], began_s: float) -> Swept:
    """Return the profile of a run with all of its warnings, the trace's own last."""
    settings, book = outcome.basis.settings, outcome.basis.journal
    origin = origin_of(
        outcome,
        [*outcome.warnings, *trace_warnings],
        wall_s=time.monotonic() - began_s,
        ranks=int(book.plan["ranks"]),
        given=list(book.plan["given"]),
    )
    origin |= {"replicas": settings.replicas, "router": settings.router}
    profile = outcome.profile(origin)
    page = profile_page(profile, subject=f"Sweep {book.run_dir}", next_="")
    return Swept(profile, outcome.verdict, structs.replace(page, run_dir=str(book.run_dir)))


def origin_of(
    outcome: SweepOutcome,
    warnings: Sequence[str],
    *,
    wall_s: float,
    ranks: int,
    given: Sequence[str],
) -> dict[str, Any]:
    """Return what of a profile's provenance only a command knows. ``given``: the engine
    arguments that the user chose."""
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
    began_s, output = time.monotonic(), options.output
    if output is not None:
        profiles.check_output(output)
    book, path = read_run(options.source), options.source / TRACE_COPY
    check_command(book, "sweep")
    with making_sense(options.source):
        slo, trace = options.slo or book.plan["slo"], load(path)
        plan = {**book.plan, "require": [*options.require] or book.plan["require"]}
        settings = settings_in(plan, slo=slo and parse_slo(slo))
        if trace.digest != plan["requests_digest"]:
            raise RunError(
                f"{path}: holds other requests than were replayed: it was changed",
                hint="Restore the file as tuner wrote it, or sweep the trace again.",
            )
        outcome = rescore(trace.requests, settings, book)
        done = sealed(outcome, warnings_about(trace), began_s)
    if output is None:  # the run keeps its own
        next_ = again("show", options, output=Path("again.yaml"), json=False)
    else:
        profiles.save(done.profile, output)
        next_ = after(done.profile, output)
    _conclude(done.with_next(next_), options, output)


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


def _json(done: Swept, path: Path | None) -> dict[str, Any]:
    written_to = None if path is None else str(path)
    return json_object(done.profile, run_dir=done.page.run_dir, path=written_to)


def _conclude(done: Swept, options: SweepOptions | ShowOptions, path: Path | None) -> None:
    """Print the answer. Raises GateError, and UndecidedError where it cannot be defended."""
    if options.json:
        print_json(_json(done, path))
    else:
        print_page(done.page, details=getattr(options, "details", False))
    check_decided(done, path or Path(done.page.run_dir))


def check_decided(done: Swept, source: Path) -> None:
    """Raise GateError where the choice breaks what is required, UndecidedError where it cannot be
    defended."""
    verdict = done.verdict
    check_required(done.profile, source, cure=verdict.cure, next_=done.page.next)
    if not verdict.is_defended:
        hint = f"{source} is safe to serve but not defended; give a larger --budget."
        if verdict.kind == "overloaded":
            hint = "Add replicas or relax the SLO; a larger --budget may make it sure."
        raise UndecidedError(verdict.reason, hint=hint)

"""What ``tuner sweep`` does with its options: everything that may be slow to import."""

import asyncio
import glob
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from tuner import files, journal, models, profile, provenance
from tuner.base import engine_arguments
from tuner.commands.sweep_view import Progress, render
from tuner.devices import DeviceMeter
from tuner.engines.seam import Starter
from tuner.engines.vllm import VllmStarter
from tuner.errors import Interrupted, RunError, TargetError, TraceError, UndecidedError, UsageError
from tuner.exporter import Exporter
from tuner.outcome import SweepOutcome
from tuner.result import json_object, profile_of, second_thoughts
from tuner.settings import SweepSettings
from tuner.slo import parse_slo
from tuner.sweep import sweep
from tuner.trace import Trace, TraceRequest, load
from tuner.traffic import busiest_window
from tuner.traffic.cautions import cautions
from tuner.traffic.columns import columns_of
from tuner.traffic.routing import ROUTERS, Router, busiest_part, route
from tuner.traffic.summary import describe
from tuner.window import choose_window, parse_duration_s, parse_window


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """The command line, as given."""

    trace: Path
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
    router: str
    headroom: float
    fresh: bool
    resume: bool
    run_dir: Path | None
    seed: int
    metrics_port: int | None
    force: bool
    json: bool


def run(options: SweepOptions) -> None:
    """Run the whole sweep, write its profile and print its result. Raises TunerError."""
    began_s = time.monotonic()
    _check_output(options)
    _check_router(options)
    trace = load(options.trace)
    settings = _settings(options, trace)
    requests, warnings = _requests(options, trace)
    _check_window(options, requests)
    starter, execute = _starter(options, trace)
    plan = _plan(options, trace, starter)
    exporter = Exporter(options.metrics_port) if options.metrics_port else None
    book = _open(options, plan)
    read_device = None
    if isinstance(starter, VllmStarter):
        starter.log = book.run_dir / "vllm.log"
        read_device = DeviceMeter().read
    progress = Progress(settings, exporter)
    for warning in warnings:
        progress.warn(warning)
    try:
        with progress:
            outcome = execute(
                sweep(requests, starter, settings, book, progress, read_device=read_device)
            )
        _conclude(
            options,
            outcome,
            warnings,
            run_dir=book.run_dir,
            trace_digest=trace.digest,
            wall_s=time.monotonic() - began_s,
        )
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise Interrupted(
            f"{len(list(book.of('replay')))} replays are kept in {book.run_dir}",
            hint=f"Go on with: {_resume_command(options, book.run_dir)}",
        ) from None
    finally:
        book.close()
        if exporter is not None:
            exporter.close()


def _conclude(  # noqa: PLR0913 - what was asked, what was found, and where it is kept
    options: SweepOptions,
    outcome: SweepOutcome,
    warnings: Sequence[str],
    *,
    run_dir: Path,
    trace_digest: str,
    wall_s: float,
) -> None:
    """Write the profile, into the run directory first, and print the result."""
    said = [
        *warnings,
        *outcome.warnings,
        *outcome.verdict.warnings,
        *second_thoughts(outcome, fresh=options.fresh, headroom=options.headroom),
    ]
    origin = {
        "tuner": version("tuner"),
        "seed": options.seed,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "wall_s": wall_s,
        "warnings": said,
        "model_digest": _model_digest(outcome),
    }
    found = profile_of(outcome, headroom=options.headroom, trace_digest=trace_digest, origin=origin)
    profile.save(found, run_dir / "profile.yaml")
    _check_output(options)
    profile.save(found, options.output)
    if options.json:
        result = json_object(
            outcome, run_dir=str(run_dir), profile=str(options.output), warnings=said
        )
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        render(outcome, profile_path=options.output, run_dir=run_dir, warnings=said)
    if outcome.verdict.kind == "inconclusive":
        raise UndecidedError(
            outcome.verdict.reason,
            hint=f"{options.output} is safe to serve but not defended; give a larger --budget.",
        )


def _check_router(options: SweepOptions) -> None:
    if options.router not in ROUTERS:
        raise UsageError(
            f"--router {options.router!r} is not known", hint=f"Choose one of {', '.join(ROUTERS)}."
        )


def _model_digest(outcome: SweepOutcome) -> str | None:
    """Return the digest of the model's files; None where a model is simulated or on a hub."""
    if outcome.facts.engine == "sim":
        return None
    return provenance.model_digest(models.model_path(str(outcome.facts.arguments["model"])))


def _settings(options: SweepOptions, trace: Trace) -> SweepSettings:
    return SweepSettings(
        ceiling=options.ceiling,
        slo=parse_slo(options.slo) if options.slo is not None else None,
        window=options.window,
        step_s=parse_duration_s(options.step, option="--step"),
        budget_s=parse_duration_s(options.budget, option="--budget"),
        headroom=options.headroom,
        fresh=options.fresh,
        seed=options.seed,
        trace_block_size=trace.header.block_size,
    )


def _check_output(options: SweepOptions) -> None:
    """Refuse to destroy what is not ours, before anything is measured and again at the end.

    An older profile may go: its run directory still has it.
    """
    path = files.resolve(options.output)
    files.check_writable(path)
    if not os.access(path.parent, os.W_OK):
        raise TargetError(f"{path.parent}: must not be written", hint="Choose another -o.")
    old = files.content(path)
    if old is not None and not options.force and b"schema_version:" not in old[:4096]:
        raise TargetError(
            f"{options.output}: is there already and is no serving profile",
            hint="Choose another -o, or overwrite it with --force.",
        )


def _check_window(options: SweepOptions, requests: list[TraceRequest]) -> None:
    """Refuse a --window that cannot be replayed before an engine is started for it."""
    if parse_window(options.window) is not None:
        choose_window(requests, options.window, length_s=1.0, busiest=busiest_window)


def _requests(options: SweepOptions, trace: Trace) -> tuple[list[TraceRequest], list[str]]:
    """Return one server's requests, and what the user should know of the trace."""
    warnings = list(trace.warnings)
    requests = [one for one in trace.requests if one.status in {"ok", "aborted"}]
    if not requests:
        raise TraceError(
            f"{options.trace}: no request that was served", hint="Capture some traffic first."
        )
    columns = columns_of(trace.requests, block_size=trace.header.block_size)
    warnings += cautions(columns, describe(columns), trace.header)
    if options.replicas > 1:
        router = cast("Router", options.router)
        parts = route(requests, replicas=options.replicas, router=router, seed=options.seed)
        requests = parts[busiest_part(parts)]
    return requests, warnings


Execute = Callable[[Coroutine[Any, Any, SweepOutcome]], SweepOutcome]


def _starter(options: SweepOptions, trace: Trace) -> tuple[Starter, Execute]:
    """Return what starts engines, and the loop that runs them: real or virtual time."""
    if options.engine == "sim":
        if options.world is None:
            raise UsageError("--engine sim needs a world", hint="Give --world FILE.")
        if options.overrides or options.base is not None:
            raise UsageError(
                "--set and --base are for --engine vllm", hint="Write it into the world file."
            )
        from tuner.engines import virtual_time  # noqa: PLC0415 - numba, for sim alone
        from tuner.engines.sim import SimStarter  # noqa: PLC0415
        from tuner.engines.world import read_world  # noqa: PLC0415

        model = options.model or trace.header.model
        return SimStarter(read_world(options.world), model=model), virtual_time.run
    if options.engine != "vllm":
        raise UsageError(f"--engine {options.engine!r} is not known", hint="Use vllm or sim.")
    if options.world is not None:
        raise UsageError("--world is for --engine sim", hint="Add --engine sim, or drop --world.")
    arguments = engine_arguments(
        model=options.model,
        base=options.base,
        header_model=trace.header.model,
        overrides=options.overrides,
    )
    return VllmStarter(arguments), asyncio.run


def _plan(options: SweepOptions, trace: Trace, starter: Starter) -> dict[str, Any]:
    """Return what every measurement of this run rests on; a resumed run must have the same."""
    return {
        "trace_digest": trace.digest,
        "engine": options.engine,
        "engine_arguments": dict(starter.resolve(max_num_seqs=options.ceiling)),
        "ceiling": options.ceiling,
        "slo": options.slo,
        "window": options.window,
        "step": options.step,
        "budget": options.budget,
        "replicas": options.replicas,
        "router": options.router,
        "headroom": options.headroom,
        "fresh": options.fresh,
        "seed": options.seed,
    }


def _open(options: SweepOptions, plan: Mapping[str, Any]) -> journal.Journal:
    if options.resume:
        return journal.resume(options.run_dir or _newest(options.trace), plan)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
    return journal.create(options.run_dir or Path("runs") / f"{options.trace.stem}-{stamp}", plan)


def _newest(trace: Path) -> Path:
    stamp = "-" + "[0-9]" * 8 + "-" + "[0-9]" * 6 + "-" + "[0-9]" * 6
    pattern = f"{glob.escape(trace.stem)}{stamp}/journal.jsonl"
    found = sorted(path for path in Path("runs").glob(pattern) if path.stat().st_size)
    if not found:
        raise RunError(
            f"runs/{trace.stem}-*: there is no run to resume", hint="Name it with --run-dir."
        )
    return found[-1].parent


def _resume_command(options: SweepOptions, run_dir: Path) -> str:
    """Return the command line that goes on with this run."""
    words = ["tuner", *sys.argv[1:]]
    if not options.resume:
        words.append("--resume")
    if options.run_dir is None:
        words += ["--run-dir", str(run_dir)]
    return shlex.join(words)

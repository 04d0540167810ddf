"""A finished sweep of one trace, whichever way it was run: measured, judged anew, sealed."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tuner.commands.sweep.setup import (
    SweepOptions,
    Traffic,
    execute_on,
    warnings_about,
)
from tuner.engines import provenance
from tuner.engines.devices import DeviceMeter, gpus_of
from tuner.engines.models import shipped as models
from tuner.engines.seam import Starter
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import RunError
from tuner.profile.schema import ServingProfile
from tuner.replay.readings import Read
from tuner.runs import journal
from tuner.runs.engine_runner import Watcher
from tuner.runs.outcome import SweepOutcome
from tuner.runs.result import profile_of, second_thoughts
from tuner.runs.settings import SweepSettings, settings_in
from tuner.runs.sweep.rescore import rescore
from tuner.runs.sweep.sweep import sweep
from tuner.trace.trace import load, write
from tuner.traffic.slo import parse_slo

TRACE_COPY = "trace.jsonl"
"""In the run directory: the requests that were tuned for, so that the run can be judged again."""


@dataclass(frozen=True, slots=True)
class Done:
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


def measured(
    traffic: Traffic, starter: Starter, book: journal.Journal, watcher: Watcher
) -> SweepOutcome:
    """Sweep one trace on one engine: all that its journal does not hold yet."""
    execute = execute_on(starter, book)
    read_device = device_of(starter, book.run_dir)
    return execute(
        sweep(traffic.requests, starter, traffic.settings, book, watcher, read_device=read_device)
    )


def keep_trace(traffic: Traffic, run_dir: Path) -> None:
    """Keep the requests with what is measured of them."""
    if not (run_dir / TRACE_COPY).exists():
        write(replace(traffic.trace, requests=tuple(traffic.requests)), run_dir / TRACE_COPY)


def device_of(starter: Starter, run_dir: Path) -> Read | None:
    """Return what reads the device while it is replayed on; None for a simulated one."""
    if not isinstance(starter, VllmStarter):
        return None
    starter.log = run_dir / "vllm.log"
    return DeviceMeter(gpus_of(starter.resolve(max_num_seqs=1))).read


def rescored(options: SweepOptions, book: journal.Journal) -> Done:
    """Judge one trace's stored run anew."""
    began_s = time.monotonic()
    run_dir, plan = book.run_dir, book.events[0]["plan"]
    try:
        asked = options.slo or plan["slo"]
        settings = settings_in(plan, slo=parse_slo(asked) if asked else None)
        digest, ranks = str(plan["trace_digest"]), int(plan.get("ranks", 1))
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"{run_dir}/journal.jsonl:1: the plan makes no sense ({error!r})",
            hint="Name the run directory of a sweep of this version of tuner.",
        ) from error
    trace = load(run_dir / TRACE_COPY)
    outcome = rescore(trace.requests, settings, book)
    said = (*trace.warnings, *warnings_about(trace))
    return Done(outcome, settings, said, run_dir, digest, time.monotonic() - began_s, ranks)


def warnings_of(done: Done) -> list[str]:
    """Return all that whoever reads the result should know."""
    outcome = done.outcome
    return [
        *done.warnings,
        *outcome.warnings,
        *outcome.verdict.warnings,
        *second_thoughts(outcome, done.settings),
    ]


def sealed(done: Done, warnings: Sequence[str]) -> ServingProfile:
    """Return the profile of a finished run."""
    settings = done.settings
    origin = {
        "tuner": version("tuner"),
        "seed": settings.seed,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "wall_s": done.wall_s,
        "warnings": list(warnings),
        "model_digest": _model_digest(done.outcome),
        "ranks": done.ranks,
    }
    return profile_of(
        done.outcome, headroom=settings.headroom, trace_digest=done.trace_digest, origin=origin
    )


def _model_digest(outcome: SweepOutcome) -> str | None:
    """Return the digest of the model's files; None where a model is simulated or on a hub."""
    if outcome.facts.engine == "sim":
        return None
    return provenance.model_digest(models.model_path(str(outcome.facts.arguments["model"])))

"""How a sweep of several traces looks: each one's own result, then what they may share."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from tuner.commands.shared.console import console_for
from tuner.commands.sweep.done import Done
from tuner.commands.sweep.view import TABLE_WIDTH, Progress, plain_table, render_found
from tuner.replay.measure import Measurement
from tuner.runs.result import json_object
from tuner.runs.sweep.shared_cap import MultiTraceOutcome, Price, overloaded, reason_of


class Named:
    """Tells how the run of one trace of several goes."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress, self._name = progress, name

    def stage(self, text: str) -> None:
        self._progress.stage(f"{self._name}: {text}")

    def trial(self, what: str, length_s: float) -> None:
        self._progress.trial(f"{self._name}: {what}", length_s)

    def live(self, elapsed_s: float, done: int, in_flight: int) -> None:
        self._progress.live(elapsed_s, done, in_flight)

    def measured(self, what: str, measurement: Measurement) -> None:
        self._progress.measured(f"{self._name}: {what}", measurement)

    def warn(self, text: str) -> None:
        self._progress.warn(f"{self._name}: {text}")


@dataclass(frozen=True, slots=True)
class Report:
    """All that is told of a sweep of several traces."""

    found: MultiTraceOutcome
    done: Mapping[str, Done]
    warnings: Mapping[str, Sequence[str]]
    profiles: Mapping[str, Path]
    shared: Path | None
    """The profile for all; None where no cap serves all of them."""

    starts_s: Sequence[float]
    run_dir: Path


def json_of(report: Report) -> dict[str, Any]:
    """Return the object that ``tuner sweep --json`` prints of several traces: one of each as for a
    single trace, and what they share."""
    sharing = report.found.sharing
    return {
        "shared": {
            "verdict": sharing.kind,
            "max_num_seqs": sharing.max_num_seqs,
            "interval": list(sharing.interval),
            "confidence": sharing.confidence,
            "reason": reason_of(report.found),
            "prices": [_price(one) for one in report.found.prices],
            "losses": {
                name: {str(cap): _finite(lost) for cap, lost in of_cap.items()}
                for name, of_cap in sharing.losses.items()
            },
            "profile": None if report.shared is None else str(report.shared),
        },
        "traces": {
            name: json_object(
                one.outcome,
                run_dir=str(one.run_dir),
                profile=str(report.profiles[name]),
                warnings=report.warnings[name],
            )
            for name, one in report.done.items()
        },
        "engine_starts": len(report.starts_s),
        "engine_seconds": {"starts": sum(report.starts_s), "replay": _replay_s(report)},
        "run_dir": str(report.run_dir),
    }


def _price(one: Price) -> dict[str, Any]:
    changes = {name: asdict(change) for name, change in one.changes.items()}
    return {
        "trace": one.trace,
        "max_num_seqs": one.own,
        "loss": _finite(one.loss),
        "attainment": one.attainment,
        "changes": changes,
    }


def _finite(lost: float) -> float | None:
    return lost if math.isfinite(lost) else None


def _replay_s(report: Report) -> float:
    return sum(one.outcome.replay_s for one in report.done.values())


def render_all(report: Report) -> None:
    """Print what each trace comes to, then what they share."""
    console = console_for(at_least=TABLE_WIDTH)
    for name, one in report.done.items():
        console.print(f"[bold]{escape(name)}[/]", soft_wrap=True)
        render_found(
            one.outcome,
            profile_path=report.profiles[name],
            run_dir=one.run_dir,
            warnings=report.warnings[name],
        )
        console.print()
    sharing = report.found.sharing
    console.print("what each cap loses against a trace's own, in tolerances: 1 is too much")
    console.print(losses_table(report.found))
    console.print()
    console.print(f"[bold]{escape(reason_of(report.found))}[/]")
    low, high = sharing.interval
    console.print(f"confidence {sharing.confidence:.2f}, interval {low} to {high}")
    console.print(
        f"{len(report.starts_s)} engine starts for all, {sum(report.starts_s):.0f}s; "
        f"{_replay_s(report):.0f}s of replay"
    )
    console.print(f"measurements: {escape(str(report.run_dir))}", soft_wrap=True)
    if report.shared is not None:
        shown = escape(str(report.shared))
        console.print(f"profile for all: {shown}", soft_wrap=True)
        if sharing.kind == "shared" and not overloaded(report.found):
            console.print(f"next: tuner apply {shown} --dry-run", soft_wrap=True)


def losses_table(found: MultiTraceOutcome) -> Table:
    """Return the losses of every trace at every cap that all of them were asked about."""
    losses = found.sharing.losses
    caps = sorted(set.intersection(*(set(of_cap) for of_cap in losses.values())))
    chosen = found.sharing.max_num_seqs
    table = plain_table("trace", *(f"{'> ' if cap == chosen else ''}{cap}" for cap in caps))
    for name, of_cap in losses.items():
        table.add_row(escape(name), *(_shown(of_cap[cap]) for cap in caps))
    return table


def _shown(lost: float) -> str:
    if math.isinf(lost):
        return "cut"
    return f"{lost:.1f}" if lost < 100 else ">100"

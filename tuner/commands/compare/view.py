"""The output of ``tuner compare``: on the terminal, as Markdown and as JSON."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from tuner.commands.shared.console import (
    TimeColumn,
    console_for,
    plain_table,
    print_end,
    print_warnings,
    shown,
)
from tuner.commands.sweep.view import RunProgress
from tuner.engines.seam import EngineFacts
from tuner.profile.summary import engine_time, milliseconds
from tuner.profile.verdict_block import VerdictBlock
from tuner.runs.compare.compare import Comparison
from tuner.runs.compare.table import (
    ComparisonRow,
    ComparisonTable,
    Tuned,
    shown_number,
    shown_ratio,
)

HEADINGS = ("approach", "req/s", "vs first", "p95\nE2EL s", "p95\nTPOT ms")
"""On two lines, so that 80 columns are enough."""


@dataclass(frozen=True, slots=True)
class ComparePrint:
    """The facts that are printed of a comparison beside its tables."""

    tuned: Tuned
    facts: EngineFacts
    spent_s: float
    """Engine time."""

    next: str
    run_dir: Path
    warnings: Sequence[str]
    said_before: int
    """How many more there are of the trace, which were said before."""

    details: bool


NUMBERED = re.compile(r"(\d+) of (\d+): ")
"""Beginning of a replay's name in a comparison: its number, and of how many."""


class CompareProgress(RunProgress):
    """Tells on stderr how a comparison goes: how many replays are done and to come."""

    ROWS: ClassVar[tuple[str, ...]] = ("replays", *RunProgress.ROWS)

    def _steps(self) -> dict[str, str]:
        found = NUMBERED.match(self.what)
        if found is None:
            return super()._steps()
        number, of = map(int, found.groups())
        return {"replays": f"{number - 1} done, 1 running, {of - number} to come", "ladder": ""}


def render(tables: Sequence[ComparisonTable], how: ComparePrint) -> None:
    """Print every table, and below it what was seen; last the verdict."""
    console = console_for(at_least=80)
    for table in tables:
        console.print(f"[bold]{shown(title_of(table))}[/]")
        printed = plain_table()
        for heading in headings_of(how.facts):
            left = heading == "approach"
            printed.add_column(heading, justify="left" if left else "right", no_wrap=True)
        for row in table.rows:
            printed.add_row(*(shown(cell) for cell in cells(row, how.facts)))
        console.print(printed)
        _print_notes(console, table, details=how.details)
        console.print()
    print_end(console, how.run_dir, block_of(tables[0], how))
    print_warnings(console, how.warnings, all_=how.details, before=how.said_before)


def block_of(table: ComparisonTable, how: ComparePrint) -> VerdictBlock:
    """Return what tuning was good for: the tuned engine, held against the first way of serving and
    against nobody's choice. ``table`` is the heaviest load with lengths as captured."""
    rows = {row.approach: row for row in table.rows}
    tuned, first = tuned_in(table), table.rows[0]
    title = f"max_num_seqs {how.tuned.max_num_seqs}"
    aside = "compared"
    if tuned is not None and tuned.numbers is None:
        title = f"{title} was not measured"
        aside = "failed"
    elif tuned is not None and tuned is not first and "requests_per_s" in tuned.ratios:
        aside = f"{shown_ratio(tuned.ratios['requests_per_s'])} the requests of {first.title}"
    told = [(name, _in_words(rows[name])) for name in SHOWN if name in rows]
    simulated = how.facts.engine == "sim"
    took = engine_time(how.spent_s, simulated=simulated)
    told.append(("from", f"{how.tuned.source}; {took}"))
    return VerdictBlock(title, "simulated, " * simulated + aside, told, how.next)


def tuned_in(table: ComparisonTable) -> ComparisonRow | None:
    """Return the tuned engine's row; None where it was not asked for."""
    rows = {row.approach: row for row in table.rows}
    return rows.get("profile") or rows.get("tuned")


SHOWN = ("profile", "tuned", "untuned", "worker")
"""Approaches of the verdict block, the one to take first."""


def _in_words(row: ComparisonRow) -> str:
    one = row.numbers
    if one is None:
        return f"failed: {row.errors[0]}" if row.errors else "failed"
    parts = [f"{one.requests_per_s:.2f} req/s"]
    if one.e2el_p95_s is not None:
        more = "more than " * one.e2el_at_least
        parts.append(f"p95 E2EL {more}{milliseconds(one.e2el_p95_s * 1e3)}")
    if one.tpot_s is not None:
        parts.append(f"p95 TPOT {milliseconds(one.tpot_s.p95 * 1e3)}")
    return ", ".join(parts)


def _print_notes(console: Console, table: ComparisonTable, *, details: bool) -> None:
    """Print why an approach failed, and with --details what else was seen of it."""
    for row in table.rows:
        for note in (*(row.notes if details else ()), *row.errors):
            console.print(f"{shown(row.title)}: {shown(note)}", soft_wrap=True)


def title_of(table: ComparisonTable) -> str:
    kind = "lengths as captured" if table.lengths == "captured" else "uniform lengths"
    seen = {row.approach: row.numbers for row in table.rows if row.numbers}
    flown = f"{seen['untuned'].in_flight_mean:.0f} measured untuned" if "untuned" in seen else ""
    if table.in_flight is None:
        level = "load as recorded" + (f" ({flown.replace(' m', ' in flight, m')})" if flown else "")
    else:
        level = f"{table.load} load ({table.in_flight} in flight" + (
            f", {flown})" if flown else ")"
        )
    rates = [one.offered_rps for one in seen.values()]
    offered = f", {max(rates):.2f} req/s offered" if rates else ""
    return f"{level}, {kind}{offered}"


def headings_of(facts: EngineFacts) -> tuple[str, ...]:
    return (*HEADINGS, "GPU\nbusy" if _has_gpu(facts) else "engine\nbusy", "idle")


def _has_gpu(facts: EngineFacts) -> bool:
    return facts.device.get("kind") == "gpu"


def cells(row: ComparisonRow, facts: EngineFacts) -> tuple[str, ...]:
    title = row.title
    if row.max_num_seqs is not None and row.approach in {"untuned", "tuned", "profile"}:
        title += f" ({row.max_num_seqs})"
    one = row.numbers
    if one is None:
        return (title, "failed", "-", "-", "-", "-", "-")
    e2el = "-" if one.e2el_p95_s is None else shown_number(one.e2el_p95_s)
    return (
        title,
        f"{one.requests_per_s:.2f}",
        shown_ratio(row.ratios["requests_per_s"]) if "requests_per_s" in row.ratios else "-",
        f"{'>' if one.e2el_at_least else ''}{e2el}",
        TimeColumn("ms").shown(one.tpot_s.p95 if one.tpot_s else None),
        *_use(row, gpu=_has_gpu(facts)),
    )


def _use(row: ComparisonRow, *, gpu: bool) -> tuple[str, str]:
    """Return how busy the engine or the GPU was, and how much of the time it was idle."""
    one = row.numbers
    nothing = ("-", "-")
    if one is None:
        return nothing
    if not gpu:
        busy = one.busy
        return nothing if busy is None else _shares(busy.mean, busy.sd, busy.idle_share)
    device = one.device
    if device is None or device.utilisation_mean is None:
        return nothing
    return _shares(device.utilisation_mean, device.utilisation_sd or 0.0, device.idle_share or 0.0)


def _shares(mean: float, sd: float, idle: float) -> tuple[str, str]:
    return f"{mean:.0%} ±{sd:.0%}", f"{idle:.0%}"


def json_object(
    tables: Sequence[ComparisonTable],
    comparison: Comparison,
    tuned: Tuned,
    facts: EngineFacts,
    warnings: Sequence[str],
) -> dict[str, Any]:
    """Return what ``tuner compare --json`` prints. Times in seconds."""
    comparing, workload = comparison.comparing, comparison.workload
    rates = workload.rates_rps
    return {
        "device": dict(facts.device),
        "versions": dict(facts.versions),
        "tuned": asdict(tuned),
        "rates_rps": {level: sum(each) / len(each) for level, each in rates.items()},
        "windows": [str(window) for window in workload.windows],
        "engine_starts": len(comparing.evidence.starts_s()),
        "engine_seconds": {
            "starts": sum(comparing.evidence.starts_s()),
            "replay": comparing.evidence.replay_s(),
        },
        "run_dir": str(comparing.journal.run_dir),
        "warnings": list(warnings),
        "tables": [asdict(table) for table in tables],
    }

"""The page of a comparison. Pure."""

from collections.abc import Sequence
from pathlib import Path

from tuner.engines.seam import EngineFacts
from tuner.profile.summary import engine_time, milliseconds, percent
from tuner.runs.compare.compare import Comparison
from tuner.runs.compare.table import ComparisonRow, ComparisonTable, shown
from tuner.runs.compare.ways import UNIFORM
from tuner.views.page import Cell, Column, Page, Section, Table


def compare_page(
    comparison: Comparison,
    tables: Sequence[ComparisonTable],
    source: Path,
    *,
    warnings: Sequence[str],
    next_: str,
) -> Page:
    """Return what tuning was good for: the tuned engine beside the first way of serving and beside
    the default. The first table is the trace as it is, or the heaviest load."""
    journal, every = comparison.journal, [row for table in tables for row in table.rows]
    facts, best = journal.facts(), tuned_row(tables[0])
    title, aside = f"max_num_seqs {comparison.tuned}", "compared"
    if best is not None and best.numbers is None:
        title, aside = f"{title} was not measured", "failed"
    elif best is not None:
        title = ": ".join([title, *_gains(best, tables[0])])
    is_simulated = facts.engine == "sim"
    took = engine_time(journal.spent_s(), simulated=is_simulated)
    return Page(
        subject=f"Comparison {journal.run_dir}",
        title=title,
        aside="simulated, " * is_simulated + aside,
        facts=[("from", f"{source}; {took}")],
        sections=[Section(_title(table), tables=[_table(table, facts)]) for table in tables],
        details=[f"{row.title}: {note}" for row in every for note in row.notes],
        warnings=[*(f"{row.title}: {text}" for row in every for text in row.errors), *warnings],
        run_dir=str(journal.run_dir),
        next=next_,
    )


def tuned_row(table: ComparisonTable) -> ComparisonRow | None:
    """Return the tuned engine's row; None where it was not compared."""
    return next((row for row in table.rows if row.approach == "tuned"), None)


def _gains(best: ComparisonRow, table: ComparisonTable) -> list[str]:
    """Return what the tuned engine gives compared with the default and with the first row, if
    anything is known of it."""
    gains, numbers, first = list[str](), best.numbers, table.rows[0]
    default = next((row.numbers for row in table.rows if row.approach == "untuned"), None)
    if numbers is not None and numbers.attainment is not None:
        gains.append(f"{percent(numbers.attainment)} of requests meet the SLO")
        if default is not None and default.attainment is not None:
            gains[0] += f" instead of {percent(default.attainment)} untuned"
    if best is not first and "requests_per_s" in best.ratios:
        gains.append(f"{shown(best.ratios['requests_per_s'])} the throughput of {first.title}")
    return [", ".join(gains)] if gains else []


def _title(table: ComparisonTable) -> str:
    """Return load and rate of a table in words."""
    level = f"{table.load.capitalize()} load"
    if table.load == UNIFORM:
        level = "Very-heavy load, every length the mean"
    if table.in_flight is not None:
        level += f" ({table.in_flight} in flight)"
    rates = [row.numbers.offered_rps for row in table.rows if row.numbers]
    return level + (f", {max(rates):.2f} req/s offered" if rates else "")


def _table(table: ComparisonTable, facts: EngineFacts) -> Table:
    what = "GPU" if facts.device.get("kind") == "gpu" else "CPU"
    columns = [
        Column("approach", "approach"),
        Column("requests_per_s", "req/s", "number"),
        Column("ratio", "vs first", "number"),
        Column("attainment", "met SLO", "share"),
        Column("e2el_p95_s", "E2EL p95", "time"),
        Column("tpot_p95_s", "TPOT p95", "time"),
        Column("busy", f"{what} busy", "share"),
    ]
    return Table(columns, [_row(row) for row in table.rows])


def _row(row: ComparisonRow) -> list[Cell]:
    title, numbers = row.title, row.numbers
    if row.max_num_seqs is not None and row.approach in {"untuned", "tuned"}:
        title += f" ({row.max_num_seqs})"
    if numbers is None:
        return [title, "failed", *[None] * 5]
    e2el: Cell = numbers.e2el_p95_s
    if numbers.e2el_p95_s is not None and numbers.e2el_at_least:
        e2el = f"> {milliseconds(1e3 * numbers.e2el_p95_s)}"
    return [
        title,
        numbers.requests_per_s,
        shown(row.ratios["requests_per_s"]) if "requests_per_s" in row.ratios else None,
        numbers.attainment,
        e2el,
        None if numbers.tpot_s is None else numbers.tpot_s.p95,
        numbers.busy,
    ]

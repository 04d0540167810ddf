"""The report of a comparison: every way of serving the same requests."""

from collections.abc import Callable, Sequence
from typing import Any

from tuner.commands.compare.view import ComparePrint, block_of, cells, headings_of, title_of
from tuner.commands.report.drawing import axes
from tuner.commands.report.drawing.chart import Bar, Look, barred
from tuner.commands.report.drawing.html import tag
from tuner.commands.report.drawing.page import (
    Cell,
    Figure,
    Page,
    PageSection,
    Part,
    Table,
)
from tuner.commands.report.replays import Step, replay_section
from tuner.commands.report.sweep import UNFINISHED, said_by
from tuner.commands.shared.kept_result import block_of_run
from tuner.commands.shared.run_folder import goes_on
from tuner.errors import RunError
from tuner.runs.compare.approaches import UNTUNED, chosen
from tuner.runs.compare.compare import REPEATS, Comparing
from tuner.runs.compare.table import ComparisonRow, Tuned
from tuner.runs.compare.table import ComparisonTable as Compared
from tuner.runs.compare.traffic import LENGTHS, parse_levels
from tuner.runs.journal import Journal

TUNED = ("profile", "tuned")


def of_run(book: Journal) -> Page:
    """Return the report of a comparison, as far as it came. Raises RunError."""
    plan, comparing = book.events[0]["plan"], Comparing(book)
    try:
        approaches = chosen(plan["approaches"], has_profile=True, simulated=False)
        levels = parse_levels(plan["loads"])
        asked = REPEATS * len(approaches) * len(levels) * len(LENGTHS)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise RunError(
            f"{book.run_dir}/journal.jsonl:1: the plan makes no sense ({problem!r})",
            hint="Give the folder of a run of this version of tuner.",
        ) from None
    tables = comparing.tables(levels, approaches)
    if not any(comparing.evidence.starts_s()):
        raise RunError(f"{book.run_dir}: nothing was measured yet", hint="Go on with --resume.")
    has_ended = comparing.ended() >= asked
    rows = [row for table in tables for row in table.rows if row.approach in TUNED]
    cap = next((row.max_num_seqs for row in rows if row.max_num_seqs), None)
    how = ComparePrint(
        tuned=Tuned(cap or UNTUNED, _source(book)),
        facts=comparing.evidence.facts(),
        spent_s=sum(comparing.evidence.starts_s()) + comparing.evidence.replay_s(),
        next="" if has_ended else goes_on(book),
        run_dir=book.run_dir,
        warnings=(),
        said_before=0,
        details=False,
    )
    partly = "" if has_ended else UNFINISHED
    page = page_of(tables, how, steps=steps_of(comparing), partly=partly)
    block = block_of_run(book.run_dir) if has_ended else None
    return page if block is None else said_by(block, page)


def _source(book: Journal) -> str:
    if (book.run_dir / "sweep" / "journal.jsonl").exists():
        return "a sweep"
    asked = book.events[0]["plan"].get("max_num_seqs")
    return "the profile" if asked is None else "--max-num-seqs"


def page_of(
    tables: Sequence[Compared],
    how: ComparePrint,
    *,
    steps: Sequence[Step] = (),
    partly: str = "",
) -> Page:
    """Return the page of these tables; the first one is the heaviest load as captured."""
    block = block_of(tables[0], how)
    sections = [_section(table, how) for table in tables]
    if steps:
        sections.append(replay_section(steps, None, opened=None))
    return Page(
        kind=f"Comparison {how.run_dir}",
        title=block.title,
        aside=block.aside,
        rows=block.rows,
        next=how.next,
        sections=sections,
        partly=partly,
        warnings=how.warnings,
    )


def steps_of(comparing: Comparing) -> list[Step]:
    """Return the replays of each approach and traffic, one block after the other."""
    found: dict[tuple[str, ...], list[Any]] = {}
    for event in comparing.journal.of("replay"):
        key = (str(event["approach"]), str(event["load"]), str(event["lengths"]))
        found.setdefault(key, []).append(comparing.journal.replay(event))
    return [
        Step(", ".join(key), replays[0].max_num_seqs, replays) for key, replays in found.items()
    ]


def _served(row: ComparisonRow) -> float | None:
    return row.numbers.requests_per_s if row.numbers else None


def _tail_s(row: ComparisonRow) -> float | None:
    return row.numbers.e2el_p95_s if row.numbers else None


def _busy(row: ComparisonRow) -> float | None:
    return row.numbers.busy.mean if row.numbers and row.numbers.busy else None


CHARTS: tuple[tuple[str, Callable[[ComparisonRow], float | None], axes.Told], ...] = (
    ("Requests a second", _served, lambda value: f"{value:.2f}"),
    ("p95 E2EL", _tail_s, axes.seconds),
    ("Engine busy", _busy, lambda share: f"{100 * share:.0f} %"),
)


def _section(table: Compared, how: ComparePrint) -> PageSection:
    figures = [
        Figure(title, barred([_bar(row, of) for row in table.rows], told))
        for title, of, told in CHARTS
    ]
    rows: list[list[Cell]] = [list(cells(row, how.facts)) for row in table.rows]
    headings = [one.replace("\n", " ") for one in headings_of(how.facts)]
    parts: list[Part] = [figures, Table("The same in numbers", headings, rows)]
    notes = [f"{row.title}: {note}" for row in table.rows for note in (*row.notes, *row.errors)]
    if notes:
        parts.append(tag("ul", *(tag("li", one) for one in notes), class_="warnings"))
    kind = "as captured" if table.lengths == "captured" else "uniform lengths"
    said = title_of(table)
    return PageSection(f"{table.load.capitalize()}, {kind}", f"{said[0].upper()}{said[1:]}.", parts)


def _bar(row: ComparisonRow, of: Callable[[ComparisonRow], float | None]) -> Bar:
    value, ratio = of(row), row.ratios.get("requests_per_s")
    ends = None
    if of is _served and value and ratio and ratio.value and ratio.low and ratio.high:
        unit = value / ratio.value
        ends = (unit * ratio.low, unit * ratio.high)
    is_least = of is _tail_s and row.numbers is not None and row.numbers.e2el_at_least
    look: Look = "accent" if row.approach in TUNED else "plain"
    return Bar(row.title, value, ends, is_least=is_least, look=look)

"""The console of every command: results on stdout, progress on stderr."""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tuner.profile.verdict_block import WIDTH, VerdictBlock, wrapped
from tuner.system.printable import printable

PLAIN_WIDTH = 100
"""Columns where stdout is no terminal, so that a log has the same lines everywhere."""

LONG_S = 10.0
"""A column with a time from here on is told in seconds."""

MOST_WARNINGS = 3
WARNING = "Warning: "


def console_for(*, at_least: int = 0) -> Console:
    """Return the console for stdout; a narrower terminal wraps, which beats numbers cut off."""
    console = Console(highlight=False)
    if not console.is_terminal:
        return Console(highlight=False, width=PLAIN_WIDTH, color_system=None)
    return console if console.width >= at_least else Console(highlight=False, width=at_least)


def shown(text: object) -> str:
    """Return text that is not ours for the console: it shows, and does nothing else."""
    return escape(printable(str(text)))


def print_line(console: Console, text: str) -> None:
    """Print one line of what goes on: parted between words on a terminal, whole in a log."""
    lines = [printable(text)]
    if console.is_terminal:
        under = " " * len("00:00 ")
        lines = textwrap.wrap(
            lines[0], console.width, subsequent_indent=under, break_on_hyphens=False
        )
    for line in lines:
        console.print(escape(line), soft_wrap=True)


def plain_table(*headings: str, gap: int = 0) -> Table:
    """Return a table whose columns are as narrow as they can be; lines of a heading may differ.

    ``gap`` is more between two columns.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def print_block(console: Console, block: VerdictBlock) -> None:
    """Print a verdict block, its first line bold."""
    for number, line in enumerate(block.lines()):
        style = None if number else "bold"
        # no markup: it doubles a backslash at the end of a line
        console.print(printable(line), style=style, soft_wrap=True, markup=False, emoji=False)


def print_end(console: Console, run_dir: Path, block: VerdictBlock) -> None:
    """Print where a run's measurements are, then its verdict."""
    console.print(f"measurements: {shown(run_dir)}", soft_wrap=True)
    console.print()
    print_block(console, block)


def print_rows(console: Console, rows: Iterable[tuple[str, str]]) -> None:
    """Print named sentences as a verdict block has them, each as long as it is."""
    for name, text in rows:
        for number, line in enumerate(wrapped(text)):
            console.print(f"  {'' if number else name:<9}{shown(line)}", soft_wrap=True)


def print_warnings(
    console: Console, warnings: Sequence[str], *, all_: bool = False, before: int = 0
) -> None:
    """Print the first few warnings, which are in the order of what they change, and say how many
    more there are: ``before`` of them were said by an earlier command."""
    warnings = list(dict.fromkeys(warnings))
    told = warnings if all_ else warnings[:MOST_WARNINGS]
    for warning in told:
        first, *rest = textwrap.wrap(
            printable(warning), WIDTH - len(WARNING), break_on_hyphens=False
        ) or [""]
        console.print(f"[yellow]{WARNING.rstrip()}[/] {escape(first)}", soft_wrap=True)
        for line in rest:
            console.print(f"{' ' * len(WARNING)}{escape(line)}", soft_wrap=True)
    if left := len(warnings) - len(told) + before:
        console.print(f"{left} more warning{'s' * (left != 1)}: --details")


@dataclass(frozen=True, slots=True)
class TimeColumn:
    """The unit in which all times of one column are told."""

    unit: Literal["ms", "s"]

    @classmethod
    def of(cls, times_s: Iterable[float | None]) -> Self:
        most_s = max((one for one in times_s if one is not None), default=0.0)
        return cls("s" if most_s >= LONG_S else "ms")

    def shown(self, time_s: float | None) -> str:
        """Return a time without its unit, with three digits.

        >>> [TimeColumn("s").shown(one) for one in (0.0951, 3.0, 1240.0, None)]
        ['0.0951', '3.00', '1,240', '-']
        """
        if time_s is None:
            return "-"
        value = time_s * (1e3 if self.unit == "ms" else 1.0)
        return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"

    def changed(self, by_s: float) -> str:
        """Return by how much a time changes, with its sign.

        >>> TimeColumn("ms").changed(-0.0124), TimeColumn("s").changed(250.0)
        ('-12.4', '+250')
        """
        return f"{'-' if by_s < 0 else '+'}{self.shown(abs(by_s))}"

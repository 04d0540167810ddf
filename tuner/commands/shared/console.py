"""The console of a command, and text of others on it."""

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tuner.system.printable import printable

PLAIN_WIDTH = 100
"""Columns where stdout is no terminal, so that a log has the same lines everywhere."""


def console_for(*, at_least: int = 0) -> Console:
    """Return the console for stdout; a narrower terminal wraps, which beats numbers cut off."""
    console = Console(highlight=False)
    if not console.is_terminal:
        return Console(highlight=False, width=PLAIN_WIDTH, color_system=None)
    return console if console.width >= at_least else Console(highlight=False, width=at_least)


def shown(text: object) -> str:
    """Return text that is not ours for the console: it shows, and does nothing else."""
    return escape(printable(str(text)))


def plain_table(*headings: str, gap: int = 0) -> Table:
    """Return a table whose columns are as narrow as they can be. ``gap`` is more between two."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table

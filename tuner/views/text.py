"""A page on a terminal: results on stdout, progress on stderr."""

import shlex
import sys
import textwrap

import msgspec
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from tuner.profile.summary import MOST_LINES, NAMES, WIDTH, wrapped
from tuner.system.printable import printable
from tuner.views.page import Page, Table

PLAIN_WIDTH = 100
"""Columns where stdout is not a terminal, so that a log has the same lines everywhere."""


def print_page(page: Page, *, details: bool = False) -> None:
    """Print the answer, the tables, what the answer rests on, warnings, and the next command; with
    ``details`` all that there is."""
    console = Console(highlight=False)
    console.width = max(WIDTH, console.width) if console.is_terminal else PLAIN_WIDTH
    most = None if details else MOST_LINES
    for line in textwrap.wrap(page.title, WIDTH, max_lines=most and most + 1, placeholder=" …"):
        _put(console, line, style="bold")
    shown = [(each, table) for each in page.sections for table in each.tables if table.rows]
    for section, table in shown:
        console.print()
        if caption := table.caption or section.title * (len(shown) > 1):
            _put(console, caption)
        console.print(_table(table))
    console.print()
    for name, words in [("verdict", page.aside), *page.facts]:
        for number, line in enumerate(wrapped(words, most=most) if words else []):
            _put_fact(console, "" if number else name, line)
    _put_fact(console, "run", page.run_dir)
    for line in page.details if details else []:
        _put(console, line)
    _print_warnings(console, page, None if details else 3)
    _put_fact(console, "next", page.next)


def print_json(document: object) -> None:
    """Print one JSON document on a line; what is not a number becomes null."""
    sys.stdout.write(msgspec.json.encode(document, enc_hook=plain).decode() + "\n")


def plain(value: object) -> object:
    """Return what msgspec does not know as JSON content: a number of numpy's, or text."""
    return value.item() if isinstance(value, np.generic) else str(value)


def _put(console: Console, line: str, style: str | None = None) -> None:
    """Print a line of any text: it shows, and does nothing else."""
    console.print(printable(line), style=style, soft_wrap=True, markup=False, emoji=False)


def _put_fact(console: Console, name: str, line: str) -> None:
    if line:
        _put(console, f"  {name:<{NAMES - 2}}{line}")


def _print_warnings(console: Console, page: Page, most: int | None) -> None:
    warnings, indent = list(dict.fromkeys(page.warnings)), " " * len("Warning: ")
    for warning in warnings[:most]:
        text = f"Warning: {printable(warning)}"
        lines = textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
        for line in lines:
            _put(console, line)
    if left := len(warnings[most:] if most else []):
        more = f"tuner show {shlex.quote(page.run_dir)} --details" if page.run_dir else "--details"
        _put(console, f"{left} more warning{'s' * (left != 1)}: {more}")


def _table(table: Table) -> RichTable:
    """Return a table whose columns are as narrow as they can be."""
    printed = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    columns = table.shown()
    for heading, kind, _ in columns:
        is_text, shown = kind == "text", printable(heading)
        printed.add_column(
            Text(shown if is_text else shown.replace(" ", "\n", 1)),
            justify="left" if is_text else "right",
            no_wrap=not is_text,
            overflow="fold",
        )
    cells = zip(*(cells for _, _, cells in columns), strict=True)
    for number, (first, *rest) in enumerate(cells):
        is_chosen = number == table.chosen
        words = (Text(printable(cell)) for cell in (f"{'> ' * is_chosen}{first}", *rest))
        printed.add_row(*words, style="bold" if is_chosen else None)
    return printed

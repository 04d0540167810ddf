"""The report of a watch: every window beside what the profile promises of it."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tuner.commands.report.drawing import axes
from tuner.commands.report.drawing.chart import Chart, Item, Line, Mark
from tuner.commands.report.drawing.page import Cell, Figure, Page, PageSection, Table
from tuner.commands.report.drawing.thin import MOST_POINTS, thinned
from tuner.commands.shared.next_step import command
from tuner.commands.watch.run import WINDOWS_FILE as NAME
from tuner.errors import RunError
from tuner.runs.journal import NO_SENSE
from tuner.system import files

MOST_ROWS = 200
"""Of the table: the newest windows; more of them are in the data."""

NUMBERS = (
    "number", "begin_s", "end_s", "arrived", "finished", "failed", "gap_ms", "promised_gap_ms",
    "slowness", "running", "promised_running", "waiting", "kv_cache_usage", "preemptions",
)  # fmt: skip

Window = Mapping[str, Any]


def of_run(run_dir: Path) -> Page:
    """Return the report of a watch's windows. Raises RunError."""
    begins, windows, end = _read(run_dir / NAME)
    last = windows[-1]["verdict"]
    first = begins[-1] if begins else {}
    counted = f"{len(windows):,} window{'s' * (len(windows) != 1)}"
    seconds = windows[-1]["end_s"] - windows[0]["begin_s"]
    rows = [
        *([("why", str(end["reason"]))] if end else []),
        ("server", str(first.get("url", "-"))),
        ("profile", str(first.get("profile", "-"))),
        ("seen", f"{sum(int(one['arrived']) for one in windows):,} requests in {seconds:,.0f} s"),
        ("changed", _changes(windows)),
    ]
    return Page(
        kind=f"Watch {run_dir}",
        title=str(end.get("verdict", last)),
        aside=f"after {counted}",
        rows=rows,
        next=str(end.get("next", command("show", first["profile"]) if "profile" in first else "")),
        sections=[
            PageSection(
                "Windows",
                "Each beside what the profile promises of it.",
                [[_figure(windows, one) for one in CHARTS]],
            ),
            PageSection("In numbers", "", [_table(windows)]),
        ],
    )


def _read(path: Path) -> tuple[list[dict[str, Any]], list[Window], dict[str, Any]]:
    """Return how the watches began, every window, and how the last of them ended, empty
    where it has not; a torn last line is left out."""
    begins, windows, end = list[dict[str, Any]](), list[Window](), dict[str, Any]()
    try:
        lines = files.read_regular(path).split(b"\n")[:-1]
    except OSError as problem:
        raise RunError(f"{path}: {problem.strerror}", hint="Make it readable.") from None
    for number, line in enumerate(lines, 1):
        try:
            one = json.loads(line)
            if one["event"] == "begin":
                begins.append(one)
                end = {}
                continue
            if one["event"] == "end":
                str.split(one["verdict"]), str.split(one["reason"]), str.split(one["next"])
                end = one
                continue
            assert all(one[name] is None or float(one[name]) >= 0 for name in NUMBERS)
            str(one["verdict"])
            windows.append(one)
        except NO_SENSE:
            raise RunError(
                f"{path}:{number}: is no window of a watch",
                hint="Give the --run-dir of tuner watch as it wrote it.",
            ) from None
    if not windows:
        raise RunError(f"{path}: holds no window yet", hint="Watch for longer.")
    return begins, windows, end


def _changes(windows: Sequence[Window]) -> str:
    """Return when the verdict changed."""
    found, before = list[str](), ""
    for number, one in enumerate(windows, 1):
        if one["verdict"] != before:
            before = str(one["verdict"])
            found.append(f"{before} from window {number}")
    return "; ".join(found[-6:])


_Number = tuple[str, str, str | None, axes.Told]
"""Title of a chart, what it shows, what is promised of it, and how it is told."""

CHARTS: tuple[_Number, ...] = (
    ("Decode time per token", "gap_ms", "promised_gap_ms", axes.milliseconds),
    ("Iterations over the law", "slowness", None, axes.times_as_long),
    ("Requests running", "running", "promised_running", axes.whole),
    ("Requests waiting", "waiting", None, axes.whole),
    ("Requests a second", "rate", None, axes.whole),
    ("KV cache in use", "kv_cache_usage", None, axes.share),
)


def _figure(windows: Sequence[Window], what: _Number) -> Figure:
    title, name, promised, told = what
    items: list[Item] = []
    values: list[float] = []
    at = np.array([float(one["end_s"]) for one in windows])
    at -= at[0]
    for column, label in ((promised, "promised"), (name, "seen" if promised else "")):
        if column is not None:
            x, y = _line(at, [_value(one, column) for one in windows])
            is_seen = column == name
            items.append(
                Line(x, y, label, look="accent" if is_seen else "plain", is_dashed=not is_seen)
            )
            values += y.tolist()
    if name == "slowness":
        items.append(Mark(1.0, "", "y", is_dashed=True))
        values.append(1.0)
    most = max((one for one in values if math.isfinite(one)), default=0.0)
    x_axis = axes.time(at.tolist(), label="seconds since the first window")
    text = f"{title} by window, at most {told(most)}."
    return Figure(title, Chart(text, x_axis, axes.linear(values, told), items))


def _line(at: np.ndarray, values: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    return thinned(at, np.array(values, float), most=MOST_POINTS)


def _value(one: Window, name: str) -> float:
    if name == "rate":
        return float(one["arrived"]) / max(1e-9, float(one["end_s"]) - float(one["begin_s"]))
    value = one[name]
    return math.nan if value is None else float(value)


HEADINGS = (
    "window", "req/s", "running", "promised", "waiting", "ms/token", "promised", "law x", "KV",
    "failed", "verdict",
)  # fmt: skip


def _table(windows: Sequence[Window]) -> Table:
    rows: list[list[Cell]] = []
    for one in windows[-MOST_ROWS:]:
        numbers = [
            f"{_value(one, 'rate'):.2f}",
            *(_number(one, name, ".1f") for name in ("running", "promised_running", "waiting")),
            *(_number(one, name, ".2f") for name in ("gap_ms", "promised_gap_ms", "slowness")),
            _number(one, "kv_cache_usage", ".0%"),
            f"{one['failed']:,}",
        ]
        rows.append([f"{one['number']:,}", *numbers, str(one["verdict"])])
    caption = "Every window" if len(windows) <= MOST_ROWS else f"The newest {MOST_ROWS} windows"
    return Table(caption, HEADINGS, rows, text=(0, 10))


def _number(one: Window, name: str, digits: str) -> str:
    value = _value(one, name)
    return f"{value:{digits}}" if math.isfinite(value) else "-"

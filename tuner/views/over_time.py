"""What a run did over time, step by step, and the traffic that it was tuned for. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from tuner.errors import RunError
from tuner.replay.numbers import measure
from tuner.replay.records import Replay
from tuner.runs.bench import in_words
from tuner.runs.events import Replayed
from tuner.runs.journal import Journal
from tuner.trace.trace import TraceRequest
from tuner.traffic.slo import Slo
from tuner.traffic.window import Window
from tuner.views.numbers import COLUMNS, cells
from tuner.views.page import Cell, Chart, Column, Kind, Mark, Section, Series, Table
from tuner.views.svg import thinned

Floats = NDArray[np.float64]
Line = tuple[Floats, Floats]

POINTS, MOST_POINTS = 25_000, 1000
"""Of all lines of a page together, so that it stays small, and of one line."""
BINS = 160
"""Of what is counted per second."""
CHARTS: tuple[tuple[str, Kind, tuple[str, ...]], ...] = (
    ("Requests", "count", ("in flight", "waiting", "running")),
    ("KV cache in use", "share", ("KV cache",)),
    ("Output tokens a second", "count", ("tokens/s",)),
    ("Device busy", "share", ("device",)),
)
MEASURED = (
    *("attainment", "goodput_rps", "ttft_p99_s", "tpot_p95_s", "e2el_p99_s", "running_peak"),
    *("in_flight_peak", "kv_peak", "preemptions"),
)
OF_ENGINE = {"running_peak", "kv_peak"}
"""What is known of a ramp too, which has no clients."""


@dataclass(frozen=True, slots=True)
class Step:
    """Neighboring replays of one kind, one after the other."""

    title: str
    replays: Sequence[Replay]

    @property
    def elapsed_s(self) -> float:
        return sum(replay.elapsed_s for replay in self.replays)


@dataclass(slots=True)
class Steps:
    """Every step of a run, and what could not be read back."""

    steps: list[Step] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, book: Journal) -> "Steps":
        result = cls()
        for title, events in groupby(book.of(Replayed), _title):
            replays = []
            for event in events:
                try:
                    replays.append(book.replay(event))
                except RunError as problem:
                    result.lost.append(str(problem))
            if replays:
                result.steps.append(Step(title, replays))
        return result


def _title(event: Replayed) -> str:
    """Return the title of the step that a replay belongs to."""
    ramp = "to " * event.purpose.endswith("ramp")
    return f"{in_words(event.purpose)} {ramp}{event.max_num_seqs}"


def steps_sections(run_steps: Steps, slo: Slo | None) -> list[Section]:
    """Return a table of every step, and a folded section of charts for each."""
    steps = run_steps.steps
    if not steps:
        return []
    points = max(24, min(MOST_POINTS, POINTS // (5 * len(steps))))
    note = "In flight: between arrival and last token. Running and waiting: in the scheduler."
    tables = [] if slo is None else [_table(steps, slo)]
    sections = [Section("Steps over time", note, tables=tables)]
    for step in steps:
        cut = step.replays[0].cut
        note = f"{step.elapsed_s:,.0f} s" + (f", cut: {cut}" if cut else "")
        sections.append(Section(step.title, note, _charts(step, points), is_folded=True))
    return sections


def _charts(step: Step, points: int) -> list[Chart]:
    """Return the charts of a step, its replays one after the other with a gap between."""
    begins_s = np.cumsum([0.0, *(replay.elapsed_s for replay in step.replays)])
    lines: dict[str, list[Line]] = {}
    for begin_s, replay in zip(begins_s, step.replays, strict=False):
        for name, line in _lines(replay):
            at_s, values = thinned(*line, max(4, points // len(step.replays)))
            part = np.append(at_s + begin_s, begin_s), np.append(values, np.nan)
            lines.setdefault(name, []).append(part)
    marks = [Mark(float(at_s)) for at_s in begins_s[1:-1]]
    charts = []
    for title, kind, names in CHARTS:
        series = [
            _series(lines[name], "" if len(names) == 1 else name) for name in names if name in lines
        ]
        if series:
            charts.append(Chart(title, series, kind, x_label="seconds", marks=marks))
    return charts


def _series(parts: Sequence[Line], name: str = "") -> Series:
    at_s, values = (np.concatenate(each)[:-1] for each in zip(*parts, strict=True))
    y = [value if np.isfinite(value) else None for value in values.round(4).tolist()]
    return Series(at_s.round(3).tolist(), y, name, is_accent=name in {"", "running"})


def _lines(replay: Replay) -> Iterator[tuple[str, Line]]:
    """Yield name, times and values of each line of one replay."""
    begins, ends = replay.requests["planned_s"], replay.requests["end_s"]
    if len(begins):
        at_s = np.concatenate((begins, ends))
        change = np.repeat((1.0, -1.0), len(begins))
        order = np.lexsort((change, at_s))
        yield "in flight", (at_s[order], np.cumsum(change[order]))
    log = replay.iterations
    if len(log):
        for name in ("running", "waiting"):
            yield name, (log["start_s"], log[name].astype(float))
        if replay.kv_blocks:
            yield "KV cache", (log["start_s"], log["kv_blocks_used"] / replay.kv_blocks)
        ends_s = log["start_s"] + log["duration_s"]
        yield "tokens/s", per_second(ends_s, log["decode_seqs"], replay.elapsed_s)
    if len(replay.device):
        seconds = np.arange(1, len(replay.device) + 1, dtype=float)
        yield "device", (seconds, replay.device["utilisation"].astype(float))


def per_second(at_s: Floats, amount: NDArray[np.number] | None, end_s: float) -> Line:
    """Return how much happens per second, in bins of a second or more from 0 on."""
    width_s = max(1.0, end_s / BINS)
    edges = np.arange(0.0, end_s + width_s, width_s)
    count = np.histogram(at_s, edges, weights=amount)[0]
    return (edges[:-1] + edges[1:]) / 2, count / width_s


def _table(steps: Sequence[Step], slo: Slo) -> Table:
    columns = [Column("step", "step"), Column("elapsed_s", "seconds", "count")]
    rows: list[list[Cell]] = []
    for step in steps:
        values = dict(zip(MEASURED, cells(measure(step.replays, slo), *MEASURED), strict=True))
        if not any(len(replay.requests) for replay in step.replays):
            values = {name: values[name] if name in OF_ENGINE else None for name in MEASURED}
        rows.append([step.title, step.elapsed_s, *values.values()])
    return Table([*columns, *(COLUMNS[name] for name in MEASURED)], rows)


def traffic_section(requests: Sequence[TraceRequest], windows: Sequence[Window] = ()) -> Section:
    """Return what arrived over time and how long it was. At least one request."""
    arrival_s = np.array([each.arrival_s for each in requests])
    lengths = {
        "prompt": np.array([each.input_length for each in requests]),
        "output": np.array([each.output_length for each in requests]),
    }
    begin_s, end_s = float(arrival_s[0]), float(arrival_s[-1])
    shades = [(each.start_s, min(end_s, each.start_s + each.length_s)) for each in windows]
    note = "shaded: the windows that each step replays" * bool(shades)
    charts = []
    for title, amount in (("Requests", None), ("Output tokens", lengths["output"])):
        at_s, values = per_second(arrival_s - begin_s, amount, end_s - begin_s)
        line = np.append(at_s + begin_s, 0.0), np.append(values, 0.0)
        charts.append(
            Chart(
                f"{title} a second",
                [_series([line])],
                "count",
                x_label="seconds of the trace",
                shades=shades,
                note=note,
            )
        )
    columns = [Column("tokens", "tokens")]
    columns += [Column(name, name, "count") for name in ("mean", "p50", "p95", "most")]
    rows: list[list[Cell]] = [
        [name, float(each.mean()), *np.quantile(each, (0.5, 0.95)).tolist(), int(each.max())]
        for name, each in lengths.items()
    ]
    note = f"{len(requests):,} requests in {end_s - begin_s:,.0f} s."
    return Section("Traffic", note, charts, [Table(columns, rows)])

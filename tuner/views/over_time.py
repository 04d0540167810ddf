"""What a run did over time, step by step, and the traffic that it was tuned for. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from tuner.errors import RunError
from tuner.replay.measure import measure
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

POINTS = 25_000
"""Of all lines of a page together, so that it stays small."""
MOST_POINTS = 1000
"""Of one line."""
BINS = 160
"""Of what is counted per second."""


@dataclass(frozen=True, slots=True)
class Step:
    """Neighboring replays of one kind, one after the other."""

    title: str
    max_num_seqs: int
    replays: Sequence[Replay]


@dataclass(slots=True)
class Steps:
    """Every step of a run, and what could not be read back."""

    steps: list[Step] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, book: Journal) -> "Steps":
        result = cls()
        for (title, cap), events in groupby(book.of(Replayed), _kind):
            if replays := list(result._read(book, events)):
                result.steps.append(Step(title, cap, replays))
        return result

    def _read(self, book: Journal, events: Iterable[Replayed]) -> Iterable[Replay]:
        for event in events:
            try:
                yield book.replay(event)
            except RunError as problem:
                self.lost.append(str(problem))


def _kind(event: Replayed) -> tuple[str, int]:
    """Return the title of the step that a replay belongs to, and its max_num_seqs."""
    purpose, cap = event.purpose, event.max_num_seqs
    return f"{in_words(purpose)} {'to ' * purpose.endswith('ramp')}{cap}", cap


def steps_sections(run_steps: Steps, slo: Slo | None) -> list[Section]:
    """Return a table of every step, and a folded section of charts for each."""
    if not run_steps.steps:
        return []
    points = max(24, min(MOST_POINTS, POINTS // (5 * len(run_steps.steps))))
    tables = [] if slo is None else [_table(run_steps.steps, slo)]
    note = "In flight: between arrival and last token. Running and waiting: in the scheduler."
    return [
        Section("Steps over time", note, tables=tables),
        *(
            Section(
                step.title,
                f"{sum(replay.elapsed_s for replay in step.replays):,.0f} s"
                + "".join(f", cut: {replay.cut}" for replay in step.replays[:1] if replay.cut),
                charts=_charts(step, points),
                is_folded=True,
            )
            for step in run_steps.steps
        ),
    ]


CHARTS: tuple[tuple[str, Kind, tuple[str, ...]], ...] = (
    ("Requests", "count", ("in flight", "waiting", "running")),
    ("KV cache in use", "share", ("KV cache",)),
    ("Output tokens a second", "count", ("tokens/s",)),
    ("Device busy", "share", ("device",)),
)


def _charts(step: Step, points: int) -> list[Chart]:
    begins_s = np.cumsum([0.0, *(replay.elapsed_s for replay in step.replays)])
    lines: dict[str, list[Line]] = {}
    for begin_s, replay in zip(begins_s, step.replays, strict=False):
        for name, line in _lines(replay).items():
            at_s, values = thinned(*line, max(4, points // len(step.replays)))
            gap = np.array([np.nan])
            lines.setdefault(name, []).append(
                (np.append(at_s + begin_s, begin_s), np.append(values, gap))
            )
    marks = [Mark(float(at_s)) for at_s in begins_s[1:-1]]
    return [
        Chart(
            title,
            [
                _series(name, lines[name], is_alone=len(names) == 1)
                for name in names
                if name in lines
            ],
            kind,
            x_label="seconds",
            marks=marks,
        )
        for title, kind, names in CHARTS
        if any(name in lines for name in names)
    ]


def _series(name: str, parts: Sequence[Line], *, is_alone: bool) -> Series:
    at_s = np.concatenate([x for x, _ in parts])[:-1]
    values = np.concatenate([y for _, y in parts])[:-1]
    return Series(
        np.round(at_s, 3).tolist(),
        [None if value != value else value for value in values.round(4).tolist()],  # noqa: PLR0124
        name="" if is_alone else name,
        is_accent=is_alone or name == "running",
    )


def _lines(replay: Replay) -> dict[str, Line]:
    """Return name → times and values of one replay."""
    result: dict[str, Line] = {}
    begins, ends = replay.requests["planned_s"], replay.requests["end_s"]
    if len(begins):
        at_s = np.concatenate((begins, ends))
        change = np.repeat((1.0, -1.0), len(begins))
        order = np.lexsort((change, at_s))
        result["in flight"] = at_s[order], np.cumsum(change[order])
    log = replay.iterations
    if len(log):
        for name in ("running", "waiting"):
            result[name] = log["start_s"], log[name].astype(float)
        if replay.kv_blocks:
            result["KV cache"] = log["start_s"], log["kv_blocks_used"] / replay.kv_blocks
        ends_s = log["start_s"] + log["duration_s"]
        result["tokens/s"] = per_second(ends_s, log["decode_seqs"], replay.elapsed_s)
    if len(replay.device):
        seconds = np.arange(1, len(replay.device) + 1, dtype=float)
        result["device"] = seconds, replay.device["utilisation"].astype(float)
    return result


def per_second(at_s: Floats, amount: NDArray[np.number] | None, end_s: float) -> Line:
    """Return how much happens per second, in bins of a second or more from 0 on."""
    width_s = max(1.0, end_s / BINS)
    edges = np.arange(0.0, end_s + width_s, width_s)
    count = np.histogram(at_s, edges, weights=amount)[0]
    return (edges[:-1] + edges[1:]) / 2, count / width_s


MEASURED = (
    *("attainment", "goodput_rps", "ttft_p99_s", "tpot_p95_s", "e2el_p99_s", "running_peak"),
    *("in_flight_peak", "kv_peak", "preemptions"),
)
OF_ENGINE = {"running_peak", "kv_peak"}
"""What is known of a ramp too, which has no clients."""


def _table(steps: Sequence[Step], slo: Slo) -> Table:
    columns = [Column("step", "step"), Column("elapsed_s", "seconds", "count")]
    rows: list[list[Cell]] = []
    for step in steps:
        numbers = measure(step.replays, slo)
        values = dict(zip(MEASURED, cells(numbers, *MEASURED), strict=True))
        if not any(len(replay.requests) for replay in step.replays):
            values = {name: values[name] if name in OF_ENGINE else None for name in MEASURED}
        elapsed_s = sum(replay.elapsed_s for replay in step.replays)
        rows.append([step.title, elapsed_s, *values.values()])
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
    charts = [
        Chart(
            title,
            [Series((at_s + begin_s).round(3).tolist(), values.round(4).tolist(), is_accent=True)],
            "count",
            x_label="seconds of the trace",
            shades=shades,
            note="shaded: the windows that each step replays" if shades else "",
        )
        for title, amount in (
            ("Requests a second", None),
            ("Output tokens a second", lengths["output"]),
        )
        for at_s, values in [per_second(arrival_s - begin_s, amount, end_s - begin_s)]
    ]
    columns = [Column("tokens", "tokens")]
    columns += [Column(name, name, "count") for name in ("mean", "p50", "p95", "most")]
    rows: list[list[Cell]] = [
        [name, float(each.mean()), *np.quantile(each, (0.5, 0.95)).tolist(), int(each.max())]
        for name, each in lengths.items()
    ]
    note = f"{len(requests):,} requests in {end_s - begin_s:,.0f} s."
    return Section("Traffic", note, charts, [Table(columns, rows)])

"""What a run did over time, step by step, and the traffic that it was tuned for. Pure."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuner.errors import RunError
from tuner.replay.numbers import measure
from tuner.replay.records import Replay
from tuner.runs.journal import Journal, Replayed
from tuner.trace.trace import TraceRequest
from tuner.traffic.slo import Slo
from tuner.traffic.window import Window
from tuner.views.numbers import COLUMNS, cells
from tuner.views.page import Cell, Chart, Column, Kind, Mark, Section, Series, Table

Floats = NDArray[np.float64]
Line = tuple[Floats, Floats]

MOST_POINTS = 2000
"""Of one line, so that a page stays small."""
LABELED = 0.07
"""Share of the time from which on there is room for a step's label."""
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


class Step(NamedTuple):
    """Neighboring replays of one kind, one after the other."""

    title: str
    replays: list[Replay]

    @property
    def elapsed_s(self) -> float:
        return sum(replay.elapsed_s for replay in self.replays)


def steps_of(book: Journal) -> tuple[list[Step], list[str]]:
    """Return every step of a run, and what could not be read back."""
    steps, lost = list[Step](), list[str]()
    for title, events in groupby(book.of(Replayed), _title):
        replays = []
        for event in events:
            try:
                replays.append(book.replay(event))
            except RunError as problem:
                lost.append(str(problem))
        if replays:
            steps.append(Step(title, replays))
    return steps, lost


def _title(event: Replayed) -> str:
    ramp = "to " * event.purpose.endswith("ramp")
    return f"{event.purpose.replace('_', ' ')} {ramp}{event.max_num_seqs}"


def steps_section(steps: Sequence[Step], slo: Slo | None) -> Section:
    """Return a table of every step, and charts of all of them, one after the other."""
    replays = [replay for step in steps for replay in step.replays]
    *begins_s, total_s = accumulate((step.elapsed_s for step in steps), initial=0.0)
    marks = [
        Mark(at_s, str(step.replays[0].max_num_seqs) * (step.elapsed_s > LABELED * total_s))
        for at_s, step in zip(begins_s, steps, strict=True)
    ]
    lines, charts = dict(_lines(replays)), []
    for title, kind, names in CHARTS:
        series = [
            _series(thinned(*lines[name], MOST_POINTS), name * (len(names) > 1))
            for name in names
            if name in lines
        ]
        if series:
            charts.append(Chart(title, series, kind, x_label="seconds", marks=marks))
    note = "In flight: between arrival and last token. Running and waiting: in the scheduler. "
    note += "Each line across is a step, with its max_num_seqs."
    return Section("Steps over time", note, charts, [_table(steps, slo)] if slo else [])


def _series(line: Line, name: str = "") -> Series:
    at_s, values = (each.round(4).tolist() for each in line)
    return Series(at_s, values, name, is_accent=name in {"", "running"})


def _lines(replays: Sequence[Replay]) -> Iterator[tuple[str, Line]]:
    """Yield name, times and values of each line over all replays, one after the other."""
    elapsed_s = [replay.elapsed_s for replay in replays]
    begins_s = np.cumsum([0.0, *elapsed_s[:-1]])

    def stacked(name: str) -> tuple[NDArray[np.void], Floats]:
        """Return the rows of an array of all replays, and when each row's replay began."""
        rows = [getattr(replay, name) for replay in replays]
        return np.concatenate(rows), np.repeat(begins_s, [len(each) for each in rows])

    requests, begin_s = stacked("requests")
    at_s = np.concatenate((requests["planned_s"] + begin_s, requests["end_s"] + begin_s))
    change = np.repeat((1.0, -1.0), len(requests))
    order = np.lexsort((change, at_s))
    yield "in flight", (at_s[order], np.cumsum(change[order]))
    log, begin_s = stacked("iterations")
    at_s = log["start_s"] + begin_s
    for name in ("running", "waiting"):
        yield name, (at_s, log[name].astype(float))
    if blocks := max(replay.kv_blocks for replay in replays):
        yield "KV cache", (at_s, log["kv_blocks_used"] / blocks)
    yield "tokens/s", per_second(at_s + log["duration_s"], log["decode_seqs"], sum(elapsed_s))
    device, begin_s = stacked("device")
    if len(device):
        seconds = np.concatenate([np.arange(1.0, len(each.device) + 1) for each in replays])
        yield "device", (begin_s + seconds, device["utilisation"])


def thinned(x: Floats, y: Floats, most: int) -> Line:
    """Return at most ``most`` points of a line: of each of equal stretches the lowest and the
    highest, which are all that can be seen of it."""
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) <= most:
        return x, y
    begins = np.linspace(0, len(x), most // 2, endpoint=False).astype(int)
    ends = [reduce.reduceat(y, begins) for reduce in (np.minimum, np.maximum)]
    return np.repeat(x[begins], 2), np.stack(ends, axis=1).ravel()


def per_second(at_s: Floats, amount: NDArray[np.number] | None, end_s: float) -> Line:
    """Return how much happens per second, in bins of a second or more from 0 on."""
    width_s = max(1.0, end_s / BINS)
    edges = np.arange(0.0, end_s + width_s, width_s)
    count = np.histogram(at_s, edges, weights=amount)[0]
    return (edges[:-1] + edges[1:]) / 2, count / width_s


def _table(steps: Sequence[Step], slo: Slo) -> Table:
    rows: list[list[Cell]] = []
    for step in steps:
        values = cells(measure(step.replays, slo), *MEASURED)
        if not any(len(replay.requests) for replay in step.replays):  # a ramp has no clients
            values = [None] * len(MEASURED)
        rows.append([step.title, step.elapsed_s, *values])
    columns = [Column("step", "step"), Column("elapsed_s", "seconds", "count")]
    return Table([*columns, *(COLUMNS[name] for name in MEASURED)], rows)


def traffic_section(requests: Sequence[TraceRequest], windows: Sequence[Window]) -> Section:
    """Return what arrived over time and how long it was. At least one request."""
    at_s = np.array([each.arrival_s for each in requests])
    tokens = {
        "prompt": np.array([each.input_length for each in requests]),
        "output": np.array([each.output_length for each in requests]),
    }
    begin_s, length_s = float(at_s[0]), float(at_s[-1] - at_s[0])
    shades = [(each.start_s, each.start_s + each.length_s) for each in windows]
    charts = []
    for title, amount in (("Requests", None), ("Output tokens", tokens["output"])):
        middles_s, values = per_second(at_s - begin_s, amount, length_s)
        charts.append(
            Chart(
                f"{title} a second",
                [_series((middles_s + begin_s, values))],
                "count",
                x_label="seconds of the trace",
                shades=shades,
                note="shaded: the windows that each step replays" * bool(shades),
            )
        )
    columns = [Column("tokens", "tokens")]
    columns += [Column(name, name, "count") for name in ("mean", "p50", "p95", "most")]
    rows: list[list[Cell]] = [
        [name, float(each.mean()), *np.quantile(each, (0.5, 0.95)).tolist(), int(each.max())]
        for name, each in tokens.items()
    ]
    note = f"{len(requests):,} requests in {length_s:,.0f} s."
    return Section("Traffic", note, charts, [Table(columns, rows)])

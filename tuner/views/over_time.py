"""What a run did over time, and the traffic that it was tuned for. Pure."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from tuner.replay.records import Replay
from tuner.views.page import Chart, Kind, Mark, Section

Floats = NDArray[np.float64]

MOST_POINTS = 2000
"""Of one line, so that a page stays small."""
LABELED = 0.07
"""Share of the time from which on there is room for a step's label."""
BINS = 160
"""Of what is counted per second."""


def steps_section(replays: Sequence[Replay]) -> Section:
    """Return charts of all replays, one after the other. At least one."""
    elapsed_s = np.array([replay.elapsed_s for replay in replays])
    begins_s = np.cumsum(elapsed_s) - elapsed_s
    marks = []
    for cap, places in groupby(range(len(replays)), lambda place: replays[place].max_num_seqs):
        first, *_ = step = [*places]
        has_room = elapsed_s[step].sum() > LABELED * elapsed_s.sum()
        marks.append(Mark(begins_s[first], str(cap) if has_room else ""))
    charts = []
    for title, kind, at_s, values in _lines(replays, begins_s, elapsed_s.sum()):
        x, y = (each.round(4).tolist() for each in thinned(at_s, values))
        charts.append(Chart(title, x, y, kind, marks=marks))
    note = "In flight: between arrival and last token. Running and waiting: in the scheduler. "
    return Section("Steps over time", f"{note}Each line across is a step's max_num_seqs.", charts)


def _lines(
    replays: Sequence[Replay], begins_s: Floats, total_s: float
) -> Iterator[tuple[str, Kind, Floats, Floats]]:
    """Yield title, kind, times and values of each line over all replays."""

    def stacked(name: str) -> tuple[NDArray[np.void], Floats]:
        """Return the rows of an array of all replays, and when each row's replay began."""
        rows = [getattr(replay, name) for replay in replays]
        return np.concatenate(rows), np.repeat(begins_s, [len(each) for each in rows])

    requests, begin_s = stacked("requests")
    at_s = np.concatenate((requests["planned_s"] + begin_s, requests["end_s"] + begin_s))
    change = np.repeat((1.0, -1.0), len(requests))
    order = np.lexsort((change, at_s))
    yield "Requests in flight", "count", at_s[order], np.cumsum(change[order])
    log, begin_s = stacked("iterations")
    at_s = log["start_s"] + begin_s
    for name in ("running", "waiting"):
        yield f"Requests {name}", "count", at_s, log[name].astype(float)
    if blocks := max(replay.kv_blocks for replay in replays):
        yield "KV cache in use", "share", at_s, log["kv_blocks_used"] / blocks
    tokens = _per_second(at_s + log["duration_s"], log["decode_seqs"], total_s)
    yield "Output tokens a second", "count", *tokens


def _per_second(at_s: Floats, amount: Floats | None, total_s: float) -> tuple[Floats, Floats]:
    """Return how much happens per second, in bins of a second or more."""
    width_s = max(1.0, total_s / BINS)
    edges = np.arange(0.0, total_s + width_s, width_s)
    counts = np.histogram(at_s, edges, weights=amount)[0]
    return (edges[:-1] + edges[1:]) / 2, counts / width_s


def traffic_section(arrival_s: Sequence[float]) -> Section:
    """Return how many requests arrived over time. At least one."""
    at_s = np.array(arrival_s) - arrival_s[0]
    x, y = _per_second(at_s, None, at_s[-1])
    note = f"{len(at_s):,} requests in {at_s[-1]:,.0f} s."
    return Section("Traffic", note, [Chart("Requests a second", x.tolist(), y.tolist(), "count")])


def thinned(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return at most MOST_POINTS points of a line: of each of equal stretches the lowest and the
    highest, which are all that can be seen of it."""
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) <= MOST_POINTS:
        return x, y
    begins = np.linspace(0, len(x), MOST_POINTS // 2, endpoint=False).astype(int)
    ends = [reduce.reduceat(y, begins) for reduce in (np.minimum, np.maximum)]
    return np.repeat(x[begins], 2), np.stack(ends, axis=1).ravel()

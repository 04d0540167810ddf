"""The section of a report on the traffic: what arrived, and which of it was replayed. Pure."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.commands.report.drawing import axes
from tuner.commands.report.drawing.chart import Area, Chart, Item, Line, Look, Stretch
from tuner.commands.report.drawing.page import Cell, Figure, PageSection, Table
from tuner.profile.summary import minutes
from tuner.traffic.window import Window

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BINS = 160
LENGTH_BINS = 32


def traffic_section(
    arrival_s: Floats,
    input_length: Ints,
    output_length: Ints,
    *,
    windows: Sequence[Window] = (),
    note: str = "",
) -> PageSection:
    """Return what arrived over time and how long it was. At least one request."""
    begin_s, end_s = float(arrival_s[0]), float(arrival_s[-1])
    width_s = max(1.0, (end_s - begin_s) / BINS)
    stretches = max(1, math.ceil((end_s - begin_s) / width_s))
    edges: Floats = begin_s + width_s * np.arange(stretches + 1, dtype=float)
    rate = np.histogram(arrival_s, edges)[0] / width_s
    asked = np.histogram(arrival_s, edges, weights=output_length.astype(float))[0] / width_s
    replayed: list[Item] = [
        Stretch(max(begin_s, one.start_s), min(edges[-1], one.start_s + one.length_s), str(number))
        for number, one in enumerate(windows, 1)
    ]
    x = axes.time(edges.tolist(), label="seconds of the trace")
    figures = [
        _over_time("Requests a second", edges, rate, x, replayed),
        _over_time("Output tokens a second asked for", edges, asked, x, replayed),
        _lengths(input_length, output_length),
    ]
    facts: list[list[Cell]] = [
        ["requests", f"{len(arrival_s):,} in {minutes(end_s - begin_s)}"],
        ["prompt tokens", _spread(input_length)],
        ["output tokens", _spread(output_length)],
    ]
    facts += [[f"window {number}", _window(one)] for number, one in enumerate(windows, 1)]
    return PageSection(
        "Traffic", note, [figures, Table("The traffic in numbers", (), facts, is_facts=True)]
    )


def _window(one: Window) -> str:
    weight = f", speaks for {one.weight:.3g} times its requests" if one.weight != 1 else ""
    return f"{one} after a run-in of {one.run_in_s:.1f} s{weight}"


def _over_time(
    title: str, edges: Floats, values: Floats, x: axes.Axis, more: Sequence[Item]
) -> Figure:
    middle = (edges[:-1] + edges[1:]) / 2
    width_s = float(edges[1] - edges[0])
    chart = Chart(
        said=(
            f"{title} over the trace, at most {axes.whole(float(values.max()))}, on average "
            f"{axes.whole(float(values.mean()))}."
        ),
        x=x,
        y=axes.linear(values.tolist(), axes.whole),
        items=[Area(middle, np.zeros(len(middle)), values), Line(middle, values), *more],
    )
    said = "; blue: the windows that each step replays" if more else ""
    return Figure(title, chart, f"in stretches of {width_s:.3g} s{said}")


def _lengths(input_length: Ints, output_length: Ints) -> Figure:
    both = np.maximum(1, np.concatenate((input_length, output_length)))
    low, high = float(both.min()), float(max(both.max(), both.min() + 1))
    edges = np.geomspace(low, high, LENGTH_BINS + 1)
    middle = np.sqrt(edges[:-1] * edges[1:])
    items: list[Item] = []
    values: list[float] = []
    looks: list[tuple[Ints, Look]] = [(input_length, "plain"), (output_length, "accent")]
    for lengths, look in looks:
        share = np.histogram(np.maximum(1, lengths), edges)[0] / len(lengths)
        values += share.tolist()
        items.append(Area(middle, np.zeros(len(middle)), share, look=look))
        items.append(Line(middle, share, look=look))
    ticks = [10.0**power for power in range(8) if low <= 10**power <= high] or [low, high]
    chart = Chart(
        said=f"Lengths: prompts {_spread(input_length)}; outputs {_spread(output_length)} tokens.",
        x=axes.Axis(
            low, high, [(one, axes.whole(one)) for one in ticks], is_log=True, label="tokens"
        ),
        y=axes.linear(values, axes.share),
        items=items,
    )
    return Figure("Lengths", chart, "share of requests; grey: prompts, blue: outputs")


def _spread(lengths: Ints) -> str:
    p50, p95 = np.quantile(lengths, (0.5, 0.95))
    return (
        f"{lengths.mean():,.0f} on average, p50 {p50:,.0f}, p95 {p95:,.0f}, most {lengths.max():,}"
    )

"""A comparison as a plot: an HTML page. Imports plotly, which the extra ``report`` brings."""

from collections.abc import Sequence

from plotly import graph_objects
from plotly.subplots import make_subplots

from tuner.runs.compare.comparison import Row, Table
from tuner.runs.compare.load_levels import LENGTHS

COLOURS = dict(zip(LENGTHS, ("#1f77b4", "#bbbbbb"), strict=True))


def page(tables: Sequence[Table]) -> str:
    """Return one row of bars for each load: throughput, tail and how busy the engine was."""
    loads = list(dict.fromkeys(table.load for table in tables))
    figure = make_subplots(
        rows=len(loads),
        cols=3,
        subplot_titles=[
            f"{load}: {what}" for load in loads for what in ("req/s", "p95 E2EL, s", "engine busy")
        ],
    )
    for table in tables:
        measured = [row for row in table.rows if row.numbers is not None]
        place = loads.index(table.load) + 1
        for column, heights in enumerate(zip(*map(_heights, measured), strict=True), 1):
            bars = graph_objects.Bar(
                name=f"lengths {table.lengths}" if table.lengths == "captured" else "uniform",
                legendgroup=table.lengths,
                showlegend=place == column == 1,
                marker_color=COLOURS[table.lengths],
                x=[row.title for row in measured],
                y=heights,
                error_y=_interval(measured) if column == 1 else None,
            )
            figure.add_trace(bars, row=place, col=column)
    figure.update_yaxes(range=[0, 1], tickformat=".0%", col=3)
    figure.update_layout(
        title="The same requests, served in every way (a tail of unfinished requests is longer)",
        barmode="group",
        height=380 * len(loads) + 120,
        template="plotly_white",
    )
    return str(figure.to_html(include_plotlyjs=True))


def _heights(row: Row) -> tuple[float, float | None, float | None]:
    one = row.numbers
    assert one is not None
    return one.requests_per_s, one.e2el_p95_s, one.busy.mean if one.busy else None


def _interval(rows: Sequence[Row]) -> dict[str, object]:
    """Return the whiskers of the ratios against the baseline, at the height of the throughput."""
    above, below = [], []
    for row in rows:
        high = low = 0.0
        ratio = row.ratios.get("requests_per_s")
        if row.numbers and ratio and ratio.low and ratio.high:
            unit = row.numbers.requests_per_s / ratio.value
            high = unit * (ratio.high - ratio.value)
            low = unit * (ratio.value - ratio.low)
        above.append(high)
        below.append(low)
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below}

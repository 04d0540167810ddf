"""Render ``tuner trace show``: for people, and as the JSON object of the contract."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from tuner.commands.shared.console import console_for, shown
from tuner.commands.trace import plot as trace_plot
from tuner.commands.trace.view import headline, print_warnings, requests, rows_line
from tuner.trace.columns import Floats
from tuner.trace.record import TraceHeader
from tuner.traffic.levels import Levels
from tuner.traffic.likeness import UNLIKE, Likeness
from tuner.traffic.summary import Distribution, TrafficSummary

PLOT_HEIGHT = 5
LEAST_WIDTH = 80
HEAVIEST = 0.999


@dataclass(frozen=True, slots=True)
class Shares:
    """The requests that the replicas of one trace get."""

    router: str
    requests: tuple[int, ...]
    busiest: TrafficSummary


@dataclass(frozen=True, slots=True)
class TraceReport:
    place: str
    header: TraceHeader
    traffic: TrafficSummary
    arrival_s: Floats
    part: Likeness | None
    """A part of the trace held against the whole."""

    warnings: tuple[str, ...]
    shares: Shares | None


def json_of(report: TraceReport) -> Any:  # noqa: ANN401 - JSON
    """Return the object that ``tuner trace show --json`` prints."""
    traffic = report.traffic
    found: dict[str, Any] = {
        "requests": traffic.requests,
        "rows_read": report.header.rows_read,
        "dropped": report.header.dropped,
        "duration_s": traffic.duration_s,
        "arrival_rate_rps": traffic.arrival_rate_rps,
        "interarrival_cv": traffic.interarrival_cv,
        "tick_ms": traffic.tick_ms,
        "input_tokens": _lengths_object(traffic.input_tokens),
        "output_tokens": _lengths_object(traffic.output_tokens),
        "concurrency": _concurrency_object(traffic),
        "prefix_share": traffic.prefix_share,
        "warnings": list(report.warnings),
        "dispersion": {f"{bin_s:g}": value for bin_s, value in traffic.dispersion.items()},
        "same_time_share": traffic.same_time_share,
        "peak_arrivals": {f"{span_s:g}": count for span_s, count in traffic.peak_arrivals.items()},
        "in_flight": None
        if traffic.recorded is None or traffic.levels is None
        else asdict(traffic.recorded) | {"time_above": _time_above(traffic.levels)},
        "running": None if traffic.running is None else asdict(traffic.running),
        "littles_mean": traffic.littles_mean,
        "window": None if report.part is None else _part_object(report.part),
    }
    if report.shares is not None:
        found["per_replica"] = {
            "router": report.shares.router,
            "requests": list(report.shares.requests),
            "busiest_concurrency": _concurrency_object(report.shares.busiest),
        }
    return _rounded(found)


def print_report(report: TraceReport) -> None:
    """Print it for people."""
    console = console_for(at_least=LEAST_WIDTH)
    traffic, header = report.traffic, report.header
    model = f", model {header.model}" if header.model else ""
    console.print(f"[bold]{shown(report.place)}[/] (from {shown(header.source + model)})")
    console.print(headline(traffic))
    console.print(rows_line(header))
    for note in header.notes:
        if note not in report.warnings:
            console.print(f"note: {shown(note)}", soft_wrap=True)
    _print_arrivals(console, traffic)
    _print_plot(console, report)
    console.print(_spread_table(traffic))
    if traffic.levels is not None:
        console.print(_time_above_table(traffic.levels))
        _print_law(console, traffic)
    if traffic.prefix_share is not None:
        console.print(
            f"prefix sharing: {traffic.prefix_share:.1%} of prompt tokens were seen before"
        )
    if report.part is not None:
        _print_part(console, report.part)
    if report.shares is not None:
        _print_shares(console, report.shares)
    print_warnings(console, report.warnings)


def _print_arrivals(console: Console, traffic: TrafficSummary) -> None:
    cv = "-" if traffic.interarrival_cv is None else f"{traffic.interarrival_cv:.2f}"
    peaks = ", ".join(f"{n:,} in {window_s:g}s" for window_s, n in traffic.peak_arrivals.items())
    console.print(f"arrivals: gaps have CV {cv} (1 = Poisson), at most {peaks}")
    if traffic.dispersion:
        spread = ", ".join(f"{v:,.1f} in {s:g}s" for s, v in traffic.dispersion.items())
        console.print(f"counts have variance ÷ mean {spread} (1 = Poisson)")
    if traffic.tick_ms is not None or traffic.same_time_share >= 0.01:
        console.print(f"{traffic.same_time_share:.1%} arrive at the very time of another")


def _print_plot(console: Console, report: TraceReport) -> None:
    """Draw what arrived and what was in flight, and mark the part."""
    first_s, last_s = float(report.arrival_s[0]), float(report.arrival_s[-1])
    if last_s <= first_s:
        return
    ascii_only = console.options.ascii_only
    count = trace_plot.columns_for(console.width)
    edges_s = np.linspace(first_s, last_s, count + 1)
    arrived = np.histogram(report.arrival_s, edges_s)[0] / (edges_s[1] - edges_s[0])
    series: dict[str, list[float | None]] = {"arrivals a second": [*arrived.tolist()]}
    if report.traffic.levels is not None:
        series["most in flight"] = [*report.traffic.levels.highest_in(edges_s)]
    for title, values in series.items():
        console.print(f"\n{title}")
        for line in trace_plot.bars(values, height=PLOT_HEIGHT, ascii_only=ascii_only):
            console.print(line, markup=False)
    console.print(trace_plot.axis(f"{first_s:,.0f}s", f"{last_s:,.0f}s", count))
    if (part := report.part) is not None:
        begin, end = np.searchsorted(edges_s[1:], [part.start_s, part.start_s + part.length_s])
        console.print(trace_plot.underline(int(begin), min(int(end), count), "the part below"))


def _spread_table(traffic: TrafficSummary) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for heading in ("mean", "p50", "p90", "p95", "p99", "max"):
        table.add_column(heading, justify="right", no_wrap=True)

    def row(title: str, found: Distribution | None) -> None:
        if found is not None:
            values = (found.p50, found.p90, found.p95, found.p99, found.max)
            mean = f"{found.mean:,.{0 if found.mean >= 1000 else 1}f}"
            table.add_row(title, mean, *(f"{value:,.0f}" for value in values))

    row("input tokens", traffic.input_tokens)
    row("output tokens", traffic.output_tokens)
    row("in flight (recorded)", traffic.recorded)
    row("running (recorded)", traffic.running)
    for speed, at_speed in traffic.band.items():
        row(f"in flight at {speed * 1000:.0f} ms/token", at_speed)
    return table


def _time_above_table(levels: Levels) -> Table:
    """Say what each step of the ladder would have had to make wait."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("in flight, more than", "share of time", "longest"):
        table.add_column(heading, justify="right", no_wrap=True)
    for found in _time_above(levels):
        table.add_row(str(found["level"]), f"{found['share']:.1%}", f"{found['longest_s']:,.1f}s")
    return table


def _time_above(levels: Levels) -> list[dict[str, Any]]:
    held = levels.held()
    found = []
    level = 1
    while level < 2 * held.max():
        longest_s = levels.longest_above_s(level)
        found.append({"level": level, "share": held.share_above(level), "longest_s": longest_s})
        level *= 2
    return found


def _print_law(console: Console, traffic: TrafficSummary) -> None:
    if traffic.recorded is None or traffic.littles_mean is None:
        return
    console.print(
        f"Little's law: arrival rate x mean duration = {traffic.littles_mean:,.1f} in flight, "
        f"recorded {traffic.recorded.mean:,.1f}"
    )
    console.print(
        "in flight: from arrival to last token on the server that was recorded; a profile counts "
        "those of its own replays"
    )


def _print_part(console: Console, part: Likeness) -> None:
    """Say what a replay of this part would stand for."""
    like = (
        "lengths like the whole's"
        if part.is_like
        else f"[yellow]lengths unlike the whole's[/]: a knee found there holds for such traffic "
        f"(more than {UNLIKE:.0%} apart)"
    )
    rank = (
        "the heaviest part of that length"
        if part.rank > HEAVIEST
        else f"heavier than {part.rank:.0%} of the parts of that length"
    )
    console.print(
        f"the part {part.start_s:,.1f}s+{part.length_s:g}s: {requests(part.requests)}, "
        f"{part.load:,.2f} x the mean load, {rank}",
        soft_wrap=True,
    )
    if not part.tells:
        console.print("too few of them to hold their lengths against the whole's")
        return
    console.print(
        f"{like}; prompts lie {part.input_distance:.0%} apart, outputs {part.output_distance:.0%}, "
        f"chance alone up to {part.distance_by_chance:.0%}",
        soft_wrap=True,
    )


def _print_shares(console: Console, shares: Shares) -> None:
    console.print(
        f"{len(shares.requests)} replicas, router {shares.router}: "
        f"{min(shares.requests):,} to {max(shares.requests):,} requests each; the busiest:"
    )
    console.print(headline(shares.busiest))
    console.print(_spread_table(shares.busiest))


def _part_object(part: Likeness) -> dict[str, Any]:
    return asdict(part) | {"is_like": part.is_like}


def _lengths_object(lengths: Distribution | None) -> dict[str, float] | None:
    return None if lengths is None else _spread_object(lengths)


def _concurrency_object(traffic: TrafficSummary) -> dict[str, Any] | None:
    """Return null where there is nothing, [low, high] of the band where ends are not recorded."""
    if traffic.recorded is not None:
        return {"basis": "recorded", **_spread_object(traffic.recorded)}
    if not traffic.band:
        return None
    fast, *_, slow = (_spread_object(one) for one in traffic.band.values())
    return {"basis": "band", **{name: [fast[name], slow[name]] for name in fast}}


def _spread_object(found: Distribution) -> dict[str, float]:
    return {name: getattr(found, name) for name in ("mean", "p50", "p95", "p99", "max")}


def _rounded(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Round all numbers to the sixth decimal: finer than what any trace knows."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return value

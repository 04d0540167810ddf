"""Render a trace: as the JSON object that programs read, and for people."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Console

from tuner.commands.shared.console import console_for, plain_table, shown
from tuner.trace.trace import Trace
from tuner.traffic.arrivals import Stretch
from tuner.traffic.concurrency import Levels
from tuner.traffic.summary import Distribution, TrafficSummary
from tuner.traffic.trace_warnings import trace_warnings

LEAST_WIDTH = 80
BARS, ASCII_BARS = " ▁▂▃▄▅▆▇█", " .:-=+*#@"


@dataclass(frozen=True, slots=True)
class Shares:
    """The requests that the replicas of one trace get."""

    router: str
    requests: tuple[int, ...]
    busiest: TrafficSummary


@dataclass(frozen=True, slots=True)
class TraceReport:
    """What there is to show of a trace."""

    place: str
    trace: Trace
    traffic: TrafficSummary
    part: Stretch | None = None
    """A part of the trace beside the whole."""

    shares: Shares | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        trace = self.trace
        return (*trace.warnings, *trace_warnings(trace.columns, self.traffic, trace.header))


def json_of(report: TraceReport) -> Any:  # noqa: ANN401 - JSON
    """Return the object that ``tuner trace show --json`` prints."""
    traffic, header, shares = report.traffic, report.trace.header, report.shares
    recorded, levels = traffic.recorded, traffic.levels
    found: dict[str, Any] = {
        "requests": traffic.requests,
        "rows_read": header.rows_read,
        "dropped": header.dropped,
        "duration_s": traffic.duration_s,
        "arrival_rate_rps": traffic.arrival_rate_rps,
        "interarrival_cv": traffic.interarrival_cv,
        "tick_ms": traffic.tick_ms,
        "input_tokens": traffic.input_tokens and _spread(traffic.input_tokens),
        "output_tokens": traffic.output_tokens and _spread(traffic.output_tokens),
        "concurrency": _concurrency(traffic),
        "prefix_share": traffic.prefix_share,
        "warnings": list(report.warnings),
        "dispersion": {f"{bin_s:g}": value for bin_s, value in traffic.dispersion.items()},
        "same_time_share": traffic.same_time_share,
        "peak_arrivals": {f"{span_s:g}": count for span_s, count in traffic.peak_arrivals.items()},
        "in_flight": recorded and levels and asdict(recorded) | {"time_above": _above(levels)},
        "running": traffic.running and asdict(traffic.running),
        "littles_mean": traffic.littles_mean,
        "window": report.part and asdict(report.part),
    }
    if shares is not None:
        found["per_replica"] = {
            "router": shares.router,
            "requests": list(shares.requests),
            "busiest_concurrency": _concurrency(shares.busiest),
        }
    return _rounded(found)


def print_written(report: TraceReport) -> None:
    """Print what a trace is that was written."""
    console = console_for()
    console.print(f"{shown(report.place)}: {_headline(report.traffic)}", soft_wrap=True)
    _print_rows(console, report)
    _print_warnings(console, report)


def print_report(report: TraceReport) -> None:
    """Print a trace for people."""
    console = console_for(at_least=LEAST_WIDTH)
    traffic, header = report.traffic, report.trace.header
    model = f", model {header.model}" if header.model else ""
    console.print(f"[bold]{shown(report.place)}[/] (from {shown(header.source + model)})")
    console.print(_headline(traffic))
    _print_rows(console, report)
    cv = "-" if traffic.interarrival_cv is None else f"{traffic.interarrival_cv:.2f}"
    peaks = ", ".join(f"{n:,} in {span_s:g}s" for span_s, n in traffic.peak_arrivals.items())
    console.print(f"arrivals: gaps have CV {cv} (1 = Poisson), at most {peaks}")
    if traffic.dispersion:
        spread = ", ".join(f"{v:,.1f} in {s:g}s" for s, v in traffic.dispersion.items())
        console.print(f"counts have variance ÷ mean {spread} (1 = Poisson)")
    if traffic.tick_ms is not None or traffic.same_time_share >= 0.01:
        console.print(f"{traffic.same_time_share:.1%} arrive at the very time of another")
    _print_bars(console, report)
    _print_spreads(console, traffic)
    if traffic.levels is not None:
        above = (f"{one['level']}: {one['share']:.1%}" for one in _above(traffic.levels))
        console.print(f"share of time with more in flight than {', '.join(above)}")
    if traffic.recorded is not None and traffic.littles_mean is not None:
        console.print(
            f"Little's law: arrival rate x mean duration = {traffic.littles_mean:,.1f} in flight, "
            f"recorded {traffic.recorded.mean:,.1f}"
        )
    if traffic.prefix_share is not None:
        console.print(
            f"prefix sharing: {traffic.prefix_share:.1%} of prompt tokens were seen before"
        )
    if report.part is not None:
        _print_part(console, report.part)
    if (shares := report.shares) is not None:
        console.print(
            f"{len(shares.requests)} replicas, router {shares.router}: "
            f"{min(shares.requests):,} to {max(shares.requests):,} requests each; the busiest:"
        )
        console.print(_headline(shares.busiest))
        _print_spreads(console, shares.busiest)
    _print_warnings(console, report)


def _headline(traffic: TrafficSummary) -> str:
    """Return the line at which a wrong unit of time shows at once."""
    rate, tick = traffic.arrival_rate_rps, traffic.tick_ms
    return (
        f"{_requests(traffic.requests)} over {traffic.duration_s / 3600:,.4g} h "
        f"({traffic.duration_s:,.1f}s), "
        f"{'all at one time' if rate is None else f'{rate:,.4g} req/s'}, "
        f"tick {'none' if tick is None else f'{tick:,.4g} ms'}"
    )


def _requests(count: int) -> str:
    return f"{count:,} request{'' if count == 1 else 's'}"


def _print_rows(console: Console, report: TraceReport) -> None:
    header = report.trace.header
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in header.dropped.items())
    more = f", dropped: {shown(dropped)}" if dropped else ""
    console.print(f"rows: {header.rows_read:,} read, {header.rows_kept:,} kept{more}")
    for note in header.notes:
        if note not in report.warnings:
            console.print(f"note: {shown(note)}", soft_wrap=True)


def _print_warnings(console: Console, report: TraceReport) -> None:
    for warning in report.warnings:
        console.print(f"[yellow]Warning:[/] {shown(warning)}", soft_wrap=True)


def _print_bars(console: Console, report: TraceReport) -> None:
    """Draw what arrived and what was in flight, and mark the part."""
    arrival_s, levels = report.trace.columns.arrival_s, report.traffic.levels
    first_s, last_s = float(arrival_s[0]), float(arrival_s[-1])
    if last_s <= first_s:
        return
    edges_s = np.linspace(first_s, last_s, LEAST_WIDTH - 3)
    arrived = np.histogram(arrival_s, edges_s)[0] / (edges_s[1] - edges_s[0])
    series = {"arrivals a second": [*arrived.tolist()]}
    if levels is not None:
        series["most in flight"] = [one or 0 for one in levels.highest_in(edges_s)]
    glyphs = ASCII_BARS if console.options.ascii_only else BARS
    for title, values in series.items():
        top = max(values) or 1
        bars = "".join(glyphs[int(np.ceil(value / top * 8))] for value in values)
        console.print(f"{title}, {first_s:,.0f}s to {last_s:,.0f}s, up to {top:,.4g}")
        console.print(f"  {bars.rstrip()}", markup=False)
    if (part := report.part) is not None:
        begin, end = np.searchsorted(edges_s[1:], [part.start_s, part.start_s + part.length_s])
        console.print(f"  {'':>{begin}}{'^' * max(1, int(end - begin))} the part below")


def _print_spreads(console: Console, traffic: TrafficSummary) -> None:
    table = plain_table("", "mean", "p50", "p90", "p95", "p99", "max", gap=1)
    table.columns[0].justify = "left"
    rows: dict[str, Distribution | None] = {
        "input tokens": traffic.input_tokens,
        "output tokens": traffic.output_tokens,
        "in flight (recorded)": traffic.recorded,
        "running (recorded)": traffic.running,
    }
    rows |= {f"in flight at {s * 1000:.0f} ms/token": one for s, one in traffic.band.items()}
    for title, found in rows.items():
        if found is not None:
            values = (found.p50, found.p90, found.p95, found.p99, found.max)
            mean = f"{found.mean:,.{0 if found.mean >= 1000 else 1}f}"
            table.add_row(title, mean, *(f"{value:,.0f}" for value in values))
    console.print(table)


def _print_part(console: Console, part: Stretch) -> None:
    """Print how heavy this part is."""
    console.print(
        f"the part {part.start_s:,.1f}s+{part.length_s:g}s: {_requests(part.requests)}, "
        f"{part.load:,.2f} x the mean load",
        soft_wrap=True,
    )


def _above(levels: Levels) -> list[dict[str, Any]]:
    """Return how long each step of the ladder would have had to make requests wait."""
    held, found, level = levels.held(), [], 1
    while level < 2 * held.max():
        longest_s = levels.longest_above_s(level)
        found.append({"level": level, "share": held.share_above(level), "longest_s": longest_s})
        level *= 2
    return found


def _concurrency(traffic: TrafficSummary) -> dict[str, Any] | None:
    """Return null where there is nothing, [low, high] of the band where ends are not recorded."""
    if traffic.recorded is not None:
        return {"basis": "recorded", **_spread(traffic.recorded)}
    if not traffic.band:
        return None
    fast, *_, slow = map(_spread, traffic.band.values())
    return {"basis": "band", **{name: [fast[name], slow[name]] for name in fast}}


def _spread(found: Distribution) -> dict[str, float]:
    return {name: getattr(found, name) for name in ("mean", "p50", "p95", "p99", "max")}


def _rounded(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Round all numbers to the sixth decimal: finer than what any trace knows."""
    if isinstance(value, list):
        return [*map(_rounded, value)]
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return round(value, 6) if isinstance(value, float) else value

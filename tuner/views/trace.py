"""The page and the JSON of a trace: what it holds, before anything is run. Pure."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tuner.trace.trace import Trace
from tuner.traffic.concurrency import Distribution, Levels
from tuner.traffic.sampling import Stretch
from tuner.traffic.summary import TrafficSummary
from tuner.traffic.trace_warnings import trace_warnings
from tuner.views.page import Cell, Column, Page, Section, Table

BARS, BAR_COUNT = " ▁▂▃▄▅▆▇█", 50
SPREADS = (
    Column("tokens", " "),
    Column("mean", "mean", "number"),
    *(Column(name, name, "count") for name in ("p50", "p90", "p95", "p99", "max")),
)


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
    def warnings(self) -> list[str]:
        trace = self.trace
        return [*trace.warnings, *trace_warnings(trace.columns, self.traffic, trace.header)]


def trace_json(report: TraceReport) -> Any:  # noqa: ANN401 - JSON
    """Return the object that ``tuner trace show --json`` prints."""
    traffic, header, shares = report.traffic, report.trace.header, report.shares
    recorded, levels = traffic.recorded, traffic.levels
    result: dict[str, Any] = {
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
        "warnings": report.warnings,
        "dispersion": {f"{bin_s:g}": value for bin_s, value in traffic.dispersion.items()},
        "same_time_share": traffic.same_time_share,
        "peak_arrivals": {f"{span_s:g}": count for span_s, count in traffic.peak_arrivals.items()},
        "in_flight": recorded and levels and asdict(recorded) | {"time_above": _above(levels)},
        "running": traffic.running and asdict(traffic.running),
        "littles_mean": traffic.littles_mean,
        "window": report.part and asdict(report.part),
    }
    if shares is not None:
        result["per_replica"] = {
            "router": shares.router,
            "requests": list(shares.requests),
            "busiest_concurrency": _concurrency(shares.busiest),
        }
    return _rounded(result)


def written_page(report: TraceReport) -> Page:
    """Return what a trace is that was written."""
    return Page(
        subject=f"Trace {report.place}",
        title=f"{report.place}: {_headline(report.traffic)}",
        facts=_rows(report),
        warnings=report.warnings,
    )


def trace_page(report: TraceReport) -> Page:
    """Return what a trace holds."""
    traffic, header, shares = report.traffic, report.trace.header, report.shares
    model = f", model {header.model}" if header.model else ""
    facts = [("from", f"{report.place} ({header.source}{model})"), *_rows(report)]
    cv = "-" if traffic.interarrival_cv is None else f"{traffic.interarrival_cv:.2f}"
    peaks = ", ".join(f"{n:,} in {span_s:g}s" for span_s, n in traffic.peak_arrivals.items())
    facts.append(("arrivals", f"gaps have CV {cv} (1 = Poisson), at most {peaks}"))
    if traffic.dispersion:
        spread = ", ".join(f"{v:,.1f} in {s:g}s" for s, v in traffic.dispersion.items())
        facts.append(("counts", f"variance ÷ mean {spread} (1 = Poisson)"))
    if traffic.tick_ms is not None or traffic.same_time_share >= 0.01:
        facts.append(("ticks", f"{traffic.same_time_share:.1%} arrive at the time of another"))
    if traffic.levels is not None:
        above = (f"{each['level']}: {each['share']:.1%}" for each in _above(traffic.levels))
        facts.append(("levels", f"share of time with more in flight than {', '.join(above)}"))
    if traffic.recorded is not None and traffic.littles_mean is not None:
        little = f"arrival rate x mean duration = {traffic.littles_mean:,.1f} in flight"
        facts.append(("Little", f"{little}, recorded {traffic.recorded.mean:,.1f}"))
    if traffic.prefix_share is not None:
        facts.append(("prefixes", f"{traffic.prefix_share:.1%} of prompt tokens were seen before"))
    if (part := report.part) is not None:
        what = f"{part.start_s:,.1f}s+{part.length_s:g}s: {_requests(part.requests)}"
        facts.append(("window", f"{what}, {part.load:,.2f} x the mean load"))
    lengths = Table(list(SPREADS), _spreads(traffic), caption="Lengths in tokens; concurrency")
    tables = [_bars(report), lengths]
    if shares is not None:
        least, most = min(shares.requests), max(shares.requests)
        words = f"{len(shares.requests)} replicas, router {shares.router}: {least:,} to {most:,}"
        facts.append(("replicas", f"{words} requests each; busiest: {_headline(shares.busiest)}"))
        tables.append(Table(list(SPREADS), _spreads(shares.busiest), caption="The busiest replica"))
    return Page(
        subject=f"Trace {report.place}",
        title=_headline(traffic),
        facts=facts,
        sections=[Section("Traffic", tables=tables)],
        warnings=report.warnings,
    )


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


def _rows(report: TraceReport) -> list[tuple[str, str]]:
    header, warnings = report.trace.header, report.warnings
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in header.dropped.items())
    more = f", dropped: {dropped}" if dropped else ""
    rows = ("rows", f"{header.rows_read:,} read, {header.rows_kept:,} kept{more}")
    return [rows, *(("note", note) for note in header.notes if note not in warnings)]


def _bars(report: TraceReport) -> Table:
    """Return what arrived and what was in flight over time, with the part marked."""
    arrival_s, levels = report.trace.columns.arrival_s, report.traffic.levels
    first_s, last_s = float(arrival_s[0]), float(arrival_s[-1])
    columns = [Column("series", "most"), Column("bars", f"{first_s:,.0f}s to {last_s:,.0f}s")]
    if last_s <= first_s:
        return Table(columns, [])
    edges_s = np.linspace(first_s, last_s, BAR_COUNT + 1)
    arrived = np.histogram(arrival_s, edges_s)[0] / (edges_s[1] - edges_s[0])
    series = {"arrivals a second": [*arrived.tolist()]}
    if levels is not None:
        times_s = np.linspace(first_s, last_s, 20 * BAR_COUNT)
        series["in flight"] = levels.at(times_s).reshape(BAR_COUNT, 20).max(1).tolist()
    rows: list[list[Cell]] = []
    for title, values in series.items():
        top = max(values) or 1
        bars = "".join(BARS[int(np.ceil(value / top * 8))] for value in values)
        rows.append([f"{top:,.4g} {title}", bars.rstrip()])
    if (part := report.part) is not None:
        begin, end = np.searchsorted(edges_s[1:], [part.start_s, part.start_s + part.length_s])
        rows.append(["window", " " * int(begin) + "^" * max(1, int(end - begin))])
    return Table(columns, rows, caption="Over time")


def _spreads(traffic: TrafficSummary) -> list[list[Cell]]:
    rows: dict[str, Distribution | None] = {
        "input tokens": traffic.input_tokens,
        "output tokens": traffic.output_tokens,
        "in flight (recorded)": traffic.recorded,
        "running (recorded)": traffic.running,
        **{f"in flight at {s * 1000:.0f} ms/token": each for s, each in traffic.band.items()},
    }
    return [
        [title, *(getattr(each, column.name) for column in SPREADS[1:])]
        for title, each in rows.items()
        if each is not None
    ]


def _above(levels: Levels) -> list[dict[str, Any]]:
    """Return how long each step of the ladder would have had to make requests wait."""
    result, level = list[dict[str, Any]](), 1
    while level < 2 * levels.distribution().max:
        share, longest_s = levels.above(level)
        result.append({"level": level, "share": share, "longest_s": longest_s})
        level *= 2
    return result


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
        return {key: _rounded(each) for key, each in value.items()}
    return round(value, 6) if isinstance(value, float) else value

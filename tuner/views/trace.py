"""The page and the JSON of a trace: what it holds, before anything is run. Pure."""

from dataclasses import asdict, dataclass
from typing import Any

from tuner.trace.trace import Trace
from tuner.traffic.description import Distribution, Stretch, TrafficSummary, trace_warnings
from tuner.views.page import Column, Page, Section, Table

SPREADS = [
    Column("tokens", " "),
    Column("mean", "mean", "number"),
    *(Column(name, name, "count") for name in ("p50", "p90", "p95", "p99", "max")),
]


@dataclass(frozen=True, slots=True)
class TraceReport:
    """What there is to show of a trace."""

    place: str
    trace: Trace
    traffic: TrafficSummary
    part: Stretch | None = None
    """A part of the trace beside the whole."""

    replicas: tuple[int, ...] = ()
    """Requests of each recorded server, where there are several."""

    busiest: TrafficSummary | None = None
    """What the server with the most tokens got."""

    @property
    def warnings(self) -> list[str]:
        trace = self.trace
        return [*trace.warnings, *trace_warnings(trace.columns, self.traffic, trace.header)]


def trace_json(report: TraceReport) -> dict[str, Any]:
    """Return the object that ``tuner trace show --json`` prints."""
    traffic, header, busiest = report.traffic, report.trace.header, report.busiest
    numbers = asdict(traffic)
    del numbers["served"], numbers["band"]  # of them the concurrency
    result = {
        "in_flight": numbers.pop("recorded"),
        **numbers,
        "rows_read": header.rows_read,
        "dropped": header.dropped,
        "input_tokens": traffic.input_tokens and _spread(traffic.input_tokens),
        "output_tokens": traffic.output_tokens and _spread(traffic.output_tokens),
        "concurrency": _concurrency(traffic),
        "warnings": report.warnings,
        "dispersion": {f"{bin_s:g}": value for bin_s, value in traffic.dispersion.items()},
        "peak_arrivals": {f"{span_s:g}": count for span_s, count in traffic.peak_arrivals.items()},
        "window": report.part and asdict(report.part),
    }
    if busiest is not None:
        result["per_replica"] = {
            "router": "as recorded",
            "requests": report.replicas,
            "busiest_concurrency": _concurrency(busiest),
        }
    return result


def trace_page(report: TraceReport) -> Page:
    """Return what a trace holds."""
    traffic, header, part = report.traffic, report.trace.header, report.part
    warnings = report.warnings
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in header.dropped.items())
    more = f", dropped: {dropped}" if dropped else ""
    cv = "-" if traffic.interarrival_cv is None else f"{traffic.interarrival_cv:.2f}"
    peaks = ", ".join(f"{n:,} in {span_s:g}s" for span_s, n in traffic.peak_arrivals.items())
    facts = [
        ("source", f"{header.source}, model {header.model}" if header.model else header.source),
        ("rows", f"{header.rows_read:,} read, {header.rows_kept:,} kept{more}"),
        *(("note", note) for note in header.notes if note not in warnings),
        ("arrivals", f"gaps have CV {cv} (1 = Poisson), at most {peaks}"),
    ]
    if traffic.prefix_share is not None:
        facts.append(("prefixes", f"{traffic.prefix_share:.1%} of prompt tokens were seen before"))
    if traffic.band:
        words = "{:,.3g} to {:,.3g} on average, at 10 to 80 ms per output token"
        facts.append(("at once", words.format(*traffic.band)))
    if part is not None:
        what = f"{part.start_s:,.1f}s+{part.length_s:g}s: {part.requests:,} requests"
        facts.append(("window", f"{what}, {part.load:,.2f} x the mean load"))
    if report.busiest is not None:
        counts = report.replicas
        each = f"{min(counts):,} to {max(counts):,} requests each"
        most = f"busiest: {_headline(report.busiest)}"
        facts.append(("replicas", f"{len(counts)} servers, {each}; {most}"))
    rows: dict[str, Distribution | None] = {
        "input tokens": traffic.input_tokens,
        "output tokens": traffic.output_tokens,
        "in flight (recorded)": traffic.recorded,
        "running (recorded)": traffic.running,
    }
    spreads = [[name, *asdict(each).values()] for name, each in rows.items() if each is not None]
    table = Table(SPREADS, spreads, caption="Lengths in tokens; concurrency")
    return Page(
        subject=f"Trace {report.place}",
        title=f"{report.place}: {_headline(traffic)}",
        facts=facts,
        sections=[Section("Traffic", tables=[table])],
        warnings=warnings,
    )


def _headline(traffic: TrafficSummary) -> str:
    """Return the line at which a wrong unit of time shows at once."""
    rate, tick = traffic.arrival_rate_rps, traffic.tick_ms
    return (
        f"{traffic.requests:,} requests over {traffic.duration_s / 3600:,.4g} h "
        f"({traffic.duration_s:,.1f}s), "
        f"{'all at one time' if rate is None else f'{rate:,.4g} req/s'}, "
        f"tick {'none' if tick is None else f'{tick:,.4g} ms'}"
    )


def _concurrency(traffic: TrafficSummary) -> dict[str, Any] | None:
    """Return null where there is nothing, [low, high] of the band where ends are not recorded."""
    if traffic.recorded is not None:
        return {"basis": "recorded", **_spread(traffic.recorded)}
    if not traffic.band:
        return None
    return {"basis": "band", "mean": traffic.band}


def _spread(spread: Distribution) -> dict[str, float]:
    return {name: getattr(spread, name) for name in ("mean", "p50", "p95", "p99", "max")}

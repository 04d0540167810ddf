"""How a trace looks: for people, and as the JSON object of the contract."""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tuner.formats.replayable import Replayable
from tuner.formats.source import TraceHeader
from tuner.traffic.concurrency import Levels
from tuner.traffic.summary import Concurrency, Lengths, Traffic

PLAIN_WIDTH = 100
"""Where stdout is no terminal, so that a log has the same lines everywhere."""


@dataclass(frozen=True, slots=True)
class Shares:
    """What the replicas of one trace get."""

    router: str
    requests: tuple[int, ...]
    busiest: Traffic


@dataclass(frozen=True, slots=True)
class Report:
    path: Path
    header: TraceHeader
    traffic: Traffic
    warnings: tuple[str, ...]
    shares: Shares | None


def print_json(report: Report) -> None:
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
    }
    if report.shares is not None:
        found["per_replica"] = {
            "router": report.shares.router,
            "requests": list(report.shares.requests),
            "busiest_concurrency": _concurrency_object(report.shares.busiest),
        }
    sys.stdout.write(json.dumps(_rounded(found)) + "\n")


def print_report(report: Report) -> None:
    console = _console()
    traffic, header = report.traffic, report.header
    model = f", model {header.model}" if header.model else ""
    console.print(f"[bold]{_plain(str(report.path))}[/] (from {_plain(header.source + model)})")
    console.print(headline(traffic))
    console.print(_rows_line(header))
    console.print(_arrivals_line(traffic))
    console.print(_spread_table(traffic))
    if traffic.levels is not None:
        console.print(_time_above_table(traffic.levels))
    if traffic.prefix_share is not None:
        console.print(
            f"prefix sharing: {traffic.prefix_share:.1%} of prompt tokens were seen before"
        )
    if report.shares is not None:
        _print_shares(console, report.shares)
    _print_warnings(console, report.warnings)


def print_written(
    path: Path, traffic: Traffic, header: TraceHeader, warnings: Iterable[str]
) -> None:
    console = _console()
    console.print(f"{_plain(str(path))}: {headline(traffic)}", soft_wrap=True)
    console.print(_rows_line(header))
    _print_warnings(console, warnings)


def print_exported(path: Path, found: Replayable, usage: str, warnings: Iterable[str]) -> None:
    console = console_for()
    lasted_s = found.requests[-1].arrival_ms / 1000
    left_out = ", ".join(f"{count:,} {why}" for why, count in found.left_out.items())
    console.print(
        f"{plain(str(path))}: {len(found.requests):,} requests over {lasted_s:,.1f}s, "
        f"block ids of {found.block_size} tokens" + (f"; left out: {left_out}" if left_out else ""),
        soft_wrap=True,
    )
    console.print(f"Replay it: {plain(usage)}", soft_wrap=True)
    print_warnings(console, warnings)


def headline(traffic: Traffic) -> str:
    """Return the line at which a wrong unit of time shows at once."""
    rate, tick = traffic.arrival_rate_rps, traffic.tick_ms
    return (
        f"{traffic.requests:,} requests over {traffic.duration_s / 3600:,.4g} h "
        f"({traffic.duration_s:,.1f}s), "
        f"{'all at one time' if rate is None else f'{rate:,.4g} req/s'}, "
        f"tick {'none' if tick is None else f'{tick:,.4g} ms'}"
    )


def _rows_line(header: TraceHeader) -> str:
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in header.dropped.items())
    return f"rows: {header.rows_read:,} read, {header.rows_kept:,} kept" + (
        f", dropped: {_plain(dropped)}" if dropped else ""
    )


def _arrivals_line(traffic: Traffic) -> str:
    cv = "-" if traffic.interarrival_cv is None else f"{traffic.interarrival_cv:.2f}"
    peaks = ", ".join(f"{n:,} in {window_s:g}s" for window_s, n in traffic.peak_arrivals.items())
    return f"arrivals: gaps have CV {cv} (1 = Poisson), at most {peaks}"


def _spread_table(traffic: Traffic) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for heading in ("mean", "p50", "p95", "p99", "max"):
        table.add_column(heading, justify="right", no_wrap=True)

    def row(title: str, found: Lengths | Concurrency | None) -> None:
        if found is not None:
            values = (found.mean, found.p50, found.p95, found.p99, found.max)
            table.add_row(title, f"{values[0]:,.1f}", *(f"{value:,.0f}" for value in values[1:]))

    row("input tokens", traffic.input_tokens)
    row("output tokens", traffic.output_tokens)
    row("concurrency (recorded)", traffic.recorded)
    for speed, at_speed in traffic.band.items():
        row(f"concurrency at {speed * 1000:.0f} ms/token", at_speed)
    return table


def _time_above_table(levels: Levels) -> Table:
    """Say what each step of the ladder would have had to make wait."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("in flight, more than", "share of time", "longest"):
        table.add_column(heading, justify="right", no_wrap=True)
    level = 1
    while level < 2 * levels.max():
        share = levels.share_above(level)
        longest_s = levels.longest_above_s(level)
        table.add_row(str(level), f"{share:.1%}", f"{longest_s:,.1f}s")
        level *= 2
    return table


def _print_shares(console: Console, shares: Shares) -> None:
    console.print(
        f"{len(shares.requests)} replicas, router {shares.router}: "
        f"{min(shares.requests):,} to {max(shares.requests):,} requests each; the busiest:"
    )
    console.print(headline(shares.busiest))
    console.print(_spread_table(shares.busiest))


def _print_warnings(console: Console, warnings: Iterable[str]) -> None:
    for warning in warnings:
        console.print(f"[yellow]Warning:[/] {_plain(warning)}", soft_wrap=True)


def _lengths_object(lengths: Lengths | None) -> dict[str, float] | None:
    return None if lengths is None else _spread_object(lengths)


def _concurrency_object(traffic: Traffic) -> dict[str, Any] | None:
    """Return null where there is nothing, [low, high] of the band where ends are not recorded."""
    if traffic.recorded is not None:
        return {"basis": "recorded", **_spread_object(traffic.recorded)}
    if not traffic.band:
        return None
    fast, *_, slow = (_spread_object(one) for one in traffic.band.values())
    return {"basis": "band", **{name: [fast[name], slow[name]] for name in fast}}


def _spread_object(found: Lengths | Concurrency) -> dict[str, float]:
    return {name: getattr(found, name) for name in ("mean", "p50", "p95", "p99", "max")}


def _rounded(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Numbers to the sixth decimal: finer than what any trace knows."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return value


def _plain(text: str) -> str:
    """What a file says of itself must not move the cursor nor be taken for markup."""
    return escape("".join(c if c.isprintable() else repr(c)[1:-1] for c in text))


def _console() -> Console:
    console = Console(highlight=False)
    if console.is_terminal:
        return console
    return Console(highlight=False, width=PLAIN_WIDTH, color_system=None)

"""Run ``tuner capture``, once its options are read."""

import math
import os
from datetime import UTC, datetime
from pathlib import Path

from tuner.capture import history, prometheus_api
from tuner.capture.joined import joined
from tuner.capture.synthetic import trace_of
from tuner.commands.capture.options import JoinOptions, PrometheusOptions
from tuner.commands.trace import view as trace_view
from tuner.errors import UsageError
from tuner.system.files import whole_file
from tuner.trace.formats.reading.header import header_line, row_line
from tuner.trace.stream import Input, scan
from tuner.traffic.summary import describe
from tuner.traffic.trace_warnings import trace_warnings
from tuner.traffic.window import parse_duration_s

CLOCKS_APART_S = 3600.0
"""Seconds that the clock of the Prometheus may be ahead of ours."""

TIMES = "Write now, how long ago (2h), a date, or seconds since 1970, not milliseconds."

TOKEN = "TUNER_PROMETHEUS_TOKEN"  # noqa: S105 - the name of the variable


def prometheus(options: PrometheusOptions) -> None:
    """Write the trace of a Prometheus's history. Raises UsageError, InputError, TargetError."""
    now_s = datetime.now(UTC).timestamp()
    from_s = _time_s(options.from_, now_s, option="--from")
    to_s = _time_s(options.to, now_s, option="--to")
    if not from_s < to_s:
        raise UsageError(
            f"--from {options.from_} is not before --to {options.to}",
            hint="Write how long ago: --from 2h --to 1h",
        )
    url, login = prometheus_api.without_login(options.url)
    if token := os.environ.get(TOKEN):
        login = f"Bearer {token}"
    place = prometheus_api.PrometheusQuery(url, from_s, to_s, options.selector, login)
    with whole_file(options.output, force=options.force) as out:
        samples = prometheus_api.samples(place, history.METRICS)
        engines = history.engines(samples, place=url)
        for engine in engines:
            history.check_whole(engine, place=url)
        header, rows = trace_of(engines, seed=options.seed)
        out.write(header_line(header))
        out.writelines(map(row_line, rows))
    _print_written(options.output)


def join(options: JoinOptions) -> None:
    with whole_file(options.output, force=options.force) as out:
        header, rows = joined(options.files)
        out.write(header_line(header))
        out.writelines(map(row_line, rows))
    _print_written(options.output)


def _print_written(output: Path) -> None:
    """Say what was written, as reading it again finds it."""
    scanned = scan(Input(output), lambda _: None)
    traffic = describe(scanned.columns)
    warnings = (*scanned.warnings, *trace_warnings(scanned.columns, traffic, scanned.header))
    trace_view.print_written(output, traffic, scanned.header, warnings)


def _time_s(text: str, now_s: float, *, option: str) -> float:
    """Read ``now``, ``2h`` (ago), a date, or seconds since 1970; none of the future."""
    time_s = _read_s(text, now_s, option=option)
    if not 0 <= time_s <= now_s + CLOCKS_APART_S:
        raise UsageError(f"{option} {text}: no time that can have been recorded", hint=TIMES)
    return time_s


def _read_s(text: str, now_s: float, *, option: str) -> float:
    if text == "now":
        return now_s
    if text.replace(".", "", 1).isdecimal() and float(text) > 10**8:
        return float(text)
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        pass
    else:
        return _since_1970_s(date)
    try:
        return now_s - parse_duration_s(text, option=option)
    except UsageError:
        raise UsageError(f"{option}: cannot read {text!r}", hint=TIMES) from None


def _since_1970_s(date: datetime) -> float:
    try:
        return date.astimezone(UTC).timestamp() if date.tzinfo else date.astimezone().timestamp()
    except (ValueError, OverflowError):  # the first and the last days that a date can name
        return math.inf

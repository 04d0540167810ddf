"""``tuner trace import`` of what is not one file: a Prometheus, or the files of a recording."""

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from tuner.commands.trace import view as trace_view
from tuner.commands.trace.options import TraceImportOptions
from tuner.errors import UsageError
from tuner.system.files import whole_file
from tuner.trace.columns import columns_of
from tuner.trace.trace import Trace, lines_of
from tuner.traffic.summary import describe
from tuner.traffic.trace_warnings import trace_warnings
from tuner.traffic.window import parse_duration_s

CLOCKS_APART_S = 3600.0
"""How far the clock of the Prometheus may be ahead of ours."""

TOKEN = "TUNER_PROMETHEUS_TOKEN"  # noqa: S105 - the name of the variable


def is_address(source: str) -> bool:
    return "://" in source


def import_(options: TraceImportOptions) -> None:
    """Write the trace of a Prometheus, or of several files. Raises UsageError, InputError."""
    of_file = (options.format_name, options.time_unit, options.columns, options.delimiter)
    if any(of_file) or options.spread_ticks or options.lengths:
        raise UsageError(
            "--format, --time-unit, --columns, --delimiter, --spread-ticks and --lengths are for "
            "one file",
            hint="Leave them out.",
        )
    with whole_file(options.output, force=options.force) as out:
        trace = _read(options)
        if options.model is not None:
            trace = Trace.of(replace(trace.header, model=options.model), trace.requests)
        out.writelines(lines_of(trace))
    columns = columns_of(trace.requests, block_size=trace.header.block_size)
    traffic = describe(columns)
    warnings = (*trace.warnings, *trace_warnings(columns, traffic, trace.header))
    trace_view.print_written(options.output, traffic, trace.header, warnings)


def _read(options: TraceImportOptions) -> Trace:
    if not any(map(is_address, options.sources)):
        from tuner.capture.join import join  # noqa: PLC0415 - loads the recorder

        return join([Path(source) for source in options.sources])
    from tuner.capture import prometheus  # noqa: PLC0415 - loads the recorder

    if len(options.sources) > 1:
        raise UsageError("several sources, one of them an address", hint="Import one at a time.")
    now_s = datetime.now(UTC).timestamp()
    from_s = _time_s(options.from_ or "1h", now_s, option="--from")
    to_s = _time_s(options.to or "now", now_s, option="--to")
    if not from_s < to_s:
        raise UsageError(
            f"--from {options.from_} is not before --to {options.to}",
            hint="Write how long ago: --from 2h --to 1h",
        )
    url, login = prometheus.without_login(options.sources[0])
    if token := os.environ.get(TOKEN):
        login = f"Bearer {token}"
    source = prometheus.Source(url, from_s, to_s, options.selector or "", login)
    return prometheus.read(source, seed=options.seed)


def _time_s(text: str, now_s: float, *, option: str) -> float:
    """Read ``now``, ``2h`` (ago), a date, or seconds since 1970; none of the future."""
    hint = "Write now, how long ago (2h), a date, or seconds since 1970, not milliseconds."
    try:
        if text == "now":
            time_s = now_s
        elif text.replace(".", "", 1).isdecimal() and float(text) > 10**8:
            time_s = float(text)
        elif text[:4].isdecimal() and "-" in text:
            time_s = datetime.fromisoformat(text).astimezone(UTC).timestamp()
        else:
            time_s = now_s - parse_duration_s(text, option=option)
    except (UsageError, ValueError, OverflowError):
        raise UsageError(f"{option}: cannot read {text!r}", hint=hint) from None
    if not 0 <= time_s <= now_s + CLOCKS_APART_S:
        raise UsageError(f"{option} {text}: not a time that can have been recorded", hint=hint)
    return time_s

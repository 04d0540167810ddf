"""``tuner trace import`` of what is not one file: a Prometheus, or the files of a recording."""

import os
from datetime import UTC, datetime
from pathlib import Path

from tuner.commands.trace.options import TraceImportOptions
from tuner.errors import UsageError
from tuner.trace.trace import Trace
from tuner.traffic.window import parse_duration_s

CLOCKS_APART_S = 3600.0
"""How far the clock of the Prometheus may be ahead of ours."""

TOKEN = "TUNER_PROMETHEUS_TOKEN"  # noqa: S105 - the name of the variable


def is_wanted(options: TraceImportOptions) -> bool:
    """Whether the source is a Prometheus, or several files. Raises UsageError."""
    if len(options.sources) > 1 or "://" in options.sources[0]:
        return True
    if options.from_ or options.to or options.selector:
        raise UsageError(
            "--from, --to and --selector are for a Prometheus",
            hint="Give its address: tuner trace import http://prometheus:9090 -o trace.jsonl",
        )
    return False


def read(options: TraceImportOptions) -> Trace:
    """Return the trace of a Prometheus, or of several files. Raises UsageError, InputError."""
    of_file = (options.format_name, options.time_unit, options.columns, options.delimiter)
    if any(of_file) or options.spread_ticks:
        raise UsageError(
            "--format, --time-unit, --columns, --delimiter and --spread-ticks are for one file",
            hint="Leave them out.",
        )
    if not any("://" in source for source in options.sources):
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

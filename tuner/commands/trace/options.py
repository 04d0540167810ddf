"""``tuner trace``: look at a trace, bring it into tuner's own form, cut a part out."""

from pathlib import Path

import typer

from tuner.commands.shared.options import Options, command
from tuner.trace.record import ReadOptions

app = typer.Typer(help="Look at, import and cut traces.")


class TraceShowOptions(ReadOptions, Options, kw_only=True):
    """Show what a trace holds, before anything is run.

    How many requests, how long, how bursty, which lengths, how many at a time, how much of the
    prompts is shared; how its busiest part compares with the whole; what is missing, and whether
    the trace can carry a tuning.

    Example: tuner trace show prod.jsonl
    """

    file: Path
    window: str | None = None
    json: bool = False


class TraceImportOptions(ReadOptions, Options, kw_only=True):
    """Write a trace of any known format in tuner's own.

    A table (CSV, TSV, JSON lines, Parquet; plain or packed) is read by its headings. Several files
    are the parts of one recording. Of a Prometheus's address a synthetic trace is made that fits
    what it stored of a vLLM server; TUNER_PROMETHEUS_TOKEN holds a bearer token or USER:PASSWORD.

    Example: tuner trace import requests.csv -o prod.jsonl
    """

    sources: tuple[str, ...]
    output: Path
    from_: str | None = None
    to: str | None = None
    selector: str | None = None
    spread_ticks: bool = False
    lengths: Path | None = None
    force: bool = False


class TraceCutOptions(Options):
    """Write a part of a trace, with its gaps and its prompts as they are there.

    Example: tuner trace cut prod.jsonl -o busy.jsonl --window busiest+10m
    """

    file: Path
    output: Path
    window: str | None = None
    replica: str | None = None
    force: bool = False


app.command("show")(command(TraceShowOptions, "tuner.commands.trace.run", "show"))
app.command("import")(command(TraceImportOptions, "tuner.commands.trace.run", "import_"))
app.command("cut")(command(TraceCutOptions, "tuner.commands.trace.run", "cut"))

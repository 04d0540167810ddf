"""``tuner trace``: look at a trace, bring it into tuner's own form, cut a part out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from tuner.commands.shared.options import Json, command

app = typer.Typer(help="Look at, import and cut traces.")

File = Annotated[
    Path, typer.Argument(help="Trace in any format that tuner knows; - reads standard input.")
]
Output = Annotated[Path, typer.Option("-o", "--output", help="Where the trace goes.")]
FormatName = Annotated[
    str | None, typer.Option("--format", help="Format of FILE; default: found out.")
]
Unit = Annotated[
    Literal["s", "ms", "us", "ns"] | None,
    typer.Option(help="Unit of times that are numbers, where the file leaves two."),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="ROLE=HEADING,…",
        help="Columns of a table: timestamp=ts,input_length=prompt_tok,output_length=gen; also "
        "end, duration_ms, ttft_ms, status, model, …; #3 is the third column.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output.")]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ReadingOptions:
    """How a trace file is read."""

    format_name: FormatName = None
    time_unit: Unit = None
    columns: Columns = None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FileOptions(ReadingOptions):
    """A trace file, and how it is read."""

    file: File


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TraceShowOptions(FileOptions):
    """Show what a trace holds, before anything is run.

    How many requests, how long, how bursty, which lengths, how many at a time, how much of the
    prompts is shared; how its busiest part compares with the whole; what is missing, and whether
    the trace can carry a tuning.

    Example: tuner trace show prod.jsonl
    """

    window: Annotated[
        str,
        typer.Option(help="Part to compare with the whole: busiest+10m, or START+LEN (120s+60s)."),
    ] = "busiest"
    json: Json = False


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TraceImportOptions(ReadingOptions):
    """Write a trace of any known format in tuner's own.

    A table (CSV, TSV, JSON lines, Parquet; plain or packed) is read by its headings. Several files
    are the parts of one recording. Of a Prometheus's address a synthetic trace is made that fits
    what it stored of a vLLM server; TUNER_PROMETHEUS_TOKEN holds a bearer token or USER:PASSWORD.

    Example: tuner trace import requests.csv -o prod.jsonl
    """

    sources: Annotated[
        tuple[str, ...],
        typer.Argument(
            metavar="SOURCE...",
            help="A file (- is standard input), the files of a recording, or the http:// address "
            "of a Prometheus.",
        ),
    ]
    output: Output
    from_: Annotated[
        str | None,
        typer.Option("--from", help="Begin of the history: how long ago, or a date; default: 1h."),
    ] = None
    to: Annotated[str | None, typer.Option(help="End of the history, as --from; default: now.")] = (
        None
    )
    selector: Annotated[
        str | None,
        typer.Option(help="Servers in a Prometheus: label matchers, as 'job=\"vllm\"'."),
    ] = None
    spread_ticks: Annotated[
        bool,
        typer.Option(
            "--spread-ticks", help="Spread arrivals evenly within the ticks of a coarse clock."
        ),
    ] = False
    allow_text: Annotated[
        bool,
        typer.Option("--allow-text", help="Read a file that holds text, and leave the text out."),
    ] = False
    lengths: Annotated[
        Path | None,
        typer.Option(help="Trace whose lengths to take, where SOURCE is a concurrency schedule."),
    ] = None
    force: Force = False

    @property
    def file(self) -> Path:
        """The only source, which is a file."""
        return Path(self.sources[0])


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TraceCutOptions:
    """Write a part of a trace, with its gaps and its prompts as they are there.

    Without --window all of its time.

    Example: tuner trace cut prod.jsonl -o busy.jsonl --window busiest+10m
    """

    file: File
    output: Output
    window: Annotated[
        str | None,
        typer.Option(help="Part to keep: START+LEN (120s+60s), or busiest+10m."),
    ] = None
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="Drop and count requests with more tokens than this.")
    ] = None
    replica: Annotated[
        str | None,
        typer.Option(help="Keep what one recorded server got: its number, or busiest."),
    ] = None


app.command("show")(command(TraceShowOptions, "tuner.commands.trace.run", "show"))
app.command("import")(command(TraceImportOptions, "tuner.commands.trace.run", "import_"))
app.command("cut")(command(TraceCutOptions, "tuner.commands.trace.run", "cut"))

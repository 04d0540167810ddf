"""``tuner trace``: look at a trace, bring it into tuner's format or another, cut a part out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tuner.commands.shared.options import Json, Router
from tuner.errors import UsageError

if TYPE_CHECKING:
    from tuner.trace.stream import Input

TimeUnit = Literal["s", "ms", "us", "ns", "dmy", "mdy", "ymd"]

app = typer.Typer(no_args_is_help=True, help="Look at, import, export and cut traces.")


File = Annotated[
    Path, typer.Argument(help="Trace in any format that tuner knows; - reads standard input.")
]
Output = Annotated[Path, typer.Option("-o", "--output", help="Where the trace goes.")]
FormatName = Annotated[
    str | None, typer.Option("--format", help="Format of FILE; default: found out.")
]
Unit = Annotated[
    TimeUnit | None,
    typer.Option(help="Unit of the times, or order of day and month, where the file leaves two."),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="ROLE=HEADING,…",
        help="Columns of a table: timestamp=ts,input_length=prompt_tok,output_length=gen; also "
        "end, duration_ms, ttft_ms, status, model, request_class, …; #3 is the third column.",
    ),
]
Delimiter = Annotated[
    str | None, typer.Option(help="What parts the columns of a table: ';', tab, …")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output.")]


def _input(  # noqa: PLR0913 - what the options say
    file: Path,
    format_name: str | None,
    time_unit: TimeUnit | None,
    columns: str | None,
    delimiter: str | None,
    *,
    allow_text: bool = False,
) -> "Input":
    """Return the trace file that these options name, and how it is read. Raises UsageError."""
    from tuner.trace import stream  # noqa: PLC0415 - keeps --help light
    from tuner.trace.formats.reading.trace_file import STDIN, TableOptions  # noqa: PLC0415
    from tuner.trace.formats.table import columns_asked, delimiter_asked  # noqa: PLC0415

    asked = TableOptions(
        columns={} if columns is None else columns_asked(columns),
        delimiter=None if delimiter is None else delimiter_asked(delimiter),
    )
    if asked and format_name not in (None, "table"):
        raise UsageError(
            f"--columns and --delimiter are of tables, not of --format {format_name}",
            hint="Leave one of them out.",
        )
    is_stdin = str(file) == "-"
    return stream.Input(
        stream.stdin_input() if is_stdin else file,
        format_name,
        time_unit,
        allow_text,
        asked,
        STDIN if is_stdin else None,
    )


def _list_formats(asked: bool) -> None:
    if asked:
        from tuner.commands.trace import view  # noqa: PLC0415 - keeps --help light

        view.print_formats()
        raise typer.Exit


@app.command("show")
def show(  # noqa: PLR0913 - one parameter an option
    file: File,
    *,
    format_name: FormatName = None,
    time_unit: Unit = None,
    columns: Columns = None,
    delimiter: Delimiter = None,
    replicas: Annotated[
        int, typer.Option(min=1, help="Servers that share the trace; show the busiest one's part.")
    ] = 1,
    router: Router = "least",
    seed: Annotated[int, typer.Option(min=0, help="Of the routing.")] = 0,
    window: Annotated[
        str,
        typer.Option(help="Part to hold against the whole: busiest, or START+LEN (120s+60s)."),
    ] = "busiest",
    length: Annotated[
        str | None, typer.Option(help="Length of the busiest part; default: 60s.")
    ] = None,
    json_: Json = False,
) -> None:
    """Say what a trace says, before anything is run.

    How many requests, how long, how bursty, which lengths, how many at a time, how much of the
    prompts is shared; how its busiest part compares with the whole; what is missing, and whether
    the trace can carry a tuning.
    """
    from tuner.commands.trace import run as trace_run  # noqa: PLC0415

    trace_run.show(
        _input(file, format_name, time_unit, columns, delimiter),
        trace_run.Replicas(replicas, router, seed),
        trace_run.CutOptions(window, length, max_model_len=None),
        as_json=json_,
    )


@app.command("import")
def import_(  # noqa: PLR0913 - one parameter an option
    file: File,
    *,
    output: Output,
    format_name: FormatName = None,
    time_unit: Unit = None,
    columns: Columns = None,
    delimiter: Delimiter = None,
    model: Annotated[
        str | None, typer.Option(help="Model to name in the header; the sweep's default.")
    ] = None,
    spread_ticks: Annotated[
        bool,
        typer.Option(
            "--spread-ticks", help="Spread arrivals evenly within the ticks of a coarse clock."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of --spread-ticks.")] = 0,
    allow_text: Annotated[
        bool,
        typer.Option("--allow-text", help="Read a file that holds text, and leave the text out."),
    ] = False,
    lengths: Annotated[
        Path | None,
        typer.Option(help="Trace whose lengths to take, where FILE is a concurrency schedule."),
    ] = None,
    force: Force = False,
    list_: Annotated[
        bool,
        typer.Option(
            "--list", is_eager=True, callback=_list_formats, help="List the formats, and end."
        ),
    ] = False,
) -> None:
    """Write a trace of any known format in tuner's own.

    A table (CSV, TSV, JSON lines, Parquet; plain or packed) is read by its headings.
    """
    del list_
    from tuner.commands.trace import run as trace_run  # noqa: PLC0415 - keeps --help light
    from tuner.commands.trace import schedule as trace_schedule  # noqa: PLC0415

    if lengths is not None:
        if format_name or time_unit or columns or delimiter or spread_ticks:
            raise UsageError(
                "--lengths takes no --format, --columns, --delimiter, --time-unit or "
                "--spread-ticks",
                hint="A schedule has one form; leave them out.",
            )
        trace_schedule.import_(file, lengths, output, model=model, force=force)
        return
    trace_run.import_(
        _input(file, format_name, time_unit, columns, delimiter, allow_text=allow_text),
        output,
        model=model,
        spread_seed=seed if spread_ticks else None,
        force=force,
    )


@app.command("export")
def export(
    trace: Annotated[Path, typer.Argument(help="Trace in any format that tuner finds out.")],
    *,
    format_name: Annotated[
        Literal["mooncake", "aiperf", "guidellm", "timed_trace"],
        typer.Option("--format", help="Tool whose input to write."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the tool's input goes.")],
    force: Force = False,
) -> None:
    """Write a trace as the input of a tool that replays it."""
    from tuner.commands.trace import run as trace_run  # noqa: PLC0415 - keeps --help light

    trace_run.export(trace, format_name, output, force=force)


@app.command("cut")
def cut(  # noqa: PLR0913 - one parameter an option
    file: File,
    *,
    output: Output,
    window: Annotated[
        str | None,
        typer.Option(help="Part to keep: START+LEN (120s+60s), or busiest with --length."),
    ] = None,
    length: Annotated[
        str | None, typer.Option(help="Length of the busiest part; default: 60s.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="Drop and count requests with more tokens than this.")
    ] = None,
    replica: Annotated[
        str | None,
        typer.Option(help="Keep what one recorded server got: its number, or busiest."),
    ] = None,
    format_name: FormatName = None,
    time_unit: Unit = None,
    columns: Columns = None,
    delimiter: Delimiter = None,
    force: Force = False,
) -> None:
    """Write a part of a trace, with its gaps and its prompts as they are in the whole.

    Without --window all of its time.
    """
    from tuner.commands.trace import run as trace_run  # noqa: PLC0415

    trace_run.cut(
        _input(file, format_name, time_unit, columns, delimiter),
        output,
        trace_run.CutOptions(window, length, max_model_len, replica),
        force=force,
    )

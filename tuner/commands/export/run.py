"""Runs ``tuner export``: a run's tables as files."""

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.commands.export.options import ExportOptions
from tuner.commands.export.tables import TABLES, curve_rows, table_of
from tuner.commands.shared.kept_result import making_sense
from tuner.commands.shared.output import make_folder
from tuner.commands.shared.run_folder import read_run
from tuner.errors import RunError, TargetError
from tuner.profile.profile import load as load_profile
from tuner.system import files
from tuner.system.printable import in_a_cell, printable

if TYPE_CHECKING:
    import pyarrow as pa


def run(options: ExportOptions) -> None:
    """Write the tables, and print where they are. Raises RunError, TargetError."""
    book = read_run(options.run_dir)
    profile = options.run_dir / "profile.yaml"
    curve = curve_rows(load_profile(profile)) if profile.exists() else []
    if not curve and not [*book.of("replay")]:
        raise RunError(
            f"{options.run_dir}: nothing is measured yet", hint="Go on with the run: --resume."
        )
    names = [*(["curve"] if curve else []), *TABLES]
    folder = options.output or options.run_dir / "export"
    paths = {name: folder / f"{name}.{options.to}" for name in names}
    if options.output is None:
        files.make_own(folder)
    _check(folder, list(paths.values()), force=options.force)
    put = files.write_own if options.output is None else files.write_atomically
    rows, contents = dict[str, int](), dict[str, bytes]()
    with making_sense(options.run_dir / "journal.jsonl"):
        for name in names:
            table = table_of(curve) if name == "curve" else TABLES[name](book)
            rows[name] = table.num_rows
            contents[name] = _csv(table) if options.to == "csv" else _parquet(table)
    for name, path in paths.items():
        put(path, contents[name])
        sys.stdout.write(f"{printable(str(path))}: {rows[name]:,} rows\n")


def _check(folder: Path, paths: Sequence[Path], *, force: bool) -> None:
    """Make the folder, and refuse before anything is written. Raises TargetError."""
    make_folder(folder)
    for path in paths:
        if path.exists() and not force:
            raise TargetError(
                f"{path}: is there already", hint="Choose another -o, or overwrite with --force."
            )
        files.check_writable(path)


def _csv(table: "pa.Table") -> bytes:
    """Return CSV in which no cell is a formula, whatever a stranger's run holds."""
    import pyarrow as pa  # noqa: PLC0415 - slow to load
    from pyarrow import csv  # noqa: PLC0415

    for place, column in enumerate(table.columns):
        if pa.types.is_string(column.type):
            safe = [None if one is None else in_a_cell(one) for one in column.to_pylist()]
            table = table.set_column(place, table.column_names[place], pa.array(safe, pa.string()))
    content = io.BytesIO()
    csv.write_csv(
        table.rename_columns([in_a_cell(name) for name in table.column_names]),
        content,
        csv.WriteOptions(quoting_style="needed"),
    )
    return content.getvalue()


def _parquet(table: "pa.Table") -> bytes:
    import pyarrow.parquet as pq  # noqa: PLC0415 - slow to load

    content = io.BytesIO()
    pq.write_table(table, content, compression="zstd")
    return content.getvalue()

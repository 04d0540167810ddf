"""Runs ``tuner export``: a run's tables as files, or the run as one of MLflow's."""

import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from tuner.commands.export.options import ExportOptions
from tuner.commands.export.tables import Cell, Row, tables_of
from tuner.commands.shared.kept_result import making_sense
from tuner.commands.shared.output import make_folder
from tuner.commands.shared.run_folder import read_run
from tuner.errors import RunError, TargetError, UsageError
from tuner.profile.profile import load as load_profile
from tuner.profile.schema import ServingProfile
from tuner.system import files
from tuner.system.folders import make_own
from tuner.system.printable import in_a_cell, printable


def run(options: ExportOptions) -> None:
    """Write the tables, and print where they are. Raises RunError, TargetError, UsageError."""
    book = read_run(options.run_dir)
    profile = _profile_of(options.run_dir)
    with making_sense(options.run_dir / "journal.jsonl"):
        tables = tables_of(book, profile)
    if options.to == "mlflow":
        from tuner.commands.export import mlflow  # noqa: PLC0415 - an extra

        sys.stdout.write(mlflow.export(options, profile, tables))
        return
    if options.tracking_uri is not None:
        raise UsageError("--tracking-uri is for --to mlflow", hint="Add it, or leave this out.")
    if not tables:
        raise RunError(
            f"{options.run_dir}: nothing is measured yet", hint="Go on with the run: --resume."
        )
    folder = options.output or options.run_dir / "export"
    paths = {name: folder / f"{name}.{options.to}" for name in tables}
    if options.output is None:
        make_own(folder)
    _check(folder, list(paths.values()), force=options.force)
    write = _csv if options.to == "csv" else _parquet
    with making_sense(options.run_dir / "journal.jsonl"):
        contents = {name: write(rows) for name, rows in tables.items()}
    put = files.write_own if options.output is None else files.write_atomically
    for name, rows in tables.items():
        put(paths[name], contents[name])
        sys.stdout.write(f"{printable(str(paths[name]))}: {len(rows):,} rows\n")


def _profile_of(run_dir: Path) -> ServingProfile | None:
    """Return the run's own profile; None of a run that has none, or not yet."""
    path = run_dir / "profile.yaml"
    return load_profile(path) if path.exists() else None


def _check(folder: Path, paths: Sequence[Path], *, force: bool) -> None:
    """Make the folder, and refuse before anything is written. Raises TargetError."""
    make_folder(folder)
    for path in paths:
        if path.exists() and not force:
            raise TargetError(
                f"{path}: is there already", hint="Choose another -o, or overwrite with --force."
            )
        files.check_writable(path)


def _columns(rows: Sequence[Row]) -> list[str]:
    """Return the names of all columns: not every row has each."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _csv(rows: Sequence[Row]) -> bytes:
    names, text = _columns(rows), io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_cell, names))
    writer.writerows([_cell(row.get(name)) for name in names] for row in rows)
    return text.getvalue().encode(errors="backslashreplace")


def _cell(value: Cell) -> Cell:
    return in_a_cell(value) if isinstance(value, str) else value


def _parquet(rows: Sequence[Row]) -> bytes:
    import pyarrow as pa  # noqa: PLC0415 - slow to load
    import pyarrow.parquet as pq  # noqa: PLC0415

    columns = {name: [row.get(name) for row in rows] for name in _columns(rows)}
    content = io.BytesIO()
    pq.write_table(pa.table(columns), content, compression="zstd")
    return content.getvalue()

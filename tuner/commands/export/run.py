"""What ``tuner export`` does: a run's tables as files, or the run as one of MLflow's."""

import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from tuner.commands.export.options import ExportOptions
from tuner.commands.export.tables import Row, tables_of
from tuner.commands.shared.run_folder import read_run
from tuner.errors import RunError, TargetError, UsageError
from tuner.profile.profile import load as load_profile
from tuner.profile.schema import ServingProfile
from tuner.system import files


def run(options: ExportOptions) -> None:
    """Write the tables, and print where they are. Raises RunError, TargetError, UsageError."""
    book = read_run(options.run_dir)
    profile = _profile_of(options.run_dir)
    if options.to == "mlflow":
        from tuner.commands.export import mlflow  # noqa: PLC0415 - an extra

        sys.stdout.write(mlflow.export(options, profile, tables_of(book, profile)))
        return
    if options.tracking_uri is not None:
        raise UsageError("--tracking-uri is for --to mlflow", hint="Add it, or leave this out.")
    tables = tables_of(book, profile)
    if not tables:
        raise RunError(
            f"{options.run_dir}: nothing is measured yet", hint="Go on with the run: --resume."
        )
    folder = options.output or options.run_dir / "export"
    paths = {name: folder / f"{name}.{options.to}" for name in tables}
    _check(folder, list(paths.values()), force=options.force)
    write = _csv if options.to == "csv" else _parquet
    for name, rows in tables.items():
        files.write_atomically(paths[name], write(rows))
        sys.stdout.write(f"{paths[name]}: {len(rows):,} rows\n")


def _profile_of(run_dir: Path) -> ServingProfile | None:
    """Return the run's own profile; None of a run that has none, or not yet."""
    path = run_dir / "profile.yaml"
    return load_profile(path) if path.exists() else None


def _check(folder: Path, paths: Sequence[Path], *, force: bool) -> None:
    """Make the folder, and refuse before anything is written. Raises TargetError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise TargetError(
            f"{folder}: cannot be a folder ({problem.strerror})", hint="Choose another -o."
        ) from None
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
    text = io.StringIO()
    writer = csv.DictWriter(text, _columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _parquet(rows: Sequence[Row]) -> bytes:
    import pyarrow as pa  # noqa: PLC0415 - slow to load
    import pyarrow.parquet as pq  # noqa: PLC0415

    columns = {name: [row.get(name) for row in rows] for name in _columns(rows)}
    content = io.BytesIO()
    pq.write_table(pa.table(columns), content, compression="zstd")
    return content.getvalue()

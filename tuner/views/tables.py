"""A table of a page as the content of a file: CSV, Parquet or JSON."""

import csv
import io

import msgspec

from tuner.system.printable import in_a_cell
from tuner.views.page import Cell, Table


def content(table: Table, suffix: str) -> bytes:
    """Return what a file with this suffix holds; words in a column of numbers are null."""
    names = [column.name for column in table.columns]
    rows: list[list[Cell]] = [
        [
            None if isinstance(cell, str) and column.kind != "text" else cell
            for column, cell in zip(table.columns, row, strict=True)
        ]
        for row in table.rows
    ]
    if suffix == ".csv":
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(map(in_a_cell, names))
        for row in rows:  # no cell of a stranger's run is a formula
            writer.writerow([in_a_cell(c) if isinstance(c, str) else c for c in row])
        return lines.getvalue().encode()
    records = Table(table.columns, rows).records()
    if suffix == ".json":
        return msgspec.json.encode(records) + b"\n"
    import pyarrow as pa  # noqa: PLC0415 - slow to load
    import pyarrow.parquet as pq  # noqa: PLC0415

    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(records), file, compression="zstd")
    return file.getvalue()

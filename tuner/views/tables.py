"""A run as tables in files: CSV, Parquet or JSON, named after what they hold."""

import io
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import csv

from tuner.engines.seam import UNKNOWN
from tuner.replay.records import e2el_s, ttft_s
from tuner.runs.journal import Journal, Replayed
from tuner.system.printable import in_a_cell
from tuner.views.page import Table

NAMES = ("replays", "requests", "iterations")
"""Stems of files with a table of a run; any other is the first table of the run's page."""
REPLAY = ("max_num_seqs", "window_s", "elapsed_s", "kv_blocks", "cut")


def of_page(table: Table) -> pa.Table:
    """Return a table of a page; words in a column of numbers are null."""
    columns = {}
    for column, cells in zip(table.columns, zip(*table.rows, strict=True), strict=True):
        is_text = column.kind == "text"
        known = [None if isinstance(cell, str) and not is_text else cell for cell in cells]
        columns[column.name] = known
    return pa.table(columns)


def of_run(book: Journal, name: str) -> pa.Table:
    """Return a row for each replay, or the rows of an array of all replays, each with its replay.
    Times in seconds. Raises RunError."""
    events = list(book.of(Replayed))
    replays = [book.replay(event) for event in events]
    if name == "replays":
        rows = [
            {
                "file": event.file,
                "purpose": event.purpose,
                "replay": number,
                **{key: getattr(replay, key) for key in REPLAY},
                "requests": len(replay.requests),
                "ok": int((replay.requests["outcome"] == "ok").sum()),
                "iterations": len(replay.iterations),
            }
            for number, (event, replay) in enumerate(zip(events, replays, strict=True))
        ]
        return pa.Table.from_pylist(rows)
    parts = [getattr(replay, name) for replay in replays]
    counts, rows = [len(part) for part in parts], np.concatenate(parts)
    columns = {
        "replay": np.repeat(np.arange(len(parts)), counts),
        "max_num_seqs": np.repeat([event.max_num_seqs for event in events], counts),
        **{key: rows[key] for key in rows.dtype.names},
    }
    if name == "requests":
        lag_s = rows["sent_s"] - rows["planned_s"]
        columns |= {"ttft_s": ttft_s(rows), "e2el_s": e2el_s(rows), "lag_s": lag_s}
    return pa.table({key: _column(values) for key, values in columns.items()})


def _column(values: NDArray[Any]) -> pa.Array:
    """Return a column with null for what is not known."""
    if values.dtype.kind == "U":
        return pa.array(values.tolist())
    missing = np.isnan(values) if values.dtype.kind == "f" else values == UNKNOWN
    return pa.array(values.copy(), mask=missing)


def content(table: pa.Table, suffix: str) -> bytes:
    """Return the content of a file with this table."""
    if suffix == ".json":
        return msgspec.json.encode(table.to_pylist()) + b"\n"
    file = io.BytesIO()
    if suffix == ".parquet":
        pq.write_table(table, file, compression="zstd")
        return file.getvalue()
    for place, column in enumerate(table.columns):  # no cell of a stranger's run is a formula
        if pa.types.is_string(column.type):
            safe = [cell and in_a_cell(cell) for cell in column.to_pylist()]
            table = table.set_column(place, table.column_names[place], pa.array(safe, pa.string()))
    named = table.rename_columns([in_a_cell(name) for name in table.column_names])
    csv.write_csv(named, file, csv.WriteOptions(quoting_style="needed"))
    return file.getvalue()

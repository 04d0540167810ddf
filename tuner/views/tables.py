"""A run as tables in files: CSV, Parquet or JSON, named after what they hold."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tuner.engines.seam import UNKNOWN
from tuner.replay.records import e2el_s, ttft_s
from tuner.runs.events import Replayed
from tuner.runs.journal import Journal
from tuner.system.printable import in_a_cell
from tuner.views.page import Table

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = (".csv", ".parquet", ".json")


def of_page(table: Table) -> "pa.Table":
    """Return a table of a page; words in a column of numbers are null. Raises ValueError."""
    import pyarrow as pa  # noqa: PLC0415 - slow to load

    columns: dict[str, list[object]] = {}
    for place, column in enumerate(table.columns):
        cells = [row[place] for row in table.rows]
        is_text = column.kind == "text"
        columns[column.name] = [c if is_text or not isinstance(c, str) else None for c in cells]
    return pa.table(columns)


def replays(book: Journal) -> "pa.Table":
    """Return a row for each replay. Raises RunError, ValueError."""
    import pyarrow as pa  # noqa: PLC0415 - slow to load

    rows = []
    for number, event in enumerate(book.of(Replayed)):
        replay = book.replay(event)
        more = {
            "replay": number,
            "max_num_seqs": replay.max_num_seqs,
            "window_s": replay.window_s,
            "elapsed_s": replay.elapsed_s,
            "requests": len(replay.requests),
            "ok": int((replay.requests["outcome"] == "ok").sum()),
            "kv_blocks": replay.kv_blocks,
            "iterations": len(replay.iterations),
            "cut": replay.cut,
        }
        rows.append({**msgspec.structs.asdict(event), **more})
    return pa.Table.from_pylist(rows)


def requests(book: Journal) -> "pa.Table":
    """Return a row for each request that was sent; times in seconds. Raises RunError."""
    return _stacked(book, "requests")


def iterations(book: Journal) -> "pa.Table":
    """Return a row for each iteration of the engine; times in seconds. Raises RunError."""
    return _stacked(book, "iterations")


def _stacked(book: Journal, array: str) -> "pa.Table":
    """Return the rows of all replays as one table, each with its replay."""
    import pyarrow as pa  # noqa: PLC0415 - slow to load

    events = list(book.of(Replayed))
    parts = [getattr(book.replay(event), array) for event in events]
    counts, rows = [len(each) for each in parts], np.concatenate(parts)
    columns = {name: rows[name] for name in rows.dtype.names or ()}
    if "planned_s" in columns:
        lag_s = rows["sent_s"] - rows["planned_s"]
        columns |= {"ttft_s": ttft_s(rows), "e2el_s": e2el_s(rows), "lag_s": lag_s}
    caps = [event.max_num_seqs for event in events]
    return pa.table(
        {
            "replay": np.repeat(np.arange(len(parts)), counts),
            "max_num_seqs": np.repeat(caps, counts),
            **{name: _column(values) for name, values in columns.items()},
        }
    )


def _column(values: NDArray[Any]) -> "pa.Array":
    """Return a column with null for what is not known."""
    import pyarrow as pa  # noqa: PLC0415 - slow to load

    if values.dtype.kind == "U":
        return pa.array(values.tolist())
    missing = np.isnan(values) if values.dtype.kind == "f" else values == UNKNOWN
    return pa.array(values.copy(), mask=missing)


TABLES: Mapping[str, Callable[[Journal], "pa.Table"]] = {
    "replays": replays,
    "requests": requests,
    "iterations": iterations,
}
"""Stem of a file → what it holds; of any other it is the first table of the run's page."""


def content(table: "pa.Table", path: Path) -> bytes:
    """Return the content of a file with this table, in the format of its suffix."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - slow to load

    if path.suffix == ".json":
        return msgspec.json.encode(table.to_pylist()) + b"\n"
    if path.suffix == ".csv":
        return _csv(table)
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd")
    return file.getvalue()


def _csv(table: "pa.Table") -> bytes:
    """Return CSV in which no cell is a formula, whatever a stranger's run holds."""
    import pyarrow as pa  # noqa: PLC0415 - slow to load
    from pyarrow import csv  # noqa: PLC0415

    for place, column in enumerate(table.columns):
        if pa.types.is_string(column.type):
            safe = [None if cell is None else in_a_cell(cell) for cell in column.to_pylist()]
            table = table.set_column(place, table.column_names[place], pa.array(safe, pa.string()))
    file = io.BytesIO()
    named = table.rename_columns([in_a_cell(name) for name in table.column_names])
    csv.write_csv(named, file, csv.WriteOptions(quoting_style="needed"))
    return file.getvalue()

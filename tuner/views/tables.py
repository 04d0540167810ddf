"""A run as tables in files: CSV, Parquet or JSON, named after what they hold."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tuner.engines.seam import UNKNOWN
from tuner.replay.records import Replay, e2el_s, ttft_s
from tuner.runs.events import Replayed
from tuner.runs.journal import Journal
from tuner.system.printable import in_a_cell
from tuner.views.page import Table

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, object]
"""Name of a column → a plain value."""
FORMATS = (".csv", ".parquet", ".json")


def table_of(rows: Sequence[Mapping[str, object]]) -> "pa.Table":
    """Return rows as a table; a row without a column has null there. Raises ValueError for values
    that no column can hold."""
    import pyarrow as pa  # noqa: PLC0415 - slow to load

    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def of_page(table: Table) -> "pa.Table":
    """Return a table of a page; words in a column of numbers are null."""
    is_text = {column.name: column.kind == "text" for column in table.columns}
    return table_of(
        [
            {name: cell if is_text[name] or not isinstance(cell, str) else None
             for name, cell in row.items()}
            for row in table.records()
        ]
    )  # fmt: skip


def replays(book: Journal) -> "pa.Table":
    """Return a row for each replay. Raises RunError, ValueError."""
    events = enumerate(book.of(Replayed))
    return table_of([_of_replay(number, event, book.replay(event)) for number, event in events])


def requests(book: Journal) -> "pa.Table":
    """Return a row for each request that was sent; times in seconds. Raises RunError."""
    return _stacked([(each, each.requests) for each in map(book.replay, book.of(Replayed))])


def iterations(book: Journal) -> "pa.Table":
    """Return a row for each iteration of the engine; times in seconds. Raises RunError."""
    return _stacked([(each, each.iterations) for each in map(book.replay, book.of(Replayed))])


def _stacked(found: Sequence[tuple[Replay, NDArray[np.void]]]) -> "pa.Table":
    """Return the rows of all replays as one table, each with its replay."""
    import pyarrow as pa  # noqa: PLC0415 - slow to load

    counts, rows = [len(each) for _, each in found], np.concatenate([each for _, each in found])
    columns = {name: rows[name] for name in rows.dtype.names or ()}
    if "planned_s" in columns:
        columns |= {
            "ttft_s": ttft_s(rows),
            "e2el_s": e2el_s(rows),
            "lag_s": rows["sent_s"] - rows["planned_s"],
        }
    return pa.table(
        {
            "replay": np.repeat(np.arange(len(found)), counts),
            "max_num_seqs": np.repeat([replay.max_num_seqs for replay, _ in found], counts),
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


def _of_replay(number: int, event: Replayed, replay: Replay) -> Row:
    return msgspec.structs.asdict(event) | {
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


def content(table: "pa.Table", path: Path) -> bytes:
    """Return the content of a file with this table, in the format of its suffix."""
    match path.suffix:
        case ".parquet":
            import pyarrow.parquet as pq  # noqa: PLC0415 - slow to load

            file = io.BytesIO()
            pq.write_table(table, file, compression="zstd")
            return file.getvalue()
        case ".json":
            return msgspec.json.encode(table.to_pylist()) + b"\n"
        case _:
            return _csv(table)


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

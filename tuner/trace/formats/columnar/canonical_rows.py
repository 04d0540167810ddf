"""Canonical rows read by columns: blocks in which there is nothing to say of any row."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from pyarrow import ArrowInvalid, bool_, float64, int64, list_, string

from tuner.trace.formats.columnar.arrow import (
    SMALL_BYTES,
    floats,
    ints,
    json_table,
    lists,
    names,
    parts,
)
from tuner.trace.formats.columnar.batch import ABSENT, COUNTS, LISTS, NAMES, TIMES, Batch
from tuner.trace.formats.reading.record import MAX_MS, MAX_N, MAX_TOKENS, Row, Status
from tuner.trace.formats.reading.trace_file import TraceFile

STATUSES: tuple[Status, ...] = get_args(Status)
LIMITS = {"n": (1, MAX_N), "priority": (-(2**31), 2**31 - 1), "stream": (0, 1)}
"""Of whole numbers that are no counts of tokens."""

ARROW: dict[str, Any] = {
    **dict.fromkeys(TIMES, float64()),
    **dict.fromkeys(COUNTS, int64()),
    **dict.fromkeys(NAMES, string()),
    **dict.fromkeys(LISTS, list_(int64())),
    "stream": bool_(),
}

COMPILED_FROM = 8
"""Blocks of a file that are read before a loop is compiled for the rest: 32 MiB."""

MAIN_KEYS = ("timestamp", "input_length", "output_length")

RowByRow = Callable[[Iterable[tuple[int, bytes]], TraceFile], Iterator[Row]]


class CanonicalReader:
    """Reads canonical rows, and counts those that it drops."""

    def __init__(
        self,
        lines: TraceFile,
        row_by_row: RowByRow,
        *,
        block_size: int,
        whole_stamps: bool,
        headed: int,
    ) -> None:
        """``row_by_row`` reads lines; with ``whole_stamps`` it has something to say of fractions.
        ``headed`` is the line of the header, 0 without one."""
        self.lines, self.row_by_row = lines, row_by_row
        self.block_size, self.whole_stamps, self.headed = block_size, whole_stamps, headed
        self.known = ARROW | {"timestamp": int64()} if whole_stamps else ARROW
        self.fractions = {
            key: self.known[key] == float64() for key in (*TIMES, *COUNTS) if key != "stream"
        }
        self.compiles = False
        """Whether the file is so long that a compiler is worth loading."""
        self.types = {key: self.known[key] for key in MAIN_KEYS}
        """Of the keys that were met so far: fewer are read faster."""

    def batches(self) -> Iterator[Batch]:
        """Yield the rows by columns."""
        for block_number, (first, block) in enumerate(self.lines.blocks()):
            yield from self._numbered(block_number, first, block)

    def again(self, only: Collection[int]) -> Iterator[Batch]:
        """Yield the rows of some blocks once more, and count nothing."""
        self.lines = self.lines.again()
        needed = islice(self.lines.blocks(), max(only, default=-1) + 1)
        for block_number, (first, block) in enumerate(needed):
            if block_number in only:
                yield from self._numbered(block_number, first, block)

    def _numbered(self, block_number: int, first: int, block: bytes) -> Iterator[Batch]:
        self.compiles = block_number >= COMPILED_FROM
        while first <= self.headed and block:
            _, _, block = block.partition(b"\n")
            first += 1
        for batch in self._batches(first, block):
            yield replace(batch, block=block_number)

    def _batches(self, first: int, block: bytes, *, whole: bool = True) -> Iterator[Batch]:
        batch = self._batch(block)
        if batch is not None:
            self.lines.tally.rows_read += len(batch)
            self.lines.tally.rows_kept += len(batch)
            yield batch
        elif whole and len(block) > SMALL_BYTES:
            for number, part in parts(first, block):
                yield from self._batches(number, part, whole=False)
        else:
            found = list(self.row_by_row(self.lines.split(first, block), self.lines))
            if found:
                yield Batch.of(found)

    def _batch(self, block: bytes) -> Batch | None:
        """Return the rows of a block if there is nothing to say of any of them."""
        batch = self._of_numbers(block) if self.compiles else None
        if batch is None:
            batch = self._of_json(block)
        if batch is None or not _is_clean(batch, self.block_size, whole_stamps=self.whole_stamps):
            return None
        return batch

    def _of_numbers(self, block: bytes) -> Batch | None:
        from tuner.trace.formats.columnar.number_lines import numbers_in  # noqa: PLC0415 - slow to load

        found = numbers_in(block, self.fractions, needed=MAIN_KEYS)
        if found is None:
            return None
        counts = {key: found[key].astype(np.int64) for key in COUNTS if key in found}
        return Batch({key: found[key] for key in TIMES if key in found}, counts)

    def _of_json(self, block: bytes) -> Batch | None:
        table = json_table(block, self.types, strict=True)
        if table is None and len(self.types) < len(self.known):
            table = json_table(block, self.known, strict=True)
            if table is not None:
                empty = {key for key in self.known if table.column(key).null_count == len(table)}
                self.types |= {key: self.known[key] for key in self.known if key not in empty}
                table = table.drop_columns(sorted(empty - self.types.keys()))
        if table is None or not len(table):
            return None
        try:
            return _batch_of(table)
        except ArrowInvalid:
            return None


def _batch_of(table: Any) -> Batch:  # noqa: ANN401 - Arrow's
    columns = {name: table.column(name) for name in table.column_names}
    found_names = {key: names(columns[key]) for key in NAMES if key in columns}
    return Batch(
        {key: floats(columns[key]) for key in TIMES if key in columns},
        {key: ints(columns[key]) for key in COUNTS if key in columns},
        found_names,
        {key: lists(columns[key]) for key in LISTS if key in columns},
    )


def _is_clean(  # noqa: C901, PLR0911 - one question after another
    batch: Batch, block_size: int, *, whole_stamps: bool
) -> bool:
    """Return whether every row is what ``rows`` would yield without a word."""
    stamps = batch.times["timestamp"]
    if not np.isfinite(stamps).all() or (whole_stamps and (stamps % 1).any()):
        return False
    for times_ms in batch.times.values():
        if not ((times_ms >= 0) & (times_ms <= MAX_MS) | np.isnan(times_ms)).all():
            return False
    for key, counts in batch.counts.items():
        least, most = LIMITS.get(key, (0, MAX_TOKENS))
        if not ((counts >= least) & (counts <= most) | (counts == ABSENT)).all():
            return False
    served = _served(batch)
    if served is None:
        return False
    prompt, output = batch.counts["input_length"], batch.counts["output_length"]
    ok = served == STATUSES.index("ok")
    is_served = ok | (served == STATUSES.index("aborted"))
    if (is_served & ((prompt < 1) | (output < 0))).any() or (ok & (output < 1)).any():
        return False
    for key, (offsets, values) in batch.lists.items():
        if (values < 0).any() or (key == "output_lengths" and (values > MAX_TOKENS).any()):
            return False
        sizes = np.diff(offsets)
        if (
            key == "hash_ids"
            and ((sizes > 0) & (sizes * block_size >= np.maximum(prompt, 0) + block_size)).any()
        ):
            return False
    return True


def _served(batch: Batch) -> NDArray[np.int64] | None:
    """Return each row's status by its number; None where one is none."""
    if "status" not in batch.names:
        return np.zeros(len(batch), np.int64)
    codes, known = batch.names["status"]
    if not set(known) <= set(STATUSES):
        return None
    numbers = np.array([*map(STATUSES.index, known), 0])  # -1, absent, is the last
    return numbers[codes]

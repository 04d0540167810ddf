"""Read a trace file: bytes to raw columns, raw columns to checked ones, these to a ``Trace``.

``rows`` finds the rows, ``formats`` or ``guess`` say which column is what, ``nested`` makes flat
rows where they are none, ``Checker`` reads every cell.
"""

import ctypes
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tuner.errors import TraceError, UsageError
from tuner.trace.columns import TYPES
from tuner.trace.files import TraceFile
from tuner.trace.formats import CANONICAL, TABLE, Format, detected, named
from tuner.trace.guess import guessed, is_far_off
from tuner.trace.headings import Role, main_roles
from tuner.trace.record import (
    CODES,
    FIELDS,
    REASONS,
    SERVED,
    VERSION,
    Field,
    ReadOptions,
    Status,
    TraceHeader,
)
from tuner.trace.rows import ROWS, Numbered, Opened, Raw, opened
from tuner.trace.text import look_for_text, names_text
from tuner.trace.trace import Trace, sorted_by_arrival
from tuner.trace.values import (
    FROM_MS,
    Cells,
    Floats,
    Ints,
    as_array,
    as_list,
    by_value,
    date_of,
    error_in,
    from_cache,
    is_empty,
    name_in,
    status_in,
    words,
)

MOST_ROWS = 2 * 10**7
"""Rows that are read at most: a day of 230 requests a second. Packed, a billion equal rows take
half a megabyte, and each that is read takes up to 80 bytes of memory."""

SET_BACK_MS = (20 * 60_000.0, 75 * 60_000.0)
"""Range by which times go back where clocks are set back by an hour, with the gap between rows."""

IN_ORDER = 0.01
"""Share of the rows that may be far before the row above. A table in no order has more of them, and
its steps show nothing."""


def read(path: Path, options: ReadOptions | None = None) -> Trace:
    """Read a table trace, in order of arrival; requests of one time keep their order.

    Raises TraceError for a file that cannot be read as a trace, UsageError for options that do not
    fit it. Rows that cannot be used are counted in the header and named in the warnings.
    """
    options = options or ReadOptions()
    file = TraceFile(path, options.allow_text)
    try:
        return _read(file, options)
    except OSError as error:
        what = (error.strerror or str(error)).lower()
        raise TraceError(f"{path}: {what}", hint="Sample traces are in traces/.") from error


def _read(file: TraceFile, options: ReadOptions) -> Trace:
    rows_of = opened(file)
    known = _format(file, rows_of, options)
    header = _header(known, rows_of, file)
    checker = Checker(replace(known, block_size=header.block_size), file)
    tables: list[pa.Table] = []
    for raw in _raws(rows_of, known, file):
        if file.rows_read > MOST_ROWS:
            many = f"more than {MOST_ROWS:,} rows"
            raise TraceError(f"{file.path}: {many}", hint="Cut it to the busiest hours.")
        tables.append(checker.checked(raw))
    if not any(map(len, tables)):
        raise _nothing(file)
    table = pa.concat_tables(tables, promote_options="default")
    tables.clear()
    lines, table = table.column("line"), table.drop_columns("line").combine_chunks()
    pa.default_memory_pool().release_unused()
    with suppress(AttributeError):  # glibc's
        ctypes.CDLL(None).malloc_trim(0)
    _check_times(table, lines, known, file)
    return _trace(table, header, known, file)


def _format(file: TraceFile, rows_of: Opened, options: ReadOptions) -> Format:
    """Return how a file is read. Raises TraceError with what would do, UsageError."""
    name = options.format_name
    if options.columns and name not in (None, TABLE.name):
        raise UsageError("--columns is for tables without a --format", hint="Leave one out.")
    is_free = name is None and not options.columns
    known = detected(rows_of, file) if is_free else named(name or TABLE.name)
    if known is not None and known is not TABLE:
        return known.of(options.time_unit, file)
    if rows_of.sample or main_roles(rows_of.headings) or not is_free:
        return guessed(rows_of, options, file)
    raise TraceError(
        f"{file.path}:1: not a trace format that tuner knows, and no table of requests",
        hint="Export it as CSV or JSON lines with the time, the prompt's and the output's tokens; "
        "docs/traces.md lists what else is read.",
    )


def _header(known: Format, rows_of: Opened, file: TraceFile) -> TraceHeader:
    """Return the header that the file has, or the one of its format. Raises TraceError."""
    if known.name != CANONICAL.name:
        size = known.block_size_in(rows_of.sample) if known.any_block_size else known.block_size
        return TraceHeader(source=known.name, block_size=size, missing=tuple(known.missing))
    first = rows_of.first[0] if rows_of.first else {}
    if "tuner_trace" not in first:
        return TraceHeader()
    problem = f"not tuner_trace {VERSION} in ms, which this tuner reads"
    if first.get("tuner_trace") == VERSION and first.get("time_unit", "ms") == "ms":
        try:
            return msgspec.convert(first, TraceHeader)
        except msgspec.ValidationError as error:
            problem = str(error)
    raise TraceError(
        f"{file.path}:1: header: {problem}",
        hint="Compare the first line with docs/traces.md; or drop it and import with --time-unit.",
    )


def _raws(rows_of: Opened, known: Format, file: TraceFile) -> Iterator[Raw]:
    """Yield raw columns of flat rows. Raises TraceError for rows that hold text."""
    paths = chain.from_iterable(column.paths for column in known.columns.values())
    raws = rows_of.raws([*paths, *filter(names_text, rows_of.headings)])
    if known.name == CANONICAL.name:
        raws = _headless(raws, file)
    if known.flatten is not None:
        raws = _flat(raws, known, file)
    for raw in raws:
        look_for_text(raw, file)
        if len(raw):
            yield raw


def _headless(raws: Iterator[Raw], file: TraceFile) -> Iterator[Raw]:
    """Yield the rows below the header. Raises TraceError for a second one."""
    for block, raw in enumerate(raws):
        is_headed = block == 0 and "tuner_trace" in (raw.objects or ({},))[0]
        rest = Raw(raw.lines[is_headed:], raw.objects[is_headed:])
        if "tuner_trace" in rest.names:
            line = rest.lines[["tuner_trace" in row for row in rest.objects].index(True)]
            what = "a second header: two traces with two origins in one file"
            cure = "Split the file at this line and use the parts one by one."
            raise TraceError(f"{file.at(int(line))}: {what}", hint=cure)
        yield rest


def _flat(raws: Iterator[Raw], known: Format, file: TraceFile) -> Iterator[Raw]:
    def rows() -> Numbered:
        for raw in raws:
            look_for_text(raw, file)
            yield from zip(raw.lines.tolist(), raw.objects, strict=True)

    assert known.flatten is not None
    flat = known.flatten(rows(), file)
    while some := list(islice(flat, ROWS)):
        yield Raw(np.array([line for line, _ in some], np.int64), [row for _, row in some])


def _check_times(table: pa.Table, lines: pa.ChunkedArray, known: Format, file: TraceFile) -> None:
    """Raise TraceError for times of a unit that is unclear, and where an hour comes twice."""
    times_ms = table.column("timestamp").to_numpy()
    if known.whole_ms and len(odd := np.flatnonzero(times_ms % 1)):
        raise TraceError(
            f"{file.at(lines[odd[0]].as_py())}: a timestamp with a fraction may be seconds or ms",
            hint="Say which: --time-unit s (GuideLLM, vLLM) or --time-unit ms (aiperf).",
        )
    if known.clock.zoned is not False:
        return
    if "timestamp" not in known.columns:
        times_ms = times_ms + table.column("e2e_ms").to_numpy()
    back_ms = -np.diff(times_ms)
    if (back_ms > 0).sum() > (back_ms < 0).sum():  # the newest stands first
        back_ms *= -1
    far_back = np.flatnonzero(back_ms >= SET_BACK_MS[0])
    set_back = far_back[back_ms[far_back] <= SET_BACK_MS[1]]
    if len(set_back) and len(far_back) <= max(1, IN_ORDER * len(back_ms)):
        raise TraceError(
            f"{file.at(lines[set_back[0] + 1].as_py())}: the time goes back "
            f"{back_ms[set_back[0]] / 6e4:.0f} min: where clocks are set back, times without a "
            "zone have an hour twice",
            hint="Export times in UTC or with their zone; or sort the rows, if the times are UTC.",
        )


def _nothing(file: TraceFile) -> TraceError:
    """Return why no row can be used."""
    if not file.rows_read:
        return TraceError(f"{file.path}: no rows", hint="Is the file complete?")
    [(reason, count)] = file.dropped.most_common(1)
    return TraceError(
        f"{file.first[reason]}: none of {file.rows_read:,} rows can be used; "
        f"{count:,} of them {reason}: {REASONS[reason]}",
        hint="docs/traces.md says what to do; or tuner trace import --format NAME names another.",
    )


def _trace(table: pa.Table, header: TraceHeader, known: Format, file: TraceFile) -> Trace:
    warnings = [*file.warnings(), *file.notes]
    if header.rows_kept not in (0, file.rows_read):
        warnings.append(
            f"the header counts {header.rows_kept:,} rows, the file has {file.rows_read:,}: it "
            "was cut off or edited"
        )
    table, origin_ms = sorted_by_arrival(table, absolute=known.absolute)
    dropped = Counter(header.dropped) + file.dropped
    missing, notes = header.missing, header.notes
    if known.name != CANONICAL.name:
        missing += ("ends",) if "e2e_ms" not in table.column_names and "ends" not in missing else ()
        notes = (known.how(), *known.notes)
    dated = known.absolute and (known.clock.dated or origin_ms >= FROM_MS)
    header = replace(
        header,
        time_origin=date_of(origin_ms) if dated else header.time_origin,
        rows_read=len(table) + dropped.total(),
        rows_kept=len(table),
        dropped=dict(dropped),
        missing=missing,
        notes=tuple(dict.fromkeys((*notes, *file.notes))),
    )
    return Trace(header, table, tuple(warnings))


# Cells.

STATUSES: tuple[Status, ...] = get_args(Status)
CODE_OF: dict[Status, int] = {status: code for code, status in enumerate(STATUSES)}
CHAIN = words(
    "chain agent tool retriever retrieval workflow task parser prompt guardrail reranker "
    "embedding evaluator"
)
"""Kinds of calls that stand above or beside a model's where each call is a row."""

NO_GENERATION = re.compile(
    r"/(?:embeddings|pooling|classify|score|rerank|tokenize|models|health|metrics|ping)(?=[?\s]|$)"
)
"""Paths, or first lines of requests, at which nothing is generated."""

NUMBERED = words("session_id replica")
"""Roles whose names become numbers, in order of first sight."""

OPTIONAL = [
    field
    for field in FIELDS
    if field.kind != "time" and field.key not in ("status", "input_length", "output_length")
]


class Checker:
    """Checks the rows of one file, block by block; knows the names that it met."""

    def __init__(self, known: Format, file: TraceFile) -> None:
        self.format, self.file = known, file
        self.names: dict[Role, dict[str, int]] = {role: {} for role in NUMBERED}

    def checked(self, raw: Raw) -> pa.Table:
        """Return the rows that can be used, with their lines; count the others."""
        self.raw = raw
        self.reasons: NDArray[np.uint8] = np.zeros(len(raw), np.uint8)
        self.columns: dict[str, pa.Array] = {"line": pa.array(raw.lines, pa.int32())}
        self._leave_out()
        status = self._status()
        output = self._lengths(status)
        self._times(output)
        if self.format.silent_is_error:
            status = np.where(output > 0, status, CODE_OF["error"])
        if status.any():
            self.columns["status"] = pa.array(STATUSES).take(pa.array(status))
        for field in OPTIONAL:
            self._optional(field)
        if self.format.sums_of_n and "n" in self.columns:  # only the sum of their outputs is known
            n = self.columns.pop("n").fill_null(1).to_numpy(zero_copy_only=False)
            self._drop(n > 1, "several_requests")
        self.file.rows_read += len(raw)
        for code in {*self.reasons.tolist()} - {0}:
            places = np.flatnonzero(self.reasons == code)
            self.file.drop([*REASONS][code - 1], int(raw.lines[places[0]]), count=len(places))
        kept = pa.array(self.reasons == 0)
        return pa.table(self.columns).filter(kept)

    def _cells(self, role: Role) -> Cells | None:
        """Return the cells of a role; None where the format or these rows have none."""
        column = self.format.columns.get(role)
        return None if column is None else self.raw.cells(column.paths)

    def _numbers(self, role: Role, *, where: Any = True, reason: str = "") -> Floats:  # noqa: ANN401
        """Return the numbers of a role, NaN where there is none; drop rows where they are wrong."""
        if (cells := self._cells(role)) is None:
            return np.full(len(self.raw), np.nan)
        values, codes = self.format.columns[role].read(cells)
        self._drop(np.where(where, (codes != 0) if reason else codes, 0), reason)
        return values

    def _drop(self, where: NDArray[Any], reason: str = "") -> None:
        """Give rows a reason, unless they have one; without one, ``where`` has their codes."""
        if where.any():
            codes = where * CODES[reason] if reason else where
            self.reasons = np.where(self.reasons == 0, codes, self.reasons).astype(np.uint8)

    def _put(self, key: str, values: Floats) -> None:
        if not np.isnan(values).all():
            column = pa.array(values, from_pandas=True)
            self.columns[key] = pc.cast(column, TYPES[key], safe=False)

    def _each(self, role: Role, rule: Callable[[Any], int]) -> Ints:
        """Return what a rule makes of the cells of a role; 0 where there are none."""
        cells = self._cells(role)
        nothing: Ints = np.zeros(len(self.raw), np.int64)
        return nothing if cells is None else by_value(cells, rule, 0, np.int64)

    def _leave_out(self) -> None:
        """Leave out rows that are no request of a model, or several."""

        def is_no_call(kind: object) -> bool:
            word, calls = str(kind).rpartition(".")[2].strip().lower(), self.format.generating
            return word in CHAIN if calls is None else not is_empty(kind) and word not in calls

        requests = self._numbers("requests", where=False)
        self._drop(~np.isnan(requests) & (requests != 1), "several_requests")
        self._drop(self._each("cache_hit", lambda cell: from_cache(cell) is True), "cache_hit")
        self._drop(self._each("kind", is_no_call), "not_generation")
        paths = self._each("path", lambda path: NO_GENERATION.search(str(path)) is not None)
        self._drop(paths, "not_generation")

    def _status(self) -> Ints:
        """Return each row's status by its number."""

        def status_of(cell: object) -> int:
            status = status_in(cell, flag=self.format.flag)
            if status is None:
                self.file.note("statuses that are not known count as served")
            return CODE_OF[status or "ok"]

        status = self._each("status", status_of)
        error = self._each("error", lambda cell: CODE_OF[error_in(cell)])
        gone = self._each("flags", lambda cell: "DC" in str(cell).split(","))
        status = np.where(status == 0, error, status)
        return np.where(gone != 0, CODE_OF["aborted"], status)  # Envoy's, of a client that left

    def _lengths(self, status: Ints) -> Floats:
        """Read both lengths, and return the output's; requests that were never served may lack
        them."""
        served = status < len(SERVED)
        output, prompt = (self._numbers(f"{each}_length", where=served) for each in SIDES)
        for role in ("cached_tokens", "cache_creation_tokens") if self.format.prompt_is_sum else ():
            prompt += np.nan_to_num(self._numbers(role, where=False))
        needs = served & ((output > 0) | (not self.format.silent_is_error))
        for side, values in zip(SIDES, (output, prompt), strict=True):
            self._drop(served & (values < 0), "negative")
            self._drop(needs & np.isnan(values), "no_tokens")
            may_be_zero = (status != 0) & (side == "output")
            self._drop(needs & (values == 0) & ~may_be_zero, "zero_tokens")
            self._put(f"{side}_length", np.where(values < 0, np.nan, values))
        self.prompt = np.nan_to_num(prompt)
        return output

    def _times(self, output: Floats) -> None:
        """Read the arrivals, and the spans from there: of an end without them the arrival is what
        the duration leaves."""
        is_stamped = "timestamp" in self.format.columns
        arrival, lasted = (
            self._numbers("timestamp" if is_stamped else "end"),
            self._numbers("duration"),
        )
        if self.format.token_ms is not None:
            self._drop(is_far_off(lasted, output, self.format.token_ms), "bad_field")
        if is_stamped:
            since = np.round(self._numbers("end", reason="bad_field") - arrival, 3)
            self._drop(since < 0, "negative_time")
            lasted = np.where(np.isnan(since), lasted, since)
        else:
            arrival = np.maximum(0.0, np.round(arrival - lasted))  # to the ms
        self._put("e2e_ms", lasted)
        self._put("ttft_ms", self._numbers("ttft"))
        self._put("queue_ms", self._numbers("queue"))
        self._drop(np.isnan(arrival), "no_timestamp")
        self._put("timestamp", arrival)

    def _optional(self, field: Field) -> None:
        """Read a field that need not be there; where it is wrong it costs the row."""
        key = field.key
        if (cells := self._cells(key)) is None:
            return
        if field.kind == "list":
            self._list(field, as_list(cells))
        elif field.kind == "name" or key in {*NUMBERED} - {*self.format.keeps}:
            kept = pc.if_else(pa.array(self.reasons == 0), as_array(cells), None)
            column = pa.array(by_value(kept, self._name_of(key), None, np.object_), TYPES[key])
            if column.null_count < len(column):
                self.columns[key] = column
        else:
            values = self._numbers(key, reason="bad_field")
            self._drop((values < field.least) | (values > field.most), "bad_field")
            self._put(key, values)

    def _name_of(self, role: Role) -> Callable[[Any], Any]:
        """Return what a name becomes: the number of those met before, unless it is kept."""
        known = self.names.get(role, {})

        def numbered(name: object) -> str | int | None:
            if is_empty(name):
                return None
            number = known.setdefault(str(name), len(known))
            return number if role == "replica" else f"s{number}"

        return name_in if role not in NUMBERED or role in self.format.keeps else numbered

    def _list(self, field: Field, cells: list[Any]) -> None:
        """Read lists of table numbers; rows that hold something else are dropped."""

        def checked(cell: Any) -> list[int] | None:  # noqa: ANN401 - any JSON
            is_list = isinstance(cell, list) and {*map(type, cell)} <= {int}
            if not is_list or min(cell, default=0) < 0:
                return None
            cell = [each % 2**63 for each in cell]  # of hashes of 64 bits what is left differs, too
            return cell if max(cell, default=0) <= field.most else None

        is_given = np.array([cell is not None for cell in cells])
        if not is_given.any():
            return
        self.columns[field.key] = column = pa.array(map(checked, cells), TYPES[field.key])
        self._drop(is_given & column.is_null().to_numpy(zero_copy_only=False), "bad_field")
        if field.key == "hash_ids":
            sizes = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            blocks = np.ceil(self.prompt / self.format.block_size)
            self._drop(sizes > blocks, "bad_field")


SIDES = ("output", "input")

"""Read a trace file: bytes to raw columns, raw columns to checked ones, these to a ``Trace``.

``rows`` finds the rows, ``formats`` or ``guess`` say which column is what, ``nested`` makes flat
rows where they are none, ``Checker`` reads every cell, ``same`` finds rows that are one request.
"""

from collections import Counter
from collections.abc import Callable, Iterator
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
from tuner.trace.encode import TYPES
from tuner.trace.files import Tally, TraceFile
from tuner.trace.formats import CANONICAL, KEY_OF, ROLE_OF, TABLE, Format, detected, named
from tuner.trace.guess import ReadOptions, guessed, is_far_off
from tuner.trace.headings import Role, main_roles
from tuner.trace.record import CODES, FIELDS, REASONS, SERVED, VERSION, Field, Status, TraceHeader
from tuner.trace.rows import ROWS, Numbered, Opened, Raw, opened
from tuner.trace.same import LINKS, requests_of
from tuner.trace.text import look_for_text, names_text
from tuner.trace.trace import Trace, sorted_by_arrival
from tuner.trace.values import (
    FROM_MS,
    Cells,
    Floats,
    Ints,
    Mask,
    as_array,
    as_list,
    by_value,
    code_in,
    date_of,
    error_in,
    flag_in,
    from_cache,
    generates,
    is_empty,
    name_in,
    status_in,
    word_in,
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
    tally = Tally(options.name or str(path), allow_text=options.allow_text)
    try:
        return _read(TraceFile(path, tally), options)
    except OSError as error:
        what = (error.strerror or str(error)).lower()
        raise TraceError(f"{tally.place}: {what}", hint="Sample traces are in traces/.") from error


def _read(file: TraceFile, options: ReadOptions) -> Trace:
    tally, rows_of = file.tally, opened(file)
    known = _format(file, rows_of, options)
    header = _header(known, rows_of, tally.place)
    checker = Checker(replace(known, block_size=header.block_size), tally)
    tables: list[pa.Table] = []
    for raw in _raws(rows_of, known, tally):
        if tally.rows_read > MOST_ROWS:
            many = f"more than {MOST_ROWS:,} rows"
            raise TraceError(f"{tally.place}: {many}", hint="Cut it to the busiest hours.")
        tables.append(checker.checked(raw))
    if not any(map(len, tables)):
        raise _nothing(tally)
    table = pa.concat_tables(tables, promote_options="default")
    tables.clear()
    if known.are_spans:
        table = _settled(table, tally)
    lines, table = table.column("line"), table.drop_columns("line").combine_chunks()
    pa.default_memory_pool().release_unused()
    tally.rows_kept = len(table)
    _check_times(table, lines, known, tally)
    return _trace(table, header, known, tally)


def _format(file: TraceFile, rows_of: Opened, options: ReadOptions) -> Format:
    """Return how a file is read. Raises TraceError with what would do, UsageError."""
    place, name = file.tally.place, options.format_name
    if options.columns and name not in (None, TABLE.name):
        raise UsageError("--columns is for tables without a --format", hint="Leave one out.")
    is_free = name is None and not options.columns
    known = detected(rows_of, file.head, place) if is_free else named(name or TABLE.name)
    if known is not None and known is not TABLE:
        return known.of(options.time_unit, place)
    if rows_of.sample or main_roles(rows_of.headings) or not is_free:
        return guessed(rows_of, options, file.tally)
    raise TraceError(
        f"{place}:1: not a trace format that tuner knows, and no table of requests",
        hint="Export it as CSV or JSON lines with the time, the prompt's and the output's tokens; "
        "docs/traces.md lists what else is read.",
    )


def _header(known: Format, rows_of: Opened, place: str) -> TraceHeader:
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
        f"{place}:1: header: {problem}",
        hint="Compare the first line with docs/traces.md; or drop it and import with --time-unit.",
    )


def _raws(rows_of: Opened, known: Format, tally: Tally) -> Iterator[Raw]:
    """Yield raw columns of flat rows. Raises TraceError for rows that hold text."""
    paths = chain.from_iterable(column.paths for column in known.columns.values())
    raws = rows_of.raws([*paths, *filter(names_text, rows_of.headings)])
    if known.name == CANONICAL.name:
        raws = _headless(raws, tally)
    if known.flatten is not None:
        raws = _flat(raws, known, tally)
    for raw in raws:
        look_for_text(raw, tally)
        if len(raw):
            yield raw


def _headless(raws: Iterator[Raw], tally: Tally) -> Iterator[Raw]:
    """Yield the rows below the header. Raises TraceError for a second one."""
    for block, raw in enumerate(raws):
        headers = [place for place, row in enumerate(raw.objects) if "tuner_trace" in row]
        if headers and (block or headers != [0]):
            what = "a second header: two traces with two origins in one file"
            cure = "Split the file at this line and use the parts one by one."
            raise TraceError(f"{tally.at(int(raw.lines[headers[-1]]))}: {what}", hint=cure)
        yield Raw(raw.lines[len(headers) :], raw.objects[len(headers) :])


def _flat(raws: Iterator[Raw], known: Format, tally: Tally) -> Iterator[Raw]:
    def rows() -> Numbered:
        for raw in raws:
            look_for_text(raw, tally)
            yield from zip(raw.lines.tolist(), raw.objects, strict=True)

    assert known.flatten is not None
    flat = known.flatten(rows(), tally)
    while some := list(islice(flat, ROWS)):
        yield Raw(np.array([line for line, _ in some], np.int64), [row for _, row in some])


def _settled(table: pa.Table, tally: Tally) -> pa.Table:
    """Return the requests that there really are."""
    kept, doubled = requests_of(table.to_pylist())
    for row in doubled:
        tally.drop("same_request", row["line"])
    if not kept:
        raise _nothing(tally)
    result = pa.Table.from_pylist(kept, pa.schema([*TYPES.items(), ("line", pa.int32())]))
    names = result.column_names
    return result.select([name for name in names if result.column(name).null_count < len(result)])


def _check_times(table: pa.Table, lines: pa.ChunkedArray, known: Format, tally: Tally) -> None:
    """Raise TraceError for times of a unit that is unclear, and where an hour comes twice."""
    times_ms = table.column("timestamp").to_numpy()
    if known.whole_ms and len(odd := np.flatnonzero(times_ms % 1)):
        raise TraceError(
            f"{tally.at(lines[odd[0]].as_py())}: a timestamp with a fraction may be seconds or ms",
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
            f"{tally.at(lines[set_back[0] + 1].as_py())}: the time goes back "
            f"{back_ms[set_back[0]] / 6e4:.0f} min: where clocks are set back, times without a "
            "zone have an hour twice",
            hint="Export times in UTC or with their zone; or sort the rows, if the times are UTC.",
        )


def _nothing(tally: Tally) -> TraceError:
    """Return why no row can be used."""
    if not tally.rows_read:
        return TraceError(f"{tally.place}: no rows", hint="Is the file complete?")
    [(reason, count)] = tally.dropped.most_common(1)
    return TraceError(
        f"{tally.first[reason]}: none of {tally.rows_read:,} rows can be used; "
        f"{count:,} of them {reason}: {REASONS[reason]}",
        hint="docs/traces.md says what to do; or tuner trace import --format NAME names another.",
    )


def _trace(table: pa.Table, header: TraceHeader, known: Format, tally: Tally) -> Trace:
    warnings = [*tally.warnings(), *tally.notes]
    if header.rows_kept not in (0, tally.rows_read):
        warnings.append(
            f"the header counts {header.rows_kept:,} rows, the file has {tally.rows_read:,}: it "
            "was cut off or edited"
        )
    table, origin_ms = sorted_by_arrival(table, absolute=known.absolute)
    dropped = Counter(header.dropped) + tally.dropped
    missing, notes = header.missing, header.notes
    if known.name != CANONICAL.name:
        missing += ("ends",) if "e2e_ms" not in table.column_names and "ends" not in missing else ()
        notes = (known.how(), *known.notes)
    dated = known.absolute and (known.clock.dated or origin_ms >= FROM_MS)
    header = replace(
        header,
        time_origin=date_of(origin_ms) if dated else header.time_origin,
        rows_read=tally.rows_kept + dropped.total(),
        rows_kept=tally.rows_kept,
        dropped=dict(dropped),
        missing=missing,
        notes=tuple(dict.fromkeys((*notes, *tally.notes))),
    )
    return Trace(header, table, tuple(warnings))


# Cells.

STATUSES: tuple[Status, ...] = get_args(Status)
CODE_OF: dict[Status | None, int] = {status: code for code, status in enumerate(STATUSES)}
UNKNOWN = len(STATUSES)
LINK = 255
"""The code of a row that only links others, and is not counted."""

CHAIN = words(
    "chain agent tool retriever retrieval workflow task parser prompt guardrail reranker "
    "embedding evaluator"
)
"""Kinds of calls that stand above or beside a model's where each call is a row."""

LETTERS: dict[Role, str] = {"session_id": "s", "model": "m"}
"""Roles whose names become pseudonyms, with the letter that these begin with."""

UNTIL: dict[Role, str] = {"duration": "end", "ttft": "first_token", "queue": ""}
"""Spans from the arrival, and the role of the moment at which each ends."""


class Checker:
    """Checks the rows of one file, block by block; knows the names that it met."""

    def __init__(self, known: Format, tally: Tally) -> None:
        self.format, self.roles, self.tally = known, known.columns, tally
        self.names: dict[Role, dict[str, int]] = {}

    def checked(self, raw: Raw) -> pa.Table:
        """Return the rows that can be used, with their lines; count the others.

        Of rows that may be one request all are returned, with what links them.
        """
        self._read(raw)
        kept = pa.array(self.reasons == 0)
        self.columns["line"] = pa.array(raw.lines, pa.int32())
        if not self.format.are_spans:
            return pa.table(self.columns).filter(kept)
        for role in LINKS:
            cells = [None] * len(raw) if (held := self._cells(role)) is None else as_list(held)
            self.columns[role] = pa.array([*map(_id, cells)], pa.string())
        return pa.table({**self.columns, "is_request": kept})

    def _read(self, raw: Raw) -> None:
        """Read all columns; rows that cannot be used have a reason then, and are counted."""
        self.raw = raw
        self.reasons: NDArray[np.uint8] = np.zeros(len(raw), np.uint8)
        self.columns: dict[str, pa.Array] = {}
        self._leave_out()
        status = self._status()
        output = self._lengths(status)
        self._times(output)
        if self.format.silent_is_error:
            status = np.where(output > 0, status, CODE_OF["error"])
        if status.any():
            self.columns["status"] = pa.array(STATUSES).take(pa.array(status))
        for field in FIELDS:
            role = ROLE_OF.get(field.key, field.key)
            if field.key in self.columns or role not in self.roles or role == "status":
                continue
            if field.kind == "list":
                self._list(field)
            elif field.kind in ("name", "flag") or role in {"replica"} - {*self.format.keeps}:
                self._name(role)
            elif field.kind == "count":
                self._count(field)
        if self.format.sums_of_n and "n" in self.columns:  # only the sum of their outputs is known
            n = self.columns.pop("n").fill_null(1).to_numpy(zero_copy_only=False)
            self._drop(n > 1, "several_requests")
        self.tally.rows_read += int((self.reasons != LINK).sum())
        for code in {*np.unique(self.reasons).tolist()} - {0, LINK}:
            places = np.flatnonzero(self.reasons == code)
            self.tally.drop([*REASONS][code - 1], int(raw.lines[places[0]]), count=len(places))

    def _cells(self, role: Role) -> Cells | None:
        """Return the cells of a role; None where the format or these rows have none."""
        column = self.roles.get(role)
        return None if column is None else self.raw.cells(column.paths)

    def _numbers(self, role: Role) -> tuple[Floats, NDArray[np.uint8]]:
        """Return the numbers of a column, NaN where there is none, and what is wrong with them."""
        if (cells := self._cells(role)) is None:
            return np.full(len(self.raw), np.nan), np.zeros(len(self.raw), np.uint8)
        return self.roles[role].read(cells)

    def _drop(self, where: NDArray[Any], reason: str = "") -> None:
        """Give rows a reason, unless they have one; without one, ``where`` has their codes."""
        codes = where * CODES[reason] if reason else where
        self.reasons = np.where(self.reasons == 0, codes, self.reasons).astype(np.uint8)

    def _each(self, role: Role, rule: Callable[[Any], int]) -> Ints:
        """Return what a rule makes of the cells of a role; 0 where there are none."""
        cells = self._cells(role)
        nothing: Ints = np.zeros(len(self.raw), np.int64)
        return nothing if cells is None else by_value(cells, rule, 0, np.int64)

    def _leave_out(self) -> None:
        """Leave out rows that are no request of a model, or several."""
        requests, _ = self._numbers("requests")
        self._drop(~np.isnan(requests) & (requests != 1), "several_requests")
        self._drop(self._each("reason", lambda cell: CODES.get(cell, LINK)))
        self._drop(self._each("cache_hit", lambda cell: from_cache(cell) is True), "cache_hit")
        self._drop(self._each("kind", self._is_no_call), "not_generation")
        self._drop(self._each("path", lambda cell: not generates(cell)), "not_generation")

    def _is_no_call(self, kind: object) -> bool:
        word = str(kind).rpartition(".")[2].strip().lower()
        generating = self.format.generating
        if generating is None:
            return word in CHAIN
        return not is_empty(kind) and word not in generating

    def _status(self) -> Ints:
        """Return each row's status by its number."""

        def status_of(cell: object) -> int:
            return CODE_OF.get(status_in(cell, flag=self.format.flag), UNKNOWN)

        status = self._each("status", status_of)
        unknown = status == UNKNOWN
        if self.format.strict:
            self._drop(unknown, "bad_field")
        elif unknown.any():
            self.tally.note("statuses that are not known count as served")
        status[unknown] = 0
        error = self._each("error", lambda cell: CODE_OF[error_in(cell)])
        status = np.where(status == 0, error, status)
        code = self._each("error_code", lambda cell: CODE_OF[code_in(cell)])
        status = np.where((status == CODE_OF["error"]) & (code != 0), code, status)
        gone = self._each("flags", lambda cell: "DC" in str(cell).split(","))
        return np.where(gone != 0, CODE_OF["aborted"], status)  # Envoy's, of a client that left

    def _lengths(self, status: Ints) -> Floats:
        """Read both lengths, and return the output's; requests that were never served may lack
        them."""
        lengths = {role: self._numbers(role) for role in ("output_length", "input_length")}
        output, prompt = (values for values, _ in lengths.values())
        for role in ("cached_tokens", "cache_creation_tokens") if self.format.prompt_is_sum else ():
            prompt += np.nan_to_num(self._numbers(role)[0])
        served = status < len(SERVED)
        needs = served & ((output > 0) | (not self.format.silent_is_error))
        for role, (values, wrong) in lengths.items():
            self._drop(np.where(served, wrong, 0))
            self._drop(served & (values < 0), "negative")
            self._drop(needs & np.isnan(values), "no_tokens")
            may_be_zero = (status != 0) & (role == "output_length")
            self._drop(needs & (values == 0) & ~may_be_zero, "zero_tokens")
            self._put(role, np.where(values < 0, np.nan, values))
        return output

    def _times(self, output: Floats) -> None:
        """Read the arrivals, and the spans from there: of an end without them the arrival is what
        the duration leaves."""
        is_stamped = "timestamp" in self.roles
        arrival, wrong = self._numbers("timestamp" if is_stamped else "end")
        self._drop(wrong)
        end = np.full(len(self.raw), np.nan)
        for role, until in UNTIL.items():
            span, wrong = self._numbers(role)
            self._drop(wrong)
            if role == "duration" and self.format.token_ms is not None:
                self._drop(is_far_off(span, output, self.format.token_ms), "bad_field")
            if role == "duration" and not is_stamped:
                arrival, moment = np.maximum(0.0, np.round(arrival - span)), end  # to the ms
            else:
                moment, wrong = self._numbers(until)
                self._drop(wrong != 0, "bad_field")
            if role == "duration":
                end = moment
            else:
                moment = np.where(moment == end, np.nan, moment)  # of LiteLLM: no stream
            since = np.round(moment - arrival, 3)
            self._drop(since < 0, "negative_time")
            span = np.where(np.isnan(since), span, since)
            if not np.isnan(span).all():
                self.columns[KEY_OF[role]] = pa.array(span, from_pandas=True)
        self._drop(np.isnan(arrival), "no_timestamp")
        self.columns["timestamp"] = pa.array(arrival)

    def _put(self, key: str, values: Floats) -> None:
        absent = np.isnan(values)
        self.columns[key] = pa.array(np.where(absent, 0, values).astype(np.int32), mask=absent)

    def _count(self, field: Field) -> None:
        """Read a count that need not be there; where it is wrong it is absent, or costs the row."""
        values, odd = self._numbers(field.key)
        wrong: Mask = (odd != 0) | (values < field.least) | (values > field.most)
        if self.format.strict:
            self._drop(wrong, "bad_field")
        values = np.where(wrong, np.nan, values)
        if not np.isnan(values).all():
            self._put(field.key, values)

    def _list(self, field: Field) -> None:
        """Read lists of table numbers; rows that hold something else are dropped."""
        key, strict = field.key, self.format.strict
        cells = as_list(self._cells(key) or [])
        if all(cell is None for cell in cells):
            return

        def checked(cell: Any) -> list[int] | None:  # noqa: ANN401 - any JSON
            is_list = isinstance(cell, list) and {*map(type, cell)} <= {int}
            if not is_list or min(cell, default=0) < 0:
                return None
            if not strict:  # hashes of 64 bits: what is left differs too
                cell = [each % 2**63 for each in cell]
            return cell if max(cell, default=0) <= field.most else None

        self.columns[key] = column = pa.array(map(checked, cells), TYPES[key])
        is_given = np.array([cell is not None for cell in cells])
        self._drop(is_given & column.is_null().to_numpy(zero_copy_only=False), "bad_field")
        if key == "hash_ids":
            sizes = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            prompt = self.columns["input_length"].fill_null(0).to_numpy(zero_copy_only=False)
            blocks = -(-prompt // self.format.block_size)
            self._drop((sizes > 0) & (sizes > blocks), "bad_field")

    def _name(self, role: Role) -> None:
        """Read names, words and flags; names are numbered by first sight unless they are kept."""
        if (cells := self._cells(role)) is None:
            return
        known = self.names.setdefault(role, {})

        def pseudonym(name: Any) -> Any:  # noqa: ANN401 - any cell
            if is_empty(name):
                return None
            number = known.setdefault(str(name), len(known))
            return f"{LETTERS[role]}{number}" if role in LETTERS else number

        rules: dict[Role, Callable[[Any], Any]] = {"finish_reason": word_in, "stream": flag_in}
        is_numbered = role in {*LETTERS, "replica"} - {*self.format.keeps}
        rule = pseudonym if is_numbered else rules.get(role, name_in)
        kept = pc.if_else(pa.array(self.reasons == 0), as_array(cells), None)
        column = pa.array(by_value(kept, rule, None, np.object_), TYPES[role])
        if column.null_count < len(column):
            self.columns[role] = column


def _id(value: object) -> str | None:
    """Return what identifies a span; a flag is a word."""
    text = "yes" if value is True else value
    return text if isinstance(text, str) and text.strip("0") else None

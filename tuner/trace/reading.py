"""Read a trace file: bytes to raw columns, raw columns to checked ones, these to a ``Trace``.

``decode`` finds the rows, ``formats`` or ``guess`` say which column is what, ``nested`` makes flat
rows where they are none, ``check`` reads every cell, ``same`` finds rows that are one request.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from tuner.errors import TraceError, UsageError
from tuner.trace.check import Checker
from tuner.trace.decode import opened
from tuner.trace.encode import TYPES
from tuner.trace.files import Tally, TraceFile
from tuner.trace.formats import CANONICAL, TABLE, Format, detected, named
from tuner.trace.guess import Asked, guessed
from tuner.trace.headings import main_roles
from tuner.trace.raw import ROWS, Numbered, Opened, Raw
from tuner.trace.record import REASONS, VERSION, TraceHeader
from tuner.trace.same import Row
from tuner.trace.text import look_for_text, names_text
from tuner.trace.trace import Trace, sorted_by_arrival
from tuner.trace.values import FROM_MS, Ints, date_of

MOST_ROWS = 10**8
"""Rows that are read at most: a day of more than a thousand requests a second. Packed, a billion
equal rows take half a megabyte, and each that is read takes up to 50 bytes of memory."""

SET_BACK_MS = (20 * 60_000.0, 75 * 60_000.0)
"""Range by which times go back where clocks are set back by an hour, with the gap between rows."""

IN_ORDER = 0.01
"""Share of the rows that may be far before the row above. A table in no order has more of them, and
its steps show nothing."""


def read(path: Path, asked: Asked | None = None) -> Trace:
    """Read a whole trace, in order of arrival; requests of one time keep their order.

    Raises TraceError for a file that cannot be read as a trace, UsageError for options that do not
    fit it. Rows that cannot be used are counted in the header and named in the warnings.
    """
    asked = asked or Asked()
    tally = Tally(asked.name or str(path), allow_text=asked.allow_text)
    try:
        return _read(TraceFile(path, tally), asked)
    except OSError as error:
        what = (error.strerror or str(error)).lower()
        raise TraceError(f"{tally.place}: {what}", hint="Sample traces are in traces/.") from error


def _read(file: TraceFile, asked: Asked) -> Trace:
    tally, rows_of = file.tally, opened(file)
    known = _format(file, rows_of, asked)
    header = _header(known, rows_of, file)
    checker = Checker(replace(known, block_size=header.block_size), tally)
    tables: list[pa.Table] = []
    lines: list[Ints] = []
    linked: list[Row] = []
    for raw in _raws(rows_of, known, tally):
        if tally.rows_read > MOST_ROWS:
            many = f"more than {MOST_ROWS:,} rows"
            raise TraceError(f"{tally.place}: {many}", hint="Cut it to a day.")
        if known.settle is not None:
            linked += checker.linked(raw)
            continue
        table, kept = checker.checked(raw)
        fractions = table.column("timestamp").to_numpy() % 1
        if known.whole_ms and fractions.any():
            what = "a timestamp with a fraction may be seconds or ms"
            cure = "Say which: --time-unit s (GuideLLM, vLLM) or --time-unit ms (aiperf)."
            line = int(kept[np.flatnonzero(fractions)[0]])
            raise TraceError(f"{tally.at(line)}: {what}", hint=cure)
        tables.append(table)
        lines += [kept.astype(np.int32)] if known.clock.zoned is False else []
    if known.settle is not None:
        tables = [_settled(linked, known, tally)]
    if not any(map(len, tables)):
        raise _nothing(tally)
    whole = pa.concat_tables(tables, promote_options="default").combine_chunks()
    tables.clear()
    pa.default_memory_pool().release_unused()
    if lines:
        _check_clock(whole, np.concatenate(lines), known, tally)
    return _trace(whole, header, known, tally)


def _format(file: TraceFile, rows_of: Opened, asked: Asked) -> Format:
    """Return how a file is read. Raises TraceError with what would do, UsageError."""
    place, name = file.tally.place, asked.format_name
    if asked.columns and name not in (None, TABLE.name):
        raise UsageError("--columns is for tables without a --format", hint="Leave one out.")
    is_free = name is None and not asked.columns
    known = detected(rows_of, file.head, place) if is_free else named(name or TABLE.name)
    if known is not None and known is not TABLE:
        return known.of(asked.time_unit, place)
    if rows_of.sample or main_roles(rows_of.headings) or not is_free:
        return guessed(rows_of, asked, file.tally)
    raise TraceError(
        f"{place}:1: not a trace format that tuner knows, and no table of requests",
        hint="Export it as CSV or JSON lines with the time, the prompt's and the output's tokens; "
        "docs/traces.md lists what else is read.",
    )


def _header(known: Format, rows_of: Opened, file: TraceFile) -> TraceHeader:
    """Return the header that the file has, or the one of its format. Raises TraceError."""
    if known.name != CANONICAL.name:
        size = known.block_size_in(rows_of.sample) if known.any_block_size else known.block_size
        return TraceHeader(source=known.name, block_size=size, missing=tuple(known.missing))
    if b'"tuner_trace"' not in file.head.lstrip().partition(b"\n")[0]:
        return TraceHeader()
    first, problem = rows_of.objects[0], f"not tuner_trace {VERSION} in ms, which this tuner reads"
    if first.get("tuner_trace") == VERSION and first.get("time_unit", "ms") == "ms":
        try:
            return msgspec.convert(first, TraceHeader)
        except msgspec.ValidationError as error:
            problem = str(error)
    raise TraceError(
        f"{file.tally.place}:1: header: {problem}",
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


def _settled(linked: list[Row], known: Format, tally: Tally) -> pa.Table:
    """Return the requests that there really are."""
    assert known.settle is not None
    kept, dropped = known.settle(linked)
    for reason, line in dropped:
        tally.drop(reason, line)
    fields = [row.fields or {} for row in kept]
    tally.rows_kept += len(fields)
    keys = [key for key in TYPES if any(field.get(key) is not None for field in fields)]
    held = {key: [field.get(key) for field in fields] for key in keys}
    return pa.table({key: pa.array(cells, TYPES[key]) for key, cells in held.items()})


def _check_clock(table: pa.Table, lines: Ints, known: Format, tally: Tally) -> None:
    """Raise TraceError where local times show an hour twice."""
    times_ms = table.column("timestamp").to_numpy()
    if "timestamp" not in known.columns:
        times_ms = times_ms + table.column("e2e_ms").to_numpy()
    back_ms = -np.diff(times_ms)
    if (back_ms > 0).sum() > (back_ms < 0).sum():  # the newest stands first
        back_ms *= -1
    far_back = np.flatnonzero(back_ms >= SET_BACK_MS[0])
    set_back = far_back[back_ms[far_back] <= SET_BACK_MS[1]]
    if len(set_back) and len(far_back) <= max(1, IN_ORDER * len(back_ms)):
        raise TraceError(
            f"{tally.at(int(lines[set_back[0] + 1]))}: the time goes back "
            f"{back_ms[set_back[0]] / 6e4:.0f} min: where clocks are set back, times without a "
            "zone have an hour twice",
            hint="Export times in UTC or with their zone; or sort the rows, if the times are UTC.",
        )


def _nothing(tally: Tally) -> TraceError:
    """Return why no row can be used."""
    if not tally.rows_read:
        return TraceError(f"{tally.place}: no rows", hint="Is the file complete?")
    reason, count = max(tally.dropped.items(), key=lambda item: item[1])
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
    dropped = Counter(header.dropped) + Counter(tally.dropped)
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

"""Reads a table's block by columns: its clean rows, and which rows have something to say.

A reading by columns must give what a reading by rows would. It is tried on the first rows: where it
differs, or where the table is written so that Arrow cannot read it, all goes row by row.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tuner.trace.formats.columnar.arrow import BREAKS, csv_table, floats, ints, json_table, names
from tuner.trace.formats.columnar.batch import ABSENT, Batch, Floats, Ints, Names
from tuner.trace.formats.reading.record import MAX_MS, MAX_TOKENS, SERVED, Row
from tuner.trace.formats.reading.scalars import flag
from tuner.trace.tables.cells import Counts, Spans, error_in, from_cache, is_link, status_in
from tuner.trace.tables.clocks import FROM_S, NANOSECONDS, TO_S, ColumnClock
from tuner.trace.tables.headings import Role, Unit
from tuner.trace.tables.plan import Column, Shape, TablePlan
from tuner.trace.tables.rows import PSEUDONYMS, Converter

ZONE = r"\s*(?:UTC|GMT|Z)$"


class Columnar:
    """Reads blocks of one table by columns."""

    def __init__(self, shape: Shape, plan: TablePlan, converter: Converter) -> None:
        self.shape, self.plan, self.converter = shape, plan, converter
        self.wanted = {*(column.place for column in plan.columns.values()), *plan.text}
        is_simple = "day" not in plan.columns and shape.shift != -1 and not shape.inside
        self.can = is_simple and not self._has_mixed_keys() and self._agrees()
        """Whether this table is written so that it can be read by columns."""

    def batch(self, block: bytes) -> tuple[Batch, NDArray[np.bool_]] | None:
        """Return all rows of a block, and which of them are not to be used as they stand; None
        where the block cannot be read so."""
        table = self._table(block) if self.can else None
        return None if table is None else self.of_table(table)

    def of_table(self, table: Any) -> tuple[Batch, NDArray[np.bool_]] | None:  # noqa: ANN401 - Arrow's
        """Return the same of a table of Arrow's, its columns by their headings' places."""
        try:
            return _Block(self, table).batch()
        except BREAKS:
            return None

    def _table(self, block: bytes) -> Any | None:  # noqa: ANN401 - Arrow's
        if self.shape.delimiter:
            return csv_table(
                block,
                columns=len(self.shape.headings),
                delimiter=self.shape.delimiter,
                types={place: self._type(place) for place in sorted(self.wanted)},
            )
        types = {place: self._type(place) for place in sorted(self.wanted)}
        table = json_table(block, _nested(self.shape.headings, types), strict=False)
        if table is None or set(table.column_names) - {
            h.partition(".")[0] for h in self.shape.headings
        }:
            return None  # a key that the first rows had not
        return {place: _held(table, self.shape.headings[place]) for place in self.wanted}

    def _type(self, place: int) -> Any:  # noqa: ANN401, PLR0911 - Arrow's, and one kind after another
        known = [row[place] for row in self.shape.sample if row[place] is not None]
        if not self.shape.delimiter:
            if known and all(isinstance(one, bool) for one in known):
                return pa.bool_()
            if known and all(type(one) is int for one in known):
                return pa.int64()
            numeric = known and all(isinstance(one, int | float) for one in known)
            return pa.float64() if numeric else pa.string()
        column = next((one for one in self.plan.columns.values() if one.place == place), None)
        reader = None if column is None else column.reader
        texts = [one.strip() for one in known]
        if isinstance(reader, Counts):
            return pa.string() if any("." in one for one in texts) else pa.int64()
        if isinstance(reader, Spans):
            return pa.float64()
        if isinstance(reader, ColumnClock) and reader.unit is not None:
            return pa.int64() if reader.unit == "ns" else pa.float64()
        if isinstance(reader, ColumnClock) and not reader.zoned and reader.order == "ymd":
            return pa.timestamp("ns")  # a zone may be written as Arrow does not read it
        return pa.string()

    def _has_mixed_keys(self) -> bool:
        """Whether a key holds a value in some rows and an object in others: Arrow reads no such."""
        if self.shape.delimiter:  # then a dot in a heading is a mark as any other
            return False
        used = [self.shape.headings[place] for place in self.wanted]
        return any(path.startswith(f"{heading}.") for heading in used for path in used)

    def _agrees(self) -> bool:
        """Whether the first rows that can be used are read alike by columns and one by one."""
        if not all(_is_simple(column) for column in self.plan.columns.values()):
            return False
        scratch = Converter(self.plan)
        read = [(cells, scratch.row(cells)) for cells in self.shape.sample]
        good = [(cells, row) for cells, row in read if isinstance(row, Row)]
        try:
            found = self.of_table(
                {
                    place: self._array([cells[place] for cells, _ in good], place)
                    for place in self.wanted
                }
            )
        except BREAKS:
            found = None
        if found is None or not good:
            return False
        batch, dirty = found
        by_columns = zip(good, batch.rows(), dirty.tolist(), strict=True)
        return all(is_dirty or _near(one) == _near(row) for (_, one), row, is_dirty in by_columns)

    def _array(self, cells: list[Any], place: int) -> Any:  # noqa: ANN401 - Arrow's
        known = [None if cell in ("", None) else cell for cell in cells]
        if self.shape.delimiter:
            return pc.cast(pa.array(known, pa.string()), self._type(place))
        return pa.array(known, self._type(place))


def _near(row: Row) -> tuple[Any, ...]:
    return (round(row.timestamp, 3), row.input_length, row.output_length, row.status, row.e2e_ms)


class _Block:
    """One block of a table."""

    def __init__(self, of: Columnar, table: Any) -> None:  # noqa: ANN401 - Arrow's
        self.plan, self.converter, self.table = of.plan, of.converter, table
        self.size = len(self._at(next(iter(of.plan.columns.values())).place))
        self.dirty = np.zeros(self.size, np.bool_)

    def batch(self) -> tuple[Batch, NDArray[np.bool_]]:
        for place in self.plan.text:
            self.dirty |= ~_is_empty(self._at(place))
        served, status = self._status()
        end_ms, duration_ms = self._times("end"), self._spans("duration")
        arrival_ms = self._times("timestamp")
        if arrival_ms is None:
            assert end_ms is not None
            assert duration_ms is not None
            arrival_ms = np.maximum(0.0, end_ms - duration_ms)
        self.dirty |= np.isnan(arrival_ms) | (arrival_ms < 0)
        times = {"timestamp": arrival_ms}
        if end_ms is not None:
            duration_ms = self._since(arrival_ms, end_ms)
        ttft_ms = self._spans("ttft")
        if (first_ms := self._times("first_token")) is not None:
            ttft_ms = self._since(arrival_ms, first_ms)
        spans = {"e2e_ms": duration_ms, "ttft_ms": ttft_ms, "queue_ms": self._spans("queue")}
        times |= {key: ms for key, ms in spans.items() if ms is not None}
        counts = self._lengths(served)
        if (column := self.plan.columns.get("duration")) is not None and duration_ms is not None:
            assert isinstance(column.reader, Spans)
            output = counts["output_length"]
            self.dirty |= column.reader.are_of_another_unit(duration_ms, output)
        self._find_no_requests()
        for role in ("max_tokens", "cached_tokens"):
            optional = self._counts(role)
            if optional is not None:
                counts[role] = np.where((optional < 0) | (optional > MAX_TOKENS), ABSENT, optional)
        named: dict[str, Names] = dict(status)
        for role in PSEUDONYMS:
            if (found := self._texts(role)) is not None:
                named[role] = self._pseudonyms(role, *found)
        self._flags(counts, named)
        return Batch(times, counts, named), self.dirty

    def _find_no_requests(self) -> None:
        """Mark rows that sum up several requests, and those that no model answered."""
        if (requests := self._counts("requests")) is not None:
            self.dirty |= (requests != 1) & (requests != ABSENT)
        tells: dict[Role, Callable[[object], bool | None]] = {
            "cache_hit": from_cache,
            "kind": is_link,
        }
        for role, is_none in tells.items():
            if (found := self._texts(role)) is not None:
                codes, values = found
                dirty = [is_none(value) is True for value in values]
                self.dirty |= np.array([*dirty, False], np.bool_)[codes]

    def _at(self, place: int) -> Any:  # noqa: ANN401 - Arrow's
        return self.table[place] if isinstance(self.table, dict) else self.table.column(str(place))

    def _texts(self, role: Role) -> Names | None:
        """Return a column as texts; None where the table has none for the role."""
        column = self.plan.columns.get(role)
        return None if column is None else names(pc.cast(self._at(column.place), pa.string()))

    def _times(self, role: Role) -> Floats | None:
        column = self.plan.columns.get(role)
        if column is None:
            return None
        clock, raw = column.reader, self._at(column.place)
        assert isinstance(clock, ColumnClock)
        if clock.unit is None:
            found = _dates_ms(raw, zoned=clock.zoned)
        else:
            found = _scaled(floats(_numbers(raw)), clock.unit)
            least, most = (FROM_S * 1000, TO_S * 1000) if clock.dated else (0.0, float(MAX_MS))
            self.dirty |= (found < least) | (found >= most) | np.isinf(found)
        if role != "timestamp":
            self.dirty |= np.isnan(found) & ~_is_empty(raw)
        return found

    def _since(self, arrival_ms: Floats, at_ms: Floats) -> Floats:
        since_ms: Floats = np.round(at_ms - arrival_ms, 3)
        self.dirty |= since_ms < 0
        return since_ms

    def _spans(self, role: Role) -> Floats | None:
        column = self.plan.columns.get(role)
        if column is None:
            return None
        spans = column.reader
        assert isinstance(spans, Spans)
        assert spans.unit is not None
        found = _scaled(floats(_numbers(self._at(column.place))), spans.unit)
        self.dirty |= (found < 0) | (found > MAX_MS)
        return found

    def _counts(self, role: Role) -> Ints | None:
        column = self.plan.columns.get(role)
        if column is None:
            return None
        held = self._at(column.place)
        raw = _numbers(held)
        if pa.types.is_string(held.type):  # 1e5 is no count, nan says nothing, 1.000 may be two
            assert isinstance(column.reader, Counts)
            odd = "[A-Za-z.]" if column.reader.unmarked else "[A-Za-z]"
            is_odd = pc.fill_null(pc.match_substring_regex(held, odd), fill_value=False)
            self.dirty |= is_odd.to_numpy(zero_copy_only=False)
        if pa.types.is_floating(raw.type):
            values = floats(raw)
            absent = np.isnan(values)
            self.dirty |= (np.floor(values) != values) & ~absent
            return np.where(absent | (np.abs(values) > 2**53), ABSENT, values).astype(np.int64)
        return ints(raw)

    def _lengths(self, served: NDArray[np.bool_]) -> dict[str, Ints]:
        prompt, output, total = (
            self._counts(role) for role in ("input_length", "output_length", "total_length")
        )
        if self.plan.prompt_is_sum and prompt is not None:
            for role in ("cached_tokens", "cache_creation_tokens"):
                more = self._counts(role)
                assert more is not None
                prompt = prompt + np.where(more == ABSENT, 0, more)
        if prompt is None and total is not None and output is not None:
            prompt = np.where((total == ABSENT) | (output == ABSENT), ABSENT, total - output)
        if output is None and total is not None and prompt is not None:
            output = np.where((total == ABSENT) | (prompt == ABSENT), ABSENT, total - prompt)
        assert prompt is not None
        assert output is not None
        if self.plan.as_published:
            self.dirty |= output < 1
        images = self._counts("num_images")
        if images is not None:
            self.dirty |= (images < 0) & (images != ABSENT) | (images > MAX_TOKENS)
        for length in (prompt, output):
            self.dirty |= (length < 1) & served
            self.dirty |= (length > MAX_TOKENS) | ((length < 0) & (length != ABSENT))
        found = {"input_length": prompt, "output_length": output}
        return found if images is None else found | {"num_images": images}

    def _status(self) -> tuple[NDArray[np.bool_], dict[str, Names]]:
        """Return who was served, and the statuses where any is not ok."""
        codes = np.zeros(self.size, np.int32)
        known = ["ok"]
        for role in ("error", "status"):
            found = self._texts(role)
            if found is None:
                continue
            coded, values = found
            read = [
                status_in(value, flag=self.plan.flag) if role == "status" else error_in(value)
                for value in values
            ]
            said = np.array([_place(one, known) for one in [*read, "ok"]], np.int32)[coded]
            codes = np.where(said > 0, said, codes) if role == "status" else said
            unknown = np.array([*(one is None for one in read), False])[coded]
            self.dirty |= unknown
        served = np.array([name in SERVED for name in known])[codes]
        return served, {} if len(known) == 1 else {"status": (codes.astype(np.int32), known)}

    def _pseudonyms(self, role: Role, codes: NDArray[np.int32], values: Sequence[str]) -> Names:
        if self.plan.as_published and role == "model":
            return _renamed(codes, [value.strip() or None for value in values])
        known, letter = self.converter.names[role], PSEUDONYMS[role]
        return _renamed(codes, [known.named(letter, value) for value in values])

    def _flags(self, counts: dict[str, Ints], named: dict[str, Names]) -> None:
        reads: dict[Role, Callable[[object], int | None]] = {
            "stream": flag,
            "replica": self.converter.replicas.of,
        }
        for role, read in reads.items():
            if (found := self._texts(role)) is not None:
                codes, values = found
                told = [ABSENT if (one := read(value)) is None else one for value in values]
                counts[role] = np.array([*told, ABSENT], np.int64)[codes]
        if (found := self._texts("finish_reason")) is not None:
            codes, values = found
            named["finish_reason"] = _renamed(codes, [*map(self.converter.word, values)])


def _renamed(codes: NDArray[np.int32], known: Sequence[str | None]) -> Names:
    """Return names by the codes of what they stand for; None says nothing."""
    places = [-1 if name is None else place for place, name in enumerate(known)]
    return np.array([*places, -1], np.int32)[codes], [name or "" for name in known]


def _scaled(values: Floats, unit: Unit) -> Floats:
    """Return ms, by the operation that ``clocks.scaled`` uses for one value."""
    return values * 1000 if unit == "s" else values / (10**6 // NANOSECONDS[unit])


def _place(name: str | None, known: list[str]) -> int:
    if (name or "ok") not in known:
        known.append(name or "ok")
    return known.index(name or "ok")


def _is_simple(column: Column) -> bool:
    """Whether a column's cells are written as Arrow reads them."""
    reader = column.reader
    if isinstance(reader, ColumnClock):
        is_plain = reader.unit is not None and reader.decimal == "."
        return is_plain or (reader.unit is None and reader.order == "ymd")
    if isinstance(reader, Counts):
        return not reader.thousands and reader.decimal == "."
    if isinstance(reader, Spans):
        return reader.unit is not None and reader.decimal == "."
    return True


def _numbers(raw: Any) -> Any:  # noqa: ANN401 - Arrow's
    """Return numbers that may be written as text."""
    if not pa.types.is_string(raw.type):
        return raw
    return pc.cast(pc.if_else(pc.equal(raw, ""), None, raw), pa.float64())


def _dates_ms(raw: Any, *, zoned: bool) -> Floats:  # noqa: ANN401 - Arrow's
    """Return ms since 1970, NaN where there is none. Raises ArrowInvalid for what is no date."""
    if pa.types.is_timestamp(raw.type):
        stamps = pc.cast(raw, pa.timestamp("ns", raw.type.tz))
    else:
        text = pc.if_else(pc.equal(raw, ""), None, raw)
        if zoned:
            text = pc.replace_substring_regex(text, ZONE, "Z")
            text = pc.replace_substring_regex(text, r"\s([+-]\d{2}:?\d{0,2})$", r"\1")
        stamps = pc.cast(text, pa.timestamp("ns", "UTC" if zoned else None))
    nanoseconds = ints(pc.cast(stamps, pa.int64()))
    return np.where(nanoseconds == ABSENT, np.nan, nanoseconds / 10**6)


def _is_empty(raw: Any) -> NDArray[np.bool_]:  # noqa: ANN401 - Arrow's
    empty = pc.is_null(raw)
    if pa.types.is_string(raw.type):
        empty = pc.or_(empty, pc.fill_null(pc.equal(raw, ""), fill_value=True))
    return np.asarray(empty.to_numpy(zero_copy_only=False), np.bool_)


def _nested(headings: tuple[str, ...], types: Mapping[int, Any]) -> dict[str, Any]:
    """Return the types of columns by their dotted paths as those of nested objects."""
    tree: dict[str, Any] = {}
    for place, kind in types.items():
        *above, leaf = headings[place].split(".")
        node = tree
        for part in above:
            node = node.setdefault(part, {})
        node[leaf] = kind
    return {name: _type_of(node) for name, node in tree.items()}


def _type_of(node: Any) -> Any:  # noqa: ANN401 - a type, or a dict of them
    if not isinstance(node, dict):
        return node
    return pa.struct([(name, _type_of(inner)) for name, inner in node.items()])


def _held(table: Any, heading: str) -> Any:  # noqa: ANN401 - Arrow's
    first, *path = heading.split(".")
    column = table.column(first).combine_chunks()
    return pc.struct_field(column, path) if path else column

"""Raw columns to canonical columns: every cell is read here, and every row is kept or has a reason.

Rules are written once. What is plain is read by whole arrays; other cells go by the rule of their
column's reader, each distinct one once.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tuner.trace.decode import Object, Raw, Tally
from tuner.trace.formats import Format
from tuner.trace.headings import Role
from tuner.trace.record import FIELDS, MAX_N, REASONS, SERVED, Reason, Status
from tuner.trace.same import Row
from tuner.trace.text import shown_key
from tuner.trace.values import (
    ABSENT,
    LINKS,
    Cells,
    Reader,
    code_in,
    error_in,
    flag_in,
    from_cache,
    generates,
    is_empty,
    word_in,
)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Codes = NDArray[np.uint8]
Mask = NDArray[np.bool_]


BY_KEY = {field.key: field for field in FIELDS}
STATUSES: tuple[Status, ...] = get_args(Status)
CODES: dict[str, int] = {reason: place for place, reason in enumerate(REASONS, 1)}
REASON_OF: dict[int, Reason] = dict(enumerate(REASONS, 1))
LINK = 255
"""The code of a row that only links others, and is not counted."""

UNKNOWN = len(STATUSES)
MANY_TOKENS, FAR_OFF = 32, 200.0
TOKEN_MS = (0.3, 1000.0)
"""Range of an output token's time on any server, in ms. Of MANY_TOKENS, a duration that is FAR_OFF
from the usual and out of this range is of another unit, if that would bring it back."""

MOST_UNKNOWN_KEYS = 20
LONGEST_NAME = 60
NAMES: dict[Role, str] = {"session_id": "s", "model": "m"}
"""Roles whose names become pseudonyms, with the letter that these begin with."""


def uniform(cells: Cells) -> pa.Array | None:
    """Return cells as one array of Arrow's; None where they are of several kinds."""
    try:
        array = cells if isinstance(cells, pa.Array) else pa.array(cells)
    except (pa.ArrowException, OverflowError, ValueError):
        return None
    return None if pa.types.is_nested(array.type) else array


def coded(cells: Cells) -> tuple[NDArray[np.int32], list[Any]]:
    """Return the number of each cell's value, and the distinct values; -1 is nothing."""
    if isinstance(cells, pa.Array) and not pa.types.is_nested(cells.type):
        held = cells.dictionary_encode()
        codes = held.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return np.asarray(codes, np.int32), held.dictionary.to_pylist()
    known: dict[Any, int] = {}
    values: list[Any] = []
    codes_of: list[int] = []
    for cell in cells if isinstance(cells, list) else cells.to_pylist():
        is_plain = not isinstance(cell, dict | list)
        key = (type(cell), cell) if is_plain else ("", len(values))
        code = -1 if cell is None else known.setdefault(key, len(values))
        if code == len(values):
            values.append(cell)
        codes_of.append(code)
    return np.array(codes_of, np.int32), values


def by_value(
    cells: Cells, rule: Callable[[Any], Any], absent: object, kind: type[Any]
) -> NDArray[Any]:
    """Return what a rule makes of each distinct cell."""
    codes, values = coded(cells)
    return np.array([*map(rule, values), absent], kind)[codes]


def read(reader: Reader, cells: Cells, size: int, *, whole: bool) -> tuple[NDArray[Any], Codes]:
    """Return numbers, and codes of reasons for those that are wrong; ABSENT or NaN for nothing."""
    array = uniform(cells)
    found = None if array is None else reader.plain(array)
    reasons = np.zeros(size, np.uint8)
    kind, absent = (np.int64, ABSENT) if whole else (np.float64, np.nan)
    if found is None:
        values, clean = np.full(size, absent, kind), np.zeros(size, np.bool_)
    else:
        values, clean = found
    odd = np.flatnonzero(~clean)
    if not len(odd):
        return values, reasons
    held = cells if array is None else array
    some = [held[place] for place in odd] if isinstance(held, list) else held.take(pa.array(odd))
    codes, distinct = coded(some)
    read_cells = [reader.cell(value) for value in distinct]
    numbers = [absent if one is None or isinstance(one, str) else one for one in read_cells]
    wrong = [CODES[one] if isinstance(one, str) else 0 for one in read_cells]
    values = values.astype(kind)
    values[odd] = np.array([*numbers, absent], kind)[codes]
    reasons[odd] = np.array([*wrong, 0], np.uint8)[codes]
    return values, reasons


class Checker:
    """Checks the rows of one file; knows the names that it met."""

    def __init__(self, known: Format, tally: Tally) -> None:
        self.format, self.tally = known, tally
        self.names: dict[Role, dict[str, int]] = {}
        self.shapes: dict[tuple[str, ...], frozenset[str]] = {}
        self.unknown_statuses = 0

    def checked(self, raw: Raw) -> tuple[pa.Table, Ints]:
        """Return the rows that can be used, and their lines; count the others."""
        rows = self._rows(raw)
        kept = rows.reasons == 0
        self.tally.rows_read += int((rows.reasons != LINK).sum())
        self.tally.rows_kept += int(kept.sum())
        self._count_dropped(rows)
        table = pa.table(
            {key: column for key, column in rows.columns.items() if column is not None}
        )
        return (table if kept.all() else table.filter(pa.array(kept))), raw.lines[kept]

    def linked(self, raw: Raw) -> list[Row]:
        """Return the rows with what links them, for a format whose rows may be one request."""
        rows = self._rows(raw)
        self.tally.rows_read += int((rows.reasons != LINK).sum())
        self._count_dropped(rows)
        table = pa.table(rows.columns).to_pylist()
        roles: tuple[Role, ...] = ("request_id", "parent_id", "flags")
        ids, parents, traces = (_texts(rows.cells(role), len(raw)) for role in roles)
        links = raw.cells(("links",)) or [None] * len(raw)
        found = []
        for place, (line, fields) in enumerate(zip(raw.lines.tolist(), table, strict=True)):
            for name in ("request_id", "parent_id"):
                fields.pop(name, None)
            request = fields if rows.reasons[place] == 0 else None
            key: Hashable = None
            if isinstance(held := links[place], dict):
                found.append(Row(line, request, **held))
            elif "parent_id" in self.format.columns:
                key = (traces[place], ids[place]) if ids[place] else None
                found.append(Row(line, request, traces[place], ids[place], parents[place], key))
            elif request is not None:
                key = (ids[place], request.get("model")) if ids[place] else None
                found.append(Row(line, request, key=key))
        return found

    def _rows(self, raw: Raw) -> "_Rows":
        if self.format.strict and raw.objects is not None and self.format.flatten is None:
            self._count_unknown_keys(raw.objects)
        return _Rows(self, raw).read()

    def _count_dropped(self, rows: "_Rows") -> None:
        for code in np.unique(rows.reasons[(rows.reasons != 0) & (rows.reasons != LINK)]).tolist():
            places = np.flatnonzero(rows.reasons == code)
            column = rows.blamed.get(code, "")
            line = int(rows.raw.lines[places[0]])
            self.tally.drop(REASON_OF[code], line, column, count=len(places))

    def _count_unknown_keys(self, objects: Sequence[Object]) -> None:
        known = set(self.format.paths())
        for shape, count in Counter(map(tuple, objects)).items():
            for key in {*shape} - known:
                counts = self.tally.unknown_keys
                name = shown_key(key)
                if name not in counts and len(counts) >= MOST_UNKNOWN_KEYS:
                    name = "other keys"
                counts[name] = counts.get(name, 0) + count


class _Rows:
    """Some rows while they are read."""

    def __init__(self, of: Checker, raw: Raw) -> None:
        self.of, self.format, self.raw = of, of.format, raw
        self.size = len(raw)
        self.reasons: Codes = np.zeros(self.size, np.uint8)
        self.blamed: dict[int, str] = {}
        """Code of a reason → the column where it showed."""

        self.columns: dict[str, Any] = {}

    def read(self) -> "_Rows":
        self._leave_out()
        status = self._status()
        served, is_ok = status < len(SERVED), status == 0
        lengths = self._lengths(served, is_ok)
        if self.format.silent_is_error:
            silent = lengths["output_length"] <= 0
            status = np.where(silent, STATUSES.index("error"), status)
        self._times(lengths["output_length"])
        for key, values in lengths.items():
            self._put(key, values)
        if (status != 0).any():
            names = pa.array(STATUSES).take(pa.array(status))
            self.columns["status"] = names
        self._optional_counts()
        self._lists(lengths)
        self._split_sums(lengths)
        self._words()
        return self

    def cells(self, role: Role) -> Cells | None:
        """Return the cells of a role; None where the format or these rows have none."""
        column = self.format.columns.get(role)
        return None if column is None else self.raw.cells(column.paths)

    def _drop(self, where: Mask | Codes, reason: Reason | None, role: Role | None) -> None:
        """Give rows a reason, unless they have one; or, without one, the codes of several."""
        codes = where if reason is None else np.where(where, CODES[reason], 0).astype(np.uint8)
        new = (self.reasons == 0) & (codes != 0)
        if not new.any():
            return
        self.reasons[new] = codes[new]
        column = self.format.columns.get(role) if role else None
        if column is not None and column.title:
            for code in np.unique(codes[new]).tolist():
                self.blamed.setdefault(code, column.title)

    def _leave_out(self) -> None:
        """Leave out rows that are no request of a model, or several."""
        if (cells := self.cells("reason")) is not None:
            codes = by_value(cells, lambda one: CODES.get(one, LINK), 0, np.uint8)
            self._drop(codes, None, None)
        if (found := self._numbers("requests", whole=True)) is not None:
            self._drop((found[0] != 1) & (found[0] != ABSENT), "several_requests", "requests")
        rules: tuple[tuple[Role, Callable[[Any], object], Reason], ...] = (
            ("cache_hit", lambda one: from_cache(one) is True, "cache_hit"),
            ("kind", self._is_no_call, "not_generation"),
            ("path", lambda one: not generates(one), "not_generation"),
        )
        for role, rule, reason in rules:
            if (cells := self.cells(role)) is not None:
                self._drop(by_value(cells, rule, False, np.bool_), reason, role)

    def _is_no_call(self, kind: object) -> bool:
        word = str(kind).rpartition(".")[2].strip().lower()
        if self.format.generating is not None:
            return not is_empty(kind) and word not in self.format.generating
        return word in LINKS

    def _status(self) -> Ints:
        """Return each row's status by its number."""

        def code(found: Status | None) -> int:
            return UNKNOWN if found is None else STATUSES.index(found)

        status = np.zeros(self.size, np.int64)
        if (cells := self.cells("status")) is not None:
            status = by_value(cells, lambda one: code(self.format.status(one)), 0, np.int64)
            unknown = status == UNKNOWN
            if self.format.strict:
                self._drop(unknown, "bad_field", "status")
            self.of.unknown_statuses += int(unknown.sum())
            status[unknown] = 0
        if (cells := self.cells("error")) is not None:
            errors = by_value(cells, lambda one: code(error_in(one)), 0, np.int64)
            status = np.where(status == 0, errors, status)
        if (cells := self.cells("error_code")) is not None:
            codes = by_value(cells, lambda one: code(code_in(one) or "error"), 2, np.int64)
            status = np.where(status == STATUSES.index("error"), codes, status)
        if (cells := self.cells("flags")) is not None and "path" in self.format.columns:
            gone = by_value(cells, lambda one: "DC" in str(one).split(","), False, np.bool_)
            status = np.where(gone, STATUSES.index("aborted"), status)
        return status

    def _numbers(self, role: Role, *, whole: bool) -> tuple[NDArray[Any], Codes] | None:
        """Return the numbers of a column and what is wrong with them; None without the column."""
        column = self.format.columns.get(role)
        if column is None:
            return None
        assert column.reader is not None
        cells = self.raw.cells(column.paths)
        if cells is None:
            absent = np.full(self.size, ABSENT) if whole else np.full(self.size, np.nan)
            return absent, np.zeros(self.size, np.uint8)
        return read(column.reader, cells, self.size, whole=whole)

    def _lengths(self, served: Mask, is_ok: Mask) -> dict[str, Ints]:
        """Return both lengths. What a request that was never served lacks is absent."""
        roles: tuple[Role, ...] = ("input_length", "output_length", "total_length")
        held = {role: self._numbers(role, whole=True) for role in roles}
        found = {}
        for role, numbers in held.items():
            if numbers is not None:
                found[role], odd = numbers
                is_record = self.format.strict and self.format.flatten is None
                needed = np.ones(self.size, np.bool_) if is_record else served
                self._drop(np.where(needed, odd, 0).astype(np.uint8), None, role)
        if self.format.prompt_is_sum:
            more: tuple[Role, ...] = ("cached_tokens", "cache_creation_tokens")
            for role in more:
                if (numbers := self._numbers(role, whole=True)) is not None:
                    known = (found["input_length"] != ABSENT) & (numbers[0] != ABSENT)
                    found["input_length"] = np.where(
                        known, found["input_length"] + numbers[0], found["input_length"]
                    )
        total = found.pop("total_length", None)
        for role, other in (("input_length", "output_length"), ("output_length", "input_length")):
            if role not in found and total is not None:
                rest = total - found[other]
                known = (total != ABSENT) & (found[other] != ABSENT)
                found[role] = np.where(known, rest, ABSENT)
                self._drop(known & (rest < 0) & served, "negative", role)
        prompt, output = found["input_length"], found["output_length"]
        if not self.format.silent_is_error:
            self._drop(served & (output == ABSENT), "no_tokens", "output_length")
            self._drop(is_ok & (output == 0), "zero_tokens", "output_length")
        needs = served & ~((output <= 0) & self.format.silent_is_error)
        self._drop(needs & (prompt == ABSENT), "no_tokens", "input_length")
        self._drop(needs & (prompt == 0), "zero_tokens", "input_length")
        return {"input_length": prompt, "output_length": output}

    def _times(self, output: Ints) -> None:
        arrival, end, lasted = self._arrivals(), self._moments("end"), self._spans("duration")
        if arrival is None:
            assert end is not None
            assert lasted is not None
            self._drop(np.isnan(end) | np.isnan(lasted), "no_timestamp", "end")
            arrival = np.maximum(0.0, np.round(end - lasted))  # both are to the ms at best
        elif end is not None:
            since = self._since(arrival, end, "end")
            lasted = since if lasted is None else np.where(np.isnan(since), lasted, since)
        if lasted is not None and self.format.token_ms is not None:
            self._drop(self._is_of_another_unit(lasted, output), "bad_field", "duration")
        ttft = self._spans("ttft")
        if (first := self._moments("first_token")) is not None:
            same = (
                False if end is None else first == end
            )  # LiteLLM writes the end where none streamed
            since = self._since(arrival, np.where(same, np.nan, first), "first_token")
            ttft = since if ttft is None else np.where(np.isnan(since), ttft, since)
        self.columns["timestamp"] = pa.array(arrival)
        self.columns["input_length"] = self.columns["output_length"] = None
        for key, values in (
            ("e2e_ms", lasted),
            ("ttft_ms", ttft),
            ("queue_ms", self._spans("queue")),
        ):
            if values is not None and not np.isnan(values).all():
                self.columns[key] = pa.array(values, from_pandas=True)

    def _arrivals(self) -> Floats | None:
        column = self.format.columns.get("timestamp")
        if column is None:
            return None
        cells = self.raw.cells(column.paths)
        if cells is not None and (days := self.cells("day")) is not None:
            both = zip(_texts(days, self.size), _texts(cells, self.size), strict=True)
            cells = [f"{day} {at}" if at else None for day, at in both]
        if cells is None:
            values, odd = np.full(self.size, np.nan), np.zeros(self.size, np.uint8)
        else:
            assert column.reader is not None
            values, odd = read(column.reader, cells, self.size, whole=False)
        self._drop(odd, None, "timestamp")
        self._drop(np.isnan(values), "no_timestamp", "timestamp")
        return values

    def _moments(self, role: Role) -> Floats | None:
        """Return times that are not arrivals: those that are wrong are fields like any other."""
        found = self._numbers(role, whole=False)
        if found is None:
            return None
        if "timestamp" in self.format.columns:
            self._drop(found[1] != 0, "bad_field", role)
        else:
            self._drop(found[1], None, role)
        return found[0]

    def _spans(self, role: Role) -> Floats | None:
        found = self._numbers(role, whole=False)
        if found is None:
            return None
        self._drop(found[1], None, role)
        return found[0]

    def _since(self, arrival: Floats, at: Floats, role: Role) -> Floats:
        since: Floats = np.round(at - arrival, 3)
        self._drop(since < 0, "negative_time", role)
        return since

    def _is_of_another_unit(self, ms: Floats, output: Ints) -> Mask:
        usual, (least, most) = self.format.token_ms or 1.0, TOKEN_MS
        tokens = np.maximum(output, 1)
        short, long = min(least, usual / FAR_OFF), max(most, usual * FAR_OFF)
        too_short = (ms < short * tokens) & (ms * 1000 >= least * tokens)
        too_long = (ms > long * tokens) & (ms <= 1000 * most * tokens)
        return (output >= MANY_TOKENS) & (too_short | too_long)

    def _put(self, key: str, values: Ints) -> None:
        absent = values == ABSENT
        if key in ("input_length", "output_length") or not absent.all():
            bounded = np.where(absent | (self.reasons != 0), 0, values)
            self.columns[key] = pa.array(bounded.astype(np.int32), mask=absent)

    def _optional_counts(self) -> None:
        roles: tuple[Role, ...] = (
            *("n", "max_tokens", "turn", "cached_tokens", "num_images", "row"),
            *(("replica",) if "replica" in self.format.keeps else ()),
        )
        for role in roles:
            if (found := self._numbers_of(role)) is None:
                continue
            values, odd = found
            field = BY_KEY[role]
            odd = odd != 0
            odd |= (values != ABSENT) & ((values < field.least) | (values > field.most))
            if self.format.strict or role == "num_images":
                self._drop(odd, "bad_field", role)
            self._put(role, np.where(odd, ABSENT, values))
        if (cells := self.cells("priority")) is not None:
            values = by_value(cells, _priority, ABSENT, np.int64)
            self._drop(values == ABSENT + 1, "bad_field", "priority")
            self._put("priority", np.where(values == ABSENT + 1, ABSENT, values))

    def _numbers_of(self, role: Role) -> tuple[NDArray[Any], Codes] | None:
        column = self.format.columns.get(role)
        return None if column is None or column.reader is None else self._numbers(role, whole=True)

    def _lists(self, lengths: dict[str, Ints]) -> None:
        keys: tuple[Role, ...] = ("output_lengths", "hash_ids")
        for key in keys:
            cells = self.cells(key)
            if cells is None or all(one is None for one in cells):
                continue
            cells = [[one] if type(one) is int else one for one in cells]  # see ``decode.only``
            column = self._whole_lists(cells, key)
            sizes = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            if key == "hash_ids":
                size, prompt = self.format.block_size, np.maximum(lengths["input_length"], 0)
                self._drop((sizes > 0) & (sizes * size >= prompt + size), "bad_field", key)
            self.columns[key] = column

    def _whole_lists(self, cells: Cells, key: Role) -> pa.Array:
        """Return lists of whole numbers; rows that hold something else are dropped."""
        most = 2**63 - 1 if key == "hash_ids" else BY_KEY["output_length"].most
        try:
            column = pa.array(cells, pa.list_(pa.int64()))
            values = column.flatten()
            least_most = pc.min_max(values).as_py()
            if not values.null_count and (
                not len(values) or (least_most["min"] >= 0 and least_most["max"] <= most)
            ):
                return column
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            pass
        kept: list[list[int] | None] = []
        for cell in cells:
            is_list = isinstance(cell, list) and all(type(one) is int and one >= 0 for one in cell)
            if (
                is_list and not self.format.strict
            ):  # hashes of 64 bits: what tells them apart is left
                cell = [one % 2**63 for one in cell]  # noqa: PLW2901
            kept.append(cell if is_list and max(cell, default=0) <= most else None)
        bad = [one is None and cell is not None for one, cell in zip(kept, cells, strict=True)]
        self._drop(np.array(bad, np.bool_), "bad_field", key)
        return pa.array(kept, pa.list_(pa.int64()))

    def _split_sums(self, lengths: dict[str, Ints]) -> None:
        """Split the sum of several sequences' outputs evenly: no sequence is known by itself."""
        if not self.format.sums_of_n or self.columns.get("n") is None:
            return
        n = self.columns.pop("n").fill_null(1).to_numpy(zero_copy_only=False).astype(np.int64)
        output = lengths["output_length"]
        several = (n > 1) & (n <= np.minimum(output, MAX_N))
        self._put("n", np.where(several, n, ABSENT))
        if not several.any():
            return
        self.of.tally.note(
            "outputs of requests with n > 1 are split evenly: only their sum is known"
        )
        lists: list[list[int] | None] = [None] * self.size
        for place in np.flatnonzero(several).tolist():
            each, more = divmod(int(output[place]), int(n[place]))
            lists[place] = [each + 1] * more + [each] * (int(n[place]) - more)
        self.columns["output_lengths"] = pa.array(lists, pa.list_(pa.int64()))
        self._put("output_length", np.where(several, -(-output // np.maximum(n, 1)), output))

    def _words(self) -> None:
        """Read names, words and flags."""
        roles: tuple[Role, ...] = ("request_id", "session_id", "parent_id", "lora", "model")
        for role in roles:
            if (cells := self.cells(role)) is not None:
                is_kept = role in self.format.keeps or role not in NAMES
                column = self._kept_names(role, cells) if is_kept else self._pseudonyms(role, cells)
                if column.null_count < self.size:
                    self.columns[role] = column
        if (cells := self.cells("finish_reason")) is not None:
            rule = (lambda one: one) if "finish_reason" in self.format.keeps else word_in
            words = by_value(cells, rule, None, np.object_)
            wrong = np.array(
                [one is not None and not isinstance(one, str) for one in words], np.bool_
            )
            self._drop(wrong, "bad_field", "finish_reason")
            words[wrong] = None
            self.columns["finish_reason"] = pa.array(words, pa.string())
        if (cells := self.cells("stream")) is not None:
            flags = by_value(cells, flag_in, None, np.object_)
            self.columns["stream"] = pa.array(flags, pa.bool_())
        if "replica" not in self.format.keeps and (cells := self.cells("replica")) is not None:
            known = self.of.names.setdefault("replica", {})

            def number(name: object) -> int:
                return ABSENT if is_empty(name) else known.setdefault(str(name), len(known))

            self._put("replica", self._of_kept(cells, number, ABSENT, np.int64))

    def _kept_names(self, role: Role, cells: Cells) -> pa.Array:
        if isinstance(cells, pa.Array) and pa.types.is_string(cells.type):
            return cells if self.format.strict else _without_text(cells)
        wrong = np.array([isinstance(one, dict | list | float | bool) for one in cells], np.bool_)
        self._drop(wrong, "bad_field", role)
        texts = [
            None if one is None or bad or (is_empty(one) and not self.format.strict) else str(one)
            for one, bad in zip(cells, wrong.tolist(), strict=True)
        ]
        names = pa.array(texts, pa.string())
        return names if self.format.strict else _without_text(names)

    def _pseudonyms(self, role: Role, cells: Cells) -> pa.Array:
        """Return names as numbers by first sight; the names themselves are never written."""
        known, letter = self.of.names.setdefault(role, {}), NAMES[role]

        def named(name: object) -> str | None:
            return None if is_empty(name) else f"{letter}{known.setdefault(str(name), len(known))}"

        return pa.array(self._of_kept(cells, named, None, np.object_), pa.string())

    def _of_kept(
        self, cells: Cells, rule: Callable[[Any], Any], absent: object, kind: type[Any]
    ) -> NDArray[Any]:
        """Return what a rule makes of each distinct cell of the rows that are kept so far."""
        codes, values = coded(cells)
        codes = np.where(self.reasons == 0, codes, -1)
        used = {*np.unique(codes).tolist()}
        found = [rule(value) if place in used else absent for place, value in enumerate(values)]
        return np.array([*found, absent], kind)[codes]


def _without_text(names: pa.Array) -> pa.Array:
    """Leave out names that are long and have blanks: they may be text of a prompt."""
    is_text = pc.and_(
        pc.greater(pc.utf8_length(names), LONGEST_NAME), pc.match_substring(names, " ")
    )
    return pc.if_else(is_text, pa.scalar(None, pa.string()), names)


def _priority(value: Any) -> int:  # noqa: ANN401 - whatever it holds
    field = BY_KEY["priority"]
    is_one = type(value) is int and field.least <= value <= field.most
    return int(value) if is_one else ABSENT + 1


def _texts(cells: Cells | None, size: int) -> list[str]:
    """Return cells as texts, an empty one for nothing."""
    held = (
        [None] * size if cells is None else cells if isinstance(cells, list) else cells.to_pylist()
    )
    return ["" if is_empty(one) else str(one) for one in held]

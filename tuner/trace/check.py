"""Raw columns to canonical columns: every cell is read here, and every row is kept or has a reason.

Rules are written once. What is plain is read by whole arrays; other cells go by the rule of their
column's reader, each distinct one once.
"""

from collections.abc import Callable, Hashable
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tuner.trace.encode import TYPES
from tuner.trace.formats import KEY_OF, ROLE_OF, Format
from tuner.trace.headings import Role
from tuner.trace.raw import Raw, Tally
from tuner.trace.record import FIELDS, MAX_N, REASONS, SERVED, Reason, Status
from tuner.trace.same import Row
from tuner.trace.text import shown_key
from tuner.trace.values import ABSENT, TOKEN_MS, Cells, Reader, is_empty
from tuner.trace.words import (
    LINKS,
    code_in,
    error_in,
    flag_in,
    from_cache,
    generates,
    name_in,
    str_in,
    word_in,
)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Codes = NDArray[np.uint8]
Mask = NDArray[np.bool_]

STATUSES: tuple[Status, ...] = get_args(Status)
ERROR, ABORTED, UNKNOWN = STATUSES.index("error"), STATUSES.index("aborted"), len(STATUSES)
REASON_OF: dict[int, Reason] = dict(enumerate(REASONS, 1))
CODES: dict[str, int] = {reason: code for code, reason in REASON_OF.items()}
LINK = 255
"""The code of a row that only links others, and is not counted."""

MANY_TOKENS, FAR_OFF = 32, 200.0
"""Of so many tokens, a duration so many times from the usual one is of another unit."""

MOST_UNKNOWN_KEYS = 20
LETTERS: dict[Role, str] = {"session_id": "s", "model": "m"}
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
    if (array := uniform(cells)) is not None:
        held = array.dictionary_encode()
        codes = held.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return np.asarray(codes, np.int32), held.dictionary.to_pylist()
    known: dict[Any, int] = {}
    values: list[Any] = []
    codes_of: list[int] = []
    for cell in cells if isinstance(cells, list) else cells.to_pylist():
        key = ("", len(values)) if isinstance(cell, dict | list) else (type(cell), cell)
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


def read(reader: Reader, cells: Cells) -> tuple[NDArray[Any], Codes]:
    """Return numbers, and codes of reasons for those that are wrong; ABSENT or NaN for nothing."""
    size, kind = len(cells), reader.kind
    absent = ABSENT if kind is np.int64 else np.nan
    array = uniform(cells)
    found = None if array is None else reader.plain(array)
    values, clean = found or (np.full(size, absent, kind), np.zeros(size, np.bool_))
    reasons = np.zeros(size, np.uint8)
    odd = np.flatnonzero(~clean)
    if len(odd):
        held = cells if array is None else array
        some = [held[place] for place in odd] if isinstance(held, list) else held.take(odd)
        codes, distinct = coded(some)
        each = [reader.cell(value) for value in distinct]
        numbers = [absent if one is None or isinstance(one, str) else one for one in each]
        wrong = [CODES[one] if isinstance(one, str) else 0 for one in each]
        values = values.astype(kind)
        values[odd] = np.array([*numbers, absent], kind)[codes]
        reasons[odd] = np.array([*wrong, 0], np.uint8)[codes]
    return values, reasons


class Checker:
    """Checks the rows of one file; knows the names that it met."""

    def __init__(self, known: Format, tally: Tally) -> None:
        self.format, self.tally = known, tally
        self.names: dict[Role, dict[str, int]] = {}
        self.unknown_statuses = 0

    def checked(self, raw: Raw) -> tuple[pa.Table, Ints]:
        """Return the rows that can be used, and their lines; count the others."""
        rows = self._rows(raw)
        kept = rows.reasons == 0
        self.tally.rows_kept += int(kept.sum())
        table = pa.table(rows.columns)
        return (table if kept.all() else table.filter(pa.array(kept))), raw.lines[kept]

    def linked(self, raw: Raw) -> list[Row]:
        """Return the rows with what links them, for a format whose rows may be one request."""
        rows = self._rows(raw)
        roles = ("request_id", "parent_id", "flags")
        texts = [texts_of(rows.cells(role), len(raw)) for role in roles]
        links = raw.cells(("links",)) or [None] * len(raw)
        table = pa.table(rows.columns).drop_columns(sorted({*roles} & rows.columns.keys()))
        found = []
        for place, (line, fields) in enumerate(
            zip(raw.lines.tolist(), table.to_pylist(), strict=True)
        ):
            request = fields if rows.reasons[place] == 0 else None
            span, parent, trace = (texts[role][place] for role in range(3))
            key: Hashable = (span, fields.get("model")) if span else None
            if isinstance(held := links[place], dict):
                found.append(Row(line, request, **held))
            elif "parent_id" in self.format.columns:
                key = (trace, span) if span else None
                found.append(Row(line, request, trace, span, parent, key))
            elif request is not None:
                found.append(Row(line, request, key=key))
        return found

    def _rows(self, raw: Raw) -> "_Rows":
        if self.format.strict and raw.objects is not None and self.format.flatten is None:
            self._count_unknown_keys(raw)
        rows = _Rows(self, raw)
        rows.read()
        counted = rows.reasons != LINK
        self.tally.rows_read += int(counted.sum())
        for code in np.unique(rows.reasons[(rows.reasons != 0) & counted]).tolist():
            places = np.flatnonzero(rows.reasons == code)
            line, column = int(raw.lines[places[0]]), rows.blamed.get(code, "")
            self.tally.drop(REASON_OF[code], line, column, count=len(places))
        return rows

    def _count_unknown_keys(self, raw: Raw) -> None:
        counts = self.tally.unknown_keys
        for key in sorted(raw.keys - {*self.format.paths()}):
            name = shown_key(key)
            if name not in counts and len(counts) >= MOST_UNKNOWN_KEYS:
                name = "other keys"
            counts[name] = counts.get(name, 0) + sum(key in row for row in raw.objects or ())


class _Rows:
    """Some rows while they are read."""

    def __init__(self, of: Checker, raw: Raw) -> None:
        self.of, self.format, self.raw = of, of.format, raw
        self.size = len(raw)
        self.reasons: Codes = np.zeros(self.size, np.uint8)
        self.blamed: dict[int, str] = {}
        """Code of a reason → the column where it showed."""

        self.columns: dict[str, pa.Array] = {}

    def read(self) -> None:
        """Read all columns; rows that cannot be used have a reason then."""
        self._leave_out()
        status = self._status()
        prompt, output = self._lengths(status)
        self._times(output)
        self._put("input_length", prompt)
        self._put("output_length", output)
        if self.format.silent_is_error:
            status = np.where(output <= 0, ERROR, status)
        if status.any():
            self.columns["status"] = pa.array(STATUSES).take(pa.array(status))
        for field in FIELDS:
            if field.kind == "count" and not field.key.endswith("put_length"):
                self._optional(field.key, field.least, field.most)
        self._hash_ids(prompt)
        self._output_lengths(output)
        self._words()

    def cells(self, role: Role) -> Cells | None:
        """Return the cells of a role; None where the format or these rows have none."""
        column = self.format.columns.get(role)
        return None if column is None else self.raw.cells(column.paths)

    def _drop(self, where: Mask | Codes, reason: Reason | None, role: Role) -> None:
        """Give rows a reason, unless they have one; without one, the codes of several."""
        codes = where if reason is None else np.where(where, CODES[reason], 0).astype(np.uint8)
        new = (self.reasons == 0) & (codes != 0)
        if not new.any():
            return
        self.reasons[new] = codes[new]
        if (column := self.format.columns.get(role)) is not None and column.title:
            for code in np.unique(codes[new]).tolist():
                self.blamed.setdefault(code, column.title)

    def _numbers(self, role: Role) -> tuple[NDArray[Any], Codes] | None:
        """Return the numbers of a column and what is wrong with them; None without the column."""
        if (cells := self.cells(role)) is None:
            return None
        reader = self.format.columns[role].reader
        assert reader is not None
        return read(reader, cells)

    def _leave_out(self) -> None:
        """Leave out rows that are no request of a model, or several."""
        if (cells := self.cells("reason")) is not None:
            self._drop(by_value(cells, lambda one: CODES.get(one, LINK), 0, np.uint8), None, "")
        if (found := self._numbers("requests")) is not None:
            self._drop((found[0] != 1) & (found[0] != ABSENT), "several_requests", "requests")
        rules: tuple[tuple[Role, Callable[[Any], object], Reason], ...] = (
            ("cache_hit", lambda one: from_cache(one) is True, "cache_hit"),
            ("kind", self._is_no_call, "not_generation"),
            ("path", lambda one: not generates(one), "not_generation"),
        )
        for role, rule, reason in rules:
            if (cells := self.cells(role)) is not None:
                self._drop(by_value(cells, rule, 0, np.bool_), reason, role)

    def _is_no_call(self, kind: object) -> bool:
        word = str(kind).rpartition(".")[2].strip().lower()
        if self.format.generating is not None:
            return not is_empty(kind) and word not in self.format.generating
        return word in LINKS

    def _status(self) -> Ints:
        """Return each row's status by its number."""

        def codes_of(role: Role, rule: Callable[[Any], Status | None]) -> Ints | None:
            def code(value: object) -> int:
                found = rule(value)
                return UNKNOWN if found is None else STATUSES.index(found)

            cells = self.cells(role)
            return None if cells is None else by_value(cells, code, 0, np.int64)

        status = codes_of("status", self.format.status)
        status = np.zeros(self.size, np.int64) if status is None else status
        unknown = status == UNKNOWN
        if self.format.strict:
            self._drop(unknown, "bad_field", "status")
        self.of.unknown_statuses += int(unknown.sum())
        status[unknown] = 0
        if (errors := codes_of("error", error_in)) is not None:
            status = np.where(status == 0, errors, status)
        if (codes := codes_of("error_code", lambda one: code_in(one) or "error")) is not None:
            status = np.where((status == ERROR) & (codes != 0), codes, status)
        if "path" in self.format.columns and (cells := self.cells("flags")) is not None:
            gone = by_value(cells, lambda one: "DC" in str(one).split(","), 0, np.bool_)
            status = np.where(gone, ABORTED, status)
        return status

    def _lengths(self, status: Ints) -> tuple[Ints, Ints]:
        """Return both lengths. What a request that was never served lacks is absent."""
        served = status < len(SERVED)
        is_record = self.format.strict and self.format.flatten is None
        needed = np.ones(self.size, np.bool_) if is_record else served
        found: dict[Role, Ints] = {}
        for role in ("input_length", "output_length", "total_length"):
            if (numbers := self._numbers(role)) is not None:
                found[role] = numbers[0]
                self._drop(np.where(needed, numbers[1], 0).astype(np.uint8), None, role)
        nothing = np.full(self.size, ABSENT)
        prompt, output, total = (
            found.get(role, nothing) for role in ("input_length", "output_length", "total_length")
        )
        if self.format.prompt_is_sum:
            for role in ("cached_tokens", "cache_creation_tokens"):
                if (numbers := self._numbers(role)) is not None:
                    known = (prompt != ABSENT) & (numbers[0] != ABSENT)
                    prompt = np.where(known, prompt + numbers[0], prompt)
        if "output_length" not in self.format.columns:
            output = np.where((total == ABSENT) | (prompt == ABSENT), ABSENT, total - prompt)
        elif "input_length" not in self.format.columns:
            prompt = np.where((total == ABSENT) | (output == ABSENT), ABSENT, total - output)
        silent = self.format.silent_is_error & (output <= 0)
        for role, length in (("output_length", output), ("input_length", prompt)):
            needs = served & ~silent
            self._drop(needs & (length == ABSENT), "no_tokens", role)
            self._drop(needs & (length < 0), "negative", role)
            if role == "output_length":
                needs &= status == 0
            self._drop(needs & (length == 0), "zero_tokens", role)
        return prompt, output

    def _times(self, output: Ints) -> None:
        known = self._arrivals() if "timestamp" in self.format.columns else None
        end, lasted = self._moments("end"), self._moments("duration")
        if known is not None:
            arrival = known
            lasted = self._since(arrival, end, "end", lasted)
        else:
            nothing = np.full(self.size, np.nan)
            lasted = nothing if lasted is None else lasted
            arrival = np.maximum(0.0, np.round((nothing if end is None else end) - lasted))
            self._drop(np.isnan(arrival), "no_timestamp", "end")  # both are to the ms at best
        if lasted is not None and self.format.token_ms is not None:
            self._drop(self._is_of_another_unit(lasted, output), "bad_field", "duration")
        first = self._moments("first_token")
        if first is not None and end is not None:
            first = np.where(first == end, np.nan, first)  # so LiteLLM writes, where none streamed
        ttft = self._since(arrival, first, "first_token", self._moments("ttft"))
        self.columns["timestamp"] = pa.array(arrival)
        for role, values in (
            ("duration", lasted), ("ttft", ttft), ("queue", self._moments("queue")),
        ):  # fmt: skip
            if values is not None and not np.isnan(values).all():
                self.columns[KEY_OF[role]] = pa.array(values, from_pandas=True)

    def _arrivals(self) -> Floats:
        column = self.format.columns["timestamp"]
        cells = self.raw.cells(column.paths)
        if cells is not None and (days := self.cells("day")) is not None:
            both = zip(texts_of(days, self.size), texts_of(cells, self.size), strict=True)
            cells = [f"{day} {at}" if at else None for day, at in both]
        assert column.reader is not None
        values, odd = read(column.reader, [None] * self.size if cells is None else cells)
        self._drop(odd, None, "timestamp")
        self._drop(np.isnan(values), "no_timestamp", "timestamp")
        return values

    def _moments(self, role: Role) -> Floats | None:
        """Return times that are no arrivals, or spans of time."""
        if (found := self._numbers(role)) is None:
            return None
        is_field = "timestamp" in self.format.columns
        bad = found[1] == CODES["bad_timestamp"]
        self._drop(bad, "bad_field" if is_field else "bad_timestamp", role)
        self._drop(found[1], None, role)
        return found[0]

    def _since(
        self, arrival: Floats, at: Floats | None, role: Role, else_: Floats | None
    ) -> Floats | None:
        """Return the time up to a moment; where that is unknown, what else is known."""
        if at is None:
            return else_
        since: Floats = np.round(at - arrival, 3)
        self._drop(since < 0, "negative_time", role)
        return since if else_ is None else np.where(np.isnan(since), else_, since)

    def _is_of_another_unit(self, ms: Floats, output: Ints) -> Mask:
        """Whether durations of many tokens are out of a token's range, and a thousandfold or a
        thousandth of them is not."""
        usual, (least, most) = self.format.token_ms or 1.0, TOKEN_MS
        each = ms / np.maximum(output, 1)
        too_short = (each < min(least, usual / FAR_OFF)) & (each * 1000 >= least)
        too_long = (each > max(most, usual * FAR_OFF)) & (each <= 1000 * most)
        of_another: Mask = (output >= MANY_TOKENS) & (too_short | too_long)
        return of_another

    def _put(self, key: str, values: Ints) -> None:
        absent = values == ABSENT
        if key in ("input_length", "output_length") or not absent.all():
            bounded = np.where(absent | (self.reasons != 0), 0, values)
            self.columns[key] = pa.array(bounded.astype(np.int32), mask=absent)

    def _optional(self, key: str, least: int, most: int) -> None:
        """Read a count that need not be there; where it is wrong it is absent, or costs the row."""
        if key == "replica" and key not in self.format.keeps:
            return
        if (found := self._numbers(ROLE_OF.get(key, key))) is None:
            return
        values, odd = found
        wrong = (odd != 0) | ((values != ABSENT) & ((values < least) | (values > most)))
        if self.format.strict or key == "num_images":
            self._drop(wrong, "bad_field", key)
        self._put(key, np.where(wrong, ABSENT, values))

    def _hash_ids(self, prompt: Ints) -> None:
        if (column := self._lists("hash_ids", 2**63 - 1)) is not None:
            sizes = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            size = self.format.block_size
            too_many = sizes * size >= np.maximum(prompt, 0) + size
            self._drop((sizes > 0) & too_many, "bad_field", "hash_ids")
            self.columns["hash_ids"] = column

    def _lists(self, key: str, most: int) -> pa.Array | None:
        """Return lists of whole numbers; rows that hold something else are dropped."""
        cells = self.cells(key)
        if cells is None or all(one is None for one in cells):
            return None
        kind = pa.list_(pa.int64())
        cells = [[one] if type(one) is int else one for one in cells]  # see ``decode.only``
        try:
            column = pa.array(cells, kind)
            values = column.flatten()
            bounds = pc.min_max(values).as_py()
            is_plain = not len(values) or (bounds["min"] >= 0 and bounds["max"] <= most)
            if is_plain and not values.null_count:
                return column
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            pass
        kept: list[list[int] | None] = []
        for cell in cells:
            is_list = isinstance(cell, list) and all(type(one) is int and one >= 0 for one in cell)
            if is_list and not self.format.strict:  # hashes of 64 bits: what is left differs too
                cell = [one % 2**63 for one in cell]  # noqa: PLW2901
            kept.append(cell if is_list and max(cell, default=0) <= most else None)
        bad = [one is None and cell is not None for one, cell in zip(kept, cells, strict=True)]
        self._drop(np.array(bad, np.bool_), "bad_field", key)
        return pa.array(kept, kind)

    def _output_lengths(self, output: Ints) -> None:
        """Read the sequences' lengths; where only their sum is known it is split evenly."""
        if (column := self._lists("output_lengths", 2**31 - 1)) is not None:
            self.columns["output_lengths"] = column
        if not self.format.sums_of_n or "n" not in self.columns:
            return
        n = self.columns.pop("n").fill_null(1).to_numpy(zero_copy_only=False).astype(np.int64)
        several = (n > 1) & (n <= np.minimum(output, MAX_N))
        if not several.any():
            return
        self.of.tally.note(
            "outputs of requests with n > 1 are split evenly: only their sum is known"
        )
        self._put("n", np.where(several, n, ABSENT))
        lists: list[list[int] | None] = [None] * self.size
        for place in np.flatnonzero(several).tolist():
            each, more = divmod(int(output[place]), int(n[place]))
            lists[place] = [each + 1] * more + [each] * (int(n[place]) - more)
        self.columns["output_lengths"] = pa.array(lists, pa.list_(pa.int64()))
        self._put("output_length", np.where(several, -(-output // np.maximum(n, 1)), output))

    def _words(self) -> None:
        """Read names, words and flags."""
        for field in FIELDS:
            key = field.key
            if field.kind not in ("name", "flag") or key == "status":
                continue
            if (cells := self.cells(key)) is None:
                continue
            rule = {"finish_reason": word_in, "stream": flag_in}.get(key) or self._naming(key)
            column = pa.array(self._of_kept(cells, rule, None, np.object_), TYPES[key])
            if column.null_count < self.size:
                self.columns[key] = column
        if "replica" not in self.format.keeps and (cells := self.cells("replica")) is not None:
            numbers = self._of_kept(cells, self._numbering("replica"), ABSENT, np.int64)
            self._put("replica", np.where(numbers < 0, ABSENT, numbers))

    def _naming(self, role: Role) -> Callable[[Any], str | None]:
        """Return what makes of a name a pseudonym; names that are kept stay."""
        if role not in LETTERS or role in self.format.keeps:
            return str_in if self.format.strict else name_in
        number = self._numbering(role)
        return lambda name: None if is_empty(name) else f"{LETTERS[role]}{number(name)}"

    def _numbering(self, role: Role) -> Callable[[Any], int]:
        """Return what numbers names by first sight; the names themselves are never written."""
        known = self.of.names.setdefault(role, {})
        return lambda name: -1 if is_empty(name) else known.setdefault(str(name), len(known))

    def _of_kept(
        self, cells: Cells, rule: Callable[[Any], Any], absent: object, kind: type[Any]
    ) -> NDArray[Any]:
        """Return what a rule makes of each distinct cell of the rows that are kept so far."""
        codes, values = coded(cells)
        codes = np.where(self.reasons == 0, codes, -1)
        used = {*np.unique(codes).tolist()}
        found = [rule(value) if place in used else absent for place, value in enumerate(values)]
        return np.array([*found, absent], kind)[codes]


def texts_of(cells: Cells | None, size: int) -> list[str]:
    """Return cells as texts, an empty one for nothing."""
    held = (
        [None] * size if cells is None else cells if isinstance(cells, list) else cells.to_pylist()
    )
    return ["" if is_empty(one) else str(one) for one in held]

"""Raw columns to canonical columns: every cell is read here; a row is kept or has a reason."""

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tuner.trace.encode import TYPES
from tuner.trace.formats import KEY_OF, ROLE_OF, Format
from tuner.trace.guess import is_far_off
from tuner.trace.headings import Role
from tuner.trace.raw import Raw, Tally
from tuner.trace.record import CODES, FIELDS, SERVED, Reason, Status
from tuner.trace.same import Row
from tuner.trace.values import ABSENT, Cells, Codes, Floats, Read, as_array, by_value, is_empty
from tuner.trace.words import (
    LINKS,
    code_in,
    error_in,
    flag_in,
    from_cache,
    generates,
    name_in,
    word_in,
)

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

STATUSES: tuple[Status, ...] = get_args(Status)
ERROR, ABORTED, UNKNOWN = STATUSES.index("error"), STATUSES.index("aborted"), len(STATUSES)
REASONS: dict[int, Any] = {code: reason for reason, code in CODES.items()}
LINK = 255
"""The code of a row that only links others, and is not counted."""

LETTERS: dict[Role, str] = {"session_id": "s", "model": "m"}
"""Roles whose names become pseudonyms, with the letter that these begin with."""

SPANS: dict[Role, str] = {"duration": "end", "ttft": "first_token", "queue": ""}
"""Spans from the arrival, and the role of the moment at which each ends."""


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
        # Filtered even where all are kept: Arrow's copy is freed as a whole later, numpy's is not.
        return pa.table(rows.columns).filter(pa.array(kept)), raw.lines[kept]

    def linked(self, raw: Raw) -> list[Row]:
        """Return the rows with what links them, for a format whose rows may be one request."""
        rows = self._rows(raw)
        links = raw.cells(("links",)) or [{}] * len(raw)
        held = zip(
            raw.lines.tolist(), pa.table(rows.columns).to_pylist(), rows.reasons, links, strict=True
        )
        return [
            Row(line, None if bad else fields, **(link or {})) for line, fields, bad, link in held
        ]

    def _rows(self, raw: Raw) -> "_Rows":
        rows = _Rows(self, raw)
        rows.read()
        self.tally.rows_read += int((rows.reasons != LINK).sum())
        for code in np.unique(rows.reasons[(rows.reasons != 0) & (rows.reasons != LINK)]).tolist():
            places = np.flatnonzero(rows.reasons == code)
            line, column = int(raw.lines[places[0]]), rows.blamed.get(code, "")
            self.tally.drop(REASONS[code], line, column, count=len(places))
        return rows


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
            role = ROLE_OF.get(field.key, field.key)
            is_name = field.kind in ("name", "flag") or role == "replica"
            if role in ("status", "input_length", "output_length") or field.kind == "time":
                continue
            if field.kind == "list":
                self._list(role, field.most)
            elif is_name and not (role == "replica" and role in self.format.keeps):
                self._name(role)
            else:
                self._count(role, field.least, field.most)
        self._check_hash_ids(prompt)
        self._drop_sums()

    def cells(self, role: Role) -> Cells | None:
        """Return the cells of a role; None where the format or these rows have none."""
        column = self.format.columns.get(role)
        return None if column is None else self.raw.cells(column.paths)

    def _numbers(self, role: Role) -> Read | None:
        """Return the numbers of a column and what is wrong with them; None without the column."""
        if (cells := self.cells(role)) is None:
            return None
        reader = self.format.columns[role].reader
        assert reader is not None
        return reader.read(cells)

    def _drop(self, where: Mask | Codes, role: Role, reason: Reason | None = None) -> None:
        """Give rows a reason, unless they have one; without one, the codes of several."""
        codes = where if reason is None else np.where(where, CODES[reason], 0).astype(np.uint8)
        new = (self.reasons == 0) & (codes != 0)
        if new.any():
            self.reasons[new] = codes[new]
            column = self.format.columns.get(role)
            for code in np.unique(codes[new]).tolist() if column and column.title else ():
                self.blamed.setdefault(code, column.title)  # type: ignore[union-attr]

    def _leave_out(self) -> None:
        """Leave out rows that are no request of a model, or several."""
        if (found := self._numbers("requests")) is not None:
            self._drop((found[0] != 1) & (found[0] != ABSENT), "requests", "several_requests")
        rules: dict[Role, Callable[[Any], int]] = {
            "reason": lambda one: CODES.get(one, LINK),
            "cache_hit": lambda one: CODES["cache_hit"] * (from_cache(one) is True),
            "kind": lambda one: CODES["not_generation"] * self._is_no_call(one),
            "path": lambda one: CODES["not_generation"] * (not generates(one)),
        }
        for role, rule in rules.items():
            if (cells := self.cells(role)) is not None:
                self._drop(by_value(cells, rule, 0, np.uint8), role)

    def _is_no_call(self, kind: object) -> bool:
        word = str(kind).rpartition(".")[2].strip().lower()
        generating = self.format.generating
        return (
            word in LINKS if generating is None else not is_empty(kind) and word not in generating
        )

    def _status(self) -> Ints:
        """Return each row's status by its number."""

        def codes_of(role: Role, rule: Callable[[Any], Status | None]) -> Ints:
            cells = self.cells(role)
            known: dict[Status | None, int] = {one: code for code, one in enumerate(STATUSES)}
            none = np.zeros(self.size, np.int64)
            return (
                none
                if cells is None
                else by_value(cells, lambda one: known.get(rule(one), UNKNOWN), 0, np.int64)
            )

        status = codes_of("status", self.format.status)
        unknown = status == UNKNOWN
        if self.format.strict:
            self._drop(unknown, "status", "bad_field")
        self.of.unknown_statuses += int(unknown.sum())
        status[unknown] = 0
        status = np.where(status == 0, codes_of("error", error_in), status)
        code = codes_of("error_code", code_in)
        status = np.where((status == ERROR) & (code != 0), code, status)
        if "path" in self.format.columns:  # an access log, whose flags may say that a client left
            gone = codes_of("flags", lambda one: "aborted" if "DC" in str(one).split(",") else "ok")
            status = np.where(gone != 0, gone, status)
        return status

    def _lengths(self, status: Ints) -> tuple[Ints, Ints]:
        """Return both lengths. What a request that was never served lacks is absent."""
        served = status < len(SERVED)
        is_record = self.format.strict and self.format.flatten is None
        found: dict[Role, Ints] = {}
        for role in ("input_length", "output_length", "total_length"):
            values, wrong = self._numbers(role) or (np.full(self.size, ABSENT), self.reasons * 0)
            found[role] = values
            self._drop(np.where(served | is_record, wrong, 0).astype(np.uint8), role)
        prompt, output, total = found.values()
        for role in ("cached_tokens", "cache_creation_tokens") if self.format.prompt_is_sum else ():
            if (numbers := self._numbers(role)) is not None:
                known = (prompt != ABSENT) & (numbers[0] != ABSENT)
                prompt = np.where(known, prompt + numbers[0], prompt)
        if "output_length" not in self.format.columns:
            output = np.where((total == ABSENT) | (prompt == ABSENT), ABSENT, total - prompt)
        elif "input_length" not in self.format.columns:
            prompt = np.where((total == ABSENT) | (output == ABSENT), ABSENT, total - output)
        needs = served & ~(self.format.silent_is_error & (output <= 0))
        for role, length in (("output_length", output), ("input_length", prompt)):
            self._drop(needs & (length == ABSENT), role, "no_tokens")
            self._drop(needs & (length < 0), role, "negative")
            may_be_zero = (status != 0) & (role == "output_length")
            self._drop(needs & (length == 0) & ~may_be_zero, role, "zero_tokens")
        return prompt, output

    def _times(self, output: Ints) -> None:
        """Read the arrivals, and the spans from there: of an end without them the arrival is what
        the duration leaves."""
        nothing = np.full(self.size, np.nan)
        is_stamped = "timestamp" in self.format.columns
        arrival, wrong = self._numbers("timestamp") or (nothing, self.reasons * 0)
        self._drop(wrong, "timestamp")
        self._drop(is_stamped & np.isnan(arrival), "timestamp", "no_timestamp")
        moments = {role: self._moments(role) for one in SPANS.items() for role in one}
        lasted, token_ms = moments["duration"], self.format.token_ms
        if lasted is not None and token_ms is not None:
            self._drop(is_far_off(lasted, output, token_ms), "duration", "bad_field")
        if not is_stamped:
            end = moments.pop("end")
            lasted = moments["duration"] = nothing if lasted is None else lasted
            arrival = np.maximum(0.0, np.round((nothing if end is None else end) - lasted))
            self._drop(np.isnan(arrival), "end", "no_timestamp")  # both are to the ms at best
        self.columns["timestamp"] = pa.array(arrival)
        end, first = moments.get("end"), moments["first_token"]
        if first is not None and end is not None:
            moments["first_token"] = np.where(first == end, np.nan, first)  # of LiteLLM: no stream
        for role, until in SPANS.items():
            span, at = moments.get(role), moments.get(until)
            if at is not None:
                since = np.round(at - arrival, 3)
                self._drop(since < 0, until, "negative_time")
                span = since if span is None else np.where(np.isnan(since), span, since)
            if span is not None and not np.isnan(span).all():
                self.columns[KEY_OF[role]] = pa.array(span, from_pandas=True)

    def _moments(self, role: Role) -> Floats | None:
        """Return times that are no arrivals, or spans of time."""
        if (found := self._numbers(role)) is None:
            return None
        if "timestamp" in self.format.columns:
            self._drop(found[1] == CODES["bad_timestamp"], role, "bad_field")
        self._drop(found[1], role)
        return found[0]

    def _put(self, key: str, values: Ints) -> None:
        absent = values == ABSENT
        if key in ("input_length", "output_length") or not absent.all():
            bounded = np.where(absent | (self.reasons != 0), 0, values)
            self.columns[key] = pa.array(bounded.astype(np.int32), mask=absent)

    def _count(self, role: Role, least: int, most: int) -> None:
        """Read a count that need not be there; where it is wrong it is absent, or costs the row."""
        if (found := self._numbers(role)) is not None:
            values, odd = found
            wrong = (odd != 0) | ((values != ABSENT) & ((values < least) | (values > most)))
            if self.format.strict:
                self._drop(wrong, role, "bad_field")
            self._put(role, np.where(wrong, ABSENT, values))

    def _list(self, key: str, most: int) -> None:
        """Read lists of whole numbers; rows that hold something else are dropped."""
        cells = self.cells(key)
        if cells is None or all(one is None for one in cells):
            return
        kind = pa.list_(pa.int64())
        cells = [[one] if type(one) is int else one for one in cells]  # see ``raw.only``
        try:
            column = pa.array(cells, kind)
            bounds = pc.min_max(column.flatten()).as_py()
            is_plain = not column.flatten().null_count and (bounds["min"] or 0) >= 0
            if is_plain and (bounds["max"] or 0) <= most:
                self.columns[key] = column
                return
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            pass
        kept: list[list[int] | None] = []
        for cell in cells:
            is_list = isinstance(cell, list) and all(type(one) is int and one >= 0 for one in cell)
            if is_list and not self.format.strict:  # hashes of 64 bits: what is left differs too
                cell = [one % 2**63 for one in cell]  # noqa: PLW2901
            kept.append(cell if is_list and max(cell, default=0) <= most else None)
        bad = [one is None and cell is not None for one, cell in zip(kept, cells, strict=True)]
        self._drop(np.array(bad, np.bool_), key, "bad_field")
        self.columns[key] = pa.array(kept, kind)

    def _check_hash_ids(self, prompt: Ints) -> None:
        if (column := self.columns.get("hash_ids")) is not None:
            sizes = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            least = np.maximum(prompt, 0) + self.format.block_size
            self._drop(
                (sizes > 0) & (sizes * self.format.block_size >= least), "hash_ids", "bad_field"
            )

    def _drop_sums(self) -> None:
        """Drop requests of several sequences of which only the sum is known."""
        if self.format.sums_of_n and "n" in self.columns:
            n = self.columns.pop("n").fill_null(1).to_numpy(zero_copy_only=False)
            self._drop(n > 1, "n", "several_requests")

    def _name(self, role: Role) -> None:
        """Read names, words and flags; names are numbered by first sight unless they are kept."""
        if (cells := self.cells(role)) is None:
            return
        rules: dict[Role, Callable[[Any], Any]] = {"finish_reason": word_in, "stream": flag_in}
        known = self.of.names.setdefault(role, {})

        def pseudonym(name: Any) -> Any:  # noqa: ANN401
            if is_empty(name):
                return None
            number = known.setdefault(str(name), len(known))
            return f"{LETTERS[role]}{number}" if role in LETTERS else number

        is_numbered = role in {*LETTERS, "replica"} and role not in self.format.keeps
        rule = pseudonym if is_numbered else rules.get(role, name_in)
        kept = pc.if_else(pa.array(self.reasons == 0), as_array(cells), None)
        column = pa.array(by_value(kept, rule, None, np.object_), TYPES[role])
        if column.null_count < self.size:
            self.columns[role] = column

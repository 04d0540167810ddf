"""Raw columns to canonical columns: every cell is read here; a row is kept or has a reason."""

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tuner.trace.encode import TYPES
from tuner.trace.formats import KEY_OF, ROLE_OF, Format
from tuner.trace.guess import is_far_off
from tuner.trace.headings import COUNTS, Role
from tuner.trace.raw import Raw, Tally
from tuner.trace.record import CODES, FIELDS, SERVED, Field, Reason, Status
from tuner.trace.same import Row
from tuner.trace.values import (
    ABSENT,
    Cells,
    Codes,
    Floats,
    Ints,
    Mask,
    Read,
    as_array,
    as_list,
    by_value,
    is_empty,
)
from tuner.trace.words import (
    LINKS,
    code_in,
    error_in,
    flag_in,
    from_cache,
    generates,
    name_in,
    status_in,
    word_in,
)

STATUSES: tuple[Status, ...] = get_args(Status)
CODE_OF: dict[Status | None, int] = {status: code for code, status in enumerate(STATUSES)}
UNKNOWN = len(STATUSES)
REASONS: dict[int, Any] = {code: reason for reason, code in CODES.items()}
LINK = 255
"""The code of a row that only links others, and is not counted."""

LETTERS: dict[Role, str] = {"session_id": "s", "model": "m"}
"""Roles whose names become pseudonyms, with the letter that these begin with."""

UNTIL: dict[Role, str] = {"duration": "end", "ttft": "first_token", "queue": ""}
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
        links = [
            pa.nulls(len(raw)) if (cells := rows.cells(role)) is None else cells
            for role in ("trace", "span", "parent", "key", "server")
        ]
        held = pa.table(rows.columns).to_pylist()
        return [
            Row(line, None if bad else fields, *map(_id, ids))
            for line, fields, bad, *ids in zip(
                raw.lines.tolist(), held, rows.reasons, *map(as_list, links), strict=True
            )
        ]

    def _rows(self, raw: Raw) -> "_Rows":
        rows = _Rows(self, raw)
        rows.read()
        counted = rows.reasons[rows.reasons != LINK]
        self.tally.rows_read += len(counted)
        for code in np.unique(counted[counted != 0]).tolist():
            places = np.flatnonzero(rows.reasons == code)
            line, column = int(raw.lines[places[0]]), rows.blamed.get(code, "")
            self.tally.drop(REASONS[code], line, column, count=len(places))
        return rows


def _id(value: object) -> Any:  # noqa: ANN401 - a word, or a flag
    return value if value is True or (isinstance(value, str) and value.strip("0")) else None


class _Rows:
    """Some rows while they are read."""

    def __init__(self, of: Checker, raw: Raw) -> None:
        self.of, self.format, self.raw = of, of.format, raw
        self.size, self.roles, self.keeps = len(raw), of.format.columns, of.format.keeps
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
            status = np.where(output <= 0, CODE_OF["error"], status)
        if status.any():
            self.columns["status"] = pa.array(STATUSES).take(pa.array(status))
        for field in FIELDS:
            role = ROLE_OF.get(field.key, field.key)
            if role in ("status", "input_length", "output_length") or role not in self.roles:
                continue
            if field.kind == "list":
                self._list(field, prompt)
            elif field.kind in ("name", "flag") or (role == "replica" and role not in self.keeps):
                self._name(role)
            elif field.kind == "count":
                self._count(field)
        if self.format.sums_of_n and "n" in self.columns:  # only the sum of their outputs is known
            n = self.columns.pop("n").fill_null(1).to_numpy(zero_copy_only=False)
            self._drop(n > 1, "n", "several_requests")

    def cells(self, role: Role) -> Cells | None:
        """Return the cells of a role; None where the format or these rows have none."""
        column = self.roles.get(role)
        return None if column is None else self.raw.cells(column.paths)

    def _numbers(self, role: Role) -> Read:
        """Return the numbers of a column, and what is wrong with them."""
        if (cells := self.cells(role)) is None:
            nothing = ABSENT if role in COUNTS else np.nan
            return np.full(self.size, nothing), np.zeros(self.size, np.uint8)
        reader = self.roles[role].reader
        assert reader is not None
        return reader.read(cells)

    def _drop(self, where: Any, role: Role, reason: Reason | None = None) -> None:  # noqa: ANN401
        """Give rows a reason, unless they have one; without one, ``where`` has their codes."""
        codes = where if reason is None else np.where(where, CODES[reason], 0)
        new = (self.reasons == 0) & (codes != 0)
        if new.any():
            self.reasons[new] = codes[new]
            column = self.roles.get(role)
            for code in np.unique(codes[new]).tolist() if column and column.title else ():
                self.blamed.setdefault(code, column.title)  # type: ignore[union-attr]

    def _leave_out(self) -> None:
        """Leave out rows that are no request of a model, or several."""
        requests, _ = self._numbers("requests")
        self._drop((requests != 1) & (requests != ABSENT), "requests", "several_requests")
        rules: dict[Role, Callable[[Any], int]] = {
            "reason": lambda cell: CODES.get(cell, LINK),
            "cache_hit": lambda cell: CODES["cache_hit"] * (from_cache(cell) is True),
            "kind": lambda cell: CODES["not_generation"] * self._is_no_call(cell),
            "path": lambda cell: CODES["not_generation"] * (not generates(cell)),
        }
        for role, rule in rules.items():
            if (cells := self.cells(role)) is not None:
                self._drop(by_value(cells, rule, 0, np.uint8), role)

    def _is_no_call(self, kind: object) -> bool:
        word = str(kind).rpartition(".")[2].strip().lower()
        generating = self.format.generating
        if generating is None:
            return word in LINKS
        return not is_empty(kind) and word not in generating

    def _status(self) -> Ints:
        """Return each row's status by its number."""

        def codes_of(role: Role, rule: Callable[[Any], Status | None]) -> Ints:
            def code(cell: Any) -> int:  # noqa: ANN401 - any cell
                return CODE_OF.get(rule(cell), UNKNOWN)

            cells = self.cells(role)
            none: Ints = np.zeros(self.size, np.int64)
            return none if cells is None else by_value(cells, code, 0, np.int64)

        status = codes_of("status", lambda cell: status_in(cell, flag=self.format.flag))
        unknown = status == UNKNOWN
        if self.format.strict:
            self._drop(unknown, "status", "bad_field")
        self.of.unknown_statuses += int(unknown.sum())
        status[unknown] = 0
        status = np.where(status == 0, codes_of("error", error_in), status)
        code = codes_of("error_code", code_in)
        status = np.where((status == CODE_OF["error"]) & (code != 0), code, status)
        gone = codes_of("flags", lambda cell: "aborted" if "DC" in str(cell).split(",") else "ok")
        return np.where(gone != 0, gone, status)  # Envoy's flag of a client that left

    def _lengths(self, status: Ints) -> tuple[Ints, Ints]:
        """Return both lengths. What a request that was never served lacks is absent."""
        served = status < len(SERVED)
        is_record = self.format.strict and self.format.flatten is None
        result: list[Ints] = []
        for role in ("input_length", "output_length", "total_length"):
            values, wrong = self._numbers(role)
            self._drop(np.where(served | is_record, wrong, 0), role)
            result.append(values)
        prompt, output, total = result
        for role in ("cached_tokens", "cache_creation_tokens") if self.format.prompt_is_sum else ():
            more, _ = self._numbers(role)
            prompt = np.where((prompt == ABSENT) | (more == ABSENT), prompt, prompt + more)
        if "output_length" not in self.roles:
            output = np.where((total == ABSENT) | (prompt == ABSENT), ABSENT, total - prompt)
        elif "input_length" not in self.roles:
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
        is_stamped = "timestamp" in self.roles
        arrival, wrong = self._numbers("timestamp")
        self._drop(wrong, "timestamp")
        self._drop(is_stamped & np.isnan(arrival), "timestamp", "no_timestamp")
        moments = {role: self._moments(role) for role in (*UNTIL, *UNTIL.values())}
        end, lasted = moments["end"], moments["duration"]
        if (token_ms := self.format.token_ms) is not None:
            self._drop(is_far_off(lasted, output, token_ms), "duration", "bad_field")
        if not is_stamped:
            arrival = np.maximum(0.0, np.round(end - lasted))  # both are to the ms at best
            self._drop(np.isnan(arrival), "end", "no_timestamp")
            moments["end"] = np.full(self.size, np.nan)
        self.columns["timestamp"] = pa.array(arrival)
        first = moments["first_token"]
        moments["first_token"] = np.where(first == end, np.nan, first)  # of LiteLLM: no stream
        for role, until in UNTIL.items():
            since = np.round(moments[until] - arrival, 3)
            self._drop(since < 0, until, "negative_time")
            span = np.where(np.isnan(since), moments[role], since)
            if not np.isnan(span).all():
                self.columns[KEY_OF[role]] = pa.array(span, from_pandas=True)

    def _moments(self, role: Role) -> Floats:
        """Return times that are no arrivals, or spans of time."""
        result, wrong = self._numbers(role)
        if "timestamp" in self.roles:
            self._drop(wrong == CODES["bad_timestamp"], role, "bad_field")
        self._drop(wrong, role)
        return result

    def _put(self, key: str, values: Ints) -> None:
        absent = values == ABSENT
        if key in ("input_length", "output_length") or not absent.all():
            bounded = np.where(absent | (self.reasons != 0), 0, values)
            self.columns[key] = pa.array(bounded.astype(np.int32), mask=absent)

    def _count(self, field: Field) -> None:
        """Read a count that need not be there; where it is wrong it is absent, or costs the row."""
        values, odd = self._numbers(field.key)
        outside = (values != ABSENT) & ((values < field.least) | (values > field.most))
        wrong: Mask = (odd != 0) | outside
        if self.format.strict:
            self._drop(wrong, field.key, "bad_field")
        self._put(field.key, np.where(wrong, ABSENT, values))

    def _list(self, field: Field, prompt: Ints) -> None:
        """Read lists of whole numbers; rows that hold something else are dropped."""
        key, most, strict = field.key, field.most, self.format.strict
        cells = as_list(self.cells(key) or [])
        if all(cell is None for cell in cells):
            return

        def checked(cell: Any) -> list[int] | None:  # noqa: ANN401 - any JSON
            cell = [cell] if type(cell) is int else cell  # see ``raw.only``
            if not isinstance(cell, list) or not {*map(type, cell)} <= {int}:
                return None
            if not strict:  # hashes of 64 bits: what is left differs too
                cell = [each % 2**63 if each >= 0 else each for each in cell]
            return cell if min(cell, default=0) >= 0 and max(cell, default=0) <= most else None

        kept = [*map(checked, cells)]
        bad = [each is None and cell is not None for each, cell in zip(kept, cells, strict=True)]
        self._drop(np.array(bad, np.bool_), key, "bad_field")
        self.columns[key] = column = pa.array(kept, pa.list_(pa.int64()))
        if key == "hash_ids":
            sizes = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            least = np.maximum(prompt, 0) + self.format.block_size
            too_many = (sizes > 0) & (sizes * self.format.block_size >= least)
            self._drop(too_many, key, "bad_field")

    def _name(self, role: Role) -> None:
        """Read names, words and flags; names are numbered by first sight unless they are kept."""
        if (cells := self.cells(role)) is None:
            return
        rules: dict[Role, Callable[[Any], Any]] = {"finish_reason": word_in, "stream": flag_in}
        known = self.of.names.setdefault(role, {})

        def pseudonym(name: Any) -> Any:  # noqa: ANN401 - any cell
            if is_empty(name):
                return None
            number = known.setdefault(str(name), len(known))
            return f"{LETTERS[role]}{number}" if role in LETTERS else number

        is_numbered = role in {*LETTERS, "replica"} and role not in self.keeps
        rule = pseudonym if is_numbered else rules.get(role, name_in)
        kept = pc.if_else(pa.array(self.reasons == 0), as_array(cells), None)
        column = pa.array(by_value(kept, rule, None, np.object_), TYPES[role])
        if column.null_count < self.size:
            self.columns[role] = column

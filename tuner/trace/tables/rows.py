"""Makes the rows of a table one by one from their cells: what is wrong has reason and column."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tuner.trace.formats.reading.record import SERVED, Reason, Row, Status
from tuner.trace.formats.reading.scalars import Pseudonyms, flag, is_absent
from tuner.trace.tables.cells import (
    Counts,
    Spans,
    error_in,
    from_cache,
    is_empty,
    is_link,
    status_in,
)
from tuner.trace.tables.clocks import ColumnClock
from tuner.trace.tables.headings import Role
from tuner.trace.tables.plan import TablePlan

LONGEST_WORD = 40
PSEUDONYMS: dict[Role, str] = {"session_id": "s", "model": "m", "request_class": "c"}


_LONE = range(0xD800, 0xE000)
"""Surrogates: what was no UTF-8."""


class Dropped(NamedTuple):
    """The reason why a row cannot be used, and the heading of the column where that shows."""

    reason: Reason
    heading: str = ""


class _DroppedError(Exception):
    pass


class Converter:
    """Makes rows of cells by a plan; knows the names that it has met."""

    def __init__(self, plan: TablePlan) -> None:
        self.plan = plan
        self.names = {role: Pseudonyms() for role in PSEUDONYMS}
        self.replicas = Pseudonyms()
        self.unknown_status: str | None = None
        """A status that is not understood: its row is taken as served."""

    def row(self, cells: Sequence[Any]) -> Row | Dropped:
        """Return the row of these cells, in the order of the headings; why there is none."""
        try:
            return self._row(cells)
        except _DroppedError as problem:
            return Dropped(*problem.args)

    def _row(self, cells: Sequence[Any]) -> Row:
        if self._count("requests", cells) not in (None, 1):
            raise _DroppedError("several_requests", self._heading("requests"))
        if "cache_hit" in self.plan.columns and from_cache(self._cell("cache_hit", cells)):
            raise _DroppedError("cache_hit", self._heading("cache_hit"))
        if is_link(self._cell("kind", cells)):
            raise _DroppedError("not_generation", self._heading("kind"))
        status = self._status(cells)
        end_ms = self._time("end", cells)
        duration_ms = self._span("duration", cells)
        arrival_ms = self._arrival(cells, end_ms, duration_ms)
        if end_ms is not None:
            duration_ms = self._since("end", arrival_ms, end_ms)
        ttft_ms = self._span("ttft", cells)
        if (first_ms := self._time("first_token", cells)) is not None:
            ttft_ms = self._since("first_token", arrival_ms, first_ms)
        prompt, output = self._lengths(cells, needed=status in SERVED)
        if duration_ms is not None and self._is_of_another_unit(duration_ms, output):
            raise _DroppedError("other_unit", self._heading("duration"))
        if self.plan.as_published and not output:
            status = "error"
        if status in SERVED and (not prompt or (not output and status == "ok")):
            role: Role = "input_length" if not prompt else "output_length"
            raise _DroppedError("zero_tokens", self._heading(role))
        return Row(
            timestamp=arrival_ms,
            input_length=prompt,
            output_length=output,
            status=status,
            e2e_ms=duration_ms,
            ttft_ms=ttft_ms,
            queue_ms=self._span("queue", cells),
            max_tokens=self._count("max_tokens", cells),
            cached_tokens=self._count("cached_tokens", cells),
            stream=flag(self._cell("stream", cells)),
            finish_reason=self.word(self._cell("finish_reason", cells)),
            session_id=self._name("session_id", cells),
            model=self._name("model", cells),
            request_class=self._name("request_class", cells),
            replica=self.replicas.of(self._cell("replica", cells)),
            num_images=self._images(cells),
        )

    def _arrival(
        self, cells: Sequence[Any], end_ms: float | None, duration_ms: float | None
    ) -> float:
        column = self.plan.columns.get("timestamp")
        if column is None:
            if end_ms is None or duration_ms is None:
                raise _DroppedError("no_timestamp", self._heading("end"))
            return max(0.0, end_ms - duration_ms)
        clock = column.reader
        assert isinstance(clock, ColumnClock)
        cell = cells[column.place]
        if (day := self.plan.columns.get("day")) is not None:
            cell = f"{cells[day.place]} {cell}" if not is_empty(cell) else None
        found = "no_timestamp" if is_empty(cell) and not _is_nat(cell) else clock.ms(cell)
        if isinstance(found, str):
            raise _DroppedError(found, column.heading)
        return found

    def _time(self, role: Role, cells: Sequence[Any]) -> float | None:
        column = self.plan.columns.get(role)
        if column is None or is_empty(cell := cells[column.place]):
            return None
        assert isinstance(column.reader, ColumnClock)
        found = column.reader.ms(cell)
        if isinstance(found, str):
            raise _DroppedError(found if found == "other_unit" else "bad_field", column.heading)
        return found

    def _since(self, role: Role, arrival_ms: float, at_ms: float) -> float:
        since_ms = round(at_ms - arrival_ms, 3)
        if since_ms < 0:
            raise _DroppedError("negative_time", self._heading(role))
        return since_ms

    def _is_of_another_unit(self, duration_ms: float, output: int | None) -> bool:
        column = self.plan.columns.get("duration")
        if column is None or output is None:
            return False
        assert isinstance(column.reader, Spans)
        return bool(column.reader.are_of_another_unit(duration_ms, output))

    def _span(self, role: Role, cells: Sequence[Any]) -> float | None:
        column = self.plan.columns.get(role)
        if column is None:
            return None
        assert isinstance(column.reader, Spans)
        found = column.reader.ms(cells[column.place])
        if isinstance(found, str):
            raise _DroppedError(found, column.heading)
        return found

    def _lengths(self, cells: Sequence[Any], *, needed: bool) -> tuple[int | None, int | None]:
        prompt, output, total = (
            self._length(role, cells, needed=needed)
            for role in ("input_length", "output_length", "total_length")
        )
        if self.plan.prompt_is_sum and prompt is not None:
            for role in ("cached_tokens", "cache_creation_tokens"):
                prompt += self._count(role, cells) or 0
        if "total_length" in self.plan.columns and total is not None:
            if "input_length" not in self.plan.columns and output is not None:
                prompt = total - output
            elif "output_length" not in self.plan.columns and prompt is not None:
                output = total - prompt
        for role, length in (("input_length", prompt), ("output_length", output)):
            if needed and (length is None or length < 0):
                reason: Reason = "no_tokens" if length is None else "negative"
                raise _DroppedError(reason, self._heading(role))
        return prompt, output

    def _length(self, role: Role, cells: Sequence[Any], *, needed: bool) -> int | None:
        column = self.plan.columns.get(role)
        if column is None:
            return None
        assert isinstance(column.reader, Counts)
        found = column.reader.read(cells[column.place])
        if isinstance(found, str):
            if needed:
                raise _DroppedError(found, column.heading)
            return None
        return found

    def _count(self, role: Role, cells: Sequence[Any]) -> int | None:
        """Return an optional count; what is none, such as -1 for no limit, is absent."""
        return self._length(role, cells, needed=False)

    def _images(self, cells: Sequence[Any]) -> int | None:
        column = self.plan.columns.get("num_images")
        if column is None:
            return None
        assert isinstance(column.reader, Counts)
        found = column.reader.read(cells[column.place])
        if isinstance(found, str):
            raise _DroppedError("bad_field", column.heading)
        return found

    def _status(self, cells: Sequence[Any]) -> Status:
        status: Status = "ok"
        if (column := self.plan.columns.get("status")) is not None:
            found = status_in(cells[column.place], flag=self.plan.flag)
            if found is None:
                self.unknown_status = str(cells[column.place])[:LONGEST_WORD]
            status = found or "ok"
        if status == "ok" and (column := self.plan.columns.get("error")) is not None:
            status = error_in(cells[column.place])
        return status

    @staticmethod
    def word(said: object) -> str | None:
        """Return a short word such as ``stop``; nothing that could be text."""
        if not isinstance(said, str) or len(said) > LONGEST_WORD or is_absent(said):
            return None
        return said if said.replace("_", "").replace("-", "").isalnum() else None

    def _name(self, role: Role, cells: Sequence[Any]) -> str | None:
        name = self._cell(role, cells)
        if is_empty(name):
            return None
        if isinstance(name, str) and not name.isascii() and any(ord(c) in _LONE for c in name):
            raise _DroppedError("encoding", self._heading(role))
        if self.plan.as_published and role == "model":
            return str(name)
        return self.names[role].named(PSEUDONYMS[role], name)

    def _cell(self, role: Role, cells: Sequence[Any]) -> Any:  # noqa: ANN401 - whatever it holds
        column = self.plan.columns.get(role)
        return None if column is None else cells[column.place]

    def _heading(self, role: str) -> str:
        column = self.plan.columns.get(role)  # type: ignore[call-overload]
        return column.heading if column is not None else ""


def _is_nat(cell: object) -> bool:
    """Whether a cell says in words that it is no time."""
    return isinstance(cell, str) and cell.strip().lower() in ("nat", "nan")

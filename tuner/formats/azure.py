"""Rows of Azure's inference traces, which differ in how they write dates, and in one column."""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from tuner.formats import csv_rows
from tuner.formats.lines import Lines
from tuner.formats.record import Reason, Row

SECOND = rb":([0-5]\d(?:\.\d{1,9})?)"
TOKENS = rb"([1-9]\d{0,8}),([1-9]\d{0,8})"
MAX_MINUTES = 10_000


class Layout:
    """One year's columns, and how its dates are written: minute, second, zone."""

    def __init__(self, columns: bytes, minute: bytes, zone: bytes) -> None:
        images = csv_rows.COUNT + b"," if b"NumImages" in columns else b"()"
        self.columns = columns
        self.cells = columns.count(b",") + 1
        self.stamp = re.compile(b"(" + minute + b")" + SECOND + b"(" + zone + b")")
        self.row = re.compile(self.stamp.pattern + b"," + images + TOKENS)
        self.all_rows = re.compile(b"(?m)^" + self.row.pattern + rb"\r?$")

    def begins(self, head: bytes) -> bool:
        """Whether a file that begins so has this layout."""
        columns, first = csv_rows.first_lines(head)
        stamp = first.partition(b",")[0]
        return columns == self.columns and bool(self.stamp.fullmatch(stamp))

    def rows(self, lines: Lines) -> Iterator[Row]:
        """Yield rows whose timestamp is ms since 1970; dates without a zone are taken for UTC."""
        parser = _Parser(self)
        return csv_rows.rows(lines, self.columns, parser.row, parser.rows)

    def why_not(self, line: bytes) -> Reason:
        """Return why a line is no row."""
        stamp, *counts = (cell.strip() for cell in line.split(b","))
        if len(counts) != self.cells - 1:
            return "malformed"
        if not self.stamp.fullmatch(stamp):
            return "bad_timestamp" if stamp else "no_timestamp"
        *images, prompt, output = counts
        if images and not re.fullmatch(csv_rows.COUNT, images[0]):
            return "bad_field"
        return csv_rows.bad_count((prompt, output))


class _Parser:
    """Reads rows; knows the minutes that it has met."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.minutes: dict[bytes, float] = {}

    def row(self, line: bytes) -> Row | Reason:
        match = self.layout.row.fullmatch(line)
        if match is None:
            return self.layout.why_not(line)
        try:
            (row,) = self._rows([match.groups()])
        except ValueError:
            return "bad_timestamp"
        return row

    def rows(self, block: bytes) -> list[Row] | None:
        found = self.layout.all_rows.findall(block)
        if len(found) != block.count(b"\n") + 1:
            return None
        try:
            return self._rows(found)
        except ValueError:
            return None

    def _rows(self, found: Iterable[tuple[bytes, ...]]) -> list[Row]:
        """Return rows of the six groups. Raises ValueError where one has no such date."""
        rows = []
        last_minute, last_zone, last_ms = b"", b"", 0.0
        for minute, second, zone, images, prompt, output in found:
            if minute != last_minute or zone != last_zone:
                last_minute, last_zone = minute, zone
                last_ms = self._minute_ms(minute + zone)
            stamp_ms = last_ms + float(second) * 1000
            if images:
                row = Row(stamp_ms, int(prompt), int(output), num_images=int(images))
            else:
                row = Row(stamp_ms, int(prompt), int(output))
            rows.append(row)
        return rows

    def _minute_ms(self, minute: bytes) -> float:
        known_ms = self.minutes.get(minute)
        if known_ms is None:
            if len(self.minutes) >= MAX_MINUTES:
                self.minutes.clear()
            known_ms = self.minutes[minute] = _ms(minute)
        return known_ms


def _ms(minute: bytes) -> float:
    """Return ms since 1970. Raises ValueError for what is no date, or an earlier one."""
    moment = datetime.fromisoformat(minute.decode())
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if moment.timestamp() < 0:
        raise ValueError(minute)
    return moment.timestamp() * 1000

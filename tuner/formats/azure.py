"""Rows of Azure's inference traces, which differ in how they write dates, and in one column."""

import re
from collections.abc import Callable, Iterator
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

    def begins(self, head: bytes) -> bool:
        """Whether a file that begins so has this layout."""
        columns, first = csv_rows.first_lines(head)
        stamp = first.partition(b",")[0]
        return columns == self.columns and bool(self.stamp.fullmatch(stamp))

    def rows(self, lines: Lines) -> Iterator[Row]:
        """Yield rows whose timestamp is ms since 1970; dates without a zone are taken for UTC."""
        return csv_rows.rows(lines, self.columns, self._parser())

    def _parser(self) -> Callable[[bytes], Row | Reason]:
        fullmatch = self.row.fullmatch
        minutes: dict[bytes, float] = {}

        def parse(line: bytes) -> Row | Reason:
            match = fullmatch(line)
            if match is None:
                return self._why_not(line)
            minute, second, zone, images, prompt, output = match.groups()
            minute_ms = minutes.get(minute + zone)
            if minute_ms is None:
                try:
                    minute_ms = _ms(minute + zone)
                except ValueError:
                    return "bad_timestamp"
                if len(minutes) >= MAX_MINUTES:
                    minutes.clear()
                minutes[minute + zone] = minute_ms
            stamp_ms = minute_ms + float(second) * 1000
            if images:
                return Row(stamp_ms, int(prompt), int(output), num_images=int(images))
            return Row(stamp_ms, int(prompt), int(output))

        return parse

    def _why_not(self, line: bytes) -> Reason:
        stamp, *counts = (cell.strip() for cell in line.split(b","))
        if len(counts) != self.cells - 1:
            return "malformed"
        if not self.stamp.fullmatch(stamp):
            return "bad_timestamp" if stamp else "no_timestamp"
        *images, prompt, output = counts
        if images and not re.fullmatch(csv_rows.COUNT, images[0]):
            return "bad_field"
        return csv_rows.bad_count((prompt, output))


def _ms(minute: bytes) -> float:
    """Return ms since 1970. Raises ValueError for what is no date, or an earlier one."""
    moment = datetime.fromisoformat(minute.decode())
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if moment.timestamp() < 0:
        raise ValueError(minute)
    return moment.timestamp() * 1000

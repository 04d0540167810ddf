"""The rows of a file of any size as bytes, in bounded memory: a line each, or a JSON value each."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tuner.errors import TraceError, UsageError
from tuner.trace.formats.reading.json_values import spans_lines, values
from tuner.trace.formats.reading.record import Tally
from tuner.trace.formats.reading.source import TimeUnit

MAX_LINE_BYTES = 4 * 2**20
MAX_DOCUMENT_BYTES = 256 * 2**20
CHUNK_BYTES = 2**20
HEAD_BYTES = 2**16
BOM = b"\xef\xbb\xbf"


class TraceFile:
    """Iterate over ``(line number, row)``; without line ends, blank lines and a UTF-8 BOM.

    A row is a line. In a file that is one JSON array of objects, or objects that span lines each,
    it is one object, and its number is that of the line where it begins. A row above ``longest``
    is counted in the tally and skipped, never held in memory.
    """

    def __init__(self, path: Path, tally: Tally, *, allow_text: bool = False) -> None:
        self.path = path
        self.tally = tally
        self.allow_text = allow_text
        self.longest = MAX_LINE_BYTES
        """A format whose rows come in batches may set it higher before the first line is read."""

        self.unterminated: int | None = None
        """The number of the last row, once it is reached, if its end is not in the file."""

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        with self.path.open("rb") as file:
            start = self._start(file)
            head = file.read(HEAD_BYTES)
            file.seek(start)
            if spans_lines(head):
                yield from self._values(file, array=head.lstrip().startswith(b"["))
            else:
                for number, block in self._blocks(file):
                    yield from self.split(number, block)

    def document(self) -> bytes:
        """Return the whole file. Raises TraceError above MAX_DOCUMENT_BYTES."""
        with self.path.open("rb") as file:
            self._start(file)
            text = file.read(MAX_DOCUMENT_BYTES + 1)
        if len(text) > MAX_DOCUMENT_BYTES:
            raise TraceError(
                f"{self.path}: one JSON document of more than {MAX_DOCUMENT_BYTES >> 20} MiB",
                hint="Write one request a line, or split it.",
            )
        self.tally.bytes_read += len(text)
        return text

    def again(self) -> "TraceFile":
        """Return the same rows for another look, which counts nothing in the tally of this one."""
        other = TraceFile(self.path, Tally(self.tally.place), allow_text=self.allow_text)
        other.longest = self.longest
        return other

    def refuse_text(self, number: int, key: str) -> None:
        """Raise TraceError for a row that holds text, unless the user said that it may."""
        if not self.allow_text:
            raise TraceError(
                f"{self.path}:{number}: holds text ({key})",
                hint="tuner trace import --allow-text reads the rest; no text is ever written.",
            )

    def refuse_unit(self, time_unit: TimeUnit | None, *, the_stamps_are: str) -> None:
        """Raise UsageError for a unit where the format leaves no choice."""
        if time_unit is not None:
            raise UsageError(
                f"{self.path}: the stamps are {the_stamps_are}", hint="Leave out --time-unit."
            )

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield ``(number of the first line, whole lines)``, about CHUNK_BYTES at a time.

        For formats of one row a line that can read many at once. A line above ``longest`` bytes may
        still be among them.
        """
        with self.path.open("rb") as file:
            self._start(file)
            yield from self._blocks(file)

    def split(self, first: int, block: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the lines of a block, as iterating over all would."""
        for number, line in enumerate(block.split(b"\n"), start=first):
            if len(line) > self.longest:
                self._too_long(number)
            elif line := line.strip():
                yield number, line

    def _blocks(self, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
        number, rest = 1, b""
        skipping = False  # inside a line that is too long
        for chunk in self._chunks(file):
            if skipping:
                _, end, chunk = chunk.partition(b"\n")  # noqa: PLW2901 - what is left of it
                skipping = not end
            whole, end, rest = (rest + chunk).rpartition(b"\n")
            if end:
                yield number, whole
                number += whole.count(b"\n") + 1
            if len(rest) > self.longest:
                self._too_long(number)
                number += 1
                rest = b""
                skipping = True
        if rest.strip():
            self.unterminated = number
            yield number, rest

    def _values(self, file: BinaryIO, *, array: bool) -> Iterator[tuple[int, bytes]]:
        found = values(self._chunks(file), array=array, longest=self.longest)
        for number, value, whole in found:
            if not whole:
                self.unterminated = number
            if value is None:
                self._too_long(number)
            else:
                yield number, value

    def _chunks(self, file: BinaryIO) -> Iterator[bytes]:
        while chunk := file.read(CHUNK_BYTES):
            self.tally.bytes_read += len(chunk)
            yield chunk

    def _too_long(self, number: int) -> None:
        self.tally.rows_read += 1
        self.tally.drop("line_too_long", number)

    @staticmethod
    def _start(file: BinaryIO) -> int:
        """Move behind a byte order mark; return the position."""
        start = len(BOM) if file.read(len(BOM)) == BOM else 0
        return file.seek(start)

"""Lines of a file of any size, in bounded memory."""

from collections.abc import Iterator
from pathlib import Path

from tuner.formats.record import Tally

MAX_LINE_BYTES = 4 * 2**20
CHUNK_BYTES = 2**20
BOM = b"\xef\xbb\xbf"


class Lines:
    """Iterate over ``(line number, line)``; without line ends, blank lines and a UTF-8 BOM.

    A line above MAX_LINE_BYTES is counted in the tally and skipped, never held in memory.
    """

    def __init__(self, path: Path, tally: Tally) -> None:
        self.path = path
        self.tally = tally
        self.unterminated: int | None = None
        """The number of the last line, once it is reached, if no line end follows it."""

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        number, rest = 0, b""
        skipping = False  # inside a line that is too long
        with self.path.open("rb") as file:
            if file.read(len(BOM)) != BOM:
                file.seek(0)
            while chunk := file.read(CHUNK_BYTES):
                self.tally.bytes_read += len(chunk)
                if skipping:
                    _, end, chunk = chunk.partition(b"\n")
                    skipping = not end
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    number += 1
                    if len(line) > MAX_LINE_BYTES:
                        self._too_long(number)
                    elif line := line.strip():
                        yield number, line
                if len(rest) > MAX_LINE_BYTES:
                    number += 1
                    self._too_long(number)
                    rest = b""
                    skipping = True
        if rest := rest.strip():
            self.unterminated = number + 1
            yield number + 1, rest

    def _too_long(self, number: int) -> None:
        self.tally.rows_read += 1
        self.tally.drop("line_too_long", number)

"""The rows of a file of any size as bytes, in bounded memory: a line each, or a JSON value each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tuner.errors import TraceError, UsageError
from tuner.trace.formats.reading.byte_chunks import chunks, line_ends
from tuner.trace.formats.reading.header import TimeUnit
from tuner.trace.formats.reading.json_values import spans_lines, values
from tuner.trace.formats.reading.record import Tally

MAX_LINE_BYTES = 4 * 2**20
MAX_DOCUMENT_BYTES = 256 * 2**20
STDIN = "stdin"
"""Name of standard input in messages."""

HEAD_BYTES = 2**16
SAMPLE_BYTES = 2**22
"""Of a file whose first rows tell how it is read."""

ARROW_MARKS = (b"PAR1", b"ARROW1")
"""With which a Parquet or Arrow file begins."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The user's word on a table; empty where nothing was said."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """Role, or role and unit (``duration_ms``) → heading, dotted path, or ``#`` and number."""

    time_unit: TimeUnit | None = None
    delimiter: str | None = None

    def __bool__(self) -> bool:
        return bool(self.columns or self.delimiter)


def columns_asked(text: str) -> dict[str, str]:
    """Read ``--columns timestamp=ts,input_length=prompt_tok``. Raises UsageError."""
    found: dict[str, str] = {}
    for part in text.replace("\\,", "\0").split(","):
        role, equals, heading = part.replace("\0", ",").partition("=")
        if not equals or not role.strip():
            raise UsageError(
                f"--columns: cannot read {part!r}",
                hint="Write it as timestamp=ts,input_length=prompt_tok,output_length=gen_tok.",
            )
        found[role.strip()] = heading.strip()
    return found


def delimiter_asked(text: str) -> str:
    """Read ``--delimiter``. Raises UsageError for what is not one character."""
    found = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|"}.get(text, text)
    if len(found) != 1 or found in '"\n\r' or not found.isascii():
        raise UsageError(
            f"--delimiter {text!r} is not one character", hint="Write ';', ',', '|' or tab."
        )
    return found


class TraceFile:
    """The rows of a file: iterates over ``(line number, row)``, without line ends, blank lines and
    a UTF-8 BOM.

    A row is a line. In a file that is one JSON array of objects, or objects that span lines each,
    it is one object, and its number is that of the line where it begins. A row above ``longest`` is
    counted in the tally and skipped, never held in memory.
    """

    def __init__(
        self,
        path: Path,
        tally: Tally,
        *,
        allow_text: bool = False,
        asked: TableOptions | None = None,
    ) -> None:
        self.path = path
        self.asked = asked or TableOptions()
        """What the user says of a table."""

        self.tally = tally
        self.allow_text = allow_text
        self.longest = MAX_LINE_BYTES
        """A format whose rows come in batches may set it higher before the first line is read."""

        self.encoding: str | None = None
        """Of a table that is not in UTF-8."""

        self.unterminated: int | None = None
        """The number of the last row, once it is reached, if its end is not in the file."""

    @property
    def place(self) -> str:
        """The name of the file in messages."""
        return self.tally.place

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        if self.spans_lines():
            yield from self._values(array=self.head(HEAD_BYTES).lstrip().startswith(b"["))
        else:
            for number, block in self.blocks():
                yield from self.split(number, block)

    def head(self, size: int) -> bytes:
        """Return the first bytes, and count nothing."""
        found = b""
        for piece in chunks(self.path):
            found += piece
            if len(found) >= size:
                break
        return found[:size]

    def spans_lines(self) -> bool:
        """Return whether the rows are JSON that is not one a line."""
        return spans_lines(self.head(HEAD_BYTES))

    def document(self) -> bytes:
        """Return the whole file. Raises TraceError above MAX_DOCUMENT_BYTES."""
        parts: list[bytes] = []
        for piece in chunks(self.path, self.counted):
            parts.append(piece)
            if sum(map(len, parts)) > MAX_DOCUMENT_BYTES:
                raise TraceError(
                    f"{self.place}: one JSON document of more than {MAX_DOCUMENT_BYTES >> 20} MiB",
                    hint="Write one request a line, or split it.",
                )
        return b"".join(parts)

    def again(self) -> "TraceFile":
        """Return the same rows for another look, which counts nothing in the tally of this one."""
        tally = Tally(self.tally.place)
        other = TraceFile(self.path, tally, allow_text=self.allow_text, asked=self.asked)
        other.longest, other.encoding = self.longest, self.encoding
        return other

    def refuse_text(self, number: int, key: str) -> None:
        """Raise TraceError for a row that holds text, unless the user said that it may."""
        if not self.allow_text:
            raise TraceError(
                f"{self.place}:{number}: holds text ({key})",
                hint="tuner trace import --allow-text reads the rest; no text is ever written.",
            )

    def refuse_unit(self, time_unit: TimeUnit | None, *, the_stamps_are: str) -> None:
        """Raise UsageError for a unit where the format leaves no choice."""
        if time_unit is not None:
            raise UsageError(
                f"{self.place}: the stamps are {the_stamps_are}", hint="Leave out --time-unit."
            )

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield ``(number of the first line, whole lines)``, some MiB at a time.

        For formats of one row a line that can read many at once. A line above ``longest`` bytes may
        still be among them.
        """
        number, rest = 1, b""
        skipping = False  # inside a line that is too long
        for chunk in chunks(self.path, self.counted, encoding=self.encoding):
            if skipping:
                _, end, chunk = chunk.partition(b"\n")  # noqa: PLW2901 - what is left of it
                skipping = not end
            end_at = chunk.rfind(b"\n")
            if end_at >= 0:
                whole = b"".join([rest, memoryview(chunk)[:end_at]])
                yield number, whole
                number += line_ends(whole) + 1
                rest = b""
            rest += chunk[end_at + 1 :]
            if len(rest) > self.longest:
                self.too_long(number)
                number += 1
                rest = b""
                skipping = True
        if rest.strip():
            self.unterminated = number
            yield number, rest

    def split(self, first: int, block: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the lines of a block, as iterating over all would."""
        for number, line in enumerate(block.split(b"\n"), start=first):
            if len(line) > self.longest:
                self.too_long(number)
            elif line := line.strip():
                yield number, line

    def _values(self, *, array: bool) -> Iterator[tuple[int, bytes]]:
        pieces = chunks(self.path, self.counted)
        for number, value, whole in values(pieces, array=array, longest=self.longest):
            if not whole:
                self.unterminated = number
            if value is None:
                self.too_long(number)
            else:
                yield number, value

    def counted(self, size: int) -> None:
        """Count bytes of the file that were read."""
        self.tally.bytes_read += size

    def too_long(self, number: int) -> None:
        """Count a row that is too long to be read."""
        self.tally.lose("line_too_long", number)

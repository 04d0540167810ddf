"""The bytes of a file of any size: its beginning, and its lines, unpacked and as UTF-8."""

import bz2
import codecs
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa

from tuner.errors import TraceError
from tuner.system.memory import at_most
from tuner.trace.raw import Tally

CHUNK_BYTES = 2**22

SAMPLE_BYTES = 2**22
"""Of a file whose first rows show how it is read."""

MAX_LINE_BYTES = 64 * 2**20
"""A collector's batch of spans, or a page of an API, is one line of some MiB."""

MAX_DOCUMENT_BYTES = 128 * 2**20

UNPACKING_BYTES = 2**29
"""Memory that unpacking a chunk may take: xz takes what the file says, up to 4 GiB."""

ARROW_MARKS = (b"PAR1", b"ARROW1")

SIGNATURES = {
    b"PK\x03\x04": ("a zip archive, or a spreadsheet", "Unpack it, or export it as CSV."),
    b"SQLite format 3": ("an SQLite database", "Export the table as CSV first."),
    b"version https://git-lfs": ("a pointer of Git LFS, not the file", "Fetch it: git lfs pull."),
    b"<": ("a page of HTML or XML, not a trace", "Download the raw file itself."),
}


class TraceFile:
    """A file of any size: its first bytes, and its lines in blocks, unpacked and as UTF-8."""

    def __init__(self, path: Path, tally: Tally) -> None:
        self.path, self.tally = path, tally

    @cached_property
    def head(self) -> bytes:
        """The first bytes. Raises TraceError for what cannot be a trace."""
        place = self.tally.place
        try:
            if self.path.exists() and not self.path.is_file():
                raise TraceError(f"{place}: not a regular file", hint="Write it to a file first.")
            with self.path.open("rb") as file:
                mark = file.read(32)
            self.tally.bytes_total = self.path.stat().st_size
            found = b""
            for piece in _chunks(self.path, lambda _: None):
                found += piece
                if len(found) > SAMPLE_BYTES:
                    break
        except OSError as error:
            what = (error.strerror or str(error)).lower()
            raise TraceError(f"{place}: {what}", hint="Shipped traces are in traces/.") from error
        for signature, (what, cure) in SIGNATURES.items():
            if mark.startswith(signature):
                raise TraceError(f"{place}: {what}", hint=cure)
        if not found.strip():
            raise TraceError(f"{place}: empty", hint="Capture or import a trace first.")
        if not found.startswith(ARROW_MARKS) and b"\x00" in found.partition(b"\n")[0]:
            raise TraceError(f"{place}: binary, not text", hint="A trace is UTF-8 text or Parquet.")
        return found

    @property
    def is_whole(self) -> bool:
        """Whether the head is all there is."""
        return len(self.head) <= SAMPLE_BYTES

    @cached_property
    def encoding(self) -> str | None:
        """The encoding of a table that is not in UTF-8: that of spreadsheets in the west."""
        text = self.head.decode(errors="replace").rstrip("\ufffd")  # the head may break off
        is_western = "\ufffd" in text and text.replace("\ufffd", "").isascii()
        return "cp1252" if is_western and not text.lstrip().startswith(("{", "[")) else None

    def chunks(self) -> Iterator[bytes]:
        """Yield the file as UTF-8, and count its bytes in the tally."""

        def count(size: int) -> None:
            self.tally.bytes_read += size

        return _chunks(self.path, count, self.encoding)

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield (number of the first line, whole lines); count lines that are too long."""
        number, rest, skipping = 1, b"", False
        for chunk in self.chunks():
            if skipping:
                _, end, chunk = chunk.partition(b"\n")  # noqa: PLW2901 - what is left of it
                skipping = not end
            end_at = chunk.rfind(b"\n")
            if end_at >= 0:
                whole = rest + chunk[:end_at]
                yield number, whole
                number += whole.count(b"\n") + 1
                rest = b""
            rest += chunk[end_at + 1 :]
            if len(rest) > MAX_LINE_BYTES:
                self.tally.lose("line_too_long", number)
                number, rest, skipping = number + 1, b"", True
        if rest.strip():
            yield number, rest

    def document(self) -> bytes:
        """Return all of the file. Raises TraceError where that is too much."""
        parts: list[bytes] = []
        for piece in self.chunks():
            parts.append(piece)
            if sum(map(len, parts)) > MAX_DOCUMENT_BYTES:
                raise TraceError(
                    f"{self.tally.place}: a JSON document of more than "
                    f"{MAX_DOCUMENT_BYTES >> 20} MiB",
                    hint="Write one request a line: jq -c '.[]' FILE > rows.jsonl",
                )
        return b"".join(parts)


def _chunks(
    path: Path, count: Callable[[int], None], encoding: str | None = None
) -> Iterator[bytes]:
    """Yield what a file holds, unpacked, as UTF-8, without a mark, with plain line ends."""
    with ExitStack() as closing:
        file = closing.enter_context(path.open("rb"))
        stream = closing.enter_context(_unpacked(file))
        pieces = _pieces(stream, file, path, count)
        first = b""
        while len(first) < 2**16 and (piece := next(pieces, b"")):
            first += piece
        if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            encoding = "utf-16"
        old_mac = b"\r" in first and b"\n" not in first
        decoder = codecs.getincrementaldecoder(encoding or "utf-8")("replace")
        for at_piece, piece in enumerate(_with(first, pieces)):
            text = decoder.decode(piece).encode() if encoding else piece
            text = text.removeprefix(codecs.BOM_UTF8) if at_piece == 0 else text
            yield text.replace(b"\r", b"\n") if old_mac else text


def _with(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _unpacked(file: BinaryIO) -> BinaryIO:
    """Return the stream that the file holds, by its first bytes."""
    mark = file.read(6)
    file.seek(0)
    if mark.startswith(b"\x1f\x8b"):
        return cast("BinaryIO", gzip.GzipFile(fileobj=file))
    if mark.startswith(b"BZh"):
        return cast("BinaryIO", bz2.BZ2File(file))
    if mark == b"\xfd7zXZ\x00":
        return cast("BinaryIO", lzma.LZMAFile(file))
    arrows = {b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
    if codec := arrows.get(mark[:4]):
        return cast("BinaryIO", pa.CompressedInputStream(pa.PythonFile(file, "r"), codec))
    return file


def _pieces(
    stream: BinaryIO, file: BinaryIO, path: Path, count: Callable[[int], None]
) -> Iterator[bytes]:
    taken = told = 0
    while True:
        try:
            with at_most(UNPACKING_BYTES):
                piece = stream.read(CHUNK_BYTES)
        except MemoryError:
            raise TraceError(
                f"{path}: unpacking it takes more than {UNPACKING_BYTES >> 20} MiB",
                hint="Pack it again with the packer's usual settings.",
            ) from None
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as problem:
            if isinstance(problem, OSError) and problem.errno is not None:
                raise
            raise TraceError(
                f"{path}: packed data breaks off or is damaged after {taken:,} bytes",
                hint="Copy or download the file again.",
            ) from None
        if not piece:
            return
        taken += len(piece)
        if not file.closed:
            count(file.tell() - told)
            told = file.tell()
        yield piece

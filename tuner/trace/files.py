"""The bytes of a file of any size: its beginning, and its lines, unpacked and as UTF-8."""

import codecs
import lzma
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from tuner.errors import TraceError
from tuner.system.memory import at_most
from tuner.trace.raw import Tally

CHUNK_BYTES = 2**22
"""Bytes that are read at once; as many show how a file is read."""

MAX_LINE_BYTES = 64 * 2**20
"""A collector's batch of spans, or a page of an API, is one line of some MiB."""

MAX_DOCUMENT_BYTES = 128 * 2**20
UNPACKING_BYTES = 2**29
"""Memory that unpacking a chunk may take: xz takes what the file says, up to 4 GiB."""

PARQUET = b"PAR1"
PACKERS = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bz2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}
SIGNATURES = {
    b"PK\x03\x04": ("a zip archive, or a spreadsheet", "Unpack it, or export it as CSV."),
    b"SQLite format 3": ("an SQLite database", "Export the table as CSV first."),
    b"version https://git-lfs": ("a pointer of Git LFS, not the file", "Fetch it: git lfs pull."),
    b"<": ("a page of HTML or XML, not a trace", "Download the raw file itself."),
    b"ARROW1": ("an Arrow file", "Write it as Parquet: df.to_parquet(...)."),
}


class TraceFile:
    """A file of any size: its first bytes, and its lines in blocks, unpacked and as UTF-8."""

    def __init__(self, path: Path, tally: Tally) -> None:
        self.path, self.tally = path, tally

    @cached_property
    def head(self) -> bytes:
        """The first bytes. Raises TraceError for what cannot be a trace."""
        place = self.tally.place
        if self.path.exists() and not self.path.is_file():
            raise TraceError(f"{place}: not a regular file", hint="Write it to a file first.")
        with self.path.open("rb") as file:
            mark = file.read(32)
        self.tally.bytes_total = self.path.stat().st_size
        result = b""
        for piece in self.chunks():
            result += piece
            if len(result) > CHUNK_BYTES:
                break
        for signature, (what, cure) in SIGNATURES.items():
            if mark.startswith(signature):
                raise TraceError(f"{place}: {what}", hint=cure)
        if not result.strip():
            raise TraceError(f"{place}: empty", hint="Capture or import a trace first.")
        if not result.startswith(PARQUET) and b"\x00" in result.partition(b"\n")[0]:
            raise TraceError(f"{place}: binary, not text", hint="A trace is UTF-8 text or Parquet.")
        return result

    @property
    def is_whole(self) -> bool:
        """Whether the head is all there is."""
        return len(self.head) <= CHUNK_BYTES

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield (number of the first line, whole lines). Raises TraceError for an endless one."""
        number, rest = 1, b""
        for chunk in self.chunks():
            whole, end, more = chunk.rpartition(b"\n")
            if end:
                yield number, rest + whole
                number += rest.count(b"\n") + whole.count(b"\n") + 1
            rest = more if end else rest + more
            if len(rest) > MAX_LINE_BYTES:
                much = f"a line of more than {MAX_LINE_BYTES >> 20} MiB"
                raise TraceError(f"{self.tally.place}:{number}: {much}", hint="Cut it out.")
        if rest.strip():
            yield number, rest

    def document(self) -> bytes:
        """Return all of the file. Raises TraceError where that is too much."""
        text = bytearray()
        for piece in self.chunks():
            text += piece
            if len(text) > MAX_DOCUMENT_BYTES:
                much = f"a JSON document of more than {MAX_DOCUMENT_BYTES >> 20} MiB"
                cure = "Write one request a line: jq -c '.[]' FILE > rows.jsonl"
                raise TraceError(f"{self.tally.place}: {much}", hint=cure)
        return bytes(text)

    def chunks(self) -> Iterator[bytes]:
        """Yield the file as UTF-8, without a mark, and count its bytes in the tally."""
        with self.path.open("rb") as file:
            stream = _unpacked(file)
            piece = self._next(stream, file)
            is_utf_16 = piece.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
            encoding = "utf-16" if is_utf_16 else "utf-8-sig"
            is_text = not piece.startswith(PARQUET)
            decoder = codecs.getincrementaldecoder(encoding)("replace")
            while piece:
                yield decoder.decode(piece).encode() if is_text else piece
                piece = self._next(stream, file)

    def _next(self, stream: Any, file: BinaryIO) -> bytes:  # noqa: ANN401 - Arrow's too
        try:
            with at_most(UNPACKING_BYTES):
                piece: bytes = stream.read(CHUNK_BYTES)
        except MemoryError:
            raise TraceError(
                f"{self.path}: unpacking it takes more than {UNPACKING_BYTES >> 20} MiB",
                hint="Pack it again with the packer's usual settings.",
            ) from None
        except (EOFError, OSError, lzma.LZMAError) as problem:
            if isinstance(problem, OSError) and problem.errno is not None:
                raise
            raise TraceError(
                f"{self.path}: packed data breaks off or is damaged",
                hint="Copy or download the file again.",
            ) from None
        self.tally.bytes_read = file.tell()
        return piece


def _unpacked(file: BinaryIO) -> Any:  # noqa: ANN401 - Arrow's streams are untyped
    """Return the stream that the file holds, by its first bytes."""
    mark = file.read(6)
    file.seek(0)
    if mark == b"\xfd7zXZ\x00":
        return lzma.LZMAFile(file)
    codecs_ = [codec for sign, codec in PACKERS.items() if mark.startswith(sign)]
    return pa.CompressedInputStream(pa.PythonFile(file, "r"), codecs_[0]) if codecs_ else file

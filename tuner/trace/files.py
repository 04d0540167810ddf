"""A file of any size: its bytes, unpacked and as UTF-8, and the count of its rows."""

import codecs
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from tuner.errors import TraceError
from tuner.trace.record import REASONS

CHUNK_BYTES = 2**22
"""Bytes that are read at once; as many show how a file is read."""

MAX_LINE_BYTES = 64 * 2**20
"""A collector's batch of spans, or a page of an API, is one line of some MiB."""

MAX_DOCUMENT_BYTES = 128 * 2**20

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
    "\ufffd7zXZ".encode(): ("packed with xz", "Unpack it: xz -dk FILE; or pack it with zstd."),
}


@dataclass
class TraceFile:
    """A file, and what became of its rows: those that were read, and those that were dropped."""

    path: Path
    allow_text: bool = False
    """Rows that hold text are read without it; otherwise they refuse the file."""
    unit: str = "line"
    """What numbers count: lines of text, or rows of a document or a Parquet file."""
    rows_read: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    """The place of the first row of each reason."""
    notes: dict[str, None] = field(default_factory=dict)
    """What the reading assumed, in order."""

    def at(self, number: int) -> str:
        """Return the name of a row in messages."""
        return f"{self.path}:{number}" if self.unit == "line" else f"{self.path}: row {number}"

    def note(self, text: str) -> None:
        self.notes[text] = None

    def drop(self, reason: str, number: int, *, count: int = 1) -> None:
        """Count rows that cannot be used; they are counted as read elsewhere."""
        self.dropped[reason] += count
        self.first.setdefault(reason, self.at(number))

    def lose(self, number: int) -> None:
        """Count a row that was read and is none."""
        self.rows_read += 1
        self.drop("malformed", number)

    def warnings(self) -> list[str]:
        """Return a line for each reason that cost rows."""
        return [
            f"{count:,} of {self.rows_read:,} rows dropped ({reason}: {REASONS[reason]}), "
            f"first at {self.first[reason]}"
            for reason, count in self.dropped.most_common()
        ]

    @cached_property
    def head(self) -> bytes:
        """The first lines. Raises TraceError for what cannot be a trace."""
        if self.path.exists() and not self.path.is_file():
            raise TraceError(f"{self.path}: not a regular file", hint="Write it to a file first.")
        result = b""
        for piece in self.chunks():
            result += piece
            if len(result) > CHUNK_BYTES:
                result = result.rpartition(b"\n")[0] or result
                break
        for signature, (what, cure) in SIGNATURES.items():
            if result.startswith(signature):
                raise TraceError(f"{self.path}: {what}", hint=cure)
        if not result.strip():
            raise TraceError(f"{self.path}: empty", hint="Capture or import a trace first.")
        if not result.startswith(PARQUET) and b"\x00" in result.partition(b"\n")[0]:
            cure = "A trace is UTF-8 text or Parquet."
            raise TraceError(f"{self.path}: binary, not text", hint=cure)
        return result

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield (number of the first line, whole lines). Raises TraceError for an endless one."""
        number, rest = 1, b""
        for chunk in self.chunks():
            lines, end, more = chunk.rpartition(b"\n")
            if end:
                yield number, rest + lines
                number += rest.count(b"\n") + lines.count(b"\n") + 1
            rest = more if end else rest + more
            if len(rest) > MAX_LINE_BYTES:
                much = f"a line of more than {MAX_LINE_BYTES >> 20} MiB"
                raise TraceError(f"{self.path}:{number}: {much}", hint="Cut it out.")
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
                raise TraceError(f"{self.path}: {much}", hint=cure)
        return bytes(text)

    def chunks(self) -> Iterator[bytes]:
        """Yield the file unpacked, and text as UTF-8 without a mark."""
        decoder = None
        try:
            with self.path.open("rb") as file:
                mark = file.read(6)
                file.seek(0)
                packer = next((PACKERS[sign] for sign in PACKERS if mark.startswith(sign)), None)
                source = pa.PythonFile(file, "r")
                stream = pa.CompressedInputStream(source, packer) if packer else file
                while piece := stream.read(CHUNK_BYTES):
                    if decoder is None:
                        is_utf_16 = piece.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
                        encoding = "utf-16" if is_utf_16 else "utf-8-sig"
                        decoder = codecs.getincrementaldecoder(encoding)("replace")
                    yield decoder.decode(piece).encode()
        except OSError as problem:
            if problem.errno is not None:
                raise
            raise TraceError(
                f"{self.path}: packed data breaks off or is damaged",
                hint="Copy or download the file again.",
            ) from None

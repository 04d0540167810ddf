"""The bytes of a file as UTF-8, a chunk at a time: unpacked, and without a byte order mark."""

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from tuner.errors import TraceError
from tuner.system.memory import at_most

CHUNK_BYTES = 2**22
UNPACKING_BYTES = 2**29
"""Memory that unpacking a chunk may take: xz takes what the file says, up to 4 GiB."""

SNIFFED_BYTES = 2**16
LONG_BYTES = 2**20
(LINE_END,) = b"\n"
UTF_8 = b"\xef\xbb\xbf"

GZIP, BZIP2, XZ = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00"
ARROWS = {b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
"""Marks of packed files that Python's own library does not unpack."""

UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
DAMAGED = (EOFError, zlib.error, lzma.LZMAError)


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def chunks(
    path: Path, read: Callable[[int], object] = lambda _: None, *, encoding: str | None = None
) -> Iterator[bytes]:
    """Yield what the file holds, packed with gzip, bzip2, xz, zstd or lz4 or not, as UTF-8.

    UTF-16 is told by its mark; any other ``encoding`` must be named.
    ``read`` is told how many bytes of the file itself each step took. Raises TraceError for packed
    data that breaks off or is damaged, OSError for a file that cannot be read.
    """
    with ExitStack() as closing:
        file = closing.enter_context(path.open("rb"))
        stream = closing.enter_context(_unpacked(_Counted(file, read)))
        plain = _pieces(stream, path)
        first = b""
        while len(first) < SNIFFED_BYTES and (piece := next(plain, b"")):
            first += piece
        if first.startswith(UTF_16):
            encoding = "utf-16"
        if encoding is not None:
            decoder = codecs.getincrementaldecoder(encoding)("replace")
            plain = (decoder.decode(piece).encode() for piece in plain)
            first = decoder.decode(first).encode()
        first = first.removeprefix(UTF_8)
        sniffed = first[:SNIFFED_BYTES]
        old_mac = b"\r" in sniffed and b"\n" not in sniffed
        for piece in _with(first, plain):
            yield piece.replace(b"\r", b"\n") if old_mac else piece


def line_ends(block: bytes) -> int:
    """Return how many there are: a long block is counted in a tenth of the time of ``count``."""
    if len(block) < LONG_BYTES:
        return block.count(b"\n")
    import numpy as np  # noqa: PLC0415 - slow to load

    return int(np.count_nonzero(np.frombuffer(block, np.uint8) == LINE_END))


def _with(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    for begin in range(0, len(first), CHUNK_BYTES):
        yield first[begin : begin + CHUNK_BYTES]
    yield from rest


class _Counted(io.RawIOBase):
    """A file that tells how much of it was read."""

    def __init__(self, file: BinaryIO, read: Callable[[int], object]) -> None:
        self._file, self._told = file, read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        size = cast("io.BufferedReader", self._file).readinto(buffer)
        self._told(size)
        return size


def _unpacked(file: _Counted) -> BinaryIO:
    """Return the stream that the file holds, told by its first bytes."""
    buffered = io.BufferedReader(file, 2**18)
    mark = buffered.peek(6)[:6]
    if mark.startswith(GZIP):
        return cast("BinaryIO", gzip.GzipFile(fileobj=buffered))
    if mark.startswith(BZIP2):
        return cast("BinaryIO", bz2.BZ2File(buffered))
    if mark == XZ:
        return cast("BinaryIO", lzma.LZMAFile(buffered))
    if codec := ARROWS.get(mark[:4]):
        import pyarrow as pa  # noqa: PLC0415 - slow to import, and only for these

        return cast("BinaryIO", pa.CompressedInputStream(pa.PythonFile(buffered, "r"), codec))
    return buffered


def _pieces(stream: _Readable, path: Path) -> Iterator[bytes]:
    taken = 0
    while True:
        try:
            with at_most(UNPACKING_BYTES):
                piece = stream.read(CHUNK_BYTES)
        except MemoryError:
            raise TraceError(
                f"{path}: unpacking it takes more than {UNPACKING_BYTES >> 20} MiB",
                hint="Pack it again with the packer's usual settings.",
            ) from None
        except gzip.BadGzipFile as problem:
            raise _damaged(path, taken, problem) from None
        except DAMAGED as problem:
            raise _damaged(path, taken, problem) from None
        except OSError as problem:
            if problem.errno is not None:
                raise
            raise _damaged(path, taken, problem) from None  # of a codec
        if not piece:
            return
        taken += len(piece)
        yield piece


def _damaged(path: Path, taken: int, problem: Exception) -> TraceError:
    return TraceError(
        f"{path}: packed data breaks off or is damaged after {taken:,} bytes: {problem}",
        hint="Copy or download the file again.",
    )

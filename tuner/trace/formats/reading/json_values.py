"""JSON values that stand in an array, or over several lines each: found in bounded memory. Pure."""

import re
from collections.abc import Iterable, Iterator
from enum import Enum, auto

ARRAY = re.compile(rb"\s*\[\s*\{")
OPEN_ENDED = (b"{", b"[", b",", b":")

MARK = re.compile(rb'["\[\]{},]')
BRACKET = re.compile(rb'["\[\]{}]')
PLAIN = re.compile(
    rb"\s*+"
    rb'(\{(?:[^{}\[\]"]++|"(?:[^"\\]++|\\.)*+"|\[[^{}\[\]"]*+\])*+\})'
    rb"\s*+,",
    re.DOTALL,
)
"""An element that ends in this chunk, with nothing in it but values and lists of numbers."""

IN_STRING = re.compile(rb'["\\]')

Value = tuple[int, bytes | None, bool]
"""Line on which it begins; the value, None if it is too long to hold; whether its end was seen."""


def spans_lines(head: bytes) -> bool:
    """Whether a file that begins so holds objects that are not one a line."""
    if ARRAY.match(head):
        return True
    first, end, _ = head.lstrip().partition(b"\n")
    return bool(end) and first.startswith(b"{") and first.rstrip().endswith(OPEN_ENDED)


def values(chunks: Iterable[bytes], *, array: bool, longest: int) -> Iterator[Value]:
    """Yield the elements of an array, or the values that stand one after another.

    A value above ``longest`` bytes is never held in memory. What is no value is yielded too, for
    the caller to count.
    """
    scan = _Scan(array=array, longest=longest)
    for chunk in chunks:
        yield from scan.feed(chunk)
    yield from scan.end()


class _Cut(Enum):
    """A place where a bracket or comma parts one value from the next."""

    NOWHERE = auto()
    BEFORE = auto()
    BEHIND = auto()
    AROUND = auto()
    """It belongs to neither."""


class _Scan:
    """The state of the scan, carried from chunk to chunk."""

    def __init__(self, *, array: bool, longest: int) -> None:
        self.longest = longest
        self.line = 1
        self.outer = int(array)
        """Depth of brackets around a value."""

        self.depth = 0
        self.in_string = False
        self.escaped = False
        self.parts: list[bytes] = []
        self.size = 0
        self.begins_at = 0
        """The line on which the value begins that is being read; 0 between values."""

    def feed(self, chunk: bytes) -> Iterator[Value]:
        at = taken = 0
        while (mark := self._mark(chunk, at)) is not None:
            start, at = mark
            cut = self._step(chunk[start:at])
            if cut is _Cut.NOWHERE:
                continue
            self._take(chunk[taken : at if cut is _Cut.BEHIND else start])
            if self.begins_at:
                yield self._value(whole=True)
            taken = start if cut is _Cut.BEFORE else at
            if cut is _Cut.AROUND and self.depth:
                while (hit := PLAIN.match(chunk, at)) and len(hit[1]) <= self.longest:
                    self.line += chunk.count(b"\n", at, hit.start(1))
                    yield self.line, hit[1], True
                    self.line += chunk.count(b"\n", hit.start(1), hit.end())
                    at = taken = hit.end()
        self._take(chunk[taken:])

    def end(self) -> Iterator[Value]:
        """Yield what is left; of an array that nothing closes, at least that it breaks off."""
        if self.depth and not self.begins_at:
            self.begins_at, self.parts = self.line, [b"["]
        if self.begins_at:
            yield self._value(whole=self.depth == 0)

    def _step(self, mark: bytes) -> _Cut:
        if mark in b"[{":
            self.depth += 1
            if self.depth > 1:
                return _Cut.NOWHERE
            return _Cut.AROUND if self.outer else _Cut.BEFORE
        if mark == b",":
            return _Cut.AROUND if self.depth == self.outer else _Cut.NOWHERE
        self.depth = max(0, self.depth - 1)
        if self.depth:
            return _Cut.NOWHERE
        cut = _Cut.AROUND if self.outer else _Cut.BEHIND
        self.outer = 0  # whatever follows an array stands alone
        return cut

    def _mark(self, chunk: bytes, at: int) -> tuple[int, int] | None:
        """Return where the next bracket, or comma that counts, is outside of strings."""
        marks = MARK if self.depth == self.outer else BRACKET
        while True:
            if self.in_string:
                at = self._string_end(chunk, at)
            hit = None if self.in_string else marks.search(chunk, at)
            if hit is None:
                return None
            at = hit.end()
            self.in_string = hit[0] == b'"'
            if not self.in_string:
                return hit.span()

    def _string_end(self, chunk: bytes, at: int) -> int:
        """Return where the string that is open ends, or the chunk."""
        if self.escaped:
            at, self.escaped = at + 1, False
        while hit := IN_STRING.search(chunk, at):
            if hit[0] == b'"':
                self.in_string = False
                return hit.end()
            at = hit.end() + 1
            self.escaped = at > len(chunk)
        return len(chunk)

    def _take(self, part: bytes) -> None:
        if not self.begins_at:
            bare = part.lstrip()
            self.line += part.count(b"\n", 0, len(part) - len(bare))
            if not bare:
                return
            self.begins_at, part = self.line, bare
        self.line += part.count(b"\n")
        self.size += len(part)
        if self.size > self.longest:
            self.parts = []
        else:
            self.parts.append(part)

    def _value(self, *, whole: bool) -> Value:
        text = None if self.size > self.longest else b"".join(self.parts).strip()
        found = (self.begins_at, text, whole)
        self.parts, self.size, self.begins_at = [], 0, 0
        return found

"""A trace as the plain rows that other tools replay: what all of them can express. Pure.

They know a time, two lengths and block ids, whose number must be that of the blocks begun.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from tuner.trace.formats.reading.record import SERVED, Row


@dataclass(frozen=True, slots=True)
class Plain:
    """One sequence of one request."""

    arrival_ms: float
    """From the first arrival of the trace."""

    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]
    """One for each block that the prompt begins; those that stand for nothing shared are new."""


class Replayable:
    """The part of a trace that other tools can replay, told row by row; its counts are whole when
    all rows were told.

    Requests that were never served are left out, and so are those without output: no tool takes
    them. Of n sequences each becomes a request of its own.
    """

    def __init__(self, rows: Iterable[Row], *, block_size: int, wanted: int | None) -> None:
        """``rows`` are in order of arrival; ids are for ``wanted`` tokens each, None for as many as
        they are."""
        self._rows = rows
        self._ids = _Ids(block_size, wanted or block_size)
        self.block_size = self._ids.wanted
        self.requests = 0
        self.lasted_ms = 0.0
        self.left_out: dict[str, int] = {}
        """Why → how many requests."""

        self._aborted = self._several = 0

    def plain(self) -> Iterator[Plain]:
        """Yield the requests in order of arrival."""
        first_ms: float | None = None
        for row in self._rows:
            first_ms = row.timestamp if first_ms is None else first_ms
            lengths = [length for length in _output_lengths(row) if length]
            if row.status not in SERVED or not lengths:
                why = f"{row.status} without output" if row.status in SERVED else row.status
                self.left_out[why] = self.left_out.get(why, 0) + 1
                continue
            self._aborted += row.status == "aborted"
            self._several += len(lengths) > 1
            self.requests += len(lengths)
            self.lasted_ms = row.timestamp - first_ms
            prompt = self._ids.of(row)
            for length in lengths:
                yield Plain(self.lasted_ms, row.input_length or 0, length, prompt)

    def lines(self, stamp: Callable[[float], float]) -> Iterator[bytes]:
        """Yield Mooncake's keys; ``stamp`` makes of ms what the tool counts in."""
        for one in self.plain():
            row = {
                "timestamp": stamp(one.arrival_ms),
                "input_length": one.input_length,
                "output_length": one.output_length,
                "hash_ids": one.hash_ids,
            }
            yield msgspec.json.encode(row) + b"\n"

    def notes(self) -> Iterator[str]:
        """Yield what the other tool will do differently."""
        if self._aborted:
            yield f"{self._aborted:,} aborted requests become requests of the tokens they got"
        if self._several:
            yield f"{self._several:,} requests with n > 1 become one request a sequence"
        yield from self._ids.notes()


def _output_lengths(row: Row) -> tuple[int, ...]:
    return row.output_lengths or (row.output_length or 0,) * row.n


class _Ids:
    """Numbers block ids anew: from 0, for blocks of another size, as many as blocks begin."""

    def __init__(self, block_size: int, wanted: int) -> None:
        self.block_size, self.wanted = block_size, wanted
        self.known: dict[Hashable, int] = {}
        self.next_id = 0
        self.lost = False

    def of(self, row: Row) -> tuple[int, ...]:
        full, rest = divmod(row.input_length or 0, self.wanted)
        keys = list(self._keys(row.hash_ids))[: full + bool(rest)]
        if len(keys) > full:  # prompts of other lengths end in another block, whatever its id
            keys[full] = (keys[full], rest)
        found = []
        for key in keys:
            if key not in self.known:
                self.known[key] = self.next_id
                self.next_id += 1
            found.append(self.known[key])
        fresh = range(self.next_id, self.next_id + full + bool(rest) - len(found))
        self.next_id += len(fresh)
        return (*found, *fresh)

    def notes(self) -> Iterator[str]:
        if self.lost:
            yield (
                f"prefix sharing is lost: blocks of {self.block_size} tokens cannot be told in "
                f"blocks of {self.wanted}"
            )
        elif self.wanted > self.block_size and self.known:
            yield (
                f"prefix sharing is understated: blocks of {self.block_size} tokens are told in "
                f"blocks of {self.wanted}"
            )

    def _keys(self, ids: tuple[int, ...]) -> Iterable[Hashable]:
        """Return what stands for each of the wanted blocks: an id means all up to its end."""
        if self.wanted == self.block_size:
            return ids
        if self.wanted % self.block_size == 0:
            blocks = self.wanted // self.block_size
            return ids[blocks - 1 :: blocks]
        if self.block_size % self.wanted == 0:
            return [(one, part) for one in ids for part in range(self.block_size // self.wanted)]
        self.lost |= bool(ids)
        return ()

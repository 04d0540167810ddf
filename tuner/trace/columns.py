"""A trace as columns: 20 to 50 bytes a request, so that ten million fit on a laptop. Pure."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import chain, islice
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.trace.formats.reading.record import SERVED, Row
from tuner.trace.trace import DECIMALS_MS, TraceRequest

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BATCH_ROWS = 2**16
GROWTH = 2**20
NO_AFFINITY = -1
OPTIONAL = frozenset({"e2e_s", "queue_s", "n", "replica", "affinity"})

TRUNK_ROWS = 2000
"""So many rows show which blocks nearly every prompt begins with."""


@dataclass(frozen=True, slots=True)
class Columns:
    """One entry a request, in order of arrival."""

    arrival_s: Floats
    e2e_s: Floats
    """NaN where production did not record it."""

    queue_s: NDArray[np.float32]
    """Likewise: from arrival to when it was first scheduled."""

    input_length: NDArray[np.int32]
    output_length: NDArray[np.int32]
    n: NDArray[np.int32]
    replica: NDArray[np.int32]
    """-1 where production did not record it."""

    served: NDArray[np.bool_]
    """Status ok or aborted: it held a slot. The others only arrived."""

    affinity: Ints
    """Equal for requests that a sticky router keeps together; NO_AFFINITY for those alone."""

    reused_tokens: int | None
    """Prompt tokens in full blocks that an earlier request had; None without any hash ids."""

    def __len__(self) -> int:
        return len(self.arrival_s)

    def tokens(self) -> Ints:
        """Return what each request asks of an engine: prompt tokens and all sequences' outputs."""
        asked = self.input_length + self.n.astype(np.int64) * self.output_length
        return np.where(self.served, asked, 0)

    def take(self, chosen: NDArray[np.bool_]) -> "Columns":
        """Return some of the requests, without their reuse, which is of the whole."""
        arrays = {
            field.name: getattr(self, field.name)[chosen]
            for field in fields(self)
            if field.name != "reused_tokens"
        }
        return Columns(**arrays, reused_tokens=None)


def columns_of(requests: Iterable[TraceRequest], *, block_size: int) -> Columns:
    """Return the columns of requests in memory."""
    return _collect(requests, block_size, _Names("arrival_s", "e2e_s", "queue_s", in_a_second=1))


def columns_of_rows(
    rows: Iterable[Row], *, block_size: int, absolute: bool
) -> tuple[Columns, float]:
    """Return the columns of rows, taken a batch at a time as they are read, and their origin.

    ``absolute`` as in ``Source``: then the first arrival becomes the origin, else it is 0 ms.
    """
    names = _Names("timestamp", "e2e_ms", "queue_ms", in_a_second=1000)
    columns = _collect(rows, block_size, names)
    arrival_s = columns.arrival_s  # in ms so far
    origin_ms = float(arrival_s[0]) if absolute else 0.0
    arrival_s -= origin_ms
    np.round(arrival_s, DECIMALS_MS, out=arrival_s)
    arrival_s /= 1000
    return columns, origin_ms


@dataclass(frozen=True, slots=True)
class _Names:
    """The names of a request's times, and the unit of its durations."""

    arrival: str
    e2e: str
    queue: str
    in_a_second: int


def _collect(requests: Iterable[Any], block_size: int, names: _Names) -> Columns:
    parts: dict[str, _Column] = {}
    blocks = _Blocks()
    iterator = iter(requests)
    trunk: frozenset[int] | None = None
    while batch := tuple(islice(iterator, BATCH_ROWS)):
        if trunk is None:
            trunk = _trunk(batch[:TRUNK_ROWS])
        found = _arrays(batch, names)
        for name, array in (found | {"affinity": _affinities(batch, trunk)}).items():
            if name not in parts:
                parts[name] = _Column(optional=name in OPTIONAL)
            parts[name].add(array)
        blocks.add(
            chain.from_iterable(
                one.hash_ids[: (one.input_length or 0) // block_size]
                for one in batch
                if one.hash_ids
            )
        )
    assert parts, "a trace has at least one request"
    arrays = {name: column.array() for name, column in parts.items()}
    if np.any(np.diff(arrays["arrival_s"]) < 0):
        order = np.argsort(arrays["arrival_s"], kind="stable")
        for name in arrays:
            arrays[name] = arrays[name][order]
    repeats = blocks.repeats()
    return Columns(**arrays, reused_tokens=None if repeats is None else repeats * block_size)


class _Column:
    """One column that grows in place; as long as no request says anything it takes no memory."""

    def __init__(self, *, optional: bool) -> None:
        self._optional = optional
        self._same: np.generic | None = None
        """The value of all so far, of an optional column."""

        self._size = 0
        self._array: NDArray[Any] | None = None

    def add(self, part: NDArray[Any]) -> None:
        if self._array is None:
            if self._same is None:
                self._same = part[0]
            if self._optional and np.array_equal(
                part, np.full_like(part, self._same), equal_nan=True
            ):
                self._size += len(part)
                return
            self._array = np.full(self._size, self._same, part.dtype)
        if self._size + len(part) > len(self._array):
            # Large memory is moved by the system and not copied.
            self._array.resize(self._size + len(part) + GROWTH, refcheck=False)
        self._array[self._size : self._size + len(part)] = part
        self._size += len(part)

    def array(self) -> NDArray[Any]:
        if self._array is None:
            return np.broadcast_to(np.asarray(self._same), self._size)
        self._array.resize(self._size, refcheck=False)
        return self._array


def _arrays(batch: Sequence[Any], names: _Names) -> dict[str, NDArray[Any]]:
    size = len(batch)

    def integers(name: str, absent: int) -> NDArray[np.int32]:
        values = [*map(attrgetter(name), batch)]
        if None in values:
            values = [absent if value is None else value for value in values]
        return np.array(values, np.int32)

    def seconds(name: str) -> Floats:
        # None becomes NaN.
        return np.array([*map(attrgetter(name), batch)], np.float64) / names.in_a_second

    return {
        "arrival_s": np.fromiter(map(attrgetter(names.arrival), batch), np.float64, size),
        "e2e_s": seconds(names.e2e),
        "queue_s": seconds(names.queue).astype(np.float32),
        "input_length": integers("input_length", 0),
        "output_length": integers("output_length", 0),
        "n": integers("n", 1),
        "replica": integers("replica", -1),
        "served": np.fromiter((one.status in SERVED for one in batch), np.bool_, size),
    }


def _trunk(requests: Sequence[Any]) -> frozenset[int]:
    """Return the blocks that most prompts begin with, such as a common system prompt."""
    seen = Counter(block for one in requests for block in one.hash_ids)
    return frozenset(block for block, count in seen.items() if count > len(requests) / 2)


def _affinities(requests: Sequence[Any], trunk: frozenset[int]) -> Ints:
    if not any(one.hash_ids or one.session_id is not None for one in requests):
        return np.full(len(requests), NO_AFFINITY)
    return np.fromiter((_affinity(one, trunk) for one in requests), np.int64, len(requests))


def _affinity(request: TraceRequest | Row, trunk: frozenset[int]) -> int:
    """The session, or else the first block that tells prompts apart: what sticky routers go by."""
    if request.session_id is not None:
        key = hashlib.blake2b(str(request.session_id).encode(), digest_size=8).digest()
        return int.from_bytes(key) >> 1
    return next((block for block in request.hash_ids if block not in trunk), NO_AFFINITY)


class _Blocks:
    """Counts block ids, in memory for the distinct ones only."""

    def __init__(self) -> None:
        self.total = 0
        self.known: Ints = np.empty(0, np.int64)
        self.new: list[Ints] = []
        self.new_size = 0

    def add(self, ids: Iterable[int]) -> None:
        batch = np.fromiter(ids, np.int64)
        self.total += len(batch)
        self.new.append(np.unique(batch))
        self.new_size += len(self.new[-1])
        if self.new_size > len(self.known):  # so that each id is sorted a few times only
            self._merge()

    def repeats(self) -> int | None:
        self._merge()
        return self.total - len(self.known) if self.total else None

    def _merge(self) -> None:
        self.known = np.unique(np.concatenate([self.known, *self.new]))
        self.new, self.new_size = [], 0

"""A trace as columns: 20 to 50 bytes a request, so that ten million fit on a laptop. Pure."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.trace.formats.columnar.batch import ABSENT, Batch, Lists, Names, names_of
from tuner.trace.formats.reading.record import SERVED
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

    def of_served(self, column: NDArray[Any]) -> NDArray[Any]:
        """Return that part of one of the columns that is of requests which were served."""
        return column if self.served.all() else column[self.served]

    def tokens(self) -> Ints:
        """Return what each request asks of an engine: prompt tokens and all sequences' outputs."""
        asked: Ints = np.add(self.input_length, self.outputs(), dtype=np.int64)
        return asked if self.served.all() else np.where(self.served, asked, 0)

    def tokens_before(self) -> Ints:
        """Return what all earlier requests together ask for, and at the end what all do."""
        before = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self.tokens(), out=before[1:])
        return before

    def outputs(self) -> NDArray[Any]:
        """Return the output tokens of all sequences of each request."""
        is_one = self.n.strides == (0,) and self.n[0] == 1  # takes no memory, nor any time
        return self.output_length if is_one else self.n.astype(np.int64) * self.output_length

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
    iterator = iter(requests)
    return _collect(_batches(iterator), block_size)


def columns_of_batches(
    batches: Iterable[Batch], *, block_size: int, absolute: bool
) -> tuple[Columns, float]:
    """Return the columns of rows, taken a batch at a time as they are read, and their origin.

    ``absolute`` as in ``Source``: then the first arrival becomes the origin, else it is 0 ms.
    """
    columns = _collect(map(_of_rows, batches), block_size)
    arrival_s = columns.arrival_s  # in ms so far
    origin_ms = float(arrival_s[0]) if absolute else 0.0
    for begin in range(0, len(arrival_s), BATCH_ROWS):  # so many stay in a core's cache
        some = arrival_s[begin : begin + BATCH_ROWS]
        some -= origin_ms
        np.round(some, DECIMALS_MS, out=some)
        some /= 1000
    return columns, origin_ms


@dataclass(frozen=True, slots=True)
class _Some:
    """Some requests: their columns by name, and what their affinities and prefixes follow from."""

    arrays: Mapping[str, NDArray[Any]]
    sessions: Names | None
    hash_ids: Lists | None


def _batches(requests: Iterator[TraceRequest]) -> Iterator[_Some]:
    while batch := tuple(islice(requests, BATCH_ROWS)):
        size = len(batch)
        offsets = np.concatenate([[0], np.cumsum([len(one.hash_ids) for one in batch])])
        blocks = np.fromiter(chain.from_iterable(one.hash_ids for one in batch), np.int64)
        yield _Some(
            {
                "arrival_s": np.fromiter((one.arrival_s for one in batch), np.float64, size),
                "e2e_s": np.array([one.e2e_s for one in batch], np.float64),  # None becomes NaN
                "queue_s": np.array([one.queue_s for one in batch], np.float64).astype(np.float32),
                "input_length": np.array([one.input_length for one in batch], np.int32),
                "output_length": np.array([one.output_length for one in batch], np.int32),
                "n": np.array([one.n for one in batch], np.int32),
                "replica": np.array(
                    [-1 if one.replica is None else one.replica for one in batch], np.int32
                ),
                "served": np.fromiter((one.status in SERVED for one in batch), np.bool_, size),
            },
            names_of([one.session_id for one in batch]),
            (offsets.astype(np.int64), blocks) if len(blocks) else None,
        )


def _of_rows(batch: Batch) -> _Some:
    size = len(batch)

    def seconds(key: str, kind: type[np.floating[Any]]) -> NDArray[Any]:
        times_ms = batch.times.get(key)
        return _all(np.nan, size, kind) if times_ms is None else (times_ms / 1000).astype(kind)

    def counts(key: str, absent: int) -> NDArray[np.int32]:
        found = batch.counts.get(key)
        if found is None:
            return _all(absent, size, np.int32)
        return np.where(found == ABSENT, absent, found).astype(np.int32)

    served = _all(True, size, np.bool_)
    if "status" in batch.names:
        codes, known = batch.names["status"]
        served = np.array([*(name in SERVED for name in known), True])[codes]
    return _Some(
        {
            "arrival_s": batch.times["timestamp"],
            "e2e_s": seconds("e2e_ms", np.float64),
            "queue_s": seconds("queue_ms", np.float32),
            "input_length": counts("input_length", 0),
            "output_length": counts("output_length", 0),
            "n": counts("n", 1),
            "replica": counts("replica", -1),
            "served": served,
        },
        batch.names.get("session_id"),
        batch.lists.get("hash_ids"),
    )


def _all(value: float, size: int, kind: type[np.generic]) -> NDArray[Any]:
    """Return a column of one value, which takes no memory."""
    return np.broadcast_to(np.array(value, kind), size)


def _collect(batches: Iterable[_Some], block_size: int) -> Columns:
    parts: dict[str, _Column] = {}
    blocks = _Blocks()
    trunk: Ints | None = None
    for batch in batches:
        if trunk is None:
            trunk = _trunk(batch.hash_ids)
        found = {**batch.arrays, "affinity": _affinities(batch, trunk)}
        for name, array in found.items():
            if name not in parts:
                parts[name] = _Column(optional=name in OPTIONAL)
            parts[name].add(array)
        if batch.hash_ids is not None:
            blocks.add(_full_blocks(batch.hash_ids, batch.arrays["input_length"], block_size))
    assert parts, "a trace has at least one request"
    arrays = {name: column.array() for name, column in parts.items()}
    arrival_s = arrays["arrival_s"]
    if (arrival_s[1:] < arrival_s[:-1]).any():
        order = np.argsort(arrival_s, kind="stable")
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
            told = part[:1] if part.strides == (0,) else part
            if self._optional and np.array_equal(
                told, np.full_like(told, self._same), equal_nan=True
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


def _full_blocks(hash_ids: Lists, lengths: NDArray[np.int32], block_size: int) -> Ints:
    """Return the ids of those blocks that their prompts fill."""
    offsets, ids = hash_ids
    sizes = np.diff(offsets)
    within = np.arange(len(ids)) - np.repeat(offsets[:-1], sizes)
    return ids[within < np.repeat(lengths // block_size, sizes)]


def _trunk(hash_ids: Lists | None) -> Ints:
    """Return the blocks that most prompts begin with, such as a common system prompt."""
    if hash_ids is None:
        return np.empty(0, np.int64)
    offsets, ids = hash_ids
    rows = min(TRUNK_ROWS, len(offsets) - 1)
    seen, counts = np.unique(ids[: offsets[rows]], return_counts=True)
    return seen[counts > rows / 2]


def _affinities(batch: _Some, trunk: Ints) -> Ints:
    """Return for each request what sticky routers go by: its session, or else the first block that
    tells prompts apart."""
    size = len(batch.arrays["arrival_s"])
    if batch.hash_ids is None and batch.sessions is None:
        return _all(NO_AFFINITY, size, np.int64)
    affinity = np.full(size, NO_AFFINITY, np.int64)
    if batch.hash_ids is not None:
        offsets, ids = batch.hash_ids
        telling = np.flatnonzero(~np.isin(ids, trunk))
        of = np.searchsorted(offsets, telling, side="right") - 1
        rows, firsts = np.unique(of, return_index=True)
        affinity[rows] = ids[telling[firsts]]
    if batch.sessions is not None:
        codes, names = batch.sessions
        keys = np.array([*map(_key, names), 0], np.int64)
        affinity = np.where(codes < 0, affinity, keys[codes])
    return affinity


def _key(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) >> 1


class _Blocks:
    """Counts block ids, in memory for the distinct ones only."""

    def __init__(self) -> None:
        self.total = 0
        self.known: Ints = np.empty(0, np.int64)
        self.new: list[Ints] = []
        self.new_size = 0

    def add(self, batch: Ints) -> None:
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

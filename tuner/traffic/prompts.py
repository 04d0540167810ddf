"""Token ids with the trace's lengths and shared prefixes. Pure, and the same in every process.

A token is a hash of (seed, what it belongs to, its position): no generator's stream is involved,
so the ids depend on no library's version and a prompt of 100,000 tokens is one array operation.
"""

import numpy as np
from numpy.typing import NDArray

from tuner.trace.trace import TraceRequest

SPECIAL_IDS = 16
"""Ids below this are left out: padding, begin and end of text, and the like stand there."""

_BLOCK, _ROW = 1, 2  # what a token belongs to; keeps equal numbers of the two kinds apart
_GOLDEN = 0x9E3779B97F4A7C15


def prompt_token_ids(
    request: TraceRequest,
    *,
    seed: int,
    vocab_size: int,
    block_size: int,
    special_ids: int = SPECIAL_IDS,
) -> list[int]:
    """Return ``request.input_length`` token ids in [special_ids, vocab_size).

    ``block_size`` is the trace's: how many tokens one of ``hash_ids`` stands for. Equal hash ids
    give equal tokens, whatever the row; tokens that no hash id covers depend on the row, so that
    nothing is shared that production did not share.

    Raises ValueError for a vocabulary with fewer than two ids beside the special ones.
    """
    usable = vocab_size - special_ids
    if usable < 2:
        raise ValueError(f"a vocabulary of {vocab_size} leaves no ids beside {special_ids}")
    length = request.input_length
    tokens = np.empty(length, np.int64)
    covered = min(len(request.hash_ids) * block_size, length)
    if covered:
        ids = np.asarray(request.hash_ids, np.uint64)[: -(-covered // block_size)]
        keys = _mix(ids ^ _key(seed, _BLOCK))
        blocks = _draw(keys[:, None], np.arange(block_size, dtype=np.uint64), usable)
        blocks[:, 0] = _distinct(ids, _key(seed, _BLOCK), usable)
        tokens[:covered] = blocks.ravel()[:covered]
    if length > covered:
        row = np.asarray([request.row], np.uint64)
        key = _mix(row ^ _key(seed, _ROW))
        tokens[covered:] = _draw(key, np.arange(length - covered, dtype=np.uint64), usable)
        tokens[covered] = _distinct(row, _key(seed, _ROW), usable)[0]
    tokens += special_ids
    return tokens.tolist()


def _key(seed: int, kind: int) -> np.uint64:
    return np.uint64((seed * 4 + kind) * _GOLDEN % 2**64)


def _distinct(ids: NDArray[np.uint64], key: np.uint64, usable: int) -> NDArray[np.int64]:
    """Return first tokens that are different for any ``usable`` ids in a row, since traces number
    ids in turn.

    Random ones would meet by chance, and two siblings would share what production did not.
    """
    return ((ids % np.uint64(usable) + key % np.uint64(usable)) % np.uint64(usable)).astype(
        np.int64
    )


def _draw(key: NDArray[np.uint64], position: NDArray[np.uint64], usable: int) -> NDArray[np.int64]:
    bits = _mix(key + position * np.uint64(_GOLDEN))
    # The product with 2**-32 spreads 32 random bits evenly over the vocabulary without a division.
    bits >>= np.uint64(32)
    bits *= np.uint64(usable)
    bits >>= np.uint64(32)
    return bits.view(np.int64)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64-bit integers: splitmix64's finaliser (Steele et al., OOPSLA 2014)."""
    mixed = values ^ (values >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed

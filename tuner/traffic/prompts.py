"""Token ids with the trace's lengths and shared prefixes. Pure, and the same in every process.

A token is a hash of (seed, what it belongs to, its position): no generator's stream is involved,
so the ids depend on no library's version and a prompt of 100,000 tokens is one array operation.
"""

import numpy as np
from numpy.typing import NDArray

from tuner.trace.trace import TraceRequest

SPECIAL_IDS = 16
"""Ids below this are left out: padding, begin and end of text, and the like stand there."""

_GOLDEN = 0x9E3779B97F4A7C15


def prompt_token_ids(
    request: TraceRequest, *, seed: int, vocab_size: int, block_size: int
) -> list[int]:
    """Return ``request.input_length`` token ids in [SPECIAL_IDS, vocab_size).

    ``block_size`` is the trace's: how many tokens one of ``hash_ids`` stands for. Equal hash ids
    give equal tokens, whatever the row; tokens that no hash id covers depend on the row, so that
    nothing is shared that production did not share.

    Raises ValueError for a vocabulary with fewer than two ids beside the special ones.
    """
    usable = vocab_size - SPECIAL_IDS
    if usable < 2:
        raise ValueError(f"a vocabulary of {vocab_size} leaves no ids beside {SPECIAL_IDS}")
    blocks = np.repeat(np.array(request.hash_ids, np.uint64), block_size)[: request.input_length]
    alone = request.input_length - len(blocks)
    # twice the number of a block, or of a row and one: no block is taken for a row
    owner = np.concatenate((2 * blocks, np.full(alone, 2 * request.row + 1, np.uint64)))
    place = np.concatenate((np.arange(len(blocks)) % block_size, np.arange(alone)))
    key = _mixed(owner ^ np.uint64(seed * _GOLDEN % 2**64))
    bits = _mixed(key + place.astype(np.uint64) * np.uint64(_GOLDEN)) >> np.uint64(32)
    # the product with 2**-32 spreads 32 random bits evenly over the vocabulary
    ids = (bits * np.uint64(usable)) >> np.uint64(32)
    return (SPECIAL_IDS + ids.astype(np.int64)).tolist()  # type: ignore[no-any-return]


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64-bit integers: splitmix64's finalizer (Steele et al., OOPSLA 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))

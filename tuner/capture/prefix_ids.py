"""Ids of prompt prefixes that tell which prompts begin alike, and nothing of what they say. Pure.

One id a full block of tokens: h_i = HMAC-SHA256(key, h_(i-1) | tokens of block i | context), so an
id stands for the whole prefix up to its block, as in vLLM's prefix cache. Without the key, which is
thrown away, nobody can look up what a known text would give.
"""

import hmac
from array import array
from collections.abc import Iterator, Sequence

ID_BITS = 53
"""JSON readers that keep numbers as floats read these exactly, too."""

MAX_TOKEN_ID = 2**31

SESSION, LORA = b"session", b"lora"


def fits(tokens: Sequence[int]) -> bool:
    """Whether all of these can be ids of tokens at all: a client sends what it likes."""
    return len(tokens) == 0 or (min(tokens) >= 0 and max(tokens) < MAX_TOKEN_ID)


def prefix_ids(
    tokens: Sequence[int], *, key: bytes, block_size: int, context: bytes = b""
) -> Iterator[int]:
    """Yield one id for each full block. ``context``: what else parts two caches, as the adapter."""
    above = b""
    for start in range(0, len(tokens) - block_size + 1, block_size):
        block = array("q", tokens[start : start + block_size]).tobytes()
        above = hmac.digest(key, above + block + context, "sha256")
        yield int.from_bytes(above[:8], "big") >> (64 - ID_BITS)


def pseudonym(text: str, *, key: bytes, kind: bytes) -> str:
    """Return a name that is the same for the same text, and says nothing else."""
    return hmac.digest(key, kind + b"\0" + text.encode(errors="replace"), "sha256")[:6].hex()

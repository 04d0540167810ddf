"""Prefix ids: equal where prompts begin alike, and otherwise without meaning."""

import hashlib
import hmac
import struct

from hypothesis import given
from hypothesis import strategies as st

from tuner.capture.prefix_ids import prefix_ids, pseudonym

KEY, OTHER = b"k" * 32, b"o" * 32


def ids(tokens: list[int], *, key: bytes = KEY, context: bytes = b"") -> list[int]:
    return list(prefix_ids(tokens, key=key, block_size=4, context=context))


def test_an_id_is_the_chained_keyed_hash_of_all_blocks_up_to_its_own() -> None:
    first = hmac.new(KEY, struct.pack("=4q", 1, 2, 3, 4) + b"lora", hashlib.sha256).digest()
    second = hmac.new(
        KEY, first + struct.pack("=4q", 5, 6, 7, 8) + b"lora", hashlib.sha256
    ).digest()
    assert ids([1, 2, 3, 4, 5, 6, 7, 8, 9], context=b"lora") == [
        int.from_bytes(first[:8], "big") >> 11,
        int.from_bytes(second[:8], "big") >> 11,
    ]


def test_only_full_blocks_have_ids() -> None:
    assert [len(ids([7] * length)) for length in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_another_key_or_adapter_gives_other_ids() -> None:
    assert len({tuple(ids([1] * 4)), tuple(ids([1] * 4, key=OTHER))}) == 2
    assert len({tuple(ids([1] * 4)), tuple(ids([1] * 4, context=b"lora"))}) == 2


@given(st.lists(st.integers(0, 3), max_size=24), st.lists(st.integers(0, 3), max_size=24))
def test_ids_are_equal_exactly_as_far_as_the_prompts_are(one: list[int], two: list[int]) -> None:
    alike = 0
    while one[alike : alike + 4] == two[alike : alike + 4] and len(one[alike : alike + 4]) == 4:
        alike += 4
    pairs = list(zip(ids(one), ids(two), strict=False))
    assert [a == b for a, b in pairs] == [place < alike // 4 for place in range(len(pairs))]
    assert all(0 <= one_id < 2**53 for one_id in ids(one))


def test_pseudonyms_are_stable_and_of_one_kind() -> None:
    assert pseudonym("eve", key=KEY, kind=b"session") == pseudonym("eve", key=KEY, kind=b"session")
    assert pseudonym("eve", key=KEY, kind=b"session") != pseudonym("eve", key=KEY, kind=b"lora")
    assert pseudonym("eve", key=KEY, kind=b"session") != pseudonym(
        "eve", key=OTHER, kind=b"session"
    )

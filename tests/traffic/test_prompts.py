import hashlib

from hypothesis import given
from hypothesis import strategies as st

from tests.support.traces import request
from tuner.traffic.clients import SPECIAL_IDS, prompt_token_ids

BLOCK = 16
VOCABULARY = 32_000

IDS = st.lists(st.integers(0, 2**63 - 1), max_size=5, unique=True).map(tuple)


def prompt(  # noqa: PLR0913 - what makes a prompt
    row: int = 0,
    length: int = 40,
    hash_ids: tuple[int, ...] = (),
    *,
    seed: int = 0,
    vocab_size: int = VOCABULARY,
    block_size: int = BLOCK,
) -> list[int]:
    item = request(row, input_length=length, hash_ids=hash_ids)
    return prompt_token_ids(item, seed=seed, vocab_size=vocab_size, block_size=block_size)


@given(
    row=st.integers(0, 2**31),
    length=st.integers(1, 200),
    hash_ids=IDS,
    seed=st.integers(0, 2**64),
    vocab_size=st.integers(SPECIAL_IDS + 2, 300_000),
)
def test_a_prompt_has_the_recorded_length_and_no_special_ids(
    row: int, length: int, hash_ids: tuple[int, ...], seed: int, vocab_size: int
) -> None:
    result = prompt(row, length, hash_ids, seed=seed, vocab_size=vocab_size)
    assert len(result) == length
    assert all(SPECIAL_IDS <= token < vocab_size for token in result)
    assert result == prompt(row, length, hash_ids, seed=seed, vocab_size=vocab_size)


@given(shared=IDS, rows=st.tuples(st.integers(0, 999), st.integers(1000, 1999)))
def test_equal_ids_give_equal_tokens_and_what_follows_is_the_rows_own(
    shared: tuple[int, ...], rows: tuple[int, int]
) -> None:
    covered = len(shared) * BLOCK
    first, second = (prompt(row, covered + 20, shared) for row in rows)
    assert first[:covered] == second[:covered]
    assert first[covered] != second[covered]


def test_tokens_use_the_whole_vocabulary_evenly() -> None:
    tokens = prompt(length=100_000, vocab_size=SPECIAL_IDS + 10)
    counts = [tokens.count(SPECIAL_IDS + i) for i in range(10)]
    assert sum(counts) == 100_000
    assert max(abs(count - 10_000) for count in counts) < 500  # five standard deviations


def test_prompts_are_the_same_in_every_version() -> None:
    """A stored curve was measured with these prompts: a change here is a new one."""
    tokens = prompt(3, 1000, (1, 2), seed=7)
    assert hashlib.sha256(str(tokens).encode()).hexdigest()[:16] == "a321800d30eba1d5"

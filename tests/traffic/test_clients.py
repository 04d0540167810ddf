"""What clients send, and which request waits for which."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import request
from tuner.trace.trace import Trace, TraceHeader
from tuner.traffic.clients import SPECIAL_IDS, Turn, places_of, prompt_token_ids, turns_of

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


def test_prompts_are_the_same_in_every_version() -> None:
    """A stored curve was measured with these prompts: a change here is a new one."""
    tokens = prompt(3, 1000, (1, 2), seed=7)
    assert hashlib.sha256(str(tokens).encode()).hexdigest()[:16] == "a321800d30eba1d5"


def test_a_turn_waits_for_the_one_before_it_in_its_session() -> None:
    turns = turns_of(
        [
            request(0, arrival_s=0.0, session_id="a", e2e_s=2.0),
            request(1, arrival_s=1.0, session_id="b", e2e_s=1.0),
            request(2, arrival_s=5.0, session_id="a", e2e_s=1.0),
            request(3, arrival_s=9.0, session_id="a"),
        ]
    )
    assert turns == {2: Turn(parent=0, think_s=3.0), 3: Turn(parent=2, think_s=3.0)}


def test_a_named_parent_beats_the_order_in_the_session() -> None:
    turns = turns_of(
        [
            request(0, arrival_s=0.0, request_id="r0", session_id="a", e2e_s=1.0),
            request(1, arrival_s=2.0, request_id="r1", session_id="a", e2e_s=1.0),
            request(2, arrival_s=6.0, request_id="r2", session_id="a", parent_id="r0"),
        ]
    )
    assert turns[2] == Turn(parent=0, think_s=5.0)


def test_nobody_waits_without_a_recorded_end_or_for_what_had_not_ended() -> None:
    assert turns_of([request(0, session_id="a"), request(1, session_id="a")]) == {}
    overlapping = [
        request(0, arrival_s=0.0, session_id="a", e2e_s=5.0),
        request(1, arrival_s=1.0, session_id="a", e2e_s=5.0),
    ]
    assert turns_of(overlapping) == {}


def test_a_turn_that_came_within_a_millisecond_of_the_end_waits_and_does_not_think() -> None:
    """0.1 + 0.2 is 4e-17 above 0.3: the turn at 0.3 s came as the one before it ended."""
    for arrival_s in (0.3, 0.2995, 0.3005):
        pair = [
            request(0, arrival_s=0.1, session_id="a", e2e_s=0.2),
            request(1, arrival_s=arrival_s, session_id="a"),
        ]
        assert turns_of(pair) == {1: Turn(parent=0, think_s=0.0)}
    earlier = [
        request(0, arrival_s=0.1, session_id="a", e2e_s=0.2),
        request(1, arrival_s=0.298, session_id="a"),
    ]
    assert turns_of(earlier) == {}


def test_places_are_held_only_in_a_trace_that_was_made_of_a_schedule() -> None:
    held = [request(0, session_id="place-0", e2e_s=1.0), request(1, session_id="place-0")]
    for source, places in (("concurrency_schedule", [0, 1]), ("vllm-middleware", [])):
        trace = Trace.of(TraceHeader(source=source), held)
        assert [*places_of(trace.requests)] == places

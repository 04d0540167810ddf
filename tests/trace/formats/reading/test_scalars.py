import pytest

from tuner.trace.formats.reading.scalars import (
    Pseudonyms,
    between_ms,
    epoch_ms,
    failed_tokens,
    flag,
    inner,
    may_generate,
    sequences,
    status_of,
    tokens,
)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (15, 15), ("15", 15), (" 15 ", 15), (15.0, 15), (-1, -1), ("-1", -1),
        (None, None), ("", None), ("-", None), ("None", None), ("null", None),
        ("1.5", "1.5"), (1.5, 1.5), (True, True), ("9" * 30, "9" * 30), ([1], [1]),
    ],
    ids=repr,
)  # fmt: skip
def test_counts(written: object, read: object) -> None:
    assert tokens(written) == read
    assert type(tokens(written)) is type(read)


@pytest.mark.parametrize("unknown", [-1, "x", 2**31, None, True, 0.5])
def test_a_failed_request_has_a_count_or_none(unknown: object) -> None:
    assert failed_tokens(unknown) in (None, 1)
    assert failed_tokens("7") == 7


@pytest.mark.parametrize(
    ("written", "ms"),
    [
        ("2025-01-24 09:20:46.5", 1_737_710_446_500.0),
        ("2025-01-24T09:20:46.5Z", 1_737_710_446_500.0),
        ("2025-01-24T11:20:46.5+02:00", 1_737_710_446_500.0),
        ("2025-01-24 09:20:46.5 UTC", 1_737_710_446_500.0),
        (1_737_710_446.5, 1_737_710_446_500.0),
        ("1737710446.5", 1_737_710_446_500.0),
        (None, None),
        ("", None),
    ],
    ids=repr,
)
def test_times(written: object, ms: float | None) -> None:
    assert epoch_ms(written) == ms


@pytest.mark.parametrize(
    "unclear", [1_737_710_446_500, 46.5, "46.5", "noon", "20250124", True, []], ids=repr
)
def test_a_time_that_may_mean_two_things_is_not_guessed(unclear: object) -> None:
    assert not isinstance(epoch_ms(unclear), float)


def test_a_span_of_time_needs_both_ends() -> None:
    assert between_ms(1.0, 3.5) == 2.5
    assert between_ms(None, 3.5) is None
    assert between_ms(1.0, "x") is None


@pytest.mark.parametrize(
    ("written", "read"),
    [(True, True), ("True", True), ("false", False), ("1", True), ("None", None), (None, None)],
    ids=repr,
)
def test_flags(written: object, read: object) -> None:
    assert flag(written) is read


@pytest.mark.parametrize("written", [{"a": 1}, '{"a": 1}', ' {"a": 1}'])
def test_an_object_may_be_text(written: object) -> None:
    assert inner(written) == {"a": 1}


@pytest.mark.parametrize("written", ["{", "[1]", None, 7, '{"a": "\\ud800"}'])
def test_what_is_no_object_is_empty(written: object) -> None:
    assert inner(written) == {}


@pytest.mark.parametrize("n", [None, 0, 1, "x", 30, 1_000_000])
def test_one_sequence_is_not_split(n: object) -> None:
    assert sequences(n, 20) == {"output_length": 20}


def test_a_sum_is_split_evenly() -> None:
    assert sequences(3, 20) == {"n": 3, "output_length": 7, "output_lengths": (7, 7, 6)}


def test_codes() -> None:
    assert [status_of(code) for code in (None, 200, 302, 499, 429, 503, 404, 500, 0)] == [
        "ok", "ok", "ok", "aborted", "rejected", "rejected", "error", "error", "error",
    ]  # fmt: skip


def test_paths() -> None:
    assert may_generate("/v1/chat/completions?x")
    assert may_generate(None)
    assert not may_generate("/v1/embeddings/")
    assert not may_generate("/")


def test_names_are_numbered_by_first_sight_and_the_oldest_forgotten() -> None:
    names = Pseudonyms(most=2)
    assert [names.of(name) for name in ("a", "b", "a", "c", "a", "b", None, "-")] == [
        0, 1, 0, 2, 0, 3, None, None,
    ]  # fmt: skip
    assert names.named("s", "a") == "s0"

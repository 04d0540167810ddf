"""How tokens are drawn while it is measured."""

import pytest

from tuner.engines.sampling import GREEDY, in_words, parse_sampling, sampled
from tuner.errors import UsageError


def test_what_is_asked_counts_more_than_the_generation_configuration() -> None:
    model = {"temperature": 0.6, "top_p": 0.95, "max_tokens": 2048}
    assert sampled(model, {}) == {"temperature": 0.6, "top_p": 0.95}
    assert sampled(model, {"top_p": 0.5}) == {"temperature": 0.6, "top_p": 0.5}
    assert sampled({}, {}) == {"temperature": 1.0}  # as vLLM and its server
    assert sampled({}, GREEDY) == GREEDY


def test_nothing_said_changes_nothing() -> None:
    assert parse_sampling(None) == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is no parameter"),
        ("heat=1", "heat is no parameter"),
        ("temperature=1,temperature=2", "there twice"),
        ("temperature=hot", "temperature=hot is not from 0.0 to 2.0"),
        ("temperature=nan", "temperature=nan is not from"),
        ("top_p=0", "top_p=0 is not from"),
        ("top_k=2.5", "top_k=2.5 is not from"),
        ("temperature", "temperature= is not from"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        parse_sampling(text)
    assert caught.value.hint


def test_it_is_shown_in_words() -> None:
    assert in_words({"temperature": 0.7, "top_k": 20}) == "temperature 0.7, top_k 20"
    assert in_words(GREEDY) == "greedy"

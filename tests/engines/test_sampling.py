"""How tokens are drawn while it is measured."""

import pytest

from tuner.engines.sampling import GREEDY, faults, parse_sampling, sampled
from tuner.errors import UsageError


def test_what_is_asked_counts_more_than_the_generation_configuration() -> None:
    model = {"temperature": 0.6, "top_p": 0.95, "max_tokens": 2048}
    assert sampled(model, {}) == {"temperature": 0.6, "top_p": 0.95}
    assert sampled(model, {"top_p": 0.5}) == {"temperature": 0.6, "top_p": 0.5}
    assert sampled({}, {}) == {"temperature": 1.0}  # as vLLM and its server
    assert sampled({}, GREEDY) == GREEDY


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "could not convert"),
        ("heat=1", "heat is no parameter"),
        ("temperature=hot", "could not convert"),
        ("temperature=3", "temperature is not from 0.0 to 2.0"),
        ("temperature=nan", "temperature is not from"),
        ("top_p=0", "top_p is not from"),
        ("top_k=2.5", "top_k is not a whole number"),
        ("temperature", "could not convert"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_sampling(text)
    assert caught.value.hint


@pytest.mark.attack
@pytest.mark.parametrize(
    "sampling",
    [{"n": 16384.0}, {"max_tokens": 1e6}, {"top_k": 0.5}, {"temperature": -1}, {"top_p": 9e9}],
)
def test_nothing_else_of_a_request_is_sampling(sampling: dict[str, float]) -> None:
    assert len(list(faults({"temperature": 0.5, **sampling}))) == 1

"""How tokens are drawn while it is measured."""

import pytest

from tuner.engines.sampling import GREEDY, faults, sampled


def test_what_is_asked_counts_more_than_the_generation_configuration() -> None:
    model = {"temperature": 0.6, "top_p": 0.95, "max_tokens": 2048}
    assert sampled(model, {}) == {"temperature": 0.6, "top_p": 0.95}
    assert sampled(model, {"top_p": 0.5}) == {"temperature": 0.6, "top_p": 0.5}
    assert sampled({}, {}) == {"temperature": 1.0}  # as vLLM and its server
    assert sampled({}, GREEDY) == GREEDY


@pytest.mark.attack
@pytest.mark.parametrize(
    "sampling",
    [{"n": 16384.0}, {"max_tokens": 1e6}, {"top_p": float("nan")}],
)
def test_nothing_else_of_a_request_is_sampling(sampling: dict[str, float]) -> None:
    assert len(list(faults({"temperature": 0.5, **sampling}))) == 1

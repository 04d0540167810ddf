"""What vLLM's own configuration says of it that the scheduler model does not know."""

# ruff: noqa: ANN401 - a module that imports vLLM

from typing import Any

import pytest

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({}, []),
        ({"scheduling_policy": "priority"}, ["priorities"]),
        ({"long_prefill_token_threshold": 64}, ["long_prefill_token_threshold=64"]),
        ({"watermark": 0.05}, ["watermark=0.05"]),
        ({"enable_chunked_prefill": False}, ["prompts in one piece"]),
        (
            {"pipeline_parallel_size": 2, "distributed_executor_backend": "mp"},
            ["pipeline_parallel_size=2"],
        ),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
            ["speculative decoding"],
        ),
        (
            {"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}},
            ["a KV connector"],
        ),
    ],
    ids=lambda item: ",".join(item) or "nothing" if isinstance(item, dict) else "",
)
def test_what_the_model_does_not_know_is_named(
    lone: Any, arguments: dict[str, Any], names: list[str]
) -> None:
    assert lone.live.unmodelled(lone.configured(**arguments), ["one group"]) == names


def test_drafts_and_experts_that_are_chosen_by_chance_are_a_caution(lone: Any) -> None:
    drafting = lone.configured(speculative_config={"method": "ngram", "num_speculative_tokens": 2})
    (caution,) = lone.live.cautions_of(drafting)
    assert "drafts" in caution
    mixture = lone.configured()
    mixture.model_config.model_arch_config.num_experts = 8
    (caution,) = lone.live.cautions_of(mixture)
    assert "mixture of experts with made-up weights" in caution
    mixture.load_config.load_format = "auto"
    assert lone.live.cautions_of(mixture) == []

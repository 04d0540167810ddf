"""What vLLM's own configuration says of it that the scheduler model does not know."""

# ruff: noqa: ANN401 - a module that imports vLLM

from typing import Any

import pytest

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({}, []),
        ({"scheduling_policy": "priority"}, ["policy=priority"]),
        ({"long_prefill_token_threshold": 64}, ["long_prefill_token_threshold=64"]),
        ({"watermark": 0.05}, ["watermark=0.05"]),
        ({"enable_chunked_prefill": False}, ["enable_chunked_prefill=False"]),
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

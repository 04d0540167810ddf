"""Which token ids a prompt of plain text may hold."""

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.vllm

GEMMA_3 = {"boi_token_index": 255_999, "eoi_token_index": 256_000, "image_token_index": 262_144}
QWEN2_VL = {
    "vision_start_token_id": 151_652,
    "vision_end_token_id": 151_653,
    "image_token_id": 151_655,
    "video_token_id": 151_656,
    "eos_token_id": 151_645,
}
LLAMA_4 = {"boi_token_index": 200_080, "eoi_token_index": 200_081, "image_token_index": 200_092}
MISTRAL_SMALL = {"image_token_index": 10, "vision_feature_layer": -1}
LLAMA_3 = {"bos_token_id": 128_000, "eos_token_id": [128_001], "vocab_size": 128_256}


@pytest.mark.parametrize(
    ("config", "vocab_size", "below"),
    [
        (GEMMA_3, 262_208, 255_999),
        (QWEN2_VL, 152_064, 151_652),
        (LLAMA_4, 202_048, 200_080),
        (MISTRAL_SMALL, 131_072, 131_072),  # no prompt holds an id below 16
        (LLAMA_3, 128_256, 128_256),
    ],
)
def test_no_prompt_holds_a_token_that_stands_for_an_image(
    config: dict[str, Any], vocab_size: int, below: int
) -> None:
    from tuner.engines.vllm.config import prompt_vocabulary  # noqa: PLC0415 - imports vLLM

    model = SimpleNamespace(hf_config=SimpleNamespace(**config), get_vocab_size=lambda: vocab_size)
    assert prompt_vocabulary(model) == below

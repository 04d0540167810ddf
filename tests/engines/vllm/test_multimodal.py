"""A model that takes sounds beside text, of which only the configuration is here."""

import json
from pathlib import Path

import pytest

from tuner.engines.models.shipped import model_path
from tuner.engines.vllm.start import VllmStarter

pytestmark = pytest.mark.vllm

SOUND = 900
"""The token that stands for a sound."""

QWEN2_AUDIO = {
    "architectures": ["Qwen2AudioForConditionalGeneration"],
    "model_type": "qwen2_audio",
    "audio_token_index": SOUND,
    "audio_config": {
        "model_type": "qwen2_audio_encoder",
        "d_model": 64,
        "encoder_layers": 1,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 64,
    },
    "text_config": {
        "model_type": "qwen2",
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        "vocab_size": 1000,
        "max_position_embeddings": 512,
    },
}


def test_it_gets_its_tokenizer_and_no_prompt_holds_its_placeholder(tmp_path: Path) -> None:
    """Its processor is made when the engine starts, and needs one."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text((Path(model_path("tuner:tiny")) / name).read_text())
    (tmp_path / "config.json").write_text(json.dumps(QWEN2_AUDIO))
    starter = VllmStarter({"model": str(tmp_path), "dtype": "float32", "load_format": "dummy"})
    assert starter.resolved(max_num_seqs=2).facts.vocab_size == SOUND
    assert starter.resolved(max_num_seqs=2).config.model_config.skip_tokenizer_init is False
    text = VllmStarter({"model": "tuner:tiny"})
    assert text.resolved(max_num_seqs=2).config.model_config.skip_tokenizer_init is True

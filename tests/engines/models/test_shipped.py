"""The models that ship."""

import json
from pathlib import Path

import pytest

from tuner.engines.models.shipped import is_shipped, model_path, shipped_models
from tuner.errors import InputError

MODELS = ("tuner:1b", "tuner:small", "tuner:tiny")


@pytest.mark.parametrize("name", MODELS)
def test_a_shipped_model_is_a_folder_that_vllm_can_serve(name: str) -> None:
    folder = Path(model_path(name))
    assert is_shipped(name)
    assert shipped_models() == MODELS
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(config["vocab_size"]))
    assert vocabulary["<bos>"] == config["bos_token_id"]
    assert vocabulary["<eos>"] == config["eos_token_id"]
    assert sum(file.stat().st_size for file in folder.iterdir()) < 100_000


def test_a_model_that_does_not_ship_is_refused_with_those_that_do() -> None:
    with pytest.raises(InputError, match="tuner:huge") as caught:
        model_path("tuner:huge")
    assert "tuner:tiny" in caught.value.hint

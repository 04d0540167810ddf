"""The model that ships."""

import importlib.util
import json
from pathlib import Path

import pytest

from tests.support.places import ROOT
from tuner.engines.models.shipped import is_shipped, model_path, shipped_models
from tuner.errors import InputError

SCRIPT = ROOT / "scripts" / "make_tokenizer.py"


def test_the_tiny_model_is_a_folder_that_vllm_can_serve() -> None:
    folder = Path(model_path("tuner:tiny"))
    assert is_shipped("tuner:tiny")
    assert shipped_models() == ("tuner:tiny",)
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(config["vocab_size"]))
    assert vocabulary["<bos>"] == config["bos_token_id"]
    assert vocabulary["<eos>"] == config["eos_token_id"]
    assert sum(file.stat().st_size for file in folder.iterdir()) < 100_000


def test_the_tokenizer_is_what_its_script_writes() -> None:
    spec = importlib.util.spec_from_file_location("make_tokenizer", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    folder = Path(model_path("tuner:tiny"))
    for name, content in script.files().items():
        assert (folder / name).read_text() == content


def test_other_models_are_what_they_are_called() -> None:
    assert model_path("acme/one") == "acme/one"
    assert model_path("/models/one") == "/models/one"


def test_a_model_that_does_not_ship_is_refused_with_those_that_do() -> None:
    with pytest.raises(InputError, match="tuner:huge") as caught:
        model_path("tuner:huge")
    assert "tuner:tiny" in caught.value.hint

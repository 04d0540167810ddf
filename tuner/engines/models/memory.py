"""The memory of a model in bytes, from its config.json alone: weights, and KV cache a token.

It takes a second, and no torch. Only decoders with one kind of attention are known: for any other
there is no number, because a wrong one is worse than none.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.engines.models.shipped import model_path
from tuner.engines.seam import ArgumentValue
from tuner.errors import InputError
from tuner.system import files

KNOWN = frozenset(
    {"llama", "mistral", "qwen2", "qwen3", "phi3", "granite", "olmo2", "smollm3", "stablelm"}
)
"""``model_type`` of decoders whose layers are all alike: attention with a KV head for some query
heads, and a gated MLP."""

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}

OWN_BLOCKS = 1
"""Of the KV cache, that vLLM keeps empty for itself (``BlockPool.null_block``)."""


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """The memory of one engine's model in bytes, over all of its GPUs together."""

    weight_bytes: int
    kv_bytes_per_token: int

    def kv_blocks(self, memory_bytes: int, block_size: int) -> int:
        """Return how many KV blocks requests get of so much memory for the KV cache."""
        return memory_bytes // (self.kv_bytes_per_token * block_size) - OWN_BLOCKS


def memory_of(arguments: Mapping[str, ArgumentValue]) -> ModelMemory | str:
    """Return what the model of these engine arguments takes, or why it is not known.

    Raises InputError for a model that should ship with tuner and does not.
    """
    name = str(arguments["model"])
    folder = Path(model_path(name))
    try:
        if not folder.is_dir() and (kept := hub_folder(name, arguments.get("revision"))):
            folder = kept
        config = json.loads(files.read_regular(folder / "config.json"))
        return _of_config(config, arguments)
    except OSError:
        return "the model is in no folder here that has a config.json, and not in the Hub's cache"
    except (ArithmeticError, KeyError, RecursionError, TypeError, ValueError, InputError) as why:
        return f"{folder / 'config.json'} does not tell: {why}"


def hub_folder(name: str, revision: object = None) -> Path | None:
    """Return the folder of a model of the Hugging Face Hub that was downloaded before; None where
    there is none, or no library that knows. Nothing is downloaded."""
    try:
        from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - vLLM brings it

        result = try_to_load_from_cache(name, "config.json", revision=str(revision or "main"))
    except (ImportError, ValueError, OSError):  # the name is no model's of the Hub
        return None
    return Path(result).parent if isinstance(result, str) else None


def _of_config(
    config: Mapping[str, Any], arguments: Mapping[str, ArgumentValue]
) -> ModelMemory | str:
    kind = config["model_type"]
    if kind not in KNOWN or config.get("quantization_config") or arguments.get("quantization"):
        return f"not known for {kind}, or for what is quantized"
    width, heads, layers = (
        int(config[name]) for name in ("hidden_size", "num_attention_heads", "num_hidden_layers")
    )
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_size = int(config.get("head_dim") or width // heads)
    stored = str(config.get("torch_dtype") or config.get("dtype") or "float32")
    if (dtype := str(arguments.get("dtype", "auto"))) == "auto":  # vLLM halves float32
        dtype = "float16" if stored == "float32" else stored
    kv_dtype = str(arguments.get("kv_cache_dtype", "auto"))
    attention = width * head_size * (2 * heads + 2 * kv_heads)
    mlp = 3 * width * int(config["intermediate_size"])
    vocabulary = width * int(config["vocab_size"]) * (1 if config.get("tie_word_embeddings") else 2)
    parameters = layers * (attention + mlp + 2 * width) + vocabulary + width
    return ModelMemory(
        weight_bytes=parameters * BYTES[dtype],
        kv_bytes_per_token=2 * layers * kv_heads * head_size * BYTES.get(kv_dtype, BYTES[dtype]),
    )

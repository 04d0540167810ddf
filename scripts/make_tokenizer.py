"""Write the tokenizer of the models that ship: one token a word, words that anybody can say.

With it ``vllm serve`` can answer text about the model; tuner itself sends token ids.
"""

import itertools
import json
import sys
from pathlib import Path

MODELS = Path(__file__).parents[1] / "tuner" / "engines" / "models"
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
"""Ids 0, 1, 2 as in config.json; <unk> is every word that is not ours."""


def words(count: int) -> list[str]:
    """Return the first so many of ba, be, …, zu, baba, babe, …"""
    syllables = ["".join(pair) for pair in itertools.product("bdfgklmnprstvz", "aeiou")]
    longer = ("".join(pair) for pair in itertools.product(syllables, repeat=2))
    return [*syllables, *longer][:count]


def tokenizer(vocab_size: int) -> dict[str, object]:
    """Return the content of tokenizer.json, in the format of the tokenizers library."""
    vocabulary = [*SPECIAL, *words(vocab_size - len(SPECIAL))]
    added = [
        {
            "id": number,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number, token in enumerate(SPECIAL)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(vocabulary)},
            "unk_token": "<unk>",
        },
    }


def files(folder: Path) -> dict[str, str]:
    """Return file name → content."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "pad_token": "<pad>",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
    }
    return {
        "tokenizer.json": json.dumps(tokenizer(config["vocab_size"])) + "\n",
        "tokenizer_config.json": json.dumps(settings, indent=2) + "\n",
    }


def main() -> int:
    for folder in sorted(config.parent for config in MODELS.glob("*/config.json")):
        for name, content in files(folder).items():
            (folder / name).write_text(content, encoding="utf-8")
            print(f"wrote {folder / name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

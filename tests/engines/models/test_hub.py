"""A model of the Hub that was downloaded before, found by its name alone."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tuner.engines.models.memory import ModelMemory, hub_folder, memory_of

CONFIG = {
    "model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 3,
    "num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 10, "torch_dtype": "bfloat16",
}  # fmt: skip
NAME = "acme/translator-7b"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def downloaded(cache: Path, revision: str = "main", commit: str = COMMIT) -> Path:
    """Write what a download leaves: the name of a commit, and links to the files it has."""
    model = cache / "models--acme--translator-7b"
    folder = model / "snapshots" / commit
    ref, blob = model / "refs" / revision, model / "blobs" / "a1"
    for path in (folder / "x", ref, blob):
        path.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(commit)
    blob.write_text(json.dumps(CONFIG))
    (folder / "config.json").symlink_to(os.path.relpath(blob, folder))
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_model_is_found_where_the_hub_keeps_it(cache: Path) -> None:
    assert "and not in the Hub's cache" in str(memory_of({"model": NAME}))
    folder, proposed = downloaded(cache), downloaded(cache, "refs/pr/1", "f" * 40)
    assert hub_folder(NAME) == hub_folder(NAME, COMMIT) == folder
    assert hub_folder(NAME, "refs/pr/1") == proposed
    assert hub_folder(NAME, "v2") is None
    assert isinstance(memory_of({"model": NAME, "revision": COMMIT}), ModelMemory)


@pytest.mark.attack
@pytest.mark.parametrize(
    ("name", "revision"),
    [
        *((name, None) for name in ("../acme", "/etc/acme", "a/b/c", "a b", "")),
        *((NAME, revision) for revision in ("../../../theirs", "../../..", "/etc")),
    ],
)
def test_no_name_and_no_revision_leads_out_of_the_cache(
    cache: Path, name: str, revision: str | None
) -> None:
    """Beside it lies what somebody else has made like a model."""
    folder = downloaded(cache)
    shutil.copytree(cache / "models--acme--translator-7b", cache.parent / "acme", symlinks=True)
    shutil.copy(folder / "config.json", cache.parent)
    (cache.parent / "theirs").write_text("f" * 40)
    assert hub_folder(name, revision) is None

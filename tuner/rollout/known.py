"""Facts about deployments: the tables of ``known.toml``, and what the name of an image says."""

import re
import tomllib
from collections.abc import Iterable
from importlib import resources
from typing import Any

from tuner.engines.arguments import TAKES, canonical
from tuner.engines.provenance import spelt

FACTS: dict[str, Any] = tomllib.loads(
    resources.files(__package__).joinpath("known.toml").read_text(encoding="utf-8")
)
NO_WORD = {name for name, kind in TAKES.items() if kind == "switch"} | {*FACTS["older_switches"]}
"""Switches of vLLM, of all versions: the next word is not theirs."""

NAMES = {*NO_WORD, *TAKES, *FACTS["older_arguments"]}

_NUMBER = r"(\d+\.\d+\.\d+(?:[._-]?(?:alpha|beta|rc|post|dev|a|b)[._-]?\d+)*)"
_VERSION = re.compile(
    rf"(?:^|(?<!lmcache)/)vllm(?:-openai|-cpu)*(?:-release-repo)?[:_]v?{_NUMBER}(?![\w.]*\w\.)(?!\.?\d)"
    rf"|:[\w.-]*vllm[_-]v?{_NUMBER}(?![A-Za-z\d.])"
)
"""``vllm/vllm-openai:v0.11.0rc1``; ``rocm/vllm:rocm7.0.0_vllm_0.11.2_20251210``. LMCache counts its
own releases."""

_STARTS_VLLM = re.compile(
    r"(?:^|/)(vllm-openai(?:-(?:cpu|rocm|xpu))?(?:[_-]v?\d[\w.]*)?(?:\.sif)?"
    r"|vllm-(?:arm64-)?cpu-release-repo|vllm-release-repo"
    r"|opea/vllm(?:-cpu|-gaudi)?|openeuler/vllm-cpu)$"
)
"""Repositories, wherever they are mirrored, whose ENTRYPOINT starts vLLM's server: vLLM's own, and
those that OPEA and openEuler build from its Dockerfiles."""


def vllm_version(image: str) -> str | None:
    """Return vLLM's version as Python spells it; None where the image's name does not tell.

    >>> vllm_version("vllm/vllm-openai:v0.11.0-rc1"), vllm_version("vllm/vllm-openai:latest")
    ('0.11.0rc1', None)
    """
    match = _VERSION.search(image)
    return spelt(match[1] or match[2]) if match else None


def repository(image: str) -> str:
    """Return an image's name without tag and digest.

    >>> repository("host:5000/vllm/vllm-openai:v0.32.0@sha256:01")
    'host:5000/vllm/vllm-openai'
    """
    folder, slash, last = image.partition("@")[0].rpartition("/")
    return folder + slash + last.partition(":")[0]


def starts_vllm(image: str) -> bool:
    """Whether an image is known to start vLLM by itself."""
    return _STARTS_VLLM.search(repository(image)) is not None


def may_have_vllm(image: str) -> bool:
    """Whether an image speaks for vLLM in a chart that starts ``vllm serve``; no name does too."""
    name = repository(image).rpartition("/")[2]
    return not name or re.search(r"(?:^|[-_.])(?:vllm|llm-d)(?:$|[-_.])", name) is not None


def are_vllms(names: Iterable[str]) -> bool:
    """Whether one of these arguments is nobody's but vLLM's."""
    return any(name in FACTS["proofs"] for name in names)


def has_vllms_flag(text: str) -> bool:
    return are_vllms(canonical(flag)[0] for flag in re.findall(r"--([a-z][\w-]*)", text))

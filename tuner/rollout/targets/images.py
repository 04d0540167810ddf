"""The version of vLLM in an image, as far as its name tells. Pure."""

import re

_NUMBER = r"(\d+\.\d+\.\d+(?:[._-]?(?:alpha|beta|rc|post|dev|a|b)[._-]?\d+)*)"
_IS_TAG = re.compile(rf"(?:^|/)vllm(?:-openai|-cpu)*(?:-release-repo)?:v?{_NUMBER}(?![\w.])")
"""``vllm/vllm-openai:v0.11.0rc1``, ``mirror/vllm-openai:0.11.0.post1-x86_64``."""

_IN_TAG = re.compile(rf":[\w.-]*vllm[_-]v?{_NUMBER}(?![A-Za-z\d.])")
"""``rocm/vllm:rocm7.0.0_vllm_0.11.2_20251210``."""

_OWN_NUMBERS = re.compile(r"(?:^|/)lmcache/")
"""Builds with vLLM in them that count their own releases."""

_LETTERS = {"alpha": "a", "beta": "b", "post": ".post", "dev": ".dev"}


def vllm_version(image: str) -> str | None:
    """Return vLLM's version as Python spells it; None where the name does not tell.

    >>> vllm_version("vllm/vllm-openai:v0.11.0-rc1"), vllm_version("vllm/vllm-openai:latest")
    ('0.11.0rc1', None)
    """
    if _OWN_NUMBERS.search(image):
        return None
    found = _IS_TAG.search(image) or _IN_TAG.search(image)
    return spelt(found[1]) if found else None


def spelt(version: str) -> str:
    """Return a version in the one spelling of PEP 440."""
    return re.sub(
        r"[._-]?(alpha|beta|rc|post|dev|a|b)[._-]?(\d+)",
        lambda part: f"{_LETTERS.get(part[1], part[1])}{int(part[2])}",
        version,
    )

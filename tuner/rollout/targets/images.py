"""Reads an image's name: the vLLM that it has, and whether vLLM is what it starts. Pure."""

import re

from tuner.engines.vllm.supported import spelt

_NUMBER = r"(\d+\.\d+\.\d+(?:[._-]?(?:alpha|beta|rc|post|dev|a|b)[._-]?\d+)*)"
_IS_TAG = re.compile(rf"(?:^|/)vllm(?:-openai|-cpu)*(?:-release-repo)?:v?{_NUMBER}(?![\w.])")
"""``vllm/vllm-openai:v0.11.0rc1``, ``mirror/vllm-openai:0.11.0.post1-x86_64``."""

_IN_TAG = re.compile(rf":[\w.-]*vllm[_-]v?{_NUMBER}(?![A-Za-z\d.])")
"""``rocm/vllm:rocm7.0.0_vllm_0.11.2_20251210``."""

_OWN_NUMBERS = re.compile(r"(?:^|/)lmcache/")
"""Builds with vLLM in them that count their own releases."""

_STARTS_VLLM = re.compile(
    r"(?:^|/)(?:"
    r"vllm-openai(?:-(?:cpu|rocm|xpu))?"
    r"|vllm-(?:arm64-)?cpu-release-repo|vllm-release-repo"
    r"|opea/vllm(?:-cpu|-gaudi)?|openeuler/vllm-cpu"
    r")"
)
"""Repositories, wherever they are mirrored, whose ENTRYPOINT is ``vllm serve``, or was
``python3 -m vllm.entrypoints.openai.api_server`` in older versions: vLLM's own (docker/Dockerfile,
Dockerfile.cpu, Dockerfile.rocm, Dockerfile.xpu), and those that OPEA and openEuler build from its
Dockerfile.cpu and Dockerfile.hpu (docker_image_build/build.yaml of OPEA's examples)."""


def vllm_version(image: str) -> str | None:
    """Return vLLM's version as Python spells it; None where the name does not tell.

    >>> vllm_version("vllm/vllm-openai:v0.11.0-rc1"), vllm_version("vllm/vllm-openai:latest")
    ('0.11.0rc1', None)
    """
    if _OWN_NUMBERS.search(image):
        return None
    found = _IS_TAG.search(image) or _IN_TAG.search(image)
    return spelt(found[1]) if found else None


def repository(image: str) -> str:
    """Return an image's name without tag and digest.

    >>> repository("host:5000/vllm/vllm-openai:v0.32.0@sha256:01")
    'host:5000/vllm/vllm-openai'
    """
    name = image.partition("@")[0]
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.partition(":")[0]


def may_have_vllm(image: str) -> bool:
    """Whether an image's name speaks for vLLM, in a chart that starts ``vllm serve`` in it. An
    image that is not named is the chart's own.

    >>> may_have_vllm("lmcache/vllm-openai:v1"), may_have_vllm("lmsysorg/sglang:v1")
    (True, False)
    """
    name = repository(image).rpartition("/")[2]
    return not name or re.search(r"(?:^|[-_.])(?:vllm|llm-d)(?:$|[-_.])", name) is not None


def entrypoint(image: str) -> str | None:
    """Return why an image starts vLLM by itself; None where its entrypoint is not known to.

    >>> entrypoint("mirror.io/vllm/vllm-openai:v0.32.0"), entrypoint("acme/chat-vllm-openai")
    ('the image vllm-openai', None)
    """
    name = repository(image)
    found = _STARTS_VLLM.search(name)
    if found is None or found.end() != len(name):
        return None
    return f"the image {found[0].lstrip('/')}"

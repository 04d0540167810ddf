"""Files that start vLLM and are not edited: their flags are to be pasted. Pure."""

import re
from pathlib import PurePath

import yaml

from tuner.errors import ByHandError, NotVllmError, TargetError
from tuner.rollout.targets.command_line.dialects import SHELL
from tuner.rollout.targets.command_line.process import server
from tuner.rollout.targets.command_line.words import UnreadableError, Word, split
from tuner.rollout.targets.view import View
from tuner.rollout.targets.yaml.nodes import get, text_at

_NVIDIA = "nvidia.com"
"""Of Dynamo, and of the GPU operator, which starts no vLLM."""

_PRODUCTS: dict[str, tuple[str, str]] = {
    "orchestration.aibrix.ai": ("AIBrix", "the command of the engine's container"),
    "kaito.sh": ("KAITO", "vllm: in the ConfigMap that spec.inference.config names"),
    "kubeai.org": ("KubeAI", "spec.args of the Model"),
    _NVIDIA: ("Dynamo", "the command of python3 -m dynamo.vllm of each worker"),
}
"""Groups of APIs whose objects start vLLM in a way of their own → whose they are, and where its
flags go: each project's samples, of 2025 and 2026."""

_SKYPILOT = ("the task of SkyPilot", "its vllm serve under run:")
_SHEBANG = re.compile(r"#!.*\b(?:sh|bash|dash|zsh|ksh)\b")
_HINT = "Paste these flags into {}:"


def refuse_product(document: yaml.Node, *, place: str) -> None:
    """Refuse what is another project's own way to start vLLM. Raises ByHandError."""
    version, kind = text_at(document, "apiVersion") or "", text_at(document, "kind") or ""
    group = version.partition("/")[0]
    if group in _PRODUCTS and (group != _NVIDIA or kind.startswith("Dynamo")):
        product, where = _PRODUCTS[group]
        raise ByHandError(
            f"{place}: is a {kind} of {product}, which is not edited", hint=_HINT.format(where)
        )
    if is_skypilots(document):
        product, where = _SKYPILOT
        raise ByHandError(f"{place}: is {product}, which is not edited", hint=_HINT.format(where))


def is_skypilots(document: yaml.Node) -> bool:
    """Whether a document is a task of SkyPilot: what to run, on what, prepared how."""
    run = get(document, "run")
    around = ("envs", "file_mounts", "num_nodes", "resources", "service", "setup", "workdir")
    return (
        isinstance(run, yaml.ScalarNode)
        and get(document, "services") is None
        and any(get(document, key) is not None for key in around)
    )


def is_script(name: PurePath, text: str) -> bool:
    """Whether a file is a script of a shell."""
    return name.suffix in (".bash", ".sh", ".zsh") or _SHEBANG.match(text) is not None


def refuse_script(text: str, *, source: str) -> None:
    """Refuse a script, with the flags where it starts vLLM. Raises ByHandError, NotVllmError."""
    found = _vllm_in(text)
    if found is None:
        raise NotVllmError(
            f"{source}: is a shell script, and not seen to start vLLM",
            hint="Known: vllm serve, python -m vllm.entrypoints.openai.api_server, docker run of "
            "an image that starts them. Scripts are not edited in any case.",
        )
    first, evidence = found
    line = text.count("\n", 0, first.start) + 1
    raise ByHandError(
        f"{source}:{line}: is a shell script, which is not edited",
        hint=f"Put these flags behind {evidence}, in place of those that it has:",
    )


def _vllm_in(text: str) -> tuple[Word, str] | None:
    """Return where the first command of a script begins that starts vLLM, and why it does.

    The script is read line by line where it must be.
    """
    spans = [(at, at + 1) for at in range(len(text))]
    whole = View(text, spans, str, 0)
    try:
        commands = split(whole, SHELL)
    except UnreadableError:
        commands = list[list[Word]]()
        for match in re.finditer(r"(?:[^\n\\]|\\.|\\\n)+", text):
            try:
                commands += split(whole.part(*match.span()), SHELL)
            except UnreadableError:
                continue
    for words in commands:
        if (found := server([word.text for word in words])) is not None:
            return words[0], found.evidence
    return None


def refuse_name(name: PurePath, *, source: str) -> TargetError:
    """Return the refusal of a file that is of no kind by its name."""
    return ByHandError(
        f"{source}: files that end in {name.suffix or 'nothing'} are of no known kind",
        hint="Say what it is with --to; or, where it starts vLLM, paste these flags:",
    )

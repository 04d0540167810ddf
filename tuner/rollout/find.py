"""Finds the servers of a deployment's file, whatever it is, and the one that is meant."""

import re
from collections.abc import Sequence
from pathlib import PurePath

from tuner.errors import ByHandError, UsageError
from tuner.rollout import known
from tuner.rollout.in_lines import in_shell, in_unit, in_variables
from tuner.rollout.in_yaml import in_yaml
from tuner.rollout.server import Near, Server

KINDS: dict[str, dict[str, str]] = known.FACTS["kind"]
"""Name of a kind of file, as in ``--to`` → what it is, how it is rolled out and recognized."""


def kind_of(path: PurePath, text: str) -> str:
    """Return the name of a file's kind, by its name and by what is in it; empty where nobody knows.

    >>> kind_of(PurePath("vllm.service"), "")
    'systemd'
    """
    within = "yaml" if path.suffix.lower() in {".yaml", ".yml", ".json"} else "text"
    for where, value, match in (
        ("name", path.name.lower(), re.fullmatch),
        (within, text, re.search),
    ):
        for kind, about in KINDS.items():
            if where in about and match(about[where], value, re.MULTILINE):
                return kind
    return ""


def servers(
    path: PurePath, text: str, near: Near, *, at: str = "", to: str | None = None
) -> list[Server]:
    """Return the servers of a file. Raises TargetError for what cannot be read at all."""
    kind = to or kind_of(path, text)
    if (read := _OF_LINES.get(kind)) is not None:
        return read(text)
    return in_yaml(text, near, at, servers, source=str(path)) if kind else []


_OF_LINES = {
    **dict.fromkeys(("systemd", "quadlet", "supervisor"), in_unit),
    "env": in_variables,
    "script": in_shell,
}


def chosen(
    found: Sequence[Server], what: str, *, name: str | None, at: str, is_trusted: bool
) -> Server:
    """Return the one server that is meant. ``what``: the file, and what it is.

    Raises UsageError where several may be meant, ByHandError where none is seen to be vLLM.
    """
    named = [each for each in found if name in (None, each.name, each.name.rpartition("/")[2])]
    proven = [each for each in named if each.proof and (not at or each.proof == "--at")]
    if not proven and name is not None and is_trusted:
        proven = named
    if len(proven) > 1:
        names = ", ".join(each.name for each in proven)
        raise UsageError(
            f"{what}: which of its {len(proven)} servers?", hint=f"--container NAME, of {names}."
        )
    if proven:
        return proven[0]
    unproven = [each for each in found if not each.proof]
    if named and unproven:
        hint = f"If it is vLLM: --container {unproven[0].name} --force, on record. Or paste:"
    else:
        hint = "Known: vllm serve, python -m vllm.entrypoints.openai.api_server, and images that "
        hint += "start them. Where you start vLLM, paste:"
    doubt = unproven[0].doubt if unproven else ""
    raise ByHandError(f"{what}, and is not seen to start vLLM{doubt}", hint=hint)

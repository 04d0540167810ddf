"""Finds the servers of a deployment's file, whatever it is, and edits the one that is meant."""

import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Self

from tuner.errors import ByHandError, TargetError, UsageError
from tuner.rollout import beside, edit, known
from tuner.rollout.fit import Deployment, Host
from tuner.rollout.in_lines import in_shell, in_unit, in_variables
from tuner.rollout.in_yaml import in_yaml
from tuner.rollout.server import Arguments, Near, Server, UnreadableError
from tuner.system import files, yaml_strict

KINDS: dict[str, dict[str, str]] = known.FACTS["kind"]
"""Name of a kind of file, as in ``--to`` → what it is, how it is rolled out and recognized."""

_GPU = re.compile(
    r"nvidia\.com/gpu\.product[\"']?(?:\s*:\s*[\"']?|[\s\S]{0,80}?values[\"']?:[\s\[\"'-]*)([\w.-]+)"
)
_ON_THIS_MACHINE = {"vllm-config", "systemd", "env", "supervisor"}
_OF_LINES = {
    **dict.fromkeys(("systemd", "quadlet", "supervisor"), in_unit),
    "env": in_variables,
    "script": in_shell,
}
_HINT = (
    "Known: vllm serve, python -m vllm.entrypoints.openai.api_server, and images that start them. "
    "Where you start vLLM, paste:"
)


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


def servers(path: PurePath, text: str, near: Near, *, to: str | None = None) -> list[Server]:
    """Return the servers of a file. Raises TargetError for what cannot be read at all."""
    kind = to or kind_of(path, text)
    if (read := _OF_LINES.get(kind)) is not None:
        return read(text)
    return in_yaml(text, near, servers, source=str(path)) if kind else []


def read_text(path: Path) -> str | None:
    """Return what is in a file; None where there is none. Raises TargetError."""
    if not files.resolve(path).exists():
        return None
    return yaml_strict.read(path, error=TargetError, missing="Run the command again.")


def is_profile(text: str) -> bool:
    """Whether a text is a serving profile."""
    return all(re.search(rf"(?m)^{key}:", text) for key in ("schema_version", "digest", "engine"))


@dataclass(frozen=True)
class Target:
    """A file to deploy with, and the name of the server in it that is meant."""

    path: Path
    text: str
    kind: str
    name: str | None = None

    @classmethod
    def of(cls, path: Path, text: str, *, to: str | None = None, name: str | None = None) -> Self:
        """Return the file as its kind has it. Raises TargetError for a profile."""
        if is_profile(text):
            raise TargetError(
                f"{path}: is a serving profile, not a file to deploy with",
                hint="tuner apply PROFILE FILE: the profile comes first.",
            )
        return cls(path, text, to or kind_of(path, text), name)

    @property
    def what(self) -> str:
        name, others = self.path.name.lower(), known.FACTS["others"]
        known_as = next((what for each, what in others.items() if re.fullmatch(each, name)), None)
        kind = KINDS[self.kind]["is"] if self.kind else known_as or "a file of no known kind"
        patches = beside.patches(self.text) if self.kind == "kustomize" else []
        named = f" ({', '.join(patches)})" if patches else ""
        return f"{self.path}: is {kind}{named}"

    def read(self, text: str) -> list[Server]:
        """Return the servers of the text, as of this file."""
        try:
            return servers(self.path, text, beside.near(self.path.parent), to=self.kind)
        except UnreadableError as problem:
            raise ByHandError(f"{self.what}: {problem}", hint="Paste these flags:") from None

    def server(self) -> Server:
        """Return the one server that is meant. Raises UsageError where several may be meant,
        ByHandError where none is."""
        every = [
            s
            for s in self.read(self.text)
            if self.name in {None, s.name, s.name.rpartition("/")[2]}
        ]
        # where a config is in the same file, that decides
        every = [each for each in every if each.near != "config"] or every
        if len(every) > 1:
            raise UsageError(
                f"{self.what}: which of its {len(every)} servers?",
                hint=f"--container NAME, of {', '.join(each.name for each in every)}.",
            )
        if not every:
            raise ByHandError(f"{self.what}, and is not seen to start vLLM", hint=_HINT)
        return every[0]

    def edited(self, server: Server, wanted: Arguments) -> tuple[str, Server]:
        """Return the text with these arguments, and the server as it is then. Raises ByHandError,
        with the line and what decides there."""
        try:
            return edit.edited(self.text, server, wanted, self.read)
        except UnreadableError as problem:
            line, variable = edit.place_of(self.text, server, problem.near or server.near)
            why, dotenv = str(problem), beside.near(self.path.parent)(".env") or ""
            if variable and (sets := re.search(rf"(?m)^[ \t]*(?:export )?{variable}=", dotenv)):
                number = dotenv.count("\n", 0, sets.start()) + 1
                why = f"{variable} is set in .env:{number}"
            message = f"{self.path}:{line}: {why}, in {KINDS[self.kind]['is']}"
            raise ByHandError(message, hint="Write these flags there:") from None

    def deployment(self, server: Server) -> Deployment:
        """Return what the file says of the server, and what is known of where it runs."""
        gpus, version = set(_GPU.findall(self.text)), known.vllm_version(server.image)
        names_image = server.image or self.kind in {"compose", "kubernetes", "kustomize"}
        hosts = Host.here() if self.kind in _ON_THIS_MACHINE else []
        if version:
            hosts.insert(0, Host(f"{self.place(server, version)} has", vllm=version))
        if len(gpus) == 1:
            hosts.append(Host(f"{self.place(server, *gpus)} has", gpu=gpus.pop()))
        return Deployment(
            arguments=server.arguments,
            source=str(self.path),
            place=lambda needle: self.place(server, needle),
            hosts=hosts,
            image=None if version or not names_image else server.image,
        )

    def place(self, server: Server, needle: str) -> str:
        return f"{self.path}:{edit.place_of(self.text, server, needle)[0]}"

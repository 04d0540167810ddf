"""A quadlet, Podman's unit for a container: the words behind its image, in ``Exec``. Pure."""

import posixpath
from dataclasses import dataclass

from tuner.errors import NotVllmError, TargetError
from tuner.rollout.targets import images
from tuner.rollout.targets.command_line.command_line import CommandLine, TextPart
from tuner.rollout.targets.command_line.dialects import SYSTEMD
from tuner.rollout.targets.command_line.process import server
from tuner.rollout.targets.kinds.container_command import script_in
from tuner.rollout.targets.kinds.unit_settings import (
    UnitServer,
    environment,
    settings,
    words_of,
)
from tuner.rollout.targets.seam import Asked, Platform, Rollout, Stated
from tuner.rollout.targets.server import check_there, platform_of
from tuner.rollout.targets.view import Edits

NAME = "quadlet"
DEFAULT_FILE = ""
SUFFIXES: tuple[str, ...] = (".container",)
ON_THIS_MACHINE = False


@dataclass(frozen=True, slots=True)
class QuadletServer(UnitServer):
    """The server of a container that Podman runs."""

    image: Stated

    @property
    def platform(self) -> Platform:
        return platform_of(str(self.image.value), self.image.line)

    @property
    def rollout(self) -> Rollout:
        return self.restarted(posixpath.basename(self.asked.source).removesuffix(".container"))

    def reopened(self, text: str) -> "QuadletServer":
        return opened(text, self.asked)


def opened(text: str, asked: Asked) -> QuadletServer:
    """Return the container's server. Raises TargetError."""
    check_there(text, source=asked.source)
    edits = Edits(text, asked.source)
    found = {one.name: one for one in settings(text) if one.section == "Container"}
    image, command = found.get("Image"), found.get("Exec")
    if image is None:
        raise NotVllmError(
            f"{asked.source}: has no Image=", hint="Name a quadlet with a section [Container]."
        )
    if command is None:
        raise TargetError(
            f"{asked.source}: has no Exec= to edit, so it serves what its image says",
            hint="Write Exec= with the model and its flags, and apply again.",
        )
    view, words = words_of(edits, command.start, command.end, "Exec")
    part = TextPart(view, words, SYSTEMD, edits, environment(edits, asked))
    entrypoint = found["Entrypoint"].text(edits) if "Entrypoint" in found else None
    part = script_in([part], part.tokens, None) or part
    own = [*([entrypoint] if entrypoint else []), *(token.text for token in part.tokens)]
    started = server(own)
    known = images.entrypoint(image.text(edits)) if entrypoint is None else None
    if started is not None:
        begin, why = started.begin - (1 if entrypoint else 0), started.evidence
    elif known is not None or asked.trusted:
        begin, why = int(own[:1] == ["serve"]), known or ""
    else:
        raise NotVllmError(
            f"{asked.source}:{edits.line(image.start)}: not seen to start vLLM: "
            f"{image.text(edits)[:80]}",
            hint="Known: Exec=vllm serve … and images that start it. If it is vLLM: --force, on "
            "record.",
        )
    line = CommandLine([part], begin, part, None, edits, why)
    stated = Stated(image.text(edits), edits.line(image.start))
    return QuadletServer(text, asked, line, command, stated)

"""A systemd unit, or a drop-in for one: the command in ExecStart. Pure.

A drop-in must empty ``ExecStart=`` before it sets it, or systemd refuses a second command.
"""

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.errors import NotVllmError, TargetError
from tuner.rollout.targets.command_line.command_line import CommandLine, TextPart
from tuner.rollout.targets.command_line.dialects import SYSTEMD
from tuner.rollout.targets.command_line.process import image_of, server
from tuner.rollout.targets.kinds.container_command import script_in
from tuner.rollout.targets.kinds.unit_settings import (
    UnitServer,
    UnitSetting,
    environment,
    settings,
    words_of,
)
from tuner.rollout.targets.seam import Asked, Overruled, Platform, Rollout
from tuner.rollout.targets.server import check_there, platform_of
from tuner.rollout.targets.view import Edits

NAME = "systemd"
DEFAULT_FILE = ""
SUFFIXES: tuple[str, ...] = (".service", ".conf")
ON_THIS_MACHINE = True

_HEAD = (
    "# Set by `tuner apply`; the rest of the unit is as it was.\n[Service]\nExecStart=\nExecStart="
)


@dataclass(frozen=True, slots=True)
class ServiceServer(UnitServer):
    """The server of a unit's command."""

    @property
    def platform(self) -> Platform:
        """The image of ``docker run``; else nothing: a unit runs what its machine has."""
        words = [token for part in self.line.parts for token in part.tokens]
        image = image_of([token.text for token in words])
        if image is None:
            return Platform()
        return platform_of(words[image].text, words[image].line)

    @property
    def rollout(self) -> Rollout:
        folder, name = posixpath.split(self.asked.source)
        return self.restarted(name if name.endswith(".service") else _unit_of(folder))

    @property
    def overruled(self) -> Sequence[Overruled]:
        return [*_drop_ins(self.asked)]

    def reopened(self, text: str) -> "ServiceServer":
        return opened(text, self.asked)


def opened(text: str, asked: Asked) -> ServiceServer:
    """Return the server of the unit. Raises TargetError."""
    check_there(text, source=asked.source)
    edits = Edits(text, asked.source)
    setting = _exec_start(edits)
    start = setting.start + len(re.match(r"[@:+!|-]*", setting.text(edits))[0])  # type: ignore[index]
    view, words = words_of(edits, start, setting.end, "ExecStart")
    part = TextPart(view, words, SYSTEMD, edits, environment(edits, asked))
    part = script_in([part], part.tokens, None) or part
    texts = [token.text for token in part.tokens]
    started = server(texts)
    if started is not None:
        line = CommandLine([part], started.begin, part, None, edits, started.evidence)
        return ServiceServer(text, asked, line, setting)
    if not asked.trusted:
        raise NotVllmError(
            f"{asked.source}:{edits.line(start)}: ExecStart is not seen to start vLLM: "
            f"{' '.join(texts[:3])[:80]}",
            hint="Known: vllm serve, python -m vllm.entrypoints.openai.api_server, docker run of "
            "an image that starts them. If it is vLLM: --force, on record.",
        )
    flagged = next((n for n, text in enumerate(texts) if n and text.startswith("-")), len(texts))
    return ServiceServer(text, asked, CommandLine([part], flagged, part, None, edits), setting)


def drop_in(text: str, asked: Asked) -> str:
    """Return a drop-in that starts what the unit starts."""
    setting = opened(text, asked).setting
    return f"{_HEAD}{text[setting.start : setting.end]}\n"


def _exec_start(edits: Edits) -> UnitSetting:
    """Return the one command in force: an empty ExecStart takes back those before it."""
    found = _commands(edits.text)
    if len(found) == 1:
        return found[0]
    if found:
        raise TargetError(
            f"{edits.source}:{edits.line(found[1].start)}: a second ExecStart",
            hint="Empty it first, with a line ExecStart=, or write one unit for each.",
        )
    raise TargetError(
        f"{edits.source}: has no ExecStart to edit",
        hint="For a new drop-in: tuner apply PROFILE UNIT.service -o UNIT.service.d/tuner.conf",
    )


def _commands(text: str) -> list[UnitSetting]:
    found: list[UnitSetting] = []
    for setting in settings(text):
        if (setting.section, setting.name) == ("Service", "ExecStart"):
            found = [*found, setting] if setting.end > setting.start else []
    return found


def _drop_ins(asked: Asked) -> Iterator[Overruled]:
    """Yield the last drop-in beside a unit that sets its command."""
    folder, name = posixpath.split(asked.source)
    if not name.endswith(".service"):
        return
    for other in sorted(asked.beside.names(f"{name}.d/*.conf"), reverse=True):
        text, path = asked.beside.text(other) or "", posixpath.join(folder, other)
        if found := _commands(text):
            try:
                stated = opened(text, Asked(path, beside=asked.beside)).stated
            except TargetError:
                stated = {}
            line = Edits(text, path).line(found[-1].start)
            yield Overruled(path, line, "sets ExecStart", stated)
            return


def _unit_of(folder: str) -> str:
    return posixpath.basename(folder).removesuffix(".d") or "UNIT"

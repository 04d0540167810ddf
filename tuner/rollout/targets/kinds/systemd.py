"""A systemd unit, or a drop-in for one: the command in ExecStart. Pure.

A drop-in must empty ``ExecStart=`` before it sets it, or systemd refuses a second command.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tuner.engines.seam import ArgumentValue
from tuner.errors import TargetError
from tuner.rollout.targets.command_line.command_line import CommandLine, TextPart, vllm_begins
from tuner.rollout.targets.command_line.dialects import SYSTEMD
from tuner.rollout.targets.command_line.words import UnreadableError, split
from tuner.rollout.targets.kinds import container_target
from tuner.rollout.targets.kinds.container_command import script_in
from tuner.rollout.targets.seam import Platform, Stated
from tuner.rollout.targets.view import Edits, View

NAME = "systemd"
DEFAULT_FILE = ""
SUFFIXES: tuple[str, ...] = (".service", ".conf")
START = "systemctl daemon-reload && systemctl restart UNIT"
ON_THIS_MACHINE = True

_ASSIGNMENT = re.compile(r"[ \t]*([A-Za-z][A-Za-z0-9-]*)[ \t]*=[ \t]*")
_SECTION = re.compile(r"\ufeff?[ \t]*\[([^\]]*)\][ \t\r]*$")
_HEAD = (
    "# Set by `tuner apply`; the rest of the unit is as it was.\n[Service]\nExecStart=\nExecStart="
)


@dataclass(frozen=True, slots=True)
class _Setting:
    section: str
    name: str
    start: int
    """Where its value begins, without the blanks before it."""

    end: int


def read(text: str, *, source: str, container: str | None = None) -> dict[str, Stated]:
    del container  # a unit has one command
    return _open(text, source=source)[0].stated()


def platform(text: str, *, source: str, container: str | None = None) -> Platform:
    """Return nothing: a unit runs what is installed on its machine."""
    del text, source, container
    return Platform()


def write(
    text: str,
    arguments: Mapping[str, ArgumentValue],
    *,
    source: str,
    container: str | None = None,
) -> str:
    del container
    line, setting = _open(text, source=source)
    before = line.stated()
    line.write(arguments)
    result = line.edits.result()
    try:
        after, after_setting = _open(result, source=source)
        faults = container_target.differences(before, after.stated(), arguments)
    except TargetError as problem:
        raise container_target.unsafe(source, str(problem)) from None
    kept = result[: after_setting.start], result[after_setting.end :]
    if faults or kept != (text[: setting.start], text[setting.end :]):
        raise container_target.unsafe(source, ", ".join(faults) or "something else would change")
    return result


def drop_in(text: str, *, source: str) -> str:
    """Return a drop-in that starts what the unit starts."""
    _, setting = _open(text, source=source)
    return f"{_HEAD}{text[setting.start : setting.end]}\n"


def _open(text: str, *, source: str) -> tuple[CommandLine, _Setting]:
    container_target.check_there(text, source=source)
    edits = Edits(text, source)
    setting = _exec_start(edits)
    start = setting.start + len(re.match(r"[@:+!|-]*", text[setting.start : setting.end])[0])  # type: ignore[index]
    spans = [(at, at + 1) for at in range(start, setting.end)]
    view = View(text[start : setting.end], spans, str, start)
    place = f"{source}:{edits.line(start)}"
    try:
        commands = split(view, SYSTEMD)
    except UnreadableError as problem:
        raise TargetError(
            f"{place}: ExecStart cannot be understood: {problem}", hint="Mend the quotes there."
        ) from None
    words = commands[0] if commands else []
    if any(view.text[word.start : word.end] == ";" for word in words):
        raise TargetError(
            f"{place}: ExecStart holds several commands",
            hint="Give each a line of its own, with an empty ExecStart= before the one to edit.",
        )
    part = TextPart(view, words, SYSTEMD, edits)
    part = script_in([part], part.tokens, None) or part
    begins = vllm_begins([token.text for token in part.tokens])
    if len(begins) != 1:
        raise TargetError(
            f"{place}: ExecStart does not start vLLM in a way that is known",
            hint="Known: vllm serve, python -m vllm.entrypoints.openai.api_server, docker run.",
        )
    return CommandLine([part], begins[0], part, None, edits), setting


def _exec_start(edits: Edits) -> _Setting:
    """Return the one command in force: an empty ExecStart takes back those before it."""
    found: list[_Setting] = []
    for setting in _settings(edits.text):
        if (setting.section, setting.name) == ("Service", "ExecStart"):
            found = [*found, setting] if setting.end > setting.start else []
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


def _settings(text: str) -> Iterator[_Setting]:
    section, at = "", 0
    while at < len(text):
        end = _line_end(text, at)
        line = text[at:end]
        if (header := _SECTION.match(line)) is not None:
            section = header[1]
        elif not line.lstrip().startswith(("#", ";")):
            while text[at:end].removesuffix("\r").endswith("\\") and end < len(text):
                end = _line_end(text, end + 1)
                while re.match(
                    r"[ \t]*[#;]", text[text.rfind("\n", 0, end) + 1 : end]
                ) and end < len(text):
                    end = _line_end(text, end + 1)
            if (assignment := _ASSIGNMENT.match(text, at, end)) is not None:
                value = text[assignment.end() : end]
                stop = assignment.end() + len(value.rstrip())
                yield _Setting(section, assignment[1], assignment.end(), stop)
        at = end + 1


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end

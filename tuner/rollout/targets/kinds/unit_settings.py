"""A systemd unit, a drop-in or a quadlet: its settings with their places, and its server. Pure."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from tuner.errors import TargetError
from tuner.rollout.targets.command_line.command_line import CommandLine
from tuner.rollout.targets.command_line.dialects import SYSTEMD
from tuner.rollout.targets.command_line.variables import Scope, Variable
from tuner.rollout.targets.command_line.words import UnreadableError, Word, first_command
from tuner.rollout.targets.seam import Arguments, Asked, Rollout, Stated
from tuner.rollout.targets.server import Server
from tuner.rollout.targets.view import Edits, View

_ASSIGNMENT = re.compile(r"[ \t]*([A-Za-z][A-Za-z0-9-]*)[ \t]*=[ \t]*")
_SECTION = re.compile(r"\ufeff?[ \t]*\[([^\]]*)\][ \t\r]*$")


@dataclass(frozen=True, slots=True)
class UnitSetting:
    """One setting, such as ExecStart."""

    section: str
    name: str
    start: int
    """Where its value begins, without the blanks before it."""

    end: int

    def text(self, edits: Edits) -> str:
        return edits.text[self.start : self.end]


@dataclass(frozen=True, slots=True)
class UnitServer(Server):
    """The common part of the servers of both kinds of unit."""

    text: str
    asked: Asked
    line: CommandLine
    setting: UnitSetting
    """What has the command."""

    @property
    def evidence(self) -> str:
        return self.line.evidence

    @property
    def stated(self) -> dict[str, Stated]:
        return self.line.stated()

    def edited(self, arguments: Arguments) -> str:
        self.line.write(arguments)
        return self.line.edits.taken()

    def rest(self) -> tuple[str, str]:
        return self.text[: self.setting.start], self.text[self.setting.end :]

    def restarted(self, unit: str) -> Rollout:
        """Return how a service is started anew."""
        control = "systemctl --user" if is_of_user(self.text, self.asked) else "systemctl"
        return Rollout(f"{control} daemon-reload && {control} restart {shlex.quote(unit)}")


def settings(text: str) -> Iterator[UnitSetting]:
    """Yield the settings in order; a value may go on in the next lines."""
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
                yield UnitSetting(section, assignment[1], assignment.end(), stop)
        at = end + 1


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def words_of(edits: Edits, start: int, end: int, name: str) -> tuple[View, list[Word]]:
    """Return the words of a command. Raises TargetError for one that cannot be understood."""
    spans = [(at, at + 1) for at in range(start, end)]
    view = View(edits.text[start:end], spans, str, start)
    place = f"{edits.source}:{edits.line(start)}"
    try:
        words = first_command(view, SYSTEMD)
    except UnreadableError as problem:
        raise TargetError(
            f"{place}: {name} cannot be understood: {problem}", hint="Mend the quotes there."
        ) from None
    if any(view.text[word.start : word.end] == ";" for word in words):
        raise TargetError(
            f"{place}: {name} holds several commands",
            hint=f"Give each a line of its own, with an empty {name}= before the one to edit.",
        )
    return view, words


def environment(edits: Edits, asked: Asked) -> Scope:
    """Return the variables that a unit sets for its command, and ``%h``, the home of who runs it.

    What an ``EnvironmentFile=`` sets is not known here.
    """
    found: dict[str, Variable] = {}
    files = list[str]()
    for one in settings(edits.text):
        if one.section in ("Service", "Container") and one.name == "Environment":
            for word in words_of(edits, one.start, one.end, one.name)[1]:
                name, _, value = word.text.partition("=")
                found[name] = Variable(value if all(p.is_literal for p in word.pieces) else None)
        elif one.section == "Service" and one.name == "EnvironmentFile":
            files.append(one.text(edits).removeprefix("-"))
    if is_of_user(edits.text, asked):
        found["%h"] = Variable(asked.home, "is the home folder")
    elif asked.home:
        found["%h"] = Variable("/root", "is the home folder of root")
    if not files:
        return found.get
    elsewhere = Variable(
        None,
        f"may be set in {', '.join(files)}",
        cure=f"Apply the profile to the file that sets it: tuner apply PROFILE {files[-1]}",
    )
    return lambda name: found.get(name) or (None if name.startswith("%") else elsewhere)


def is_of_user(text: str, asked: Asked) -> bool:
    """Whether a unit is one of a user's own services."""
    wanted = [one for one in settings(text) if (one.section, one.name) == ("Install", "WantedBy")]
    in_session = any("default.target" in text[one.start : one.end] for one in wanted)
    return in_session or re.search(r"(^|/)\.config/|/user/", asked.source) is not None

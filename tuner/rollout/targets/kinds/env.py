"""A file of environment variables, one of which holds vLLM's flags: ``VLLM_ARGS="--flag value"``.

For ``vllm serve $VLLM_ARGS`` in a unit with EnvironmentFile=, a Compose service with env_file, or a
script that reads the file. Whoever splits the value at blanks may or may not honour quotes in it:
what would need them is not written. Pure.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.engines.seam import ArgumentValue
from tuner.errors import TargetError, UsageError
from tuner.rollout.targets.command_line import flags
from tuner.rollout.targets.command_line.command_line import CommandLine, TextPart, check_plain
from tuner.rollout.targets.command_line.dialects import VARIABLE
from tuner.rollout.targets.command_line.words import UnreadableError, split
from tuner.rollout.targets.kinds import container_target
from tuner.rollout.targets.seam import Platform, Stated
from tuner.rollout.targets.view import Edits, View

NAME = "env"
DEFAULT_FILE = "vllm.env"
SUFFIXES: tuple[str, ...] = ()
START = "set -a; . {path}; vllm serve $VLLM_ARGS"
ON_THIS_MACHINE = True

VARIABLE_NAME = "VLLM_ARGS"
_HEAD = "# Flags for `vllm serve $VLLM_ARGS`, set by `tuner apply`.\n"
_LINE = re.compile(
    r"^[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*(.*?)[ \t\r]*$", re.MULTILINE
)
_SET = re.compile(r"^[^#\n]*?\b(VLLM_(?:[A-Z]+_)*ARGS)[ \t]*\+?=", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = re.compile(r"VLLM_([A-Z]+_)*ARGS")

_FLAG = re.compile(
    r"(?:^|[\s\"'])--(?:max[-_]num[-_]seqs|max[-_]num[-_]batched[-_]tokens|max[-_]model[-_]len"
    r"|gpu[-_]memory[-_]utilization)\b"
)
"""Flags that are hardly anybody else's."""


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    start: int
    end: int
    """Of the value, without its quotes."""

    quotes: str

    @property
    def outside(self) -> tuple[int, int]:
        """Return where it begins and ends, with its quotes."""
        return self.start - len(self.quotes), self.end + len(self.quotes)


def read(text: str, *, source: str, container: str | None = None) -> dict[str, Stated]:
    entry = _chosen(text, source=source, container=container)
    return {} if entry is None else _line(Edits(text, source), entry).stated()


def platform(text: str, *, source: str, container: str | None = None) -> Platform:
    """Return nothing: a file of variables does not say who reads it."""
    del text, source, container
    return Platform()


def write(
    text: str,
    arguments: Mapping[str, ArgumentValue],
    *,
    source: str,
    container: str | None = None,
) -> str:
    """Return the text with the variable set; a new one also names the model."""
    entry = _chosen(text, source=source, container=container)
    if entry is None:
        return _with_new(text, arguments, container or VARIABLE_NAME, source=source)
    edits = Edits(text, source)
    line = _line(edits, entry)
    before = line.stated()
    line.write(arguments)
    result = _quoted(text, edits.result(), entry)
    after = _chosen(result, source=source, container=entry.name)
    if after is None:
        raise container_target.unsafe(source, f"{entry.name} would be gone")
    found = _line(Edits(result, source), after).stated()
    faults = container_target.differences(before, found, arguments)
    kept = result[: after.outside[0]], result[after.outside[1] :]
    if faults or kept != (text[: entry.outside[0]], text[entry.outside[1] :]):
        raise container_target.unsafe(source, ", ".join(faults) or "something else would change")
    return result


def _quoted(text: str, result: str, entry: _Entry) -> str:
    """Put quotes around a value that was one word: a shell would run the others."""
    end = entry.end + len(result) - len(text)
    value = result[entry.start : end]
    if entry.quotes or " " in text[entry.start : entry.end] or " " not in value:
        return result
    return f'{result[: entry.start]}"{value}"{result[end:]}'


def _with_new(text: str, arguments: Mapping[str, ArgumentValue], name: str, *, source: str) -> str:
    for match in _LINE.finditer(text):
        plain = match[1].lower().removeprefix("vllm_")
        if plain in arguments:
            raise TargetError(
                f"{source}:{Edits(text, source).line(match.start())}: {match[1]} looks like "
                f"{plain}, in a way that tuner does not know",
                hint=f"Move it into {name}, as a flag; then apply the profile.",
            )
    model = arguments.get("model")
    rest = {key: value for key, value in arguments.items() if key != "model"}
    words = [str(model)] if model is not None and not text else []
    words += [word for group in flags.added((), rest, source=source) for word in group]
    for word in words:
        check_plain(word, source=source)
    newline = "\r\n" if "\r\n" in text else "\n"
    begin = _HEAD if not text else text if text.endswith("\n") else text + newline
    return f'{begin}{name}="{" ".join(words)}"{newline}'


def _chosen(text: str, *, source: str, container: str | None) -> _Entry | None:
    """Return the variable of flags; None where there is none yet."""
    if container is not None and not _NAME.fullmatch(container):
        raise UsageError(
            f"--container {container!r}: not the name of a variable",
            hint=f"Name the one that holds the flags, such as {VARIABLE_NAME}.",
        )
    _refuse_unknown(text, source=source)
    found = {}
    for match in _LINE.finditer(text):
        name, value = match[1], match[2]
        if name != container and (container is not None or not _OURS.fullmatch(name)):
            continue
        place = f"{source}:{Edits(text, source).line(match.start())}"
        if name in found:
            raise TargetError(f"{place}: {name} is set a second time", hint="Remove one.")
        quotes = value[:1] if value[:1] in ("'", '"') else ""
        if quotes and (len(value) < 2 or value[-1] != quotes or quotes in value[1:-1]):
            raise TargetError(
                f"{place}: the value of {name} cannot be understood",
                hint="Write it on one line, in one pair of quotes.",
            )
        if not quotes and re.search(r"[ \t]#", value):
            raise TargetError(
                f"{place}: a shell takes what follows # in {name} for a comment, systemd does not",
                hint="Put the comment on a line of its own.",
            )
        found[name] = _Entry(name, match.start(2) + len(quotes), match.end(2) - len(quotes), quotes)
    if not found and container is None:
        _refuse_others(text, source=source)
    if len(found) > 1:
        raise UsageError(
            f"{source}: which variable?", hint=f"--container NAME, of {', '.join(found)}."
        )
    return next(iter(found.values()), None)


def _refuse_others(text: str, *, source: str) -> None:
    """Refuse to add a variable where another one holds vLLM's flags: nobody would read the new."""
    others = [match[1] for match in _LINE.finditer(text) if _FLAG.search(match[2])]
    if others:
        raise UsageError(
            f"{source}: which variable? {others[0]} holds flags of vLLM's",
            hint=f"--container NAME, of {', '.join(others)}; or {VARIABLE_NAME} for a new one.",
        )


def _refuse_unknown(text: str, *, source: str) -> None:
    """Refuse a variable of flags that is set otherwise than on a line of its own."""
    known = {match.start(1) for match in _LINE.finditer(text)}
    for match in _SET.finditer(text):
        if match.start(1) not in known:
            raise TargetError(
                f"{source}:{Edits(text, source).line(match.start(1))}: {match[1]} is set in a way "
                "that tuner does not know",
                hint=f'Write it on a line of its own: {match[1]}="…".',
            )


def _line(edits: Edits, entry: _Entry) -> CommandLine:
    text = edits.text[entry.start : entry.end]
    spans = [(at, at + 1) for at in range(entry.start, entry.end)]
    view = View(text, spans, str, entry.start)
    try:
        commands = split(view, VARIABLE)
    except UnreadableError as problem:
        raise TargetError(
            f"{edits.source}:{edits.line(entry.start)}: {entry.name} cannot be understood: "
            f"{problem}",
            hint="Mend the quotes there.",
        ) from None
    part = TextPart(view, commands[0] if commands else [], VARIABLE, edits)
    return CommandLine([part], 0, part, None, edits)

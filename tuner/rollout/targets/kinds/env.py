"""A file of environment variables that hold vLLM's flags: ``VLLM_ARGS="--flag value"``. Pure.

One variable has all flags, for ``vllm serve $VLLM_ARGS`` in a unit with EnvironmentFile=, a Compose
service or a script that reads the file. Whoever splits the value at blanks may or may not honour
quotes in it, so what would need quotes is not written.

Or, in the ``.env`` beside a Compose file, each variable is the value of one flag: ``command: vllm
serve m --max-num-seqs ${SLOTS}``.
"""

import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tuner.engines.vllm.flags import canonical
from tuner.engines.vllm.values import typed
from tuner.errors import NotVllmError, TargetError, UsageError
from tuner.rollout.targets.command_line import flags
from tuner.rollout.targets.command_line.command_line import (
    CommandLine,
    ElsewherePart,
    TextPart,
    check_plain,
    elsewhere,
)
from tuner.rollout.targets.command_line.dialects import VARIABLE
from tuner.rollout.targets.command_line.flags import Token
from tuner.rollout.targets.command_line.names import PROOFS, proof
from tuner.rollout.targets.command_line.process import server
from tuner.rollout.targets.command_line.variables import Variable, reference
from tuner.rollout.targets.command_line.words import UnreadableError, first_command
from tuner.rollout.targets.env_lines import EnvLine, env_lines
from tuner.rollout.targets.kinds import compose
from tuner.rollout.targets.seam import Arguments, Asked, Rollout, Stated, Statements
from tuner.rollout.targets.server import Server
from tuner.rollout.targets.view import Edits, View

NAME = "env"
DEFAULT_FILE = "vllm.env"
SUFFIXES: tuple[str, ...] = ()
ON_THIS_MACHINE = True

VARIABLE_NAME = "VLLM_ARGS"
_START = "set -a; . {path}; vllm serve $VLLM_ARGS"
_HEAD = "# Flags for `vllm serve $VLLM_ARGS`, set by `tuner apply`.\n"
_SET_ODDLY = re.compile(r"^[^#\n]*?\b(VLLM_(?:[A-Z]+_)*ARGS)[ \t]*\+?=", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class FlagsServer(Server):
    """The server of a variable that holds flags."""

    text: str
    asked: Asked
    entry: EnvLine | None
    """None: there is no such variable yet."""

    evidence: str = field()  # not the property of Server
    reader: "_Reader | None" = None

    @property
    def _name(self) -> str:
        if self.entry is not None:
            return self.entry.name
        return self.asked.container or VARIABLE_NAME

    @property
    def stated(self) -> dict[str, Stated]:
        if self.entry is None:
            return {}
        return {**self._outside, **self._line(Edits(self.text, self.asked.source)).stated()}

    @property
    def _outside(self) -> Statements:
        """The arguments that are stated by the Compose file which reads the variable."""
        return {} if self.reader is None else self.reader.flags[self._name]

    def _line(self, edits: Edits) -> CommandLine:
        assert self.entry is not None
        return _with_others(_line(edits, self.entry), self.entry, env_lines(self.text))

    @property
    def is_new(self) -> bool:
        return not self.text

    @property
    def rollout(self) -> Rollout:
        if self.reader is not None:
            return self.reader.rollout
        return Rollout(_START.replace(VARIABLE_NAME, self._name))

    @property
    def notes(self) -> Sequence[str]:
        """Notes on what else decides: the Compose file, and variables that stand in this one."""
        notes = list[str]()
        if self.reader is not None and PROOFS & {*self._outside}:
            notes.append(
                f"the flags that {self.reader.path} states stay: apply the profile there, too"
            )
        if self.entry is not None:
            line = self._line(Edits(self.text, self.asked.source))
            known = {part.name for part in line.parts if isinstance(part, ElsewherePart)}
            notes += [
                f"{self.asked.source}:{self.entry.line}: ${name} is not set here and stays: "
                "a flag in it decides over one before it"
                for name in sorted(line.spliced - known)
            ]
        return notes

    def edited(self, arguments: Arguments) -> str:
        """Return the text with the variable set; a new file also names the model."""
        if self.entry is None:
            return _with_new(self.text, arguments, self._name, source=self.asked.source)
        edits = Edits(self.text, self.asked.source)
        self._line(edits).write(arguments)
        return _quoted(self.text, edits.result(), self.entry)

    def own(self, arguments: Arguments) -> Arguments:
        """See Server. Raises TargetError where the Compose file states one of them too."""
        if self.reader is None or self.entry is None:
            return arguments
        outside = self._outside
        here = self._line(Edits(self.text, self.asked.source)).stated()
        for name in sorted(here.keys() & outside.keys() & arguments.keys()):
            raise TargetError(
                f"{self.reader.path}:{outside[name].line}: states {name} as well as "
                f"{self.asked.source}:{self.entry.line}",
                hint="Remove one of the two.",
            )
        return {name: value for name, value in arguments.items() if name not in outside}

    def reopened(self, text: str) -> "FlagsServer":
        asked = self.asked
        if self.reader is None:
            asked = replace(asked, container=self._name, trusted=True)
        found = opened(text, asked)
        assert isinstance(found, FlagsServer)
        return found

    def rest(self) -> list[str]:
        return _lines_but(self.text, {self._name})


@dataclass(frozen=True, slots=True)
class ComposeValuesServer(Server):
    """The variables that a Compose file beside takes values of flags from."""

    text: str
    asked: Asked
    reader: "_Reader"
    found: Mapping[str, EnvLine]
    """Argument → the line that sets its value."""

    @property
    def evidence(self) -> str:
        return f"{self.reader.path}, which takes values of vLLM's flags from it"

    @property
    def stated(self) -> dict[str, Stated]:
        stated = {
            argument: Stated(typed(one.value), one.line) for argument, one in self.found.items()
        }
        whole = self.reader.stated
        return {"model": whole["model"], **stated} if "model" in whole else stated

    @property
    def rollout(self) -> Rollout:
        return self.reader.rollout

    @property
    def notes(self) -> Sequence[str]:
        where = self.reader.path
        return (f"the flags that it does not set are in {where}: apply the profile there, too",)

    def edited(self, arguments: Arguments) -> str:
        """Return the text with other values. Raises TargetError for one that a variable cannot
        carry."""
        edits = Edits(self.text, self.asked.source)
        for argument, value in arguments.items():
            one = self.found[argument]
            if one.value == str(value):
                continue
            if value is None or isinstance(value, bool | list | dict):
                raise TargetError(
                    f"{self.asked.source}:{one.line}: {argument}: a variable cannot carry "
                    f"{value!r}",
                    hint=f"Write {argument} in {self.reader.path}.",
                )
            check_plain(str(value), source=self.asked.source)
            edits.replace(one.start, one.end, str(value))
        return edits.result()

    def reopened(self, text: str) -> "ComposeValuesServer":
        found = opened(text, self.asked)
        assert isinstance(found, ComposeValuesServer)
        return found

    def rest(self) -> list[str]:
        return _lines_but(self.text, {one.name for one in self.found.values()})

    def own(self, arguments: Arguments) -> Arguments:
        return {name: value for name, value in arguments.items() if name in self.found}


def _lines_but(text: str, names: set[str]) -> list[str]:
    """Return the lines that set none of these variables, and are not tuner's own."""
    own = {one.line for one in env_lines(text) if one.name in names}
    lines = enumerate(text.removeprefix(_HEAD).split("\n"), start=1 + text.startswith(_HEAD))
    return [line for number, line in lines if number not in own and line]


def opened(text: str, asked: Asked) -> FlagsServer | ComposeValuesServer:
    """Return the variable of flags, or those of a Compose file beside.

    Raises TargetError for a variable that cannot be understood, NotVllmError where none is seen to
    hold vLLM's flags, UsageError where several do.
    """
    name = asked.container
    if name is not None and not _NAME.fullmatch(name):
        raise UsageError(
            f"--container {name!r}: not the name of a variable",
            hint=f"Name the one that holds the flags, such as {VARIABLE_NAME}.",
        )
    if not text:
        return FlagsServer(text, asked, None, "")
    _refuse_odd(text, source=asked.source)
    lines = list(env_lines(text))
    reader = _reader(asked, lines)
    read = {} if reader is None else reader.flags
    holding = {one.name: why for one in lines if (why := _evidence(one))}
    if reader is not None and read:
        holding = dict.fromkeys(read, f"{reader.path}, which takes vLLM's flags from it")
    name = name if name in {one.name for one in lines} or not reader else None
    chosen = [one for one in lines if (one.name == name if name else one.name in holding)]
    if not chosen and reader is not None and reader.values:
        return ComposeValuesServer(text, asked, reader, reader.values)
    if len({one.name for one in chosen}) > 1:
        raise UsageError(
            f"{asked.source}: which variable?", hint=f"--container NAME, of {', '.join(holding)}."
        )
    if not chosen:
        if not (name and asked.trusted):
            raise _none_of(lines, asked)
        return FlagsServer(text, asked, None, "")
    only = _only(chosen, asked)
    if not (evidence := holding.get(only.name, "")) and not asked.trusted:
        raise NotVllmError(
            f"{asked.source}:{only.line}: {only.name} is not seen to hold vLLM's flags",
            hint="One that is vLLM's alone proves it, such as --max-num-seqs. If they are vLLM's: "
            f"--container {only.name} --force, on record.",
        )
    return FlagsServer(text, asked, only, evidence, reader if only.name in read else None)


def _only(chosen: Sequence[EnvLine], asked: Asked) -> EnvLine:
    """Return the line that sets a variable. Raises TargetError where it cannot be edited."""
    one = chosen[0]
    for other in chosen[1:]:
        raise TargetError(
            f"{asked.source}:{other.line}: {other.name} is set a second time", hint="Remove one."
        )
    if one.problem:
        raise TargetError(
            f"{asked.source}:{one.line}: the value of {one.name} cannot be understood: "
            f"{one.problem}",
            hint="Write it on one line, in one pair of quotes, and a comment on a line of its own.",
        )
    return one


def _none_of(lines: Sequence[EnvLine], asked: Asked) -> TargetError:
    for one in lines:
        plain = one.name.lower().removeprefix("vllm_")
        if plain in ("max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization"):
            return NotVllmError(
                f"{asked.source}:{one.line}: {one.name} looks like {plain}, and nothing here says "
                "who reads it",
                hint="Apply the profile to the file that starts vLLM with it.",
            )
    return NotVllmError(
        f"{asked.source}: no variable in it is seen to hold vLLM's flags",
        hint=f'Write {VARIABLE_NAME}="--max-num-seqs=…" for vllm serve ${VARIABLE_NAME}, or apply '
        "the profile to the file that starts vLLM.",
    )


def _evidence(one: EnvLine) -> str:
    """Return why a variable holds vLLM's flags; empty where nothing shows it."""
    if "--" not in one.value:
        return ""
    if one.problem:
        named = re.findall(r"(?<!\S)--([\w-]+)", one.value.lstrip("'\""))
        why = proof(canonical(name)[0] for name in named)
        return f"its flag {why}" if why else ""
    try:
        line = _line(
            Edits(one.value, ""), EnvLine(one.name, one.value, 1, 0, 0, len(one.value), "")
        )
        if line.evidence:
            return line.evidence
        why = proof(flag.argument for flag in flags.find(line.words))
    except TargetError:
        return ""
    return f"its flag {why}" if why else ""


def _quoted(text: str, result: str, entry: EnvLine) -> str:
    """Put quotes around a value that was one word: a shell would run the others."""
    end = entry.end + len(result) - len(text)
    value = result[entry.start : end]
    if entry.quotes or " " in text[entry.start : entry.end] or " " not in value:
        return result
    return f'{result[: entry.start]}"{value}"{result[end:]}'


def _with_new(text: str, arguments: Arguments, name: str, *, source: str) -> str:
    model = arguments.get("model")
    rest = {key: value for key, value in arguments.items() if key != "model"}
    words = [str(model)] if model is not None and not text else []
    words += [word for group in flags.added((), rest, source=source) for word in group]
    for word in words:
        check_plain(word, source=source)
    newline = "\r\n" if "\r\n" in text else "\n"
    begin = _HEAD if not text else text if text.endswith("\n") else text + newline
    return f'{begin}{name}="{" ".join(words)}"{newline}'


def _refuse_odd(text: str, *, source: str) -> None:
    """Refuse a variable of flags that is set otherwise than on a line of its own."""
    known = {one.at for one in env_lines(text)}
    for match in _SET_ODDLY.finditer(text):
        if match.start(1) not in known:
            raise TargetError(
                f"{source}:{Edits(text, source).line(match.start(1))}: {match[1]} is set in a way "
                "that tuner does not know",
                hint=f'Write it on a line of its own: {match[1]}="…".',
            )


def _line(edits: Edits, entry: EnvLine) -> CommandLine:
    text = edits.text[entry.start : entry.end]
    spans = [(at, at + 1) for at in range(entry.start, entry.end)]
    view = View(text, spans, str, entry.start)
    try:
        words = first_command(view, VARIABLE)
    except UnreadableError as problem:
        raise TargetError(
            f"{edits.source}:{edits.line(entry.start)}: {entry.name} cannot be understood: "
            f"{problem}",
            hint="Mend the quotes there.",
        ) from None
    part = TextPart(view, words, VARIABLE, edits)
    started = server([token.text for token in part.tokens])
    begin, why = (0, "") if started is None else (started.begin, started.evidence)
    return CommandLine([part], begin, part, None, edits, why)


def _with_others(line: CommandLine, entry: EnvLine, lines: Iterable[EnvLine]) -> CommandLine:
    """Add the flags of the variables that are put into this one, and leave those not known."""
    words, set_before = line.words, {one.name: one for one in lines if one.at < entry.at}
    values = {index for flag in flags.find(words) for index in flag.values}
    at = None if "model" in flags.stated(words) else flags.model(words)
    names, known = set[str](), list[Token]()
    for index, token in enumerate(words):
        asked = reference(token.text)
        if not token.splits or asked is None or index in {*values, at}:
            continue
        names.add(asked.name)
        if (one := set_before.get(asked.name)) is not None:
            variable = Variable(one.value, f"is set in line {one.line}")
            known.append(replace(token, value=one.value, variable=variable))
    return replace(line, parts=[*line.parts, *elsewhere(known)], spliced=frozenset(names))


@dataclass(frozen=True, slots=True)
class _Reader:
    """A Compose file beside, whose command of vLLM's takes variables from this file."""

    path: str
    stated: Statements
    """What it states, with the variables put in."""

    flags: Mapping[str, Statements]
    """A variable that holds flags → what the file states without it."""

    values: Mapping[str, EnvLine]
    """Argument → the line that sets its value."""

    @property
    def rollout(self) -> Rollout:
        return Rollout(f"docker compose -f {shlex.quote(self.path)} up -d")


def _reader(asked: Asked, lines: Sequence[EnvLine]) -> _Reader | None:
    """Return the Compose file beside a ``.env`` that takes vLLM's flags from it, or values of some.

    One with several servers, of which none is chosen, is passed over.
    """
    if posixpath.basename(asked.source) != ".env":
        return None
    by_name = {line.name: line for line in lines}
    service = None if asked.container in by_name else asked.container
    more = {
        name for suffix in compose.SUFFIXES for name in asked.beside.names(f"*compose*{suffix}")
    }
    for name in [*compose.NAMES, *sorted(more - {*compose.NAMES})]:
        if (other := asked.beside.text(name)) is None:
            continue
        path = posixpath.join(posixpath.dirname(asked.source), name)
        try:
            line = compose.opened(other, Asked(path, service, beside=asked.beside)).line
            stated = line.stated()
            held = {
                part.name: replace(line, parts=[one for one in line.parts if one is not part])
                for part in line.parts
                if isinstance(part, ElsewherePart) and part.name in by_name
            }
            read = {name: one.stated() for name, one in held.items()}
        except (TargetError, UsageError):
            continue
        values = {
            argument: by_name[variable]
            for argument, variable in _taken(line)
            if variable in by_name and not by_name[variable].problem
        }
        if read or values:
            return _Reader(path, stated, read, values)
    return None


def _taken(line: CommandLine) -> Iterator[tuple[str, str]]:
    """Yield the arguments whose values are variables, and which."""
    words = line.words
    for flag in flags.find(words):
        word = words[flag.values[0] if len(flag.values) == 1 else flag.index]
        spelt = word.text.partition("=")[2] if flag.inline is not None else word.text
        asked = reference(spelt)
        if asked is not None and not word.known:
            yield flag.argument, asked.name

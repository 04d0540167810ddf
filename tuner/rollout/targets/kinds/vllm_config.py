"""A ``vllm serve --config`` YAML, read as vLLM reads it and edited in place.

vLLM (``FlexibleArgumentParser.load_config_file``) makes each key a flag, underscores and hyphens
alike. ``true`` gives ``--flag``. ``false`` is dropped without a word by ``vllm serve``, whose outer
parser knows no ``--no-flag``; so False is written as ``no-flag: true``. A null becomes the text
``None``, which many arguments refuse; so None is written by not stating the argument. A mapping
becomes JSON; an empty list is dropped.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import yaml

from tuner.engines.seam import ArgumentValue
from tuner.engines.vllm.flags import WITHOUT_NEGATIVE, canonical
from tuner.engines.vllm.values import same
from tuner.errors import NotVllmError, TargetError
from tuner.rollout.targets.command_line import names
from tuner.rollout.targets.seam import Arguments, Asked, Rollout, Stated, Statements
from tuner.rollout.targets.server import Server
from tuner.rollout.targets.yaml.file import YamlFile, parse
from tuner.rollout.targets.yaml.nodes import entries, line_of, refuse_filled_in
from tuner.system import yaml_strict

NAME = "vllm-config"
DEFAULT_FILE = "serve.yaml"
SUFFIXES: tuple[str, ...] = (".yaml", ".yml")
ON_THIS_MACHINE = True

_HEAD = "# Engine arguments for `vllm serve --config`, set by `tuner apply`.\n"
_MOST_NAMES = 12
"""In a message."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One key of the file."""

    argument: str
    """vLLM's name for it."""

    negated: bool
    dotted: bool
    """One key inside a mapping argument, such as ``compilation-config.mode``."""

    key: yaml.ScalarNode
    value: yaml.Node

    @property
    def name(self) -> str:
        return str(self.key.value)

    @property
    def line(self) -> int:
        return line_of(self.key)


@dataclass(frozen=True, slots=True)
class ConfigServer(Server):
    """The server of a config file."""

    asked: Asked
    text: str
    file: YamlFile
    root: yaml.MappingNode | None
    """None where there is no key yet."""

    evidence: str = field()  # not the property of Server

    @property
    def entries(self) -> list[_Entry]:
        return list(_entries(self.root))

    @property
    def stated(self) -> dict[str, Stated]:
        """The arguments by vLLM's names; the last one of a name counts.

        A value that vLLM drops (``false``, null, an empty list) states nothing.
        """
        stated: dict[str, Stated] = {}
        for entry in self.entries:
            value = yaml_strict.construct(entry.value, source=self.asked.source, error=TargetError)
            if entry.negated:
                value = False if value is True else None
            elif value is False or value == []:
                value = None
            if value is not None and not entry.dotted:
                stated[entry.argument] = Stated(_argument_value(value), entry.line)
        return stated

    @property
    def is_new(self) -> bool:
        return self.root is None

    @property
    def rollout(self) -> Rollout:
        return Rollout("vllm serve --config {file}")

    @property
    def notes(self) -> Sequence[str]:
        """Keys that vLLM is not known to have."""
        odd = [entry for entry in self.entries if entry.argument not in names.KNOWN]
        if not odd:
            return ()
        listed = ", ".join(entry.name[:80] for entry in odd[:_MOST_NAMES])
        more = f" and {len(odd) - _MOST_NAMES} more" if len(odd) > _MOST_NAMES else ""
        place = f"{self.asked.source}:{odd[0].line}"
        return (f"{place}: not known as vLLM's, and left as they are: {listed}{more}",)

    def edited(self, arguments: Arguments) -> str:
        self.ask(arguments)
        return self.file.edits.taken()

    def reopened(self, text: str) -> "ConfigServer":
        file = parse(text, source=self.asked.source)
        return ConfigServer(self.asked, text, file, root_of(file), self.evidence)

    def rest(self) -> list[tuple[str, object]]:
        """Return the keys that are no arguments of vLLM's, with what they hold."""
        source = self.asked.source
        return [
            (entry.name, repr(yaml_strict.construct(entry.value, source=source, error=TargetError)))
            for entry in self.entries
            if entry.dotted or entry.argument not in names.KNOWN
        ]

    def faults(self, before: Statements, after: Statements, arguments: Arguments) -> list[str]:
        wanted = {
            name: _read_back(one.value) for name, one in before.items() if name not in arguments
        }
        for name, value in arguments.items():
            if _written(name, value, source=self.asked.source) is not None:
                wanted[name] = _read_back(value)
        found = {name: _read_back(one.value) for name, one in after.items()}
        return sorted(
            name
            for name in wanted.keys() | found.keys()
            if name not in wanted or name not in found or not same(wanted[name], found[name])
        )

    def ask(self, arguments: Arguments) -> None:
        """Ask for the edits. Raises TargetError for what cannot be edited safely."""
        source = self.asked.source
        present: dict[str, _Entry] = {}
        for entry in self.entries:
            if entry.argument in arguments:
                _refuse_second(entry, present.get(entry.argument), source=source)
                present[entry.argument] = entry
        for argument, value in arguments.items():
            found, wanted = present.get(argument), _written(argument, value, source=source)
            if found is None:
                if wanted is not None:
                    self.file.add_key(self.root, *wanted, on_one_line=True)
            elif not _states(found, argument, value, source=source):
                refuse_filled_in(found.value, argument, source=source)
                assert self.root is not None
                _change(self.file, self.root, found, wanted)


def opened(text: str, asked: Asked) -> ConfigServer:
    """Return the server that the file is for; a text without keys is a new one.

    Raises TargetError for what cannot be read, NotVllmError for what is not proven to be vLLM's.
    """
    file = parse(text or _HEAD, source=asked.source)
    root = root_of(file)
    if root is None:
        return ConfigServer(asked, text, file, root, "")
    return ConfigServer(asked, text, file, root, proof_of(file, root))


def root_of(file: YamlFile) -> yaml.MappingNode | None:
    """Return the mapping of a file; None where there is no key yet. Raises TargetError."""
    if len(file.roots) > 1:
        raise file.refuse(file.roots[1], "is another document", hint="Write one mapping.")
    if not file.roots:
        return None
    root = file.roots[0]
    if not isinstance(root, yaml.MappingNode):
        raise file.refuse(root, "not a mapping of keys to values", hint="Is this the right file?")
    for key, _ in root.value:
        if key.tag != "tag:yaml.org,2002:str":
            raise file.refuse(
                key,
                f"key {key.value[:80]!r} is not text",
                hint="Put it in quotes; write merged keys out.",
            )
    if {"schema_version", "digest"} <= entries(root).keys():
        raise TargetError(
            f"{file.source}: is a serving profile, not a file to deploy with",
            hint="The order is: tuner apply PROFILE FILE.",
        )
    return root if root.value else None


def proof_of(file: YamlFile, root: yaml.MappingNode) -> str:
    """Return which keys prove that the file is vLLM's. Raises NotVllmError."""
    found = list(_entries(root))
    arguments = {entry.argument for entry in found}
    for entry in found:
        if (owner := names.OWNERS.get(entry.argument)) is not None:
            raise NotVllmError(
                f"{file.source}:{entry.line}: is no config of vLLM's: {entry.name} is of {owner}",
                hint="Name the file that vllm serve --config reads.",
            )
        if entry.argument not in names.KNOWN and _is_nested(entry.value):
            raise NotVllmError(
                f"{file.source}:{entry.line}: is no config of vLLM's: {entry.name[:80]} holds "
                "keys of its own, and vLLM has no such argument",
                hint="Name the file that vllm serve --config reads, or what it is with --to; in "
                "the values of a chart --at PATH says where vLLM's arguments are.",
            )
    if not (why := names.proof(arguments)):
        raise NotVllmError(
            f"{file.source}: nothing in it proves that it is a config of vLLM's",
            hint="It needs one key that is vLLM's alone, such as max-num-seqs or "
            "gpu-memory-utilization, or model and two more: if vllm serve --config reads it, add "
            "such a line and apply again.",
        )
    return f"its key {why}"


def _is_nested(node: yaml.Node) -> bool:
    """Whether it holds a mapping: the arguments that vLLM takes one for are known."""
    if isinstance(node, yaml.SequenceNode):
        return any(isinstance(item, yaml.MappingNode) for item in node.value)
    return isinstance(node, yaml.MappingNode)


def _entries(root: yaml.MappingNode | None) -> Iterator[_Entry]:
    for key, value in [] if root is None else root.value:
        name, dot, _ = key.value.partition(".")
        argument, negated = canonical(name)
        yield _Entry(argument, negated, bool(dot), key, value)


def _refuse_second(entry: _Entry, first: _Entry | None, *, source: str) -> None:
    if first is not None:
        raise TargetError(
            f"{source}:{entry.line}: {entry.name} states {entry.argument} a second time, "
            f"after line {first.line}",
            hint="Remove one of the two.",
        )
    if entry.dotted:
        raise TargetError(
            f"{source}:{entry.line}: {entry.name} states a part of {entry.argument}",
            hint=f"Write {entry.argument} as one mapping, or remove its parts.",
        )


def _states(entry: _Entry, argument: str, value: ArgumentValue, *, source: str) -> bool:
    """Whether vLLM already gets this value from the entry."""
    found = yaml_strict.construct(entry.value, source=source, error=TargetError)
    if entry.negated:
        return value is False and found is True
    if isinstance(value, bool):
        if argument in WITHOUT_NEGATIVE and not value:
            return found is False
        return value and found is True
    if value is None or isinstance(found, bool):
        return False
    if isinstance(value, list | dict) or isinstance(found, list | dict):
        return same(found, value)
    return _as_text(found) == str(value)


def _written(
    argument: str, value: ArgumentValue, *, source: str
) -> tuple[str, ArgumentValue] | None:
    """Return the key and the value that vLLM reads as ``value``; None for stating nothing."""
    flag = argument.replace("_", "-")
    if value is None or (value is False and argument in WITHOUT_NEGATIVE):
        return None
    if isinstance(value, bool):
        return (flag, True) if value else (f"no-{flag}", True)
    texts = value if isinstance(value, list) else [value]
    odd = [one for one in texts if one is None or isinstance(one, bool | list | dict)]
    if texts == [] or (odd and odd != [value]):
        raise TargetError(
            f"{source}: {argument}: a --config file cannot carry {value!r}",
            hint=f"Leave {argument} to vLLM's default, or pass it on the command line.",
        )
    if any(isinstance(item, str) and item.startswith("-") for item in texts):
        raise TargetError(
            f"{source}: {argument}: vLLM would take {value!r} for a flag",
            hint=f"Give {argument} a value that does not begin with a hyphen.",
        )
    return flag, value


def _change(
    file: YamlFile,
    root: yaml.MappingNode,
    entry: _Entry,
    wanted: tuple[str, ArgumentValue] | None,
) -> None:
    if wanted is None:
        file.remove_key(root, entry.name)
        return
    flag, value = wanted
    if flag.startswith("no-") != entry.negated:
        file.rename_key(entry.key, flag.replace("-", "_") if "_" in entry.name else flag)
    file.set(entry.value, value, key=entry.key)


def _read_back(value: ArgumentValue) -> ArgumentValue:
    """Return a value as vLLM sees it: scalars are texts on a command line."""
    return value if isinstance(value, list | dict | bool) else _as_text(value)


def _as_text(value: object) -> str:
    """Return a scalar as a text; a number of more digits than Python prints is no argument's."""
    try:
        return str(value)
    except ValueError:
        return "a number of thousands of digits"


def _argument_value(value: object) -> ArgumentValue:
    """Return a value as an argument: dates and the like reach vLLM as texts."""
    if isinstance(value, int) and abs(value) >= _TOO_LARGE:
        return _as_text("a number of thousands of digits")
    if value is None or isinstance(value, str | int | float | list | dict):
        return value
    return str(value)


_TOO_LARGE = 10**400
"""Python refuses to print numbers of more than 4,300 digits."""

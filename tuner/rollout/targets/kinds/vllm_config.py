"""A ``vllm serve --config`` YAML, read as vLLM reads it and edited in place.

What vLLM does with such a file (``FlexibleArgumentParser.load_config_file``): each key becomes a
flag, underscores and hyphens alike. ``true`` gives ``--flag``. ``false`` is dropped without a word
by ``vllm serve``, whose outer parser knows no ``--no-flag``; so False is written as
``no-flag: true``. A null becomes the text ``None``, which many arguments refuse; so None is written
by not stating the argument. A mapping becomes JSON; an empty list is dropped.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import yaml

from tuner.engines.seam import ArgumentValue
from tuner.engines.vllm.flags import WITHOUT_NEGATIVE, canonical
from tuner.engines.vllm.values import same
from tuner.errors import TargetError
from tuner.rollout.targets.seam import Platform, Stated
from tuner.rollout.targets.yaml.file import YamlFile, parse
from tuner.rollout.targets.yaml.nodes import entries, refuse_filled_in
from tuner.system import yaml_strict

NAME = "vllm-config"
DEFAULT_FILE = "serve.yaml"
SUFFIXES: tuple[str, ...] = (".yaml", ".yml")
START = "vllm serve --config {file}"
ON_THIS_MACHINE = True


_HEAD = "# Engine arguments for `vllm serve --config`, set by `tuner apply`.\n"


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
        return self.key.start_mark.line + 1


def read(text: str, *, source: str, container: str | None = None) -> dict[str, Stated]:
    """Return the arguments that the file states, by vLLM's names; the last one counts.

    A value that vLLM drops (``false``, null, an empty list) states nothing. Raises TargetError.
    """
    del container  # the file is one server's
    stated: dict[str, Stated] = {}
    for entry in _entries(_root(parse(text, source=source))):
        value = yaml_strict.construct(entry.value, source=source, error=TargetError)
        if entry.negated:
            value = False if value is True else None
        elif value is False or value == []:
            value = None
        if value is not None and not entry.dotted:
            stated[entry.argument] = Stated(_argument_value(value), entry.line)
    return stated


def platform(text: str, *, source: str, container: str | None = None) -> Platform:
    """Return nothing: the file does not say where it is used."""
    del text, source, container
    return Platform()


def write(
    text: str,
    arguments: Mapping[str, ArgumentValue],
    *,
    source: str,
    container: str | None = None,
) -> str:
    """Return the text with the arguments set, and everything else as it was, byte for byte.

    Raises TargetError.
    """
    del container
    file = parse(text or _HEAD, source=source)
    root = _root(file)
    present: dict[str, _Entry] = {}
    for entry in _entries(root):
        if entry.argument in arguments:
            _refuse_second(entry, present.get(entry.argument), source=source)
            present[entry.argument] = entry
    for argument, value in arguments.items():
        found, wanted = present.get(argument), _written(argument, value, source=source)
        if found is None:
            if wanted is not None:
                file.add_key(root, *wanted, on_one_line=True)
        elif not _states(found, argument, value, source=source):
            refuse_filled_in(found.value, argument, source=source)
            assert root is not None
            _change(file, root, found, wanted)
    result = file.edits.result()
    _verify(text, result, arguments, source=source)
    return result


def _root(file: YamlFile) -> yaml.MappingNode | None:
    """Return the mapping of the file; None where there is no key yet."""
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
                f"key {key.value!r} is not text",
                hint="Put it in quotes; write merged keys out.",
            )
    if {"schema_version", "digest"} <= entries(root).keys():
        raise TargetError(
            f"{file.source}: is a serving profile, not a file to deploy with",
            hint="The order is: tuner apply PROFILE FILE.",
        )
    return root


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
    return str(found) == str(value)


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
    if (
        any(
            item is None or isinstance(item, bool | list | dict)
            for item in texts
            if item is not value
        )
        or texts == []
    ):
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


def _verify(
    before: str, after: str, arguments: Mapping[str, ArgumentValue], *, source: str
) -> None:
    """Refuse an edit that, read back, says anything but what was asked for."""
    stated = read(before, source=source)
    wanted = {name: _read_back(one.value) for name, one in stated.items() if name not in arguments}
    for name, value in arguments.items():
        if _written(name, value, source=source) is not None:
            wanted[name] = _read_back(value)
    try:
        found = {name: _read_back(one.value) for name, one in read(after, source=source).items()}
        faults = sorted(
            name
            for name in wanted.keys() | found.keys()
            if name not in wanted or name not in found or not same(wanted[name], found[name])
        )
    except TargetError as problem:
        faults = [str(problem)]
    if faults:
        raise TargetError(
            f"{source}: cannot be edited safely ({', '.join(faults)})",
            hint="Simplify the YAML there (one key a line, no anchors), or edit it by hand.",
        )


def _read_back(value: ArgumentValue) -> ArgumentValue:
    """As vLLM sees a value: scalars are texts on a command line."""
    return value if isinstance(value, list | dict | bool) else str(value)


def _argument_value(value: object) -> ArgumentValue:
    """Dates and the like reach vLLM as texts."""
    if value is None or isinstance(value, str | int | float | list | dict):
        return value
    return str(value)

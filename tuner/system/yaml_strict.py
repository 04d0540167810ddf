"""YAML that somebody else wrote: every node with its place, bounded, and nothing surprising.

libyaml reads it where PyYAML was built with it, in a fifth of the time. vLLM reads with PyYAML, so
both agree that ``on`` is a boolean and ``1e5`` is text.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor

from tuner.errors import InputError
from tuner.system import files

MAX_BYTES = 1 << 20
"""A profile has some 20 KB."""

MAX_VALUES = 50_000
"""Keys and values of a text, those behind aliases counted each time."""

_MAX_DEPTH = 32
_MOST_DIGITS = 300
"""Of a number: Python does not spell out again what is much longer."""

_NEVER_FOLD = 1 << 20
_PLAIN = ("bool", "float", "int", "map", "null", "seq", "str")
_PLAIN_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in _PLAIN}
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def read(path: Path, *, error: type[InputError], missing: str) -> str:
    """Return the text of a regular file: UTF-8, at most MAX_BYTES, line ends as they are.

    Raises ``error``; ``missing`` is the cure when there is no such file.
    """
    try:
        content = files.read_regular(path)
    except FileNotFoundError:
        raise error(f"{path}: no such file", hint=missing) from None
    except (OSError, ValueError) as problem:
        why = getattr(problem, "strerror", None) or problem
        hint = "Name a regular file that can be read."
        raise error(f"{path}: cannot be read: {why}", hint=hint) from None
    return decode(content, source=str(path), error=error)


def decode(content: bytes, *, source: str, error: type[InputError]) -> str:
    """Return the text of a file. Raises ``error`` above MAX_BYTES, and with the line of what is no
    UTF-8."""
    hint = "Check that this is the right file, and save it as UTF-8."
    if len(content) > MAX_BYTES:
        raise error(f"{source}: larger than {MAX_BYTES >> 20} MiB", hint=hint)
    wrong, text = content.find(b"\0"), ""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as problem:
        wrong = problem.start
    if wrong >= 0:
        line = content.count(b"\n", 0, wrong) + 1
        raise error(f"{source}:{line}: not UTF-8 text (byte {wrong})", hint=hint)
    return text


class _Bounded(Composer, _LOADER):  # type: ignore[misc]
    """Composes nodes within bounds, without keys that are there twice; ``plain``: only what a
    program writes, without anchors, tags and dates."""

    def __init__(self, text: str, *, plain: bool = False) -> None:
        _LOADER.__init__(self, text)
        Composer.__init__(self)
        self.plain = plain
        self.depth = self.values = 0
        self.sizes: dict[int, int] = {}
        """Of nodes by their ids, aliases followed; of those that are read to their ends."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()
        is_alias = isinstance(event, yaml.AliasEvent)
        anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
        if self.plain and (anchor or tag):
            what = f"anchor or alias {anchor!r}" if anchor else f"tag {tag!r}"
            raise _refused(what, event, "Write the value out: this file takes none.")
        if self.depth == _MAX_DEPTH:
            hint = "Use a file that tuner or vLLM could have written."
            raise _refused(f"nested more than {_MAX_DEPTH} levels deep", event, hint)
        before = self.values
        self.depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        if is_alias and id(node) not in self.sizes:
            raise _refused("an alias within what it stands for", event, "Write the value out.")
        self.values += self.sizes[id(node)] if is_alias else 1
        self.sizes[id(node)] = self.values - before
        if self.values > MAX_VALUES:
            what = f"more than {MAX_VALUES} keys and values, those behind aliases counted each time"
            raise _refused(what, event, "Put what is deployed in a file of its own.")
        if self.plain and node is not None and node.tag not in _PLAIN_TAGS:
            what = f"{node.value!r} is read as a {node.tag.rpartition(':')[2]}"
            raise _refused(what, node, "Put it in quotes if it is text.")
        if (
            node is not None
            and node.tag[-4:] in {":int", "loat"}
            and len(node.value) > _MOST_DIGITS
        ):
            what = f"a number of {len(node.value)} characters"
            raise _refused(what, node, "Use plain YAML values.")
        if isinstance(node, yaml.MappingNode) and not is_alias:
            _check_keys(node)
        return node


def _check_keys(node: yaml.MappingNode) -> None:
    lines: dict[str, int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            hint = "Use plain keys; a template in {{ }} goes in quotes, or render the file first."
            raise _refused("a key that is not text", key, hint)
        if key.value in lines:
            what = f"{key.value[:80]!r} is there twice, first in line {lines[key.value]}"
            raise _refused(what, key, "Remove one of the two.")
        lines[key.value] = key.start_mark.line + 1


def _refused(what: str, at: Any, cure: str) -> yaml.MarkedYAMLError:  # noqa: ANN401 - node or event
    """Return the error for what is well-formed, and still not taken."""
    return yaml.MarkedYAMLError(problem=what, problem_mark=at.start_mark, note=cure)


def compose(
    text: str, *, source: str, error: type[InputError], plain: bool
) -> yaml.MappingNode | None:
    """Return the one mapping of the text, or None for a text without content.

    ``plain`` refuses what a file written by a program never has. Raises ``error`` with the place.
    """
    nodes = compose_all(text, source=source, error=error, plain=plain)
    if not nodes:
        return None
    node, *more = nodes
    line, what = 0, ""
    if more:
        line, what = more[0].start_mark.line, "found another document"
    elif not isinstance(node, yaml.MappingNode):
        line, what = node.start_mark.line + 1, "not a mapping of keys to values"
    if what:
        raise error(f"{source}:{line}: {what}", hint="Is this the right file?")
    assert isinstance(node, yaml.MappingNode)
    return node


def compose_all(
    text: str, *, source: str, error: type[InputError], plain: bool = False
) -> list[yaml.Node]:
    """Return the documents of the text, those without content left out. Raises ``error``."""
    nodes: list[yaml.Node] = []
    with _explained(text, source=source, error=error):
        loader = _Bounded(text, plain=plain)
        while loader.check_node() and (node := loader.get_node()):
            nodes += [node] if node.tag != "tag:yaml.org,2002:null" else []
    return nodes


def construct(node: yaml.Node, *, source: str, error: type[InputError]) -> object:
    """Return the plain data of a composed node. Raises ``error`` for tags that are not data."""
    with _explained("", source=source, error=error):
        return SafeConstructor().construct_document(node)


@contextlib.contextmanager
def _explained(text: str, *, source: str, error: type[InputError]) -> Iterator[None]:
    """Raise ``error`` with the place of what PyYAML refuses."""
    place, hint = source, "Check the YAML there: indentation, quotes, tags, a cut file."
    try:
        yield
    except yaml.reader.ReaderError as problem:
        place += f":{text.count(chr(10), 0, problem.position) + 1}"
        what = f"a character that YAML does not allow (#x{problem.character:04x})"
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        place += "" if mark is None else f":{mark.line + 1}"
        what = (problem.problem or problem.context or "not YAML").removeprefix("but ")
        hint = problem.note or hint
    except ValueError as problem:  # a date that there is not
        what = str(problem)[:80]
    else:
        return
    raise error(re.sub(r"\s+", " ", f"{place}: {what}"), hint=hint)


class _Dumper(_DUMPER):  # type: ignore[misc]
    """Escapes every line break, and puts a list of numbers on one line."""

    def represent_text(self, data: str) -> yaml.ScalarNode:
        style = '"' if re.search("[\n\r\x85\u2028\u2029]", data) else None
        node: yaml.ScalarNode = self.represent_scalar("tag:yaml.org,2002:str", data, style=style)
        return node

    def represent_numbers(self, data: list[object]) -> yaml.Node:
        node: yaml.SequenceNode = self.represent_list(data)
        is_short = all(isinstance(each, int | float) for each in data)
        node.flow_style = self.default_flow_style or is_short
        return node


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_representer(list, _Dumper.represent_numbers)


def dump(value: object, *, is_flow: bool = False) -> str:
    """Return a document in block style, keys in the order given, no line folded; with ``is_flow`` a
    value on one line, fit to stand after a key."""
    text: str = yaml.dump(
        [value] if is_flow else value, Dumper=_Dumper, sort_keys=False, allow_unicode=True,
        default_flow_style=is_flow, width=_NEVER_FOLD,
    )  # fmt: skip
    return text.removeprefix("[").removesuffix("]\n") if is_flow else text

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
_MAX_DIGITS = 300
"""Of a number: Python does not spell out again what is much longer."""

_NEVER_FOLD = 1 << 20
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def read(path: Path, *, error: type[InputError], missing: str) -> str:
    """Return the text of a regular file: UTF-8, at most MAX_BYTES, line ends as they are.

    Raises ``error``; ``missing`` is the cure when there is no such file.
    """
    hint = "Check that this is the right file, and save it as UTF-8."
    try:
        content = files.read_regular(path, MAX_BYTES)
    except FileNotFoundError:
        raise error(f"{path}: no such file", hint=missing) from None
    except (OSError, ValueError) as problem:
        why = getattr(problem, "strerror", None) or problem
        raise error(f"{path}: cannot be read: {why}", hint=hint) from None
    wrong, text = content.find(b"\0"), ""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as problem:
        wrong = problem.start
    if wrong >= 0:
        line = content.count(b"\n", 0, wrong) + 1
        raise error(f"{path}:{line}: not UTF-8 text (byte {wrong})", hint=hint)
    return text


class _Bounded(Composer, _LOADER):  # type: ignore[misc]
    """Composes nodes within bounds, without keys that are there twice, and merges (``<<``)."""

    def __init__(self, text: str) -> None:
        _LOADER.__init__(self, text)
        Composer.__init__(self)
        self.depth = self.values = 0
        self.sizes: dict[int, int] = {}
        """Of nodes by their ids, aliases followed; of those that are read to their ends."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> Any:  # noqa: ANN401 - a node
        event, before = self.peek_event(), self.values
        is_alias = isinstance(event, yaml.AliasEvent)
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise _refused(f"nested more than {_MAX_DEPTH} levels deep", event)
        node: Any = super().compose_node(parent, index)
        self.depth -= 1
        if is_alias and id(node) not in self.sizes:
            raise _refused("an alias within what it stands for", event)
        self.values += self.sizes[id(node)] if is_alias else 1
        self.sizes[id(node)] = self.values - before
        if self.values > MAX_VALUES:
            what = f"more than {MAX_VALUES} keys and values, those behind aliases counted each time"
            raise _refused(what, event)
        if node.tag[-4:] in {":int", "loat"} and len(node.value) > _MAX_DIGITS:
            raise _refused(f"a number of {len(node.value)} characters", node)
        if isinstance(node, yaml.MappingNode) and not is_alias:
            lines: dict[str, int] = {}
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise _refused("a key that is not text (a template goes in quotes)", key)
                if key.value in lines:
                    first = f"first in line {lines[key.value]}"
                    raise _refused(f"{key.value[:80]!r} is there twice, {first}", key)
                lines[key.value] = key.start_mark.line + 1
            self.flatten_mapping(node)
        return node


def _refused(what: str, at: Any) -> yaml.MarkedYAMLError:  # noqa: ANN401 - node or event
    """Return the error for what is well-formed, and still not taken."""
    return yaml.MarkedYAMLError(problem=what, problem_mark=at.start_mark)


def compose(text: str, *, source: str, error: type[InputError]) -> yaml.MappingNode | None:
    """Return the one mapping of the text, or None for a text without content.

    Raises ``error`` with the place.
    """
    nodes = compose_all(text, source=source, error=error)
    if len(nodes) > 1 or not all(isinstance(each, yaml.MappingNode) for each in nodes):
        line = nodes[-1].start_mark.line + 1
        what = f"{source}:{line}: not one mapping of keys to values"
        raise error(what, hint="Is this the right file?")
    return nodes[0] if nodes else None


def compose_all(text: str, *, source: str, error: type[InputError]) -> list[Any]:
    """Return the documents of the text, those without content left out. Raises ``error``."""
    nodes: list[yaml.Node] = []
    with _explained(text, source=source, error=error):
        loader = _Bounded(text)
        while loader.check_node() and (node := loader.get_node()):
            nodes += [node] if node.tag != "tag:yaml.org,2002:null" else []
    return nodes


def construct(node: yaml.Node, *, source: str, error: type[InputError]) -> Any:  # noqa: ANN401
    """Return the plain data of a composed node. Raises ``error`` for tags that are not data."""
    with _explained("", source=source, error=error):
        return SafeConstructor().construct_document(node)


@contextlib.contextmanager
def _explained(text: str, *, source: str, error: type[InputError]) -> Iterator[None]:
    """Raise ``error`` with the place of what PyYAML refuses."""
    place = source
    try:
        yield
    except yaml.reader.ReaderError as problem:
        place += f":{text.count(chr(10), 0, problem.position) + 1}"
        what = f"a character that YAML does not allow (#x{problem.character:04x})"
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        place += f":{mark.line + 1}" if mark else ""
        what = (problem.problem or problem.context or "not YAML").removeprefix("but ")
    except ValueError as problem:  # a date that there is not
        what = str(problem)[:80]
    else:
        return
    hint = "Check the YAML there: indentation, quotes, tags, a cut file; write aliases out."
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

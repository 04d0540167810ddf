"""YAML that somebody else wrote: one mapping, every node with its place, nothing surprising.

PyYAML reads it, because vLLM does: both then agree that ``on`` is a boolean and ``1e5`` is text.
"""

import contextlib
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError, SafeConstructor

from tuner.errors import InputError
from tuner.system.yaml_bounded import BoundedLoader, RefusedError, quickly

MAX_BYTES = 1 << 20
"""A profile has some 20 KB; the pure-Python scanner, which alone takes tabs, is slow."""

_STR = "tag:yaml.org,2002:str"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_MOST_DIGITS = 300
_NEVER_FOLD = 1 << 20
_LINE_BREAKS = frozenset("\n\r\x85\u2028\u2029")


def read(path: Path, *, error: type[InputError], missing: str) -> str:
    """Return the text of a regular file: UTF-8, at most MAX_BYTES, line ends as they are.

    Raises ``error``; ``missing`` is the cure when there is no such file.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # to open a FIFO is to wait
            raise error(f"{path}: is not a regular file", hint="Write it to a file first.")
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise error(f"{path}: no such file", hint=missing) from None
    except IsADirectoryError:
        raise error(f"{path}: is a directory", hint="Name the file inside it.") from None
    except (OSError, ValueError) as problem:
        why = getattr(problem, "strerror", None) or problem
        raise error(f"{path}: cannot be read: {why}", hint="Check path and permissions.") from None
    return decode(content, source=str(path), error=error)


def decode(content: bytes, *, source: str, error: type[InputError]) -> str:
    """Return the text of a file. Raises ``error`` above MAX_BYTES, and with the line of what is no
    UTF-8."""
    if len(content) > MAX_BYTES:
        raise error(
            f"{source}: larger than {MAX_BYTES >> 20} MiB",
            hint="Check that this is the right file.",
        )
    wrong, text = content.find(b"\0"), ""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as problem:
        wrong = problem.start
    if wrong < 0:
        return text
    line = content.count(b"\n", 0, wrong) + 1
    hint = "Check that this is the right file; if it is, save it as UTF-8."
    raise error(f"{source}:{line}: not UTF-8 text (byte {wrong})", hint=hint)


def compose(
    text: str, *, source: str, error: type[InputError], plain: bool
) -> yaml.MappingNode | None:
    """Return the one mapping of the text, or None for a text without content.

    ``plain`` refuses what a file written by a program never has: anchors, aliases, tags, dates,
    numbers in an odd spelling. Raises ``error`` with the place.
    """
    with _explained(text, source=source, error=error):
        node = quickly(text) if plain else None
        node = node or BoundedLoader(text, plain=plain).get_single_node()
    if node is None or (node.tag == "tag:yaml.org,2002:null" and not node.value):
        return None
    if not isinstance(node, yaml.MappingNode):
        place = f"{source}:{node.start_mark.line + 1}"
        raise error(f"{place}: not a mapping of keys to values", hint="Is this the right file?")
    return node


def compose_all(
    text: str, *, source: str, error: type[InputError], tabs: bool = False
) -> list[yaml.Node]:
    """Return the documents of the text, those without content left out. Raises ``error``.

    ``tabs``: between words too, which PyYAML does not take and other readers do.
    """
    nodes: list[yaml.Node] = []
    with _explained(text, source=source, error=error):
        loader = BoundedLoader(text, plain=False, tabs=tabs)
        while loader.check_node() and (node := loader.get_node()):
            nodes += [node] if node.tag != "tag:yaml.org,2002:null" else []
    return nodes


@contextlib.contextmanager
def _explained(text: str, *, source: str, error: type[InputError]) -> Iterator[None]:
    try:
        yield
    except RefusedError as problem:
        raise error(f"{source}:{problem.line + 1}: {problem}", hint=problem.hint) from None
    except yaml.MarkedYAMLError as problem:
        hint = "Check the YAML there: indentation, quotes, a cut file."
        raise error(_at(source, problem), hint=hint) from None
    except yaml.reader.ReaderError as problem:
        line = text.count("\n", 0, problem.position) + 1
        what = f"a character that YAML does not allow (#x{problem.character:04x})"
        raise error(f"{source}:{line}: {what}", hint="Check that this is a text file.") from None


def _at(source: str, problem: yaml.MarkedYAMLError) -> str:
    mark = problem.problem_mark or problem.context_mark
    line = f":{mark.line + 1}" if mark is not None else ""
    words = (problem.problem or problem.context or "not YAML").removeprefix("but ")
    return re.sub(r"\s+", " ", f"{source}{line}: {words}")


def construct(node: yaml.Node, *, source: str, error: type[InputError]) -> object:
    """Return the plain data of a composed node. Raises ``error`` for tags that are not data."""
    try:
        return _Constructor().construct_document(node)
    except ConstructorError as problem:
        raise error(_at(source, problem), hint="Use plain YAML values.") from None
    except ValueError as problem:
        place = f"{source}:{node.start_mark.line + 1}"
        raise error(f"{place}: {problem}", hint="Use plain YAML values.") from None


class _Constructor(SafeConstructor):
    """Refuses numbers that take long to read, or that Python will not spell out again."""

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        if node.tag in _NUMBERS and len(node.value) > _MOST_DIGITS:
            raise ConstructorError(
                problem=f"a number of {len(node.value)} characters", problem_mark=node.start_mark
            )
        return super().construct_scalar(node)


class _Dumper(yaml.SafeDumper):
    """Escapes every line break: PyYAML's other styles lose some of them (tried with 6.0.3)."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        style = '"' if _LINE_BREAKS & set(data) else None
        return self.represent_scalar(_STR, data, style=style)


class _ReadableDumper(_Dumper):
    """Puts on one line what holds nothing but numbers."""

    def list_on_one_line(self, data: list[object]) -> yaml.SequenceNode:
        node = self.represent_list(data)
        node.flow_style = _only_numbers(data)
        return node

    def dict_on_one_line(self, data: Mapping[str, object]) -> yaml.MappingNode:
        node = self.represent_dict(data)
        node.flow_style = _only_numbers(data.values())
        return node


def _only_numbers(values: Collection[object]) -> bool:
    return all(isinstance(value, int | float) for value in values)


_Dumper.add_representer(str, _Dumper.represent_str)
_ReadableDumper.add_representer(list, _ReadableDumper.list_on_one_line)
_ReadableDumper.add_representer(dict, _ReadableDumper.dict_on_one_line)

_FASTEST: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""libyaml's, where PyYAML was built with it."""


class _QuickDumper(_FASTEST):  # type: ignore[misc]
    """Writes the same, in a fifth of the time, of what ``_is_simple``."""

    yaml_representers = _ReadableDumper.yaml_representers


_LONGEST_SIMPLE_KEY = 100
"""Longer keys, and empty ones, get a question mark from one of the two writers."""


def _is_simple(value: object) -> bool:
    """Whether PyYAML and libyaml write all of it alike: its texts have only printable ASCII, line
    ends, and no question mark."""
    if isinstance(value, str):
        plain = value.replace("\n", "")
        return plain.isascii() and plain.isprintable() and "?" not in plain
    if isinstance(value, Mapping):
        short = all(0 < len(str(key)) <= _LONGEST_SIMPLE_KEY for key in value)
        return short and all(_is_simple(part) for pair in value.items() for part in pair)
    return not isinstance(value, list | tuple) or all(map(_is_simple, value))


def dump(value: object) -> str:
    """Return a document in block style, keys in the order given, no line folded."""
    return yaml.dump(
        value,
        Dumper=_QuickDumper if _is_simple(value) else _ReadableDumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=_NEVER_FOLD,
    )


def dump_flow(value: object, *, quotes: str | None = None) -> str:
    """Return a value on one line, fit to stand after a key; ``quotes`` puts a text in them."""
    text = yaml.dump(
        [value],
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=True,
        default_style=quotes,
        width=_NEVER_FOLD,
    )
    return text.removeprefix("[").removesuffix("]\n")


def find(root: yaml.Node, path: Sequence[str | int]) -> tuple[yaml.Node, tuple[str | int, ...]]:
    """Return the deepest node on the path that exists, and the part of the path that led there."""
    node, found = root, list[str | int]()
    for part in path:
        child: yaml.Node | None = None
        if isinstance(node, yaml.MappingNode):
            child = next((value for key, value in node.value if key.value == part), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            child = next(iter(node.value[part : part + 1]), None)
        if child is not None:
            node = child
            found.append(part)
    return node, tuple(found)

"""Small edits of the top level of a YAML text: what is not edited stays byte for byte.

A round trip through a YAML library would reflow the rest of somebody else's file; here the library
only says where things stand.
"""

import re
from dataclasses import dataclass, field
from functools import lru_cache

import yaml

from tuner.engines.seam import ArgumentValue
from tuner.errors import TargetError
from tuner.system import yaml_strict

_INDIRECT = frozenset("&*!")
_LINE_END = re.compile(r"\r\n|\n|\r|\Z")


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of the top level and its value, with their places."""

    name: str
    key: yaml.ScalarNode
    value: yaml.Node

    @property
    def line(self) -> int:
        return self.key.start_mark.line + 1


@dataclass(slots=True)
class Document:
    """A text, the keys of its top-level mapping, and the edits asked for so far."""

    text: str
    source: str
    entries: tuple[Entry, ...]
    column: int
    """Where the keys stand in their lines."""

    end: int
    """Where the mapping ends, with the comments after it."""

    flow: bool
    """The whole text is one ``{…}``."""

    _edits: list[tuple[int, int, str]] = field(default_factory=list)
    _added: list[str] = field(default_factory=list)

    def set(self, entry: Entry, value: ArgumentValue) -> None:
        start, end = self._place(entry)
        style = entry.value.style if isinstance(entry.value, yaml.ScalarNode) else None
        quotes = style if style in ("'", '"') and isinstance(value, str) else None
        written = yaml_strict.dump_flow(value, quotes=quotes)
        if start == end:  # a key without a value
            written = f" {written}"
        elif entry.value.start_mark.column <= entry.key.start_mark.column:
            written = f"  {written}"
        self._edits.append((start, end, written))

    def rename(self, entry: Entry, name: str) -> None:
        self._edits.append((entry.key.start_mark.index, entry.key.end_mark.index, name))

    def remove(self, entry: Entry) -> None:
        """Remove the key with the lines it stands on."""
        start = entry.key.start_mark.index - entry.key.start_mark.column
        if self.flow or self.text[start : entry.key.start_mark.index].strip():
            raise self._unsafe(entry, "shares its line with something else")
        _, end = self._place(entry)
        self._edits.append((start, self._after_line(end), ""))

    def add(self, name: str, value: ArgumentValue) -> None:
        """Add a key at the end."""
        self._added.append(f"{' ' * self.column}{name}: {yaml_strict.dump_flow(value)}")

    def result(self) -> str:
        text = self.text
        edits = [*self._edits, *self._addition()]
        for start, end, written in sorted(edits, reverse=True):
            text = text[:start] + written + text[end:]
        return text

    def _addition(self) -> list[tuple[int, int, str]]:
        if not self._added:
            return []
        if self.flow:
            raise TargetError(
                f"{self.source}: is one {{…}}, and keys have to be added",
                hint="Write one key a line, without braces.",
            )
        at = self.end
        newline = "\r\n" if "\r\n" in self.text else "\n"
        if at == 0 or self.text[at - 1] in "\r\n":
            return [(at, at, "".join(line + newline for line in self._added))]
        return [(at, at, "".join(newline + line for line in self._added))]

    def _place(self, entry: Entry) -> tuple[int, int]:
        """Return where the value stands, if it can be replaced without touching anything else."""
        start, end = entry.value.start_mark.index, _end(entry.value)
        bounds = entry.key.end_mark.index, entry.value.end_mark.index
        if not _lies_within(entry.value, *bounds) or self.text[start : start + 1] in _INDIRECT:
            raise self._unsafe(entry, "has an anchor, an alias or a tag")
        return start, start + len(self.text[start:end].rstrip())

    def _after_line(self, at: int) -> int:
        match = _LINE_END.search(self.text, at)
        return match.end() if match is not None else len(self.text)

    def _unsafe(self, entry: Entry, why: str) -> TargetError:
        return TargetError(
            f"{self.source}:{entry.line}: {entry.name} {why}",
            hint="Write it plainly on a line of its own: the key, a colon, the value.",
        )


def parse(text: str, *, source: str) -> Document:
    """Find the keys of the top-level mapping. Raises TargetError."""
    root = _root(text, source)
    if root is None:
        return Document(text, source, (), column=0, end=len(text), flow=False)
    for key, _ in root.value:
        if key.tag != "tag:yaml.org,2002:str":
            raise TargetError(
                f"{source}:{key.start_mark.line + 1}: key {key.value!r} is not text",
                hint="Put it in quotes; write merged keys out.",
            )
    entries = tuple(Entry(key.value, key, value) for key, value in root.value)
    return Document(
        text,
        source,
        entries,
        column=root.start_mark.column,
        end=root.end_mark.index,
        flow=bool(root.flow_style),
    )


@lru_cache(maxsize=2)
def _root(text: str, source: str) -> yaml.MappingNode | None:
    """Every step of one edit asks for the text before it or after it."""
    return yaml_strict.compose(text, source=source, error=TargetError, plain=False)


def _end(node: yaml.Node) -> int:
    """Where a node's own text ends; a block's mark would be at the next key, past all comments."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(node, yaml.MappingNode) else last)
    return int(node.end_mark.index)


def _lies_within(node: yaml.Node, start: int, end: int) -> bool:
    """Whether the node and all below it stand there; what an alias stands for does not."""
    if not start <= node.start_mark.index <= node.end_mark.index <= end:
        return False
    if isinstance(node, yaml.MappingNode):
        return all(_lies_within(part, start, end) for pair in node.value for part in pair)
    if isinstance(node, yaml.SequenceNode):
        return all(_lies_within(part, start, end) for part in node.value)
    return True

"""YAML nodes of a size that can be handled, and only those that the reader asked for. Pure."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml
from yaml.composer import Composer

MAX_VALUES = 50_000
"""Keys and values, those behind an alias counted each time: about a second of reading.

Aliases multiply: with nothing but a limit on the text, a short one fills the memory."""

_MAX_DEPTH = 32

_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map")
)
_MAX_NUMBER_CHARACTERS = 32
_AS_DATA, _AS_NODE = yaml.constructor.SafeConstructor(), yaml.representer.SafeRepresenter()
"""The parts of PyYAML that read and write numbers."""


class RefusedError(Exception):
    """Well-formed YAML that we do not take, with the line, counted from 0, and the cure."""

    def __init__(self, problem: str, line: int, *, hint: str) -> None:
        super().__init__(problem)
        self.line = line
        self.hint = hint


def _line(event: yaml.Event) -> int:
    return event.start_mark.line if event.start_mark is not None else 0


@dataclass(frozen=True, slots=True)
class _Extent:
    """The size of a node, aliases followed."""

    values: int
    levels: int


_LEAF = _Extent(values=1, levels=1)


class _Bounded(Composer):
    """Composes nodes within ``_MAX_DEPTH`` and ``MAX_VALUES``, and no aliases when ``plain``."""

    def __init__(self, *, plain: bool) -> None:
        Composer.__init__(self)
        self._plain = plain
        self._depth = 0
        self._values = 0
        self._extents: dict[int, _Extent] = {}
        """Of nodes by their ids; of those that are read to their ends and may have an alias."""

    if TYPE_CHECKING:  # of the parser that stands behind it

        def peek_event(self) -> yaml.Event: ...

    def compose_document(self) -> yaml.Node | None:
        self._extents.clear()  # an alias reaches no further than its document
        found: yaml.Node | None = super().compose_document()
        return found

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()
        if self._plain:
            _refuse_indirection(event)
        if isinstance(event, yaml.AliasEvent):
            node: yaml.Node | None = super().compose_node(parent, index)
            self._count(self._extent_behind(node, event), event)
            return node
        self._count(_LEAF, event)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(node, yaml.MappingNode):
            _refuse_duplicates(node)
        if node is not None:
            if self._plain:
                _refuse_tag(node)
            else:
                self._extents[id(node)] = self._extent(node)
        return node

    def _extent_behind(self, node: yaml.Node | None, event: yaml.Event) -> "_Extent":
        if id(node) not in self._extents:
            raise RefusedError(
                "an alias within what it stands for", _line(event), hint="Write the value out."
            )
        return self._extents[id(node)]

    def _extent(self, node: yaml.Node) -> "_Extent":
        parts: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            parts = node.value
        within = [self._extents[id(part)] for part in parts]
        return _Extent(
            1 + sum(one.values for one in within),
            1 + max((one.levels for one in within), default=0),
        )

    def _count(self, extent: "_Extent", event: yaml.Event) -> None:
        if self._depth + extent.levels > _MAX_DEPTH:
            raise RefusedError(
                f"nested more than {_MAX_DEPTH} levels deep",
                _line(event),
                hint="Use a file that tuner or vLLM could have written.",
            )
        self._values += extent.values
        if self._values > MAX_VALUES:
            raise RefusedError(
                f"more than {MAX_VALUES} keys and values, those behind aliases counted each time",
                _line(event),
                hint="Put what the server is deployed with in a file of its own.",
            )


_BLANKS = " \t"
_LINE_ENDS = "\0\r\n\x85\u2028\u2029"


class BoundedLoader(_Bounded, yaml.SafeLoader):
    """``tabs``: between words too, as YAML has it and other readers than PyYAML (6.0) take it."""

    def __init__(self, text: str, *, plain: bool, tabs: bool = False) -> None:
        yaml.SafeLoader.__init__(self, text)
        _Bounded.__init__(self, plain=plain)
        self._tabs = tabs

    def scan_to_next_token(self) -> None:
        """Skip blanks and comments; a tab is no indentation."""
        while self._tabs:
            indents = self.column == 0 and not self.flow_level
            at = 0
            while self.peek(at) in _BLANKS:
                at += 1
            is_tabbed = indents and "\t" in self.prefix(at)
            if self.peek(at) not in "#" + _LINE_ENDS and is_tabbed:
                break  # PyYAML says so
            self.forward(at)
            if self.peek() == "#":
                while self.peek() not in _LINE_ENDS:
                    self.forward()
            if not self.scan_line_break():  # type: ignore[no-untyped-call]
                break
            if not self.flow_level:
                self.allow_simple_key = True
        super().scan_to_next_token()

    def scan_plain_spaces(self, indent: int, start_mark: yaml.Mark) -> list[str]:
        """Return the blanks within a plain text."""
        at = 0
        while self._tabs and self.peek(at) in _BLANKS:
            at += 1
        if at and "\t" in self.prefix(at) and self.peek(at) not in "#" + _LINE_ENDS:
            blanks = str(self.prefix(at))
            self.forward(at)
            return [blanks]
        return super().scan_plain_spaces(indent, start_mark) or []


_FASTEST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, where PyYAML was built with it."""


class _QuickLoader(_Bounded, _FASTEST):  # type: ignore[misc]
    def __init__(self, text: str) -> None:
        _FASTEST.__init__(self, text)
        _Bounded.__init__(self, plain=True)


def quickly(text: str) -> yaml.Node | None:
    """Return the one plain document of the text, read by libyaml in a tenth of the time.

    None where there is none or something is wrong with it: PyYAML's own reader has better words for
    that.
    """
    try:
        found: yaml.Node | None = _QuickLoader(text).get_single_node()
    except (yaml.YAMLError, RefusedError):
        return None
    return found


def _refuse_indirection(event: yaml.Event) -> None:
    anchor = getattr(event, "anchor", None)
    if anchor is not None:
        raise RefusedError(
            f"anchor or alias {anchor!r}",
            _line(event),
            hint="Write the value out: this file takes no anchors and no aliases.",
        )
    tag = getattr(event, "tag", None)
    if tag is not None:
        hint = "Remove the tag: this file takes none."
        raise RefusedError(f"tag {tag!r}", _line(event), hint=hint)


def _refuse_tag(node: yaml.Node) -> None:
    if node.tag not in _PLAIN_TAGS:
        raise RefusedError(
            f"{node.value!r} is read as a {node.tag.rpartition(':')[2]}",
            node.start_mark.line,
            hint="Put it in quotes if it is text.",
        )
    if isinstance(node, yaml.ScalarNode) and node.tag.endswith((":int", ":float")):
        _refuse_odd_number(node)


def _refuse_odd_number(node: yaml.ScalarNode) -> None:
    """Take a number in its one shortest spelling only, so that no digit can change unnoticed."""
    spelling = f"with at most {_MAX_NUMBER_CHARACTERS} characters"
    if len(node.value) <= _MAX_NUMBER_CHARACTERS:
        is_int = node.tag.endswith(":int")
        construct = _AS_DATA.construct_yaml_int if is_int else _AS_DATA.construct_yaml_float
        spelling = str(_AS_NODE.represent_data(construct(node)).value)
    if node.value != spelling:
        raise RefusedError(
            f"the number {node.value[:_MAX_NUMBER_CHARACTERS]} should be spelt {spelling}",
            node.start_mark.line,
            hint="The number was edited by hand; restore the file.",
        )


def _refuse_duplicates(node: yaml.MappingNode) -> None:
    seen: dict[str, int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            line, hint = key.start_mark.line, "Use plain keys."
            raise RefusedError("a key that is not text", line, hint=hint)
        line = key.start_mark.line + 1
        if key.value in seen:
            raise RefusedError(
                f"{key.value[:80]!r} is there twice, first in line {seen[key.value]}",
                key.start_mark.line,
                hint="Remove one of the two.",
            )
        seen[key.value] = line

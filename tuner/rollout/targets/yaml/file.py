"""A YAML file of any depth and several documents, edited a few characters at a time. Pure."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import yaml

from tuner.engines.seam import ArgumentValue
from tuner.errors import TargetError
from tuner.rollout.targets.command_line.flags import Token, token_of
from tuner.rollout.targets.command_line.variables import Scope, nothing, setting_of
from tuner.rollout.targets.command_line.words import Piece
from tuner.rollout.targets.view import Edits, View
from tuner.rollout.targets.yaml import scalar as yaml_scalar
from tuner.rollout.targets.yaml.nodes import descendants, is_null, line_of, shared_ids
from tuner.system import yaml_strict
from tuner.system.yaml_strict import dump_flow

_INDIRECT = frozenset("&*!")


@dataclass(slots=True)
class YamlFile:
    """The documents of a text, and the edits asked for so far."""

    edits: Edits
    roots: Sequence[yaml.Node]
    shared: frozenset[int] = frozenset()
    """Ids of the nodes that stand in two places, and of all below them."""

    filled: set[int] = field(default_factory=set)
    """Ids of the empty braces that keys were put into."""

    @property
    def source(self) -> str:
        return self.edits.source

    def place(self, node: yaml.Node) -> str:
        return f"{self.source}:{line_of(node)}"

    def refuse(self, node: yaml.Node, why: str, *, hint: str) -> TargetError:
        return TargetError(f"{self.place(node)}: {why}", hint=hint)

    def check_own(self, node: yaml.Node) -> None:
        """Refuse to edit what an alias would change elsewhere too. Raises TargetError."""
        if id(node) in self.shared:
            raise self.refuse(
                node,
                "stands behind an anchor that is used in several places",
                hint="Write the value out where it should differ.",
            )
        begin = self.edits.text[node.start_mark.index : node.start_mark.index + 1]
        if isinstance(node, yaml.ScalarNode) and begin in _INDIRECT:
            raise self.refuse(node, "has an anchor or a tag", hint="Write it plainly.")

    def _check_whole(self, node: yaml.Node, key: yaml.Node | None) -> None:
        """Refuse to replace what is used elsewhere, in part or as a whole. Raises TargetError."""
        for part in descendants(node):
            begin = self.edits.text[part.start_mark.index : part.start_mark.index + 1]
            if id(part) in self.shared or begin in _INDIRECT:
                where, name = (part, "") if key is None else (key, f"{key.value} ")
                raise self.refuse(
                    where,
                    f"{name}has an anchor, an alias or a tag",
                    hint="Write the value out plainly.",
                )

    def view(self, node: yaml.ScalarNode) -> View:
        """Return a text for editing. Raises TargetError."""
        self.check_own(node)
        found = yaml_scalar.view(self.edits.text, node)
        if found is None:
            raise self.refuse(
                node, "cannot be edited safely", hint="Write the text on one line, in quotes."
            )
        return found

    def set(self, node: yaml.Node, value: ArgumentValue, *, key: yaml.Node | None = None) -> None:
        """Replace a value, scalar or not. Raises TargetError.

        ``key``: of the mapping that it stands in; a value that is not a single one needs it.
        """
        self._check_whole(node, key)
        start, text = node.start_mark.index, self.edits.text
        end = start + len(text[start : end_of(node)].rstrip())
        quotes = _quotes(node.style, value) if isinstance(node, yaml.ScalarNode) else None
        written = dump_flow(value, quotes=quotes)
        if start == end:  # a key without a value
            written = f" {written}"
        elif key is not None and node.start_mark.column <= key.start_mark.column:
            written = f"  {written}"
        elif key is None and not isinstance(node, yaml.ScalarNode):
            raise self.refuse(node, "is not a single value", hint="Write one value there.")
        self.edits.replace(start, end, written)

    def rename_key(self, key: yaml.Node, name: str) -> None:
        self.edits.replace(key.start_mark.index, key.end_mark.index, name)

    def add_key(
        self,
        mapping: yaml.MappingNode | None,
        name: str,
        value: object,
        *,
        on_one_line: bool = False,
    ) -> None:
        """Add a key behind the last one of a mapping, in its style.

        At the top level that is the end of the file, behind its last comments. None: the file has
        no key yet. Raises TargetError.
        """
        lines = [f"{name}: {dump_flow(value)}"] if on_one_line else [*_block({name: value})]
        if mapping is None:
            self.insert_lines(len(self.edits.text), lines)
            return
        self.check_own(mapping)
        if mapping.flow_style:
            self._add_in_braces(mapping, name, value)
            return
        indent = " " * mapping.value[0][0].start_mark.column
        is_top = any(mapping is root for root in self.roots)
        end = int(mapping.end_mark.index) if is_top else end_of(mapping)
        self.insert_lines(end, [indent + line for line in lines])

    def _add_in_braces(self, mapping: yaml.MappingNode, name: str, value: object) -> None:
        begin, end = mapping.start_mark.index, mapping.end_mark.index
        last = mapping.value[-1][1].end_mark.index if mapping.value else begin + 1
        if not begin < last < end or self.edits.text[begin] != "{":
            raise self.refuse(
                mapping, f"{name} cannot be added in these braces", hint="Write one key a line."
            )
        comma = ", " if mapping.value or id(mapping) in self.filled else ""
        self.filled.add(id(mapping))
        is_json = bool(mapping.value) and mapping.value[0][0].style == '"'
        key, new = (json.dumps(name), json.dumps(value)) if is_json else (name, dump_flow(value))
        self.edits.replace(last, last, f"{comma}{key}: {new}")

    def remove_key(self, mapping: yaml.MappingNode, name: str) -> None:
        """Remove a key with the lines it stands on. Raises TargetError."""
        key, value = next(pair for pair in mapping.value if pair[0].value == name)
        self.check_own(mapping)
        self._check_whole(value, key)
        start, end = self.edits.line_bounds(key.start_mark.index, end_of(value))
        if mapping.flow_style or self.edits.text[start : key.start_mark.index].strip():
            raise self.refuse(
                key, f"{name} shares its line with something else", hint="Write one key a line."
            )
        self.edits.replace(start, end, "")

    def append_mapping(self, node: yaml.SequenceNode, value: Mapping[str, str]) -> None:
        """Add a mapping behind the last item of a list. Raises TargetError."""
        self.check_own(node)
        if node.flow_style or not node.value:
            raise self.refuse(node, "is a list in brackets", hint="Write one item a line.")
        indent = " " * node.start_mark.column
        first, *more = _block(value)
        lines = [f"{indent}- {first}", *(f"{indent}  {line}" for line in more)]
        self.insert_lines(end_of(node), lines)

    def insert_lines(self, at: int, lines: Sequence[str]) -> None:
        newline = self.edits.newline
        _, after = self.edits.line_bounds(at - 1 if at else 0, at)
        text = newline.join(lines)
        if after and self.edits.text[after - 1] not in "\r\n":
            self.edits.replace(after, after, newline + text)
        else:
            self.edits.replace(after, after, text + newline)


@dataclass(frozen=True, slots=True)
class Escape:
    """The characters that are special in the words of a list."""

    special: re.Pattern[str]
    """Parts that are read as something else: ``$$``, and what something is put in for."""

    write: Callable[[str], str]

    def pieces(self, word: str) -> list[Piece]:
        """Return what a program gets of a word."""
        found, at = list[Piece](), 0
        for match in self.special.finditer(word):
            if at < match.start():
                found.append(Piece(word[at : match.start()], at))
            twice = match[0] == "$$"
            found.append(Piece("$" if twice else match[0], match.start(), is_literal=twice))
            at = match.end()
        return [*found, Piece(word[at:], at)] if at < len(word) or not found else found


@dataclass(slots=True)
class ListPart:
    """Words that are the items of a list."""

    file: YamlFile
    node: yaml.SequenceNode
    escape: Escape
    scope: Scope = nothing
    removed: set[int] = field(default_factory=set)
    pending: list[tuple[int, int, str]] = field(default_factory=list)
    """The changes for these, in a list in brackets."""

    @property
    def tokens(self) -> list[Token]:
        return [self._token(item) for item in self.node.value]

    def _token(self, item: yaml.Node) -> Token:
        place, line = self.file.place(item), line_of(item)
        if not isinstance(item, yaml.ScalarNode):
            raise TargetError(f"{place}: is no word", hint="Write each argument as one text.")
        pieces = self.escape.pieces("" if is_null(item) else item.value)
        token = token_of(
            pieces,
            place,
            line,
            lambda piece: setting_of(piece, self.scope, lambda a, b: self._change_at(item, a, b)),
        )
        if token.text.startswith("--") and " " in token.text.partition("=")[0]:
            raise TargetError(
                f"{place}: {token.text!r} is one argument with a blank in it",
                hint="Write flag and value as two items, or join them with =.",
            )
        return token

    def _change_at(self, item: yaml.ScalarNode, start: int, end: int) -> Callable[[str], None]:
        def change(new: str) -> None:
            view = self.file.view(item)
            at = view.place(start, end)
            self.file.edits.replace(*at, view.encode(self.escape.write(new)))

        return change

    def replace(self, index: int, text: str) -> None:
        self.file.check_own(self.node)
        self.file.set(self.node.value[index], self.escape.write(text))

    def remove(self, index: int) -> None:
        self.file.check_own(self.node)
        item, edits = self.node.value[index], self.file.edits
        self.file.check_own(item)
        if not self.node.flow_style:
            start, end = edits.line_bounds(_dash(edits.text, item), end_of(item))
            if edits.text[start : _dash(edits.text, item)].strip():
                raise self.file.refuse(item, "shares its line", hint="Write one item a line.")
            edits.replace(start, end, "")
        else:
            self.removed.add(index)
            for change in self.pending:
                edits.changes.remove(change)
            self.pending = list(self._removals())
            edits.changes += self.pending

    def _removals(self) -> Iterator[tuple[int, int, str]]:
        """Yield the changes that take items and commas out of a list in brackets."""
        nodes = self.node.value
        for first in sorted(self.removed):
            if first - 1 in self.removed:
                continue
            last = next(n for n in range(first, len(nodes)) if n + 1 not in self.removed)
            if first:
                yield nodes[first - 1].end_mark.index, nodes[last].end_mark.index, ""
            elif last + 1 < len(nodes):
                yield nodes[0].start_mark.index, nodes[last + 1].start_mark.index, ""
            else:
                yield nodes[0].start_mark.index, nodes[last].end_mark.index, ""

    def append(self, groups: Sequence[Sequence[str]]) -> None:
        self.file.check_own(self.node)
        words = [self.escape.write(text) for group in groups for text in group]
        dumped = [dump_flow(word, quotes=self._quotes(word)) for word in words]
        if self.node.flow_style or not self.node.value:
            nodes = self.node.value
            at = nodes[-1].end_mark.index if nodes else self.node.end_mark.index - 1
            self.file.edits.replace(
                at, at, ", ".join([*([""] if len(nodes) > len(self.removed) else []), *dumped])
            )
            return
        last, text = self.node.value[-1], self.file.edits.text
        dash = _dash(text, last)
        lead = text[self.file.edits.line_bounds(dash, dash)[0] : last.start_mark.index]
        if lead.strip() != "-" or "\n" in lead:
            lead = " " * (len(lead) - len(lead.lstrip(" "))) + "- "
        self.file.insert_lines(end_of(last), [lead + one for one in dumped])

    def _quotes(self, word: str) -> str | None:
        """Return the quotes that most words of its kind stand in: flags, or values."""
        is_flag = word.startswith("-")
        texts = [item for item in self.node.value if isinstance(item, yaml.ScalarNode)]
        alike = [item.style for item in texts if item.value.startswith("-") == is_flag]
        usual = max([*alike, None], key=alike.count)
        return _quotes(usual, word)


def parse(text: str, *, source: str, tabs: bool = False) -> YamlFile:
    """Read the documents. Raises TargetError.

    ``tabs``: the file is not read by PyYAML, and tabs may stand between words.
    """
    return YamlFile(Edits(text, source), *_documents(text, source, tabs))


@lru_cache(maxsize=4)
def _documents(text: str, source: str, tabs: bool) -> tuple[Sequence[yaml.Node], frozenset[int]]:
    """Return the documents, and the nodes that are shared.

    They are kept: every step of one edit asks for those of the text before it or after it, and
    reading takes seconds where the text is large.
    """
    try:
        roots = yaml_strict.compose_all(text, source=source, error=TargetError, tabs=tabs)
    except TargetError as problem:
        if "{{" not in text:
            raise
        raise TargetError(
            f"{problem}: it looks like a template",
            hint="Apply the profile to the values that the template is filled with.",
        ) from None
    return roots, shared_ids(roots)


def _block(mapping: Mapping[str, object]) -> Iterator[str]:
    """Yield the lines of a mapping in block style."""
    for name, value in mapping.items():
        if isinstance(value, Mapping):
            yield f"{name}:"
            yield from (f"  {line}" for line in _block(value))
        elif isinstance(value, list):
            yield f"{name}:"
            for item in value:
                lines = [*_block(item)] if isinstance(item, Mapping) else [dump_flow(item)]
                yield from (f"{'  ' if n else '- '}{line}" for n, line in enumerate(lines))
        else:
            yield f"{name}: {dump_flow(value)}"


def outline(file: YamlFile, touched: Mapping[int, set[str]]) -> list[object]:
    """Return all that the documents say, but for some keys of some mappings (by their ids)."""
    return [_outline(root, touched) for root in file.roots]


def _outline(node: yaml.Node, touched: Mapping[int, set[str]]) -> object:
    if isinstance(node, yaml.MappingNode):
        without = touched.get(id(node), set())
        return [
            (_outline(key, touched), _outline(value, touched))
            for key, value in node.value
            if key.value not in without
        ]
    if isinstance(node, yaml.SequenceNode):
        return [_outline(item, touched) for item in node.value]
    return (node.tag, node.value)


def _quotes(style: str | None, value: object) -> str | None:
    """Keep the quotes around a text, unless it is easier to read in others."""
    keeps = style in ("'", '"') and isinstance(value, str) and style not in value
    return style if keeps else None


def end_of(node: yaml.Node) -> int:
    """Return where a node's own text ends; a block's mark would be past all comments."""
    if not isinstance(node, yaml.CollectionNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    key, last = node.value[-1] if isinstance(node, yaml.MappingNode) else (node, node.value[-1])
    if last.start_mark.index < key.start_mark.index:  # an alias: what it stands for is elsewhere
        return int(key.end_mark.index)
    return end_of(last)


def _dash(text: str, item: yaml.Node) -> int:
    """Return where the ``-`` of a block list's item stands."""
    return text.rfind("-", 0, item.start_mark.index)

"""The places of keys and items in a composed YAML document. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence

import yaml

from tuner.errors import TargetError

_NULL = "tag:yaml.org,2002:null"
_FILLED_IN = re.compile(r"\{\{.*?\}\}|\$\{[A-Za-z_][^}]*\}|^\$[A-Za-z_]\w*$", re.DOTALL)

_LONGEST = 4096
"""Characters within which a value begins to be filled in by somebody else."""


def is_null(node: yaml.Node | None) -> bool:
    """Whether nothing stands there, or ``null``."""
    return node is None or node.tag == _NULL


def children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from (key, value)
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def descendants(node: yaml.Node) -> Iterator[yaml.Node]:
    """Yield a node and all below it."""
    yield node
    for child in children(node):
        yield from descendants(child)


def shared_ids(roots: Sequence[yaml.Node]) -> frozenset[int]:
    """Return the ids of the nodes that stand in two places, and of all below them."""
    shared: set[int] = set()
    for root in roots:
        _mark_shared(root, set(), shared)
    return frozenset(shared)


def _mark_shared(node: yaml.Node, seen: set[int], shared: set[int]) -> None:
    if id(node) in seen:
        _mark_all(node, shared)
        return
    seen.add(id(node))
    for child in children(node):
        _mark_shared(child, seen, shared)


def _mark_all(node: yaml.Node, shared: set[int]) -> None:
    if id(node) not in shared:
        shared.add(id(node))
        for child in children(node):
            _mark_all(child, shared)


def get(node: yaml.Node | None, *path: str) -> yaml.Node | None:
    """Return what stands under these keys; None where nothing does, or null."""
    for name in path:
        if not isinstance(node, yaml.MappingNode):
            return None
        node = next((value for key, value in node.value if key.value == name), None)
    return None if is_null(node) else node


def line_of(node: yaml.Node | None) -> int:
    """Return the line on which it begins, counted from 1; 0 where nothing stands."""
    return 0 if node is None else node.start_mark.line + 1


def text_at(node: yaml.Node | None, *path: str) -> str | None:
    found = get(node, *path)
    return found.value if isinstance(found, yaml.ScalarNode) else None


def items(node: yaml.Node | None) -> Sequence[yaml.Node]:
    return node.value if isinstance(node, yaml.SequenceNode) else []


def entries(node: yaml.Node | None) -> Mapping[str, yaml.Node]:
    return (
        {key.value: value for key, value in node.value}
        if isinstance(node, yaml.MappingNode)
        else {}
    )


def refuse_filled_in(node: yaml.Node, argument: str, *, source: str) -> None:
    """Refuse to replace a value that Helm, Ansible or envsubst put in. Raises TargetError."""
    if isinstance(node, yaml.ScalarNode) and _FILLED_IN.search(node.value[:_LONGEST]):
        raise TargetError(
            f"{source}:{line_of(node)}: {argument} is decided elsewhere: {node.value[:80]}",
            hint="Write the value there, or apply the profile to where it comes from.",
        )

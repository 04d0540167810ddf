"""What stands where in a composed YAML document. Pure."""

from collections.abc import Iterator, Mapping, Sequence

import yaml

_NULL = "tag:yaml.org,2002:null"


def children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from (key, value)
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def get(node: yaml.Node | None, *path: str) -> yaml.Node | None:
    """Return what stands under these keys; None where nothing does, or null."""
    for name in path:
        if not isinstance(node, yaml.MappingNode):
            return None
        node = next((value for key, value in node.value if key.value == name), None)
    return None if node is not None and node.tag == _NULL else node


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

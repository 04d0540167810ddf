"""A Compose file: the command of a service. Pure."""

from collections.abc import Iterator, Mapping

import yaml

from tuner.engines.seam import ArgumentValue
from tuner.targets import container_target
from tuner.targets.containers import COMPOSE_FILE, Container
from tuner.targets.seam import Platform, Stated
from tuner.targets.yaml_file import YamlFile
from tuner.targets.yaml_nodes import entries, get

NAME = "compose"
DEFAULT_FILE = ""
SUFFIXES: tuple[str, ...] = (".yaml", ".yml")
START = "docker compose -f {file} up -d"
ON_THIS_MACHINE = False


def containers(file: YamlFile) -> Iterator[Container]:
    """Yield the services; one that extends another may have its command there."""
    for document in file.roots:
        for name, node in entries(get(document, "services")).items():
            if isinstance(node, yaml.MappingNode):
                extends = get(node, "extends") is not None
                yield Container("", name, node, spelling=COMPOSE_FILE, replaces=extends)


def read(text: str, *, source: str, container: str | None = None) -> dict[str, Stated]:
    return container_target.read(text, containers, source=source, container=container)


def platform(text: str, *, source: str, container: str | None = None) -> Platform:
    return container_target.platform(text, containers, source=source, container=container)


def write(
    text: str,
    arguments: Mapping[str, ArgumentValue],
    *,
    source: str,
    container: str | None = None,
) -> str:
    return container_target.write(text, arguments, containers, source=source, container=container)

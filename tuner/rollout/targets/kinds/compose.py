"""A Compose file: the command of a service. Pure."""

from collections.abc import Iterator

import yaml

from tuner.rollout.targets.kinds.container_target import ContainerFile
from tuner.rollout.targets.kinds.containers import COMPOSE_FILE, Container
from tuner.rollout.targets.yaml.file import YamlFile
from tuner.rollout.targets.yaml.nodes import entries, get

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


_FILE = ContainerFile(containers)
read, platform, write = _FILE.read, _FILE.platform, _FILE.write

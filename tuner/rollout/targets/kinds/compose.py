"""A Compose file: the command of a service. Pure."""

import posixpath
import shlex
from collections.abc import Iterator

import yaml

from tuner.rollout.targets.command_line.variables import Scope, Variable
from tuner.rollout.targets.env_lines import env_lines
from tuner.rollout.targets.kinds.container_target import ContainerFile, ContainerServer
from tuner.rollout.targets.kinds.containers import COMPOSE_FILE, Container
from tuner.rollout.targets.seam import Asked, Overruled, Rollout
from tuner.rollout.targets.yaml.file import YamlFile, parse
from tuner.rollout.targets.yaml.nodes import entries, get, line_of

NAME = "compose"
DEFAULT_FILE = ""
SUFFIXES: tuple[str, ...] = (".yaml", ".yml")
ON_THIS_MACHINE = False

NAMES = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
"""Files that ``docker compose`` looks for, in this order."""

_OVERRIDES = ("compose.override.yaml", "compose.override.yml", "docker-compose.override.yml")
_ENV_FILE = ".env"


def containers(file: YamlFile, asked: Asked) -> Iterator[Container]:
    """Yield the services; one that extends another may have its command there."""
    outer = interpolated(asked)
    for document in file.roots:
        for name, node in entries(get(document, "services")).items():
            if isinstance(node, yaml.MappingNode):
                extends = get(node, "extends") is not None
                yield Container(
                    "", name, node, spelling=COMPOSE_FILE, outer=outer, replaces=extends
                )


def interpolated(asked: Asked) -> Scope:
    """Return the variables that Compose puts in: those of ``.env`` beside the file.

    What the shell sets when Compose is started is not known, and not looked for.
    """
    text = asked.beside.text(_ENV_FILE) or ""
    path = posixpath.join(posixpath.dirname(asked.source), _ENV_FILE)
    cure = f"Apply the profile there first: tuner apply PROFILE {shlex.quote(path)}"
    found = {
        one.name: Variable(one.value, f"is set in {path}:{one.line}", cure=cure)
        for one in env_lines(text)
    }
    return found.get


def rollout(server: ContainerServer) -> Rollout:
    return Rollout(f"docker compose -f {{file}} up -d {shlex.quote(server.one.name)}")


def overruled(server: ContainerServer) -> Iterator[Overruled]:
    """Yield the override file that Compose reads by itself, where it sets the command."""
    folder, name = posixpath.split(server.asked.source)
    stem, suffix = posixpath.splitext(name)
    if name not in NAMES:
        return
    for other in (f"{stem}.override{suffix}", *_OVERRIDES):
        text, path = server.asked.beside.text(other), posixpath.join(folder, other)
        roots = [] if text is None else parse(text, source=path, tabs=True).roots
        for root in roots:
            service = get(root, "services", server.one.name)
            for key in (COMPOSE_FILE.args, COMPOSE_FILE.command):
                if (node := get(service, key)) is not None:
                    yield Overruled(path, line_of(node), f"sets {key}")
                    return


_FILE = ContainerFile(containers, rollout, lambda server: [*overruled(server)])
opened = _FILE.opened

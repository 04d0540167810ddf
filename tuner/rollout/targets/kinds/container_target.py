"""The common part of the kinds of file with containers in them. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tuner.errors import NotVllmError, TargetError, UsageError
from tuner.rollout.targets.command_line.command_line import CommandLine
from tuner.rollout.targets.kinds.container_command import command_line
from tuner.rollout.targets.kinds.containers import Container, FindContainers
from tuner.rollout.targets.seam import Arguments, Asked, Overruled, Platform, Rollout, Stated
from tuner.rollout.targets.server import Server, check_there, platform_of
from tuner.rollout.targets.yaml.file import YamlFile, outline, parse
from tuner.rollout.targets.yaml.nodes import get, line_of, text_at

_GPU_LABEL = "nvidia.com/gpu.product"
_MOST_NAMES = 20
"""In a message."""


@dataclass(frozen=True, slots=True)
class ContainerServer(Server):
    """The server of a container."""

    kind: "ContainerFile"
    text: str
    asked: Asked
    file: YamlFile
    one: Container
    line: CommandLine

    @property
    def evidence(self) -> str:
        return self.line.evidence

    @property
    def stated(self) -> dict[str, Stated]:
        return self.line.stated() | dict(self.one.elsewhere)

    @property
    def platform(self) -> Platform:
        """The vLLM and the GPU that image and node selector name."""
        image, selected = get(self.one.node, "image"), get(self.one.pod, "nodeSelector", _GPU_LABEL)
        gpu = Stated(text_at(selected) or "", line_of(selected)) if selected else None
        return platform_of(self.one.image, line_of(image), gpu)

    @property
    def rollout(self) -> Rollout:
        return self.kind.rollout(self)

    @property
    def overruled(self) -> Sequence[Overruled]:
        return self.kind.overruled(self)

    def edited(self, arguments: Arguments) -> str:
        """Return the text with these arguments in the container's command line."""
        self.line.write(arguments)
        return self.file.edits.taken()

    def own(self, arguments: Arguments) -> Arguments:
        return {name: v for name, v in arguments.items() if name not in self.one.elsewhere}

    def reopened(self, text: str) -> "ContainerServer":
        container = self.asked.container or self.one.full_name
        return self.kind.opened(text, replace(self.asked, container=container))

    def rest(self) -> list[object]:
        spelling = self.one.spelling
        keys = {spelling.command, spelling.args, spelling.environment}
        return outline(self.file, {id(self.one.node): keys})


@dataclass(frozen=True, slots=True)
class ContainerFile:
    """A kind of file whose containers ``find`` yields."""

    find: FindContainers
    rollout: Callable[[ContainerServer], Rollout]
    """The commands that roll the server out."""

    overruled: Callable[[ContainerServer], Sequence[Overruled]] = lambda _: ()
    """The files beside it that decide after it."""

    server: type[ContainerServer] = ContainerServer

    def opened(self, text: str, asked: Asked) -> ContainerServer:
        """Return the server that is meant. Raises TargetError and UsageError."""
        check_there(text, source=asked.source)
        file = parse(text, source=asked.source, tabs=True)
        one, line = choose(file, list(self.find(file, asked)), asked)
        return self.server(self, text, asked, file, one, line)


def choose(
    file: YamlFile, found: Sequence[Container], asked: Asked
) -> tuple[Container, CommandLine]:
    """Return the server that is meant, and its words.

    Raises NotVllmError where none is seen to be vLLM's, UsageError where there are several, and
    TargetError for one whose words cannot be understood.
    """
    if not found:
        raise NotVllmError(
            f"{file.source}: there is no container in it",
            hint="Name the file with the server's command, or another kind with --to.",
        )
    if asked.container is not None:
        return _called(file, found, asked.container, is_trusted=asked.trusted)
    seen, problems = list[tuple[Container, CommandLine]](), list[tuple[Container, TargetError]]()
    for one in found:
        try:
            seen.append((one, command_line(file, one)))
        except TargetError as problem:
            problems.append((one, problem))
    # the others are only not seen to be vLLM's
    understood = [each for each in problems if not isinstance(each[1], NotVllmError)]
    if len(seen) == 1 and not understood:
        return seen[0]
    if len(seen) > 1 or (seen and understood):
        names = _names([one for one, _ in [*seen, *understood]])
        raise UsageError(f"{file.source}: which container?", hint=f"--container NAME, of {names}.")
    if understood:
        raise understood[0][1]
    if len(problems) == 1:
        raise problems[0][1]
    raise NotVllmError(
        f"{file.source}: no container in it is seen to run vLLM",
        hint=f"If one does: --container NAME --force, of {_names(found)}; that is recorded.",
    )


def _called(
    file: YamlFile, found: Sequence[Container], name: str, *, is_trusted: bool
) -> tuple[Container, CommandLine]:
    chosen = [one for one in found if one.is_called(name)]
    if len(chosen) > 1:
        running = [one for one in chosen if _is_vllm(file, one)]
        chosen = running if len(running) == 1 else chosen
    if len(chosen) != 1:
        raise UsageError(
            f"{file.source}: {len(chosen) or 'no'} containers are called {name!r}",
            hint=f"--container NAME, of {_names(found)}.",
        )
    return chosen[0], command_line(file, chosen[0], is_trusted=is_trusted)


def _is_vllm(file: YamlFile, one: Container) -> bool:
    try:
        command_line(file, one)
    except TargetError:
        return False
    return True


def _names(found: Sequence[Container]) -> str:
    names = sorted({one.full_name for one in found})
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more

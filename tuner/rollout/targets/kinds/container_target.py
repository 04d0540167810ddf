"""The common part of the kinds of file with containers in them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from tuner.engines.seam import ArgumentValue
from tuner.engines.vllm import values as vllm_values
from tuner.errors import TargetError
from tuner.rollout.targets import images
from tuner.rollout.targets.command_line import flags
from tuner.rollout.targets.command_line.command_line import CommandLine
from tuner.rollout.targets.kinds.container_command import command_line
from tuner.rollout.targets.kinds.containers import Container, FindContainers, choose
from tuner.rollout.targets.seam import Platform, Stated
from tuner.rollout.targets.yaml.file import YamlFile, outline, parse
from tuner.rollout.targets.yaml.nodes import get, text_at

_GPU_LABEL = "nvidia.com/gpu.product"


@dataclass(frozen=True, slots=True)
class ContainerFile:
    """``seam.Target`` for a kind of file whose containers ``find`` yields."""

    find: FindContainers

    def read(self, text: str, *, source: str, container: str | None = None) -> dict[str, Stated]:
        _, one, line = _open(text, self.find, source=source, container=container)
        return line.stated() | dict(one.elsewhere)

    def platform(self, text: str, *, source: str, container: str | None = None) -> Platform:
        """Return what image and node selector say."""
        _, one, _ = _open(text, self.find, source=source, container=container)
        image, selected = get(one.node, "image"), get(one.pod, "nodeSelector", _GPU_LABEL)
        gpu = Stated(text_at(selected) or "", _line(selected)) if selected else None
        return platform_of(text_at(image) or "", _line(image), gpu)

    def write(
        self,
        text: str,
        arguments: Mapping[str, ArgumentValue],
        *,
        source: str,
        container: str | None = None,
    ) -> str:
        """Return the text with these arguments in the container's command line."""
        file, one, line = _open(text, self.find, source=source, container=container)
        arguments = {name: value for name, value in arguments.items() if name not in one.elsewhere}
        before = line.stated()
        line.write(arguments)
        result = file.edits.result()
        if result != text:
            try:
                after_file, after, after_line = _open(
                    result, self.find, source=source, container=container or one.full_name
                )
                after_stated = after_line.stated()
            except TargetError as problem:
                raise unsafe(source, str(problem)) from None
            faults = differences(before, after_stated, arguments)
            if faults or outline(file, _touched(one)) != outline(after_file, _touched(after)):
                raise unsafe(source, ", ".join(faults) or "something else would change")
        return result


def platform_of(image: str, line: int, gpu: Stated | None = None) -> Platform:
    version = images.vllm_version(image)
    if version is None:
        return Platform(gpu=gpu, image=Stated(image, line))
    return Platform(vllm=Stated(version, line), gpu=gpu)


def differences(
    before: Mapping[str, Stated],
    after: Mapping[str, Stated],
    arguments: Mapping[str, ArgumentValue],
) -> list[str]:
    """Return the arguments that, read back, are not what was asked for."""
    wanted = {name: one.value for name, one in before.items() if name not in arguments}
    wanted |= {
        name: value
        for name, value in arguments.items()
        if flags.is_written(name, value) and (name != "model" or "model" in before)
    }
    found = {name: one.value for name, one in after.items()}
    return sorted(
        name
        for name in wanted.keys() | found.keys()
        if name not in wanted
        or name not in found
        or not vllm_values.same(flags.comparable(found[name], wanted[name]), wanted[name])
    )


def _open(
    text: str, find: FindContainers, *, source: str, container: str | None
) -> tuple[YamlFile, Container, CommandLine]:
    check_there(text, source=source)
    file = parse(text, source=source)
    one = choose(file, find, container)
    return file, one, command_line(file, one, is_chosen=container is not None)


def check_there(text: str, *, source: str) -> None:
    """Refuse a file that would be new."""
    if not text:
        raise TargetError(
            f"{source}: no such file, and only an existing one can be edited",
            hint="Name the file that the server is deployed with.",
        )


def _touched(one: Container) -> dict[int, set[str]]:
    spelling = one.spelling
    return {id(one.node): {spelling.command, spelling.args, spelling.environment}}


def _line(node: yaml.Node | None) -> int:
    return 0 if node is None else node.start_mark.line + 1


def unsafe(source: str, why: str) -> TargetError:
    return TargetError(
        f"{source}: cannot be edited safely ({why})",
        hint="Write one argument a line, without anchors, or edit it by hand.",
    )

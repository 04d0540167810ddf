"""A world: the file that describes the simulated machine of ``--engine sim``.

docs/engines.md explains the keys. Their names are those of the file; times are seconds.
"""

import hashlib
import math
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import yaml

from tuner.engines.scheduler.state import Ints, StepLaw
from tuner.errors import InputError
from tuner.system import yaml_strict

_NUMBER: Final = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_INTEGER: Final = re.compile(r"[-+]?\d+")
_MAX_COUNT: Final = 2**31 - 1
_MAX_SECONDS: Final = 1e6
_HINT: Final = "docs/engines.md lists every key of a world with its meaning and range."

Section = TypeVar("Section")


def _number(default: float, *, low: float = 0.0, high: float = _MAX_SECONDS) -> Any:  # noqa: ANN401 - as dataclasses.field
    return field(default=default, metadata={"low": low, "high": high})


def _count(default: int, *, low: int = 0) -> Any:  # noqa: ANN401
    return field(default=default, metadata={"low": low, "high": _MAX_COUNT})


@dataclass(frozen=True, slots=True)
class WorldStep:
    """The true step law: a + b·pad(n) + h·max(0, pad(n) - n0) + c·P + c2·P² + p0·p + d·X."""

    a: float = _number(0.020)
    b: float = _number(0.0)
    n0: int = _count(16)
    h: float = _number(0.0)
    c: float = _number(0.0)
    c2: float = _number(0.0)
    p0: float = _number(0.0)
    d: float = _number(0.0)
    pad: bool = False
    async_release: bool = False
    lag: float = _number(0.0)


@dataclass(frozen=True, slots=True)
class WorldKv:
    blocks: int = _count(1200, low=1)
    block_size: int = _count(16, low=1)


@dataclass(frozen=True, slots=True)
class WorldNoise:
    """The departures of the machine from its law; none without any key."""

    sigma_iter: float = _number(0.0, high=3.0)
    sigma_drift: float = _number(0.0, high=3.0)
    tau: float = _number(120.0, low=1e-3)
    sigma_start: float = _number(0.0, high=3.0)
    stall_rate: float = _number(0.0, high=1e3)
    stall_mean: float = _number(0.0)
    episode_rate: float = _number(0.0, high=1e3)
    episode_len: float = _number(45.0)
    episode_mult: float = _number(1.0, low=1e-3, high=1e3)
    hang_at: float = _number(0.0)
    hang_len: float = _number(20.0)

    @property
    def is_calm(self) -> bool:
        return not (
            self.sigma_iter
            or self.sigma_drift
            or self.sigma_start
            or (self.stall_rate and self.stall_mean)
            or (self.episode_rate and self.episode_len and self.episode_mult != 1)
            or self.hang_at
        )


@dataclass(frozen=True, slots=True)
class World:
    """A simulated machine with its engine."""

    step: WorldStep = field(default_factory=WorldStep)
    kv: WorldKv = field(default_factory=WorldKv)
    budget: int = _count(2048, low=1)
    engine_start: float = _number(60.0)
    noise: WorldNoise = field(default_factory=WorldNoise)
    seed: int = _count(1)
    name: str = "world"
    """The file's name without its ending; not a key."""

    digest: str = ""
    """``sha256:…`` of the file; not a key."""


_SECTIONS: Final = {"step": WorldStep, "kv": WorldKv, "noise": WorldNoise}


def read_world(path: Path) -> World:
    """Read a world file.

    Raises InputError with line and key for what is not a world.
    """
    text = yaml_strict.read(path, error=InputError, missing="Check the path after --world.")
    source = str(path)
    root = yaml_strict.compose(text, source=source, error=InputError, plain=False)
    values: dict[str, Any] = {}
    for name, node in _items(root, _keys(World), source=source, place=""):
        section = _SECTIONS.get(name)
        if section is None:
            values[name] = _value(World, name, node, source=source, place="")
        else:
            values[name] = _section(section, name, node, source=source)
    digest = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    world = World(**values, name=path.stem, digest=digest)
    if world.step.a == 0 and not (world.step.b and (world.step.c or world.step.p0)):
        raise InputError(f"{source}: step: an iteration takes no time", hint="Give step.a.")
    return world


def step_law(step: WorldStep, max_num_seqs: int) -> StepLaw:
    """Return the world's law, tabulated by the number of decode sequences."""
    n = np.arange(max_num_seqs + 1)
    batch = padded(n) if step.pad else n
    return StepLaw(
        decode_s=step.a + step.b * batch + step.h * np.maximum(0, batch - step.n0),
        prefill_token_s=step.c,
        prefill_token_squared_s=step.c2,
        prefill_seq_s=step.p0,
        context_token_s=step.d,
    )


def padded(n: Ints) -> Ints:
    """Return the CUDA-graph size that vLLM runs a decode batch at: 1, 2, 4, 8, 16, 24, …, 512.

    Above 256 the sizes are multiples of 16; above 512 there is no graph and no padding.
    """
    small = np.where(n == 3, 4, n)
    middle = np.where(n > 4, -(-n // 8) * 8, small)
    large = np.where(n > 256, -(-n // 16) * 16, middle)
    return np.where(n > 512, n, large)


def _section(kind: type[Section], name: str, node: yaml.Node, *, source: str) -> Section:
    place = f"{name}."
    return kind(
        **{
            key: _value(kind, key, value, source=source, place=place)
            for key, value in _items(node, _keys(kind), source=source, place=place)
        }
    )


def _keys(kind: type) -> dict[str, Any]:
    return {each.name: each for each in fields(kind) if each.name not in {"name", "digest"}}


def _items(
    node: yaml.Node | None, keys: dict[str, Any], *, source: str, place: str
) -> list[tuple[str, yaml.Node]]:
    """Return keys and values of a mapping, all of them known."""
    if node is None:
        return []
    if not isinstance(node, yaml.MappingNode):
        line = node.start_mark.line + 1
        raise InputError(
            f"{source}:{line}: {place[:-1]} has no keys of its own",
            hint=f"Indent {', '.join(keys)} below it.",
        )
    for key, _ in node.value:
        if key.value not in keys:
            raise InputError(
                f"{source}:{key.start_mark.line + 1}: {place}{key.value[:80]}: unknown key",
                hint=f"Known here: {', '.join(keys)}.",
            )
    return [(key.value, value) for key, value in node.value]


def _value(kind: type, name: str, node: yaml.Node, *, source: str, place: str) -> float | bool:
    """Return the value of one key: a boolean, or a number in its range."""
    each = _keys(kind)[name]
    where = f"{source}:{node.start_mark.line + 1}: {place}{name}"
    text = node.value[:80] if isinstance(node, yaml.ScalarNode) else "a list or a mapping"
    plain = isinstance(node, yaml.ScalarNode) and not node.style
    if each.type is bool:
        if not plain or node.tag != "tag:yaml.org,2002:bool":
            raise InputError(f"{where}: {text!r} is not true or false", hint=_HINT)
        return text.lower() in {"true", "yes", "on"}
    whole = each.type is int
    if not plain or not (_INTEGER if whole else _NUMBER).fullmatch(text):
        raise InputError(f"{where}: {text!r} is not a {'whole ' * whole}number", hint=_HINT)
    low, high = each.metadata["low"], each.metadata["high"]
    value = int(text) if whole else float(text)
    if not (math.isfinite(value) and low <= value <= high):
        raise InputError(f"{where}: {text} is not between {low:g} and {high:g}", hint=_HINT)
    return value

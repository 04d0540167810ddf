"""A world: the file that describes the simulated machine of ``--world``, and its noise.

docs/engines.md explains the keys. Their names are those of the file; times are seconds. Drift,
stalls and episodes belong to the machine and continue over engine starts. The jitter of iterations
and the offset of a start belong to one engine.
"""

import hashlib
import math
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from tuner.engines.scheduler.state import NO_NOISE, Ints, Noise, StepLaw
from tuner.errors import InputError
from tuner.system import yaml_strict

_HINT = "docs/engines.md lists every key of a world with its meaning and range."

Seconds = Annotated[float, Meta(ge=0, le=1e6)]
Sigma = Annotated[float, Meta(ge=0, le=3)]
Rate = Annotated[float, Meta(ge=0, le=1e3)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]


@dataclass(frozen=True, slots=True)
class WorldStep:
    """The true step law: a + b·pad(n) + h·max(0, pad(n) - n0) + c·P + c2·P² + p0·p + d·X."""

    a: Seconds = 0.020
    b: Seconds = 0.0
    n0: Count = 16
    h: Seconds = 0.0
    c: Seconds = 0.0
    c2: Seconds = 0.0
    p0: Seconds = 0.0
    d: Seconds = 0.0
    pad: bool = False
    async_release: bool = False
    lag: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class WorldKv:
    blocks: Positive = 1200
    block_size: Positive = 16


@dataclass(frozen=True, slots=True)
class WorldNoise:
    """The departures of the machine from its law; none without any key."""

    sigma_iter: Sigma = 0.0
    sigma_drift: Sigma = 0.0
    tau: Annotated[float, Meta(ge=1e-3, le=1e6)] = 120.0
    sigma_start: Sigma = 0.0
    stall_rate: Rate = 0.0
    stall_mean: Seconds = 0.0
    episode_rate: Rate = 0.0
    episode_len: Seconds = 45.0
    episode_mult: Annotated[float, Meta(ge=1e-3, le=1e3)] = 1.0
    hang_at: Seconds = 0.0
    hang_len: Seconds = 20.0

    @property
    def is_calm(self) -> bool:
        sigmas = (self.sigma_iter, self.sigma_drift, self.sigma_start)
        return not any((*sigmas, self.stall_rate, self.episode_rate, self.hang_at))


@dataclass(frozen=True, slots=True)
class World:
    """A simulated machine with its engine."""

    step: WorldStep = field(default_factory=WorldStep)
    kv: WorldKv = field(default_factory=WorldKv)
    budget: Positive = 2048
    engine_start: Seconds = 60.0
    noise: WorldNoise = field(default_factory=WorldNoise)
    seed: Count = 1
    name: str = "world"
    """The file's name without its ending; not a key."""

    digest: str = ""
    """``sha256:…`` of the file; not a key."""


def read_world(path: Path) -> World:
    """Read a world file.

    Raises InputError with the key of what is not a world.
    """
    text = yaml_strict.read(path, error=InputError, missing="Check the path after --world.")
    source = str(path)
    root = yaml_strict.compose(text, source=source, error=InputError)
    values = yaml_strict.construct(root, source=source, error=InputError) if root else {}
    _check_keys(values, World, source)
    digest = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    try:
        named = {**values, "name": path.stem, "digest": digest}
        # lax: to YAML 2e-2 is a text
        world = msgspec.convert(named, World, strict=False)
    except (msgspec.ValidationError, OverflowError) as problem:
        reason, _, place = str(problem).partition(" - at `$.")
        raise InputError(f"{source}: {place.rstrip('`')}: {reason}", hint=_HINT) from None
    if world.step.a == 0 and not (world.step.b and (world.step.c or world.step.p0)):
        raise InputError(f"{source}: step: an iteration takes no time", hint="Give step.a.")
    return world


def _check_keys(values: object, kind: Any, place: str) -> None:  # noqa: ANN401 - a class of a section
    """Raise InputError for a key that a section does not have."""
    known = {each.name: each.type for each in fields(kind) if each.name not in {"name", "digest"}}
    for key, value in values.items() if isinstance(values, dict) else ():
        if key not in known:
            raise InputError(
                f"{place}: {str(key)[:80]}: unknown key", hint=f"Known here: {', '.join(known)}."
            )
        if is_dataclass(known[key]):
            _check_keys(value, known[key], f"{place}: {key}")


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


CHUNK_S, CHUNKS = 600.0, 48
"""A machine's noise is drawn in so many parts of so many seconds; afterwards it stays as it is."""

JITTERS = 8192
"""Of an engine from the time on when it was idle; when they are used up, they begin anew."""


def machine_noise(world: World) -> Noise:
    """Draw the noise of one machine, the same for the same seed."""
    noise, rng = world.noise, np.random.default_rng([world.seed, 0])
    if noise.is_calm:
        return NO_NOISE
    grid_s = min(0.25, max(0.01, noise.tau / 50))
    steps = math.ceil(CHUNK_S / grid_s)
    kept = math.exp(-grid_s / noise.tau)
    scale = noise.sigma_drift * math.sqrt(1 - kept * kept)
    log_speed = float(rng.normal(0.0, noise.sigma_drift))
    next_s = float(rng.exponential(1 / noise.episode_rate)) if noise.episode_rate else math.inf
    until_s, slowdown, at_s, lasting_s = 0.0, list[float](), list[float](), list[float]()
    for chunk in range(CHUNKS):
        begin_s, end_s = grid_s * steps * chunk, grid_s * steps * (chunk + 1)
        # exp(Ornstein-Uhlenbeck), exact at the grid's points
        shocks = rng.normal(0.0, scale, steps).tolist() if scale else [0.0] * steps
        *path, log_speed = accumulate(shocks, lambda x, shock: kept * x + shock, initial=log_speed)
        grid = begin_s + np.arange(steps) * grid_s
        factors = np.where(grid < until_s, noise.episode_mult, 1.0)
        while next_s < end_s:
            until_s = next_s + noise.episode_len
            factors[(grid >= next_s) & (grid < until_s)] = noise.episode_mult
            next_s += float(rng.exponential(1 / noise.episode_rate))
        slowdown += (np.exp(path) * factors).tolist()
        count = rng.poisson(noise.stall_rate * (end_s - begin_s))
        at_s += sorted(rng.uniform(begin_s, end_s, count).tolist())
        lasting_s += rng.exponential(noise.stall_mean, count).tolist()
    if noise.hang_at:
        place = int(np.searchsorted(at_s, noise.hang_at))
        at_s.insert(place, noise.hang_at)
        lasting_s.insert(place, noise.hang_len)
    return NO_NOISE._replace(
        slowdown=np.array(slowdown),
        grid_s=grid_s,
        stall_at_s=np.array([*at_s, math.inf]),
        stall_s=np.array([*lasting_s, 0.0]),
    )


def engine_noise(machine: Noise, world: World, *, number: int, now_s: float) -> Noise:
    """Return the noise that one engine on a machine meets, idle until now, whatever it did before.
    ``number`` counts them from 1."""
    if world.noise.is_calm:
        return NO_NOISE
    offset = np.random.default_rng([world.seed, number]).normal(0.0, world.noise.sigma_start)
    rng = np.random.default_rng([world.seed, number, round(now_s * 1e6)])
    jitter = np.exp(rng.normal(offset, world.noise.sigma_iter, JITTERS))
    return machine._replace(jitter=jitter)

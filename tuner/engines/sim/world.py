"""A world: the file that describes the simulated machine of ``--world``, and its noise.

docs/engines.md explains the keys. Their names are those of the file; times are seconds. Drift,
stalls and episodes belong to the machine and continue over engine starts. The jitter of iterations
and the offset of a start belong to one engine.
"""

import hashlib
import math
from itertools import accumulate
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta, Struct

from tuner.engines.scheduler.state import NO_NOISE, Ints, Noise, StepLaw
from tuner.errors import InputError
from tuner.system import yaml_strict

Seconds = Annotated[float, Meta(ge=0, le=1e6)]
Sigma = Annotated[float, Meta(ge=0, le=3)]
Rate = Annotated[float, Meta(ge=0, le=1e3)]
Factor = Annotated[float, Meta(ge=1e-3, le=1e6)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class _Section(Struct, frozen=True, forbid_unknown_fields=True):
    """A mapping of the file."""


class WorldStep(_Section, frozen=True):
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


class WorldKv(_Section, frozen=True):
    blocks: Positive = 1200
    block_size: Positive = 16


class WorldNoise(_Section, frozen=True):
    """The departures of the machine from its law; none without any key."""

    sigma_iter: Sigma = 0.0
    sigma_drift: Sigma = 0.0
    tau: Factor = 120.0
    sigma_start: Sigma = 0.0
    stall_rate: Rate = 0.0
    stall_mean: Seconds = 0.0
    episode_rate: Rate = 0.0
    episode_len: Seconds = 45.0
    episode_mult: Factor = 1.0


class World(_Section, frozen=True):
    """A simulated machine with its engine."""

    step: WorldStep = WorldStep()
    kv: WorldKv = WorldKv()
    budget: Positive = 2048
    engine_start: Seconds = 60.0
    noise: WorldNoise = WorldNoise()
    seed: Count = 1
    name: str = "world"
    """By default the file's name without its ending."""

    @property
    def digest(self) -> str:
        return f"sha256:{hashlib.sha256(msgspec.json.encode(self)).hexdigest()}"


def read_world(path: Path) -> World:
    """Read a world file.

    Raises InputError with the key of what is not a world.
    """
    text = yaml_strict.read(path, error=InputError, missing="Check the path after --world.")
    root = yaml_strict.compose(text, source=str(path), error=InputError)
    values = yaml_strict.construct(root, source=str(path), error=InputError) if root else {}
    try:  # lax: to YAML 2e-2 is a text
        world = msgspec.convert({"name": path.stem, **values}, World, strict=False)
    except (msgspec.ValidationError, OverflowError) as problem:
        reason, _, place = str(problem).partition(" - at `$.")
        where = [str(path), *filter(None, place.rstrip("`").split("."))]
        raise InputError(
            f"{': '.join(where)}: {reason}",
            hint="docs/engines.md lists every key of a world with its meaning and range.",
        ) from None
    if world.step.a == 0 and not (world.step.b and (world.step.c or world.step.p0)):
        raise InputError(f"{path}: step: an iteration takes no time", hint="Give step.a.")
    return world


def step_law(step: WorldStep, max_num_seqs: int) -> StepLaw:
    """Return the world's law, tabulated by the number of decode sequences."""
    n = np.arange(max_num_seqs + 1)
    batch = padded(n) if step.pad else n
    decode_s = step.a + step.b * batch + step.h * np.maximum(0, batch - step.n0)
    return StepLaw(decode_s, step.c, step.c2, step.p0, step.d)


def padded(n: Ints) -> Ints:
    """Return the CUDA-graph size that vLLM runs a decode batch at: 1, 2, 4, 8, 16, 24, …, 512.

    Above 256 the sizes are multiples of 16; above 512 there is no graph and no padding.
    """
    steps = np.select([n < 3, n < 5, n <= 256, n <= 512], [1, 4, 8, 16], 1)
    return np.asarray(-(-n // steps) * steps)


CHUNK_S, CHUNKS = 600.0, 48
"""A machine's noise is drawn in so many parts of so many seconds; afterwards it stays as it is."""

JITTERS = 8192
"""Of an engine from the time on when it was idle; when they are used up, they begin anew."""


def machine_noise(world: World) -> Noise:
    """Draw the noise of one machine, the same for the same seed."""
    noise, rng = world.noise, np.random.default_rng([world.seed, 0])
    if noise == WorldNoise():
        return NO_NOISE
    grid_s = min(0.25, max(0.01, noise.tau / 50))
    steps, kept = math.ceil(CHUNK_S / grid_s), math.exp(-grid_s / noise.tau)
    scale = noise.sigma_drift * math.sqrt(1 - kept * kept)
    log_speed = float(rng.normal(0.0, noise.sigma_drift))
    log_speeds, at_s, lasting_s, episodes_s = list[float](), list[float](), list[float](), []
    next_s = rng.exponential(1 / noise.episode_rate) if noise.episode_rate else math.inf
    for chunk in range(CHUNKS):
        begin_s, end_s = grid_s * steps * chunk, grid_s * steps * (chunk + 1)
        # Ornstein-Uhlenbeck, exact at the grid's points
        shocks = rng.normal(0.0, scale, steps).tolist() if scale else [0.0] * steps
        *path, log_speed = accumulate(shocks, lambda x, shock: kept * x + shock, initial=log_speed)
        log_speeds += path
        while next_s < end_s:
            episodes_s.append(next_s)
            next_s += rng.exponential(1 / noise.episode_rate)
        count = rng.poisson(noise.stall_rate * (end_s - begin_s))
        at_s += sorted(rng.uniform(begin_s, end_s, count).tolist())
        lasting_s += rng.exponential(noise.stall_mean, count).tolist()
    grid = grid_s * np.arange(len(log_speeds))
    is_busy = np.zeros(len(grid), bool)
    for episode_s in episodes_s:
        is_busy |= (grid >= episode_s) & (grid < episode_s + noise.episode_len)
    return NO_NOISE._replace(
        slowdown=np.exp(log_speeds) * np.where(is_busy, noise.episode_mult, 1.0),
        grid_s=grid_s,
        stall_at_s=np.array([*at_s, math.inf]),
        stall_s=np.array([*lasting_s, 0.0]),
    )


def engine_noise(machine: Noise, world: World, *, number: int, now_s: float) -> Noise:
    """Return the noise that one engine on a machine meets, idle until now, whatever it did before.
    ``number`` counts them from 1."""
    if machine is NO_NOISE:
        return NO_NOISE
    offset = np.random.default_rng([world.seed, number]).normal(0.0, world.noise.sigma_start)
    rng = np.random.default_rng([world.seed, number, round(now_s * 1e6)])
    return machine._replace(jitter=np.exp(rng.normal(offset, world.noise.sigma_iter, JITTERS)))

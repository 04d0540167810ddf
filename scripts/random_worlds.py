"""Random worlds to judge a decision rule by: machines, their noise, and the traffic they get."""

from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.random import Generator

from tuner.engines.scheduler.state import Floats, Ints
from tuner.engines.sim.world import World, WorldKv, WorldNoise, WorldStep, step_law
from tuner.twin.simulation import EngineShape, Traffic, simulate

CAPS = (1, 2, 4, 8, 16, 32)
DURATION_S = 1200

NOISE = {
    "quiet": WorldNoise(sigma_iter=0.02, sigma_drift=0.005, tau=120.0, sigma_start=0.003),
    "typical": WorldNoise(
        sigma_iter=0.05,
        sigma_drift=0.02,
        tau=120.0,
        sigma_start=0.01,
        stall_rate=0.0083,
        stall_mean=0.10,
    ),
    "noisy": WorldNoise(
        sigma_iter=0.15,
        sigma_drift=0.06,
        tau=60.0,
        sigma_start=0.04,
        stall_rate=0.033,
        stall_mean=0.40,
        episode_rate=0.0033,
        episode_len=45.0,
        episode_mult=1.4,
    ),
}
"""A machine of one's own, a usual one, a shared one."""


@dataclass(frozen=True, slots=True)
class Case:
    world: World
    traffic: Traffic


def case(seed: int, level: str) -> Case:
    """Return a random case. The same seed gives the same machine and traffic at every level."""
    rng = np.random.default_rng([seed, 0])
    world = _world(rng)
    lengths = _lengths(rng)
    rate = rng.uniform(0.3, 0.95) * _capacity_rps(world, lengths)
    arrivals = _arrivals(rng, rate)
    traffic = _traffic(arrivals, lengths[rng.integers(0, len(lengths), len(arrivals))])
    return Case(replace(world, noise=NOISE[level], seed=seed), traffic)


def shape_of(world: World) -> EngineShape:
    """Return the engine's limits."""
    return EngineShape(
        max_num_batched_tokens=world.budget,
        block_size=world.kv.block_size,
        kv_blocks=world.kv.blocks,
        max_model_len=world.kv.blocks * world.kv.block_size,
    )


def _traffic(arrival_s: Floats, lengths: Ints) -> Traffic:
    prompts, outputs = lengths.T
    return Traffic(arrival_s, prompts, outputs, np.zeros_like(prompts))


def _world(rng: Generator) -> World:
    a = float(np.exp(rng.uniform(np.log(0.006), np.log(0.04))))
    step = WorldStep(
        a=a,
        b=a * float(rng.uniform(0.005, 0.06)),
        n0=int(rng.choice([4, 8, 12, 16, 20, 24, 64])),
        h=a * float(rng.choice([0.0, rng.uniform(0.02, 0.25)])),
        c=float(np.exp(rng.uniform(np.log(1e-5), np.log(2e-4)))),
        p0=float(rng.choice([0.0, 0.1 * a])),
        d=float(rng.choice([0.0, 1e-7, 5e-7])),
    )
    blocks = int(rng.choice([250, 500, 1000, 2000, 4000]))
    budget = int(rng.choice([512, 2048, 8192]))
    return World(step=step, kv=WorldKv(blocks=blocks), budget=budget, engine_start=30.0)


def _lengths(rng: Generator) -> Ints:
    """Return 2,000 pairs of prompt and output tokens."""
    middle = np.array([rng.choice([60, 150, 400, 1000]), rng.choice([40, 100, 200, 350])])
    spread = rng.uniform(0.2, 1.0, 2)
    pairs = np.exp(np.log(middle) + spread * rng.standard_normal((2000, 2)))
    return np.asarray(np.clip(pairs, 2, [2500, 1000]), np.int64)


def _arrivals(rng: Generator, rate: float) -> Floats:
    """Return arrival times: steady, bursty, in spells, or rising and falling."""
    kind = rng.choice(["poisson", "bursty", "spells", "tide"])
    times = np.arange(DURATION_S)
    level = np.ones(len(times))
    if kind == "spells":
        busy = np.cumsum(rng.random(len(times)) < 1 / rng.uniform(10, 60)) % 2
        level = np.where(busy, rng.uniform(1.3, 2.0), 0.6)
    elif kind == "tide":
        level = 1 + 0.5 * np.sin(2 * np.pi * times / rng.uniform(200, 900))
    elif kind == "bursty":
        shape = rng.uniform(0.5, 3.0)
        level = rng.gamma(shape, 1 / shape, len(times))
    counts = rng.poisson(rate * level / level.mean())
    return np.sort(np.repeat(times, counts) + rng.uniform(0, 1, counts.sum()))


def _capacity_rps(world: World, lengths: Ints) -> float:
    """Return what the machine serves at its best cap when everything waits at once."""
    some = lengths[:400]
    burst = _traffic(np.zeros(len(some)), some)
    law, shape = step_law(world.step, CAPS[-1]), shape_of(world)
    replays = (simulate(burst, law, shape, max_num_seqs=cap) for cap in CAPS)
    return len(some) / min(float(np.nanmax(each.requests["last_s"])) for each in replays)

"""The noise of a simulated machine: jitter, drift, stalls and busy neighbors.

Drift, stalls and episodes belong to the machine and continue over engine starts. The jitter of
iterations and the offset of a start belong to one engine.
"""

import math
from itertools import accumulate

import numpy as np

from tuner.engines.scheduler.state import NO_NOISE, Noise
from tuner.engines.sim.world import World

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

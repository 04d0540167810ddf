"""The noise of a simulated machine: jitter, drift, stalls and busy neighbors.

Drift, stalls and episodes belong to the machine and continue over engine starts. The jitter of
iterations and the offset of a start belong to one engine. Both are drawn ahead, are extended when
the scheduler model has used them up, and do not depend on what is asked of the engine. Jitter
begins anew whenever the engine is idle, from the time that it is then: so a run that was
interrupted meets the noise that it would have met.
"""

import math
from itertools import accumulate

import numpy as np

from tuner.engines.scheduler.state import NO_NOISE, Floats, Noise
from tuner.engines.sim.world import World

CHUNK_S = 600.0
"""Seconds of the machine's noise that are drawn at a time."""

JITTER_LENGTH = 8192


class MachineNoise:
    """The noise of one machine, drawn from time 0 to ``end_s``."""

    def __init__(self, world: World) -> None:
        self.world, noise = world, world.noise
        self.end_s = 0.0
        self.grid_s = min(0.25, max(0.01, noise.tau / 50))
        """Step of the grid on which drift and episodes are drawn."""

        self.slowdown: Floats = np.ones(0)
        self.stall_at_s: Floats = np.array([math.inf])
        self.stall_s: Floats = np.zeros(1)
        self._rng = np.random.default_rng([world.seed, 0])
        self._log_speed = float(self._rng.normal(0.0, noise.sigma_drift))
        self._episode_until_s, self._next_episode_s = 0.0, math.inf
        if noise.episode_rate > 0:
            self._next_episode_s = float(self._rng.exponential(1 / noise.episode_rate))

    def extend(self, until_s: float) -> None:
        """Draw the noise up to ``until_s`` at least, the same however it is asked for."""
        steps = math.ceil(CHUNK_S / self.grid_s)
        while self.end_s < until_s:
            begin_s, begin = self.end_s, self.slowdown.size
            self.end_s += self.grid_s * steps
            grid = np.arange(begin, begin + steps) * np.float64(self.grid_s)
            slowdown = self._drift(steps) * self._episodes(grid)
            self.slowdown = np.concatenate((self.slowdown, slowdown))
            self._stalls(begin_s)

    def _drift(self, steps: int) -> Floats:
        """Return the next part of exp(Ornstein-Uhlenbeck), exact at the grid's points."""
        noise = self.world.noise
        if noise.sigma_drift == 0:
            return np.ones(steps)
        kept = math.exp(-self.grid_s / noise.tau)
        scale = noise.sigma_drift * math.sqrt(1 - kept * kept)
        shocks = self._rng.normal(0.0, scale, steps).tolist()
        *path, self._log_speed = accumulate(
            shocks, lambda x, shock: kept * x + shock, initial=self._log_speed
        )
        return np.array([math.exp(x) for x in path])

    def _episodes(self, grid: Floats) -> Floats:
        noise = self.world.noise
        slow = np.ones(grid.size)
        slow[grid < self._episode_until_s] = noise.episode_mult
        while self._next_episode_s < self.end_s:
            begin_s = self._next_episode_s
            self._episode_until_s = begin_s + noise.episode_len
            slow[(grid >= begin_s) & (grid < self._episode_until_s)] = noise.episode_mult
            self._next_episode_s += float(self._rng.exponential(1 / noise.episode_rate))
        return slow

    def _stalls(self, begin_s: float) -> None:
        noise = self.world.noise
        count = self._rng.poisson(noise.stall_rate * (self.end_s - begin_s))
        at_s = np.sort(self._rng.uniform(begin_s, self.end_s, count))
        lasting_s = self._rng.exponential(noise.stall_mean, count)
        if begin_s < noise.hang_at <= self.end_s:
            place = np.searchsorted(at_s, noise.hang_at)
            at_s = np.insert(at_s, place, noise.hang_at)
            lasting_s = np.insert(lasting_s, place, noise.hang_len)
        self.stall_at_s = np.concatenate((self.stall_at_s[:-1], at_s, [math.inf]))
        self.stall_s = np.concatenate((self.stall_s[:-1], lasting_s, [0.0]))


class EngineNoise:
    """The noise that one engine on a machine meets.

    ``number`` counts the engines of a run from 1.
    """

    def __init__(self, machine: MachineNoise, *, number: int) -> None:
        self._machine, self._noise = machine, machine.world.noise
        self._seeds = (machine.world.seed, number)
        self._rng = np.random.default_rng(self._seeds)
        self._offset = float(self._rng.normal(0.0, self._noise.sigma_start))

    def anew(self, now_s: float) -> Noise:
        """Return the noise from ``now_s`` on, as it is whatever the engine did before."""
        self._rng = np.random.default_rng((*self._seeds, round(now_s * 1e6)))
        return self.until(now_s)

    def until(self, until_s: float) -> Noise:
        """Return the noise up to ``until_s`` at least, with jitter not used before."""
        if self._noise.is_calm:
            return NO_NOISE
        machine = self._machine
        if until_s + machine.grid_s >= machine.end_s:
            machine.extend(until_s + CHUNK_S)
        log_jitter = self._rng.normal(self._offset, self._noise.sigma_iter, JITTER_LENGTH)
        return Noise(
            jitter=np.exp(log_jitter),
            slowdown=machine.slowdown,
            begin_s=0.0,
            grid_s=machine.grid_s,
            end_s=machine.end_s - machine.grid_s,
            stall_at_s=machine.stall_at_s,
            stall_s=machine.stall_s,
        )

"""How fast the machine usually is: what this run saw of it and what the profile's did. Pure.

A refinement is short and often on one engine start, so that it knows little of that by itself; the
sweep saw other minutes and other starts of the same machine.
"""

import math
from collections.abc import Sequence

import numpy as np

from tuner.engines.scheduler.state import Floats, StepLaw
from tuner.engines.seam import IterationLog
from tuner.profile.stored_twin import StoredTwin
from tuner.runs.refine.gains.pair_mean import t_points
from tuner.twin.forecast import Forecast
from tuner.twin.simulation import Traffic, simulate

FAR = 2.0
"""Standard deviations of their difference beyond which the two speeds are of different machines: it
is slower today, and what was before says nothing."""

FEW_MINUTES = 4.0
"""Degrees of freedom of Student's t, by which a usual speed is off. How far a machine wanders is
told by a few minutes of it, which resemble each other: as by so many independent ones."""


def usual_laws(
    view: Forecast,
    draws: Sequence[StepLaw],
    before: StoredTwin | None,
    traffic: Traffic,
    *,
    max_num_seqs: int,
) -> list[StepLaw]:
    """Return the fitted law and its draws at the speed that both together say is usual: the mean of
    their logarithms, each weighted by how sure it is, and the draws at speeds that may as well be.

    A profile does not say for how many minutes its twin saw the machine: it is taken to be as far
    off as that wanders, at least. Compared are the times of the iterations that this traffic takes
    at ``max_num_seqs``, of batch sizes that both have seen. The laws stay as they are where there
    are none, or no times.
    """
    now = [view.fitted.law, *draws]
    log = simulate(
        traffic, view.fitted.law, view.shape, max_num_seqs=max_num_seqs, log=True
    ).iterations
    here = _log_time(now, log[log["decode_seqs"] <= view.fitted.extrapolated_from])
    if not np.isfinite(here).all():
        return now
    slower, sd = 0.0, _sd(here)
    if before is not None:
        seen = min(before.extrapolated_from, view.fitted.extrapolated_from)
        both = log[log["decode_seqs"] <= seen]
        today, then = (_log_time(laws, both) for laws in (now, [before.law, *before.draws]))
        if np.isfinite(today).all() and np.isfinite(then).all():
            apart = float(then[0] - today[0])
            slower, sd = together(apart, _sd(today), max(_sd(then), view.speed_sd))
    usual = here[0] + slower + sd * np.concatenate(([0.0], speeds(len(draws))))
    factors = np.exp(usual - here).tolist()
    return [law.slowed(factor) for law, factor in zip(now, factors, strict=True)]


def together(apart: float, sd: float, other_sd: float) -> tuple[float, float]:
    """Return how far the mean of two is from the first, weighted by how sure they are, and how sure
    that is.

    >>> together(0.02, 0.03, 0.04)
    (0.0072, 0.024)
    >>> together(0.2, 0.03, 0.04)
    (0.0, 0.03)
    """
    if abs(apart) > FAR * math.hypot(sd, other_sd) or not sd:
        return 0.0, sd
    share = sd**2 / (sd**2 + other_sd**2)
    return share * apart, sd * math.sqrt(1 - share)


def speeds(count: int) -> Floats:
    """Return as many quantiles of Student's t, in no order: what a draw has of its own speed by
    chance must not decide how far out the farthest is."""
    parts = [part.mean() for part in np.array_split(t_points(FEW_MINUTES), count)]
    found: Floats = np.random.default_rng(0).permutation(np.array(parts))
    return found


def _sd(of: Floats) -> float:
    """Return how far the drawn ones are from the middle one, which comes first."""
    return math.sqrt(float(np.mean((of[1:] - of[0]) ** 2)))


def _log_time(laws: Sequence[StepLaw], log: IterationLog) -> Floats:
    """Return the logarithm of the time that these iterations take, law by law."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Floats = np.log([float(law.durations_s(log).sum()) for law in laws])
    return found

"""How fast the machine usually is: what this run saw of it and what the profile's did. Pure.

A refinement is short and often on one engine start, so that it knows little of that by itself; the
sweep saw other minutes and other starts of the same machine.
"""

import math
from collections.abc import Sequence

import numpy as np

from tuner.engines.seam import IterationLog
from tuner.scheduler.state import Floats, StepLaw
from tuner.twin.forecast import Forecast
from tuner.twin.simulation import simulate
from tuner.twin.store import StoredTwin

FAR = 2.0
"""Standard deviations of their difference beyond which the two speeds are of different machines: it
is slower today, and what was before says nothing."""


def usual_laws(
    view: Forecast, draws: Sequence[StepLaw], before: StoredTwin, *, max_num_seqs: int
) -> list[StepLaw]:
    """Return the fitted law and its draws at the speed that both together say is usual: the mean of
    their logarithms, each weighted by how sure it is, and the draws as much nearer to it.

    Compared are the times of the iterations that the profile's traffic takes at ``max_num_seqs``,
    of batch sizes that both have seen. As the laws are where there are none, or no times.
    """
    now = [view.fitted.law, *draws]
    log = simulate(
        before.traffic, view.fitted.law, view.shape, max_num_seqs=max_num_seqs, log=True
    ).iterations
    seen = min(before.extrapolated_from, view.fitted.extrapolated_from)
    log = log[log["decode_seqs"] <= seen]
    here, there = (_log_time(laws, log) for laws in (now, [before.law, *before.draws]))
    if not (np.isfinite(here).all() and np.isfinite(there).all()):
        return now
    return [
        law.slowed(factor) for law, factor in zip(now, _factors(here, there).tolist(), strict=True)
    ]


def _log_time(laws: Sequence[StepLaw], log: IterationLog) -> Floats:
    """Return the logarithm of the time that these iterations take, law by law."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Floats = np.log([float(law.durations_s(log).sum()) for law in laws])
    return found


def _factors(here: Floats, there: Floats) -> Floats:
    """Return by which factors to slow the laws of ``here``; of both the middle one comes first.

    >>> one, other = np.array([0.0, -0.03, 0.03]), np.array([0.02, -0.01, 0.05])
    >>> np.log(_factors(one, other)).round(4).tolist()
    [0.01, 0.0188, 0.0012]
    """
    variance, known = (float(np.mean((one[1:] - one[0]) ** 2)) for one in (here, there))
    apart = float(there[0] - here[0])
    if abs(apart) > FAR * math.sqrt(variance + known) or not variance:
        return np.ones(len(here))
    share = variance / (variance + known)
    nearer = math.sqrt(1 - share) - 1
    found: Floats = np.exp(share * apart + nearer * (here - here[0]))
    return found

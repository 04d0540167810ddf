"""The parts of a profile that a watch holds a server against. Pure."""

from dataclasses import dataclass

import numpy as np

from tuner.live.watch.drift import ReferenceTraffic
from tuner.profile.stored_twin import StoredTwin
from tuner.traffic.requirements import Requirement
from tuner.traffic.slo import Slo


@dataclass(frozen=True, slots=True)
class Promised:
    twin: StoredTwin
    slo: Slo
    max_num_seqs: int
    caps: tuple[int, ...]
    """Of its curve."""

    headroom: float
    """Times the captured load that the choice was made for besides."""

    reference: ReferenceTraffic
    speed_sd: float
    """Standard deviation of the log speed of its machine, as measured."""

    tolerance: float
    requirements: tuple[Requirement, ...] = ()

    @property
    def known_cap(self) -> int:
        """The largest cap at which the twin can be asked about a server with another cap. Beyond
        the batches that were seen its law is extrapolated."""
        most = len(self.twin.law.decode_s) - 1
        return min(most, max(self.max_num_seqs, self.twin.extrapolated_from))


MOST_SPEED_SD = 0.10
"""Largest spread that is taken for a machine's own: more may come of a single window that went
wrong."""


def speed_sd_of(twin: StoredTwin) -> float:
    """Return how far the machine's speed may be from the law's level, as a standard deviation: how
    much the laws as likely differ, in the middle of the batch sizes that were seen."""
    most = max(1, min(twin.extrapolated_from, len(twin.law.decode_s) - 1))
    levels = [
        np.log(law.decode_s[1 : most + 1] / twin.law.decode_s[1 : most + 1]) for law in twin.laws
    ]
    return min(MOST_SPEED_SD, float(np.median(np.std(levels, axis=0)))) if levels else 0.0

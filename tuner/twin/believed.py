"""What draws believe before a run has shown anything: one file, whose hash stands in the evidence.

From `scripts/study_real.py`: eight cases on real servers of tiny models, on a machine that others
use too. ``docs/deciding.md`` shows how often intervals with the constants of seven held the eighth.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Beliefs:
    """Standard deviations and means of logarithms: 0.05 is 5 %."""

    start_sd: float
    """By which a start of the engine, and the hour, move its speed."""

    ttft_sd: float
    tpot_sd: float
    """By which the mean TTFT, and the mean TPOT, are off besides."""

    ttft_bias: float = 0.0
    tpot_bias: float = 0.0
    """Mean of measured / predicted; 0 where it is within its interval."""

    windows: int = 4
    """How many windows that the twin had not seen this is worth."""


BELIEVED = Beliefs(start_sd=0.096, ttft_sd=0.127, tpot_sd=0.042)

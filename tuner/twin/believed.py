"""What draws believe before a run has shown anything: one file, whose hash stands in the evidence.

Provisional, until `scripts/study_real.py` has as many cases as it asks for: from one real server of
the tiny model that was asked twice, and another start of it asked twice (120 s each, cap 8). TTFT
p95 was 420 to 479 ms, TPOT p95 13.1 to 14.5 ms. A range of four normal values is 2.06 standard
deviations: 0.064 and 0.049; of the latter half of the variance is taken for the start's, half for
the twin's.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Beliefs:
    """Standard deviations and means of logarithms: 0.05 is 5 %."""

    start_sd: float
    """By which a start of the engine moves its speed."""

    ttft_sd: float
    tpot_sd: float
    """By which the mean TTFT, and the mean TPOT, are off besides."""

    ttft_bias: float = 0.0
    tpot_bias: float = 0.0
    """Mean of measured / predicted; 0 where it is within its interval."""

    windows: int = 4
    """How many windows that the twin had not seen this is worth."""


BELIEVED = Beliefs(start_sd=0.035, ttft_sd=0.064, tpot_sd=0.035)

"""Sweeps and plans in this process that ask few draws: what the tests look at is in both."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tuner.profile import plan
from tuner.runs.sweep import headroom, prediction
from tuner.twin import check, choice, forecast
from tuner.twin.draws import PRINTED

ASKED = 16
"""Instead of ``choice.DRAWS`` and ``check.OWN_SPEED_DRAWS``."""

FEW = 20
"""Instead of ``draws.PRINTED``; a few more than the draws that are asked about every cap."""

DRAWS, OWN_SPEED_DRAWS = choice.DRAWS, check.OWN_SPEED_DRAWS


@contextmanager
def few_draws(printed: int = FEW, asked: int = ASKED, own_speed: int = ASKED) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (forecast, prediction, headroom, plan):
            patch.setattr(module, "PRINTED", printed)
        for other in (forecast, choice, plan):
            patch.setattr(other, "DRAWS", asked)
        patch.setattr(check, "OWN_SPEED_DRAWS", own_speed)
        yield


@contextmanager
def as_the_program() -> Iterator[None]:
    """As many draws as a process of its own asks."""
    with few_draws(PRINTED, DRAWS, OWN_SPEED_DRAWS):
        yield

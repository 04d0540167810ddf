"""Sweeps and plans in this process that print by few draws: what the tests look at is in both."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tuner.profile import plan
from tuner.runs import prediction
from tuner.runs.sweep import headroom
from tuner.twin import forecast

FEW = 48
"""Instead of ``draws.PRINTED``; a few more than the draws that are asked about every cap."""


@contextmanager
def few_draws(most: int = FEW) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (forecast, prediction, headroom, plan):
            patch.setattr(module, "PRINTED", most)
        yield

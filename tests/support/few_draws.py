"""Sweeps and plans in this process that ask few draws: what the tests look at is in both."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tuner.profile import plan
from tuner.runs.sweep import confirmation
from tuner.twin import choice, forecast

ASKED = 16
"""Instead of ``choice.DRAWS``."""

FEW = 20
"""Instead of ``draws.PRINTED``; a few more than the draws that are asked about every cap."""


@contextmanager
def few_draws() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (forecast, confirmation, plan):
            patch.setattr(module, "PRINTED", FEW)
        for other in (forecast, choice, plan):
            patch.setattr(other, "DRAWS", ASKED)
        yield

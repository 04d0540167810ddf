"""Sweeps and plans in this process of few draws: what the tests look at is in both."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tuner.profile import plan
from tuner.twin import forecast, law

FEWER = 16
"""Instead of ``DRAWS``."""

FEW = 20
"""Instead of ``PRINTED_DRAWS``; a few more than the draws that every cap gets."""


@contextmanager
def few_draws() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(law, "PRINTED_DRAWS", FEW)
        for module in (forecast, plan):
            patch.setattr(module, "DRAWS", FEWER)
        yield

"""Runs on a machine whose cores others take."""

import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runs.sweep.test_sweep import HALF, SLOTS_COST_LATE, UP_TO_8, Notes
from tuner.engines.sim.start import SimStarter
from tuner.engines.sim.virtual_time import run
from tuner.runs import journal
from tuner.runs.outcome import SweepOutcome
from tuner.runs.settings import SweepSettings
from tuner.runs.sweep.sweep import sweep
from tuner.traffic.slo import Slo

pytestmark = pytest.mark.usefixtures("by_few_draws")

FAST = replace(UP_TO_8, fast=True, slo=Slo(tpot_s=0.05))


def beside(others: float, run_dir: Path, settings: SweepSettings = FAST) -> SweepOutcome:
    """Sweep while others take so much of the cores."""
    row = (1.0, math.nan, math.nan, others, 0.0, math.nan, math.nan, math.nan)
    with closing(journal.create(run_dir, {})) as book:
        starter = SimStarter(SLOTS_COST_LATE)
        return run(sweep(HALF, starter, settings, book, Notes(), read_device=lambda: row))


def test_nothing_is_promised_of_a_machine_whose_cores_others_took(tmp_path: Path) -> None:
    calm, taken = beside(0.3, tmp_path / "calm"), beside(0.7, tmp_path / "taken")
    assert calm.verdict.is_defended
    assert [one.load for one in calm.predictions] == [1.0, 1.25]
    assert taken.verdict.max_num_seqs == calm.verdict.max_num_seqs
    assert not taken.verdict.is_defended
    assert "others took 70% of the CPU cores while it was replayed" in taken.verdict.reason
    assert not taken.predictions

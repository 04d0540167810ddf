"""How long the windows of a refinement's trials are: as long as the budget has time for."""

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.support.builders import settings
from tuner.engines.scheduler.state import StepLaw
from tuner.errors import UsageError
from tuner.profile.stored_twin import StoredTwin
from tuner.runs.refine.step_length import step_length
from tuner.trace.trace import TraceRequest
from tuner.traffic.slo import Slo, Unloaded
from tuner.traffic.workload import MIN_STEP_S, Workload
from tuner.twin.draws import UNKNOWN
from tuner.twin.simulation import EngineShape, Traffic

STEPS, LEAST_STEPS = 16, 12
REQUESTS = [TraceRequest(row, float(row), 10, 100) for row in range(600)]
"""One a second, of a hundred tokens."""

SETTINGS = replace(settings(Slo(ttft_s=1.0), ceiling=64), step_s=60.0)


def twin_of(token_s: float, cap: int) -> StoredTwin:
    """An iteration takes so long, whatever is in it."""
    return StoredTwin(
        law=StepLaw(np.full(cap + 1, token_s), 0.0, 0.0, 0.0, 0.0),
        shape=EngineShape(
            max_num_batched_tokens=2048, block_size=16, kv_blocks=4000, max_model_len=1000
        ),
        extrapolated_from=cap,
        laws=(),
        machine=UNKNOWN,
        traffic=Traffic.of([(0.0, 10, 100)]),
        length_s=60.0,
    )


def plan(budget_s: float, twin: StoredTwin | None, *, cap: int = 1) -> tuple[Workload, float]:
    return step_length(
        REQUESTS,
        replace(SETTINGS, budget_s=budget_s),
        Unloaded(0.01, 0.0, 0.001),
        twin,
        cap=cap,
        hit_share=0.0,
        steps=STEPS,
        least_steps=LEAST_STEPS,
        starts_s=0.0,
    )


@pytest.mark.parametrize("twin", [None, twin_of(0.005, 1)], ids=["no twin", "half idle"])
def test_an_engine_that_keeps_up_replays_as_long_as_was_asked(twin: StoredTwin | None) -> None:
    workload, took_s = plan(STEPS * 60.0, twin)
    assert (workload.step_s, took_s) == (60.0, 60.0)


@pytest.mark.parametrize("times", [1.5, 2.0, 4.0])
def test_an_overloaded_engine_replays_shorter_windows_so_that_all_steps_fit(times: float) -> None:
    budget_s = STEPS * 60.0
    workload, took_s = plan(budget_s, twin_of(0.01 * times, 1))
    length_s = sum(window.run_in_s + window.length_s for window in workload.windows)
    assert MIN_STEP_S < workload.step_s < 60.0
    assert took_s == pytest.approx(times * length_s, rel=0.1)
    assert budget_s / 2 < STEPS * took_s <= budget_s


@pytest.mark.parametrize("twin", [None, twin_of(0.1, 1)], ids=["no twin", "overloaded"])
@pytest.mark.parametrize("budget_s", [1.0, 60.0])
def test_the_budget_that_a_refusal_names_will_do(budget_s: float, twin: StoredTwin | None) -> None:
    with pytest.raises(UsageError) as refused:
        plan(budget_s, twin)
    found = re.search(r"--budget (\d+)s\.$", refused.value.hint)
    assert found is not None
    enough_s = int(found[1])
    _, took_s = plan(enough_s, twin)
    assert LEAST_STEPS * took_s <= enough_s
    with pytest.raises(UsageError):
        plan(enough_s - 1, twin)

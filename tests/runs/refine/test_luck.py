"""What of a replay was the machine's doing: the twin's replay of the same windows tells."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.builders import measurement, record, replay_of
from tuner.engines.scheduler.state import StepLaw
from tuner.runs.refine.gains import screen
from tuner.runs.refine.gains.luck import luck
from tuner.runs.refine.gains.screen import Foreseen, busiest, combined
from tuner.runs.refine.objective import GOODPUT
from tuner.traffic.slo import Slo
from tuner.twin.simulation import EngineShape, Traffic

SHAPE = EngineShape(max_num_batched_tokens=64, block_size=16, kv_blocks=100, max_model_len=100)
EARLY, LATE = (
    record(row, planned_s=start_s, sent_s=start_s, first_token_s=start_s + 1,
           last_token_s=start_s + 3, end_s=start_s + 3)
    for row, start_s in enumerate((0.0, 10.0))
)  # fmt: skip


def law(decode_s: float) -> StepLaw:
    """Return one by which a prompt of 10 tokens takes 1 s, and each further token so long."""
    return StepLaw(np.array([0.0, *[decode_s] * 4]), 0.1, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("decode_s", [0.499, 0.501])
def test_what_the_twin_finishes_a_moment_after_the_engine_did_is_no_miss(decode_s: float) -> None:
    replays = [replay_of([EARLY, LATE])]
    usual = measurement(4, goodput_rps=1.0)
    assert luck([GOODPUT], replays, law(decode_s), SHAPE, Slo(ttft_s=2.0), usual) == (0.0,)


def test_what_a_cut_replay_did_not_see_is_missed_by_the_twin_too() -> None:
    cut = replay_of([EARLY, record(1, planned_s=10.0, outcome="cut", end_s=12.0)], cut="lost")
    usual = measurement(4, goodput_rps=1.0)
    (found,) = luck([GOODPUT], [cut], law(0.5), SHAPE, Slo(ttft_s=2.0), usual)
    assert found == pytest.approx(-0.5)


@pytest.mark.parametrize("usual", [0.4, 0.8, 1.0])
def test_of_attainment_luck_is_what_the_twin_says_of_the_windows_more_than_of_all(
    usual: float,
) -> None:
    """Whatever the engine attained there: the twin serves both requests of the window in time."""
    late = replace(LATE, first_token_s=12.5)
    (found,) = luck(
        [GOODPUT],
        [replay_of([EARLY, late])],
        law(0.5),
        SHAPE,
        Slo(ttft_s=2.0),
        measurement(4, attainment=usual),
    )
    assert found == pytest.approx(1.0 - usual)


def foreseen(gain: float) -> Foreseen:
    return Foreseen(gains=(gain,), samples=((gain,), (gain,)), deficit=0.0, is_whole=True)


def test_of_a_replay_that_served_little_a_ratio_says_little() -> None:
    guesses = [
        combined([GOODPUT], foreseen(0.02), [0.20], attainment=share)[0] for share in (1.0, 0.5)
    ]
    # A replay's variance is 2 (0.02^2 + 0.03^2) of all requests, the twin's 0.02^2.
    assert guesses[0] == pytest.approx(0.02 + 0.18 * 4 / (4 + 26))
    assert guesses[1] == pytest.approx(0.02 + 0.18 * 4 / (4 + 4 * 26))


def test_the_busiest_stretch_asks_for_the_most_in_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(screen, "MOST_SCREENED", 2)
    one = Traffic.of(
        [(0.0, 90, 90), (100.0, 90, 90), (200.0, 10, 10), (201.0, 10, 10), (300.0, 10, 10)]
    )
    assert busiest(one).arrival_s.tolist() == [200.0, 201.0]

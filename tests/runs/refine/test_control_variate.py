"""What of a replay was the machine's doing: the twin's replay of the same windows tells."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.support.builders import record, replay_of
from tuner.engines.scheduler.state import StepLaw
from tuner.replay.records import Replay
from tuner.runs.refine.knobs import CAP, TOKENS, Configuration
from tuner.runs.refine.objective import GOODPUT
from tuner.runs.refine.surrogate import Foreseen, Surrogate, combined
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


ONE: Configuration = {CAP: 4, TOKENS: 64}


def control_variate(
    replays: list[Replay], law: StepLaw, traffic: Sequence[tuple[float, int, int]]
) -> float:
    """Return that of goodput; a first token may take 2 s."""
    twin = Surrogate((law,), SHAPE, Slo(ttft_s=2.0), Traffic.of(traffic), [GOODPUT], ONE)
    (found,) = twin.control_variate(ONE, replays, [GOODPUT])
    return found


ALONE = [(0.0, 10, 5)]
"""Of all the traffic everything is served in time."""


@pytest.mark.parametrize("decode_s", [0.499, 0.501])
def test_what_the_twin_finishes_a_moment_after_the_engine_did_is_no_miss(decode_s: float) -> None:
    assert control_variate([replay_of([EARLY, LATE])], law(decode_s), ALONE) == 0.0


def test_what_a_cut_replay_did_not_see_is_missed_by_the_twin_too() -> None:
    cut = replay_of([EARLY, record(1, planned_s=10.0, outcome="cut", end_s=12.0)], cut="lost")
    assert control_variate([cut], law(0.5), ALONE) == pytest.approx(-0.5)


@pytest.mark.parametrize(("lost", "share"), [(0, 1.0), (1, 0.5), (3, 0.25)])
def test_of_attainment_it_is_what_the_twin_says_of_the_windows_more_than_of_all(
    lost: int, share: float
) -> None:
    """Whatever the engine attained there: the twin serves both requests of the window in time, and
    of all the traffic but those that are longer than it takes."""
    late = replace(LATE, first_token_s=12.5)
    traffic = [*ALONE, *[(10.0, 99, 5)] * lost]
    found = control_variate([replay_of([EARLY, late])], law(0.5), traffic)
    assert found == pytest.approx(1.0 - share)


def foreseen(gain: float) -> Foreseen:
    return Foreseen(gains=(gain,), samples=((gain,), (gain,)), deficit=0.0, is_whole=True)


def test_of_a_replay_that_served_little_a_ratio_says_little() -> None:
    guesses = [
        combined([GOODPUT], foreseen(0.02), [0.20], attainment=share)[0] for share in (1.0, 0.5)
    ]
    # A replay's variance is 2 (0.02^2 + 0.03^2) of all requests, the twin's 0.02^2.
    assert guesses[0] == pytest.approx(0.02 + 0.18 * 4 / (4 + 26))
    assert guesses[1] == pytest.approx(0.02 + 0.18 * 4 / (4 + 4 * 26))

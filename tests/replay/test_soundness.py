"""A replay that something else than the engine shaped is made once more; the better one counts."""

from dataclasses import replace
from typing import Any

import pytest

from tests.replay.test_replay import NEVER_CUT, SECOND_A_STEP, planned
from tests.support.builders import facts, iterations, record, replay_of
from tuner.engines.seam import IterationLog
from tuner.engines.sim.start import SimEngine, SimStarter
from tuner.engines.sim.virtual_time import run
from tuner.replay.records import Replay
from tuner.replay.soundness import flaws_of, replay_soundly, stalls
from tuner.traffic.slo import Slo
from tuner.traffic.window import Window


def late(lag_s: float, ttft_s: float, limit_s: float | None = None) -> Replay:
    item = replay_of([record(sent_s=lag_s, first_s=ttft_s)])
    return replace(item, slo=None if limit_s is None else Slo(ttft_s=limit_s))


@pytest.mark.parametrize(
    ("replay", "is_late"),
    [
        (late(0.0049, ttft_s=0.01), False),  # below 5 ms nothing is late
        (late(0.0051, ttft_s=0.01), True),
        (late(0.06, ttft_s=1.0), False),  # a tenth of the median TTFT
        (late(0.11, ttft_s=1.0), True),
        (late(0.06, ttft_s=1.0, limit_s=0.5), True),  # a tenth of its limit
        (late(0.04, ttft_s=1.0, limit_s=0.5), False),
    ],
)
def test_requests_are_late_by_a_share_of_what_their_users_wait_for(
    replay: Replay, *, is_late: bool
) -> None:
    assert any(flaws_of(replay, facts())) == is_late


@pytest.mark.parametrize(
    ("late_tokens", "device", "is_late"),
    [(10, {"kind": "gpu"}, False), (11, {"kind": "gpu"}, True), (11, {}, False)],
)
def test_outputs_are_read_late_where_more_than_a_tenth_came_together(
    late_tokens: int, device: dict[str, Any], *, is_late: bool
) -> None:
    item = replay_of([record(output_tokens=100, gaps=99 - late_tokens)])
    result = flaws_of(item, facts(device=device))
    assert [part.split(" of ")[0] for part in result] == (
        ["outputs were read late (11%"] if is_late else []
    )


def test_a_replay_in_which_nothing_was_computed_has_a_flaw() -> None:
    cut = record(outcome="cut", output_tokens=0, first_s=None, last_s=None)
    assert [*flaws_of(replay_of([cut]), facts())] == ["no iteration ended in 10 s"]


@pytest.mark.parametrize(
    ("durations_s", "longest_s"),
    [
        ([], []),
        ([0.02] * 9, []),
        ([0.02] * 9 + [2.9], []),
        ([0.02] * 9 + [3.1], [3.1]),
        ([0.02] * 9 + [4.0, 7.0], [7.0, 4.0]),
        ([2.0] * 9 + [5.9], []),  # a slow machine's own
        ([2.0] * 9 + [6.1], [6.1]),
        ([0.02] * 9 + [4.0] * 6, []),  # so many are no stalls
    ],
)
def test_an_engine_that_stood_still_has_an_iteration_of_three_times_the_others(
    durations_s: list[float], longest_s: list[float]
) -> None:
    log = iterations([{"duration_s": each} for each in durations_s])
    assert stalls(log) == tuple(f"the engine stood still for {each:.0f} s" for each in longest_s)


class Stalling(SimEngine):
    """Stands still in each of its first ``most`` replays."""

    most = times = 0

    async def iterations(self) -> IterationLog:
        log = await super().iterations()
        if len(log) and self.times < self.most:
            self.times += 1
            log["duration_s"][0] = 9.0
        return log


@pytest.mark.parametrize(
    ("most", "has_time", "attempts", "flaws"),
    [
        (0, True, 1, ()),
        (1, True, 2, ()),
        (9, True, 2, ("the engine stood still for 9 s",)),
        (9, False, 1, ("the engine stood still for 9 s",)),
    ],
)
def test_there_is_one_more_attempt_at_most_and_none_without_time(
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    attempts: int,
    flaws: tuple[str, ...],
    *,
    has_time: bool,
) -> None:
    monkeypatch.setattr("tuner.engines.sim.start.SimEngine", Stalling)
    monkeypatch.setattr(Stalling, "most", most)
    begun: list[None] = []

    async def main() -> Replay:
        return await replay_soundly(
            [planned(0, 0.0)],
            await SimStarter(SECOND_A_STEP).start(max_num_seqs=4),
            Window(0.0, 0.0, 10.0),
            max_num_seqs=4,
            rule=NEVER_CUT,
            read=None,
            begun=lambda: begun.append(None),
            retry=lambda _flaws, elapsed_s: has_time and elapsed_s > 0,
        )

    assert (run(main()).flaws, len(begun)) == (flaws, attempts)

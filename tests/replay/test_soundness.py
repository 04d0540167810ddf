"""What something else than the engine shaped is measured once more; the better one counts."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.builders import facts, iterations, record, replay_of
from tuner.engines.sim.virtual_time import run
from tuner.replay.records import DEVICE, DeviceLog, Replay
from tuner.replay.soundness import device_use, disturbance, flaws_of, soundly, stalls
from tuner.traffic.slo import Slo


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
    assert [*stalls(log)] == [f"the engine stood still for {each:.0f} s" for each in longest_s]


@pytest.mark.parametrize(
    ("flaws", "has_time", "attempts", "best"),
    [
        ([[]], True, 1, 0),
        ([["late"], []], True, 2, 1),
        ([["late"], ["late", "slow"]], True, 2, 0),
        ([["late"]], False, 1, 0),
    ],
)
def test_there_is_one_more_attempt_at_most_and_none_without_time(
    flaws: list[list[str]], attempts: int, best: int, *, has_time: bool
) -> None:
    made = iter(range(9))

    async def work() -> int:
        await asyncio.sleep(1.0)
        return next(made)

    def retry(seen: Sequence[str], elapsed_s: float) -> bool:
        assert (seen, elapsed_s) == (tuple(flaws[0]), 1.0)
        return has_time

    done = run(soundly(work, lambda number: iter(flaws[number]), read=None, retry=retry))
    assert (done.result, done.flaws) == (best, tuple(flaws[best]))
    assert next(made) == attempts


def test_the_device_is_read_once_a_second_until_the_work_is_done() -> None:
    calls = iter(range(100))

    def read() -> tuple[float, ...]:
        return (float(next(calls)), *[np.nan] * (len(DEVICE.names or ()) - 1))

    def retry(*_: object) -> bool:
        return False

    done = run(
        soundly(lambda: asyncio.sleep(3.5, "done"), lambda _: iter(()), read=read, retry=retry)
    )
    assert done.result == "done"
    assert done.device["utilisation"].tolist() == [1.0, 2.0, 3.0]


CALM = {
    "utilisation": 0.9, "memory_bytes": np.nan, "power_w": 300.0, "others": 0.02, "steal": 0.0,
    "clock_mhz": np.nan, "throttled": 0.0, "foreign": np.nan,
}  # fmt: skip


def readings(*rows: dict[str, float]) -> DeviceLog:
    return np.array([tuple((CALM | row).values()) for row in rows], DEVICE)


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        ([{}, {}], None),
        ([{"others": 0.4}], "other processes took 40% of the CPU cores"),
        ([{"steal": 0.2}], "the hypervisor gave 20% of the CPU to other machines"),
        ([{"throttled": 1.0}, {}], "heat or a fault slowed the GPU down 50% of time"),
        (
            [{"foreign": 1.0}, *[{"foreign": 0.0}] * 4],
            "other processes were on the GPU 20% of time",
        ),
        ([{"clock_mhz": 2000.0}, {"clock_mhz": 800.0}], "the GPU's clock fell by 30% on average"),
    ],
)
def test_what_disturbs_is_named_with_its_size(
    seen: list[dict[str, float]], message: str | None
) -> None:
    assert disturbance(readings(*seen)) == message


def test_of_readings_what_the_device_does_not_tell_is_left_out() -> None:
    assert device_use([readings({}), readings({"others": 0.04})]) == {
        "utilisation": 0.9, "others": pytest.approx(0.03), "steal": 0.0, "throttled": 0.0
    }  # fmt: skip
    assert device_use([readings()]) == {}

"""An engine that lives and makes no progress."""

import asyncio
from typing import TYPE_CHECKING

import pytest

from tuner.engines.sim.virtual_time import run
from tuner.engines.timeouts import HangWatch

if TYPE_CHECKING:
    from tuner.errors import EngineError


@pytest.mark.parametrize(
    ("each_s", "still_s", "ended"),
    [
        (0.01, 29.0, False),
        (0.01, 31.5, True),
        (4.0, 79.0, False),  # twenty times as long as it needs
        (4.0, 83.0, True),
    ],
)
def test_an_engine_is_ended_after_many_times_what_it_needs(
    each_s: float, still_s: float, *, ended: bool
) -> None:
    result: list[EngineError] = []
    progress = 0

    async def main() -> None:
        nonlocal progress
        watch = HangWatch(lambda: progress, result.append)
        with watch.over(), watch.over():
            for _ in range(20):
                await asyncio.sleep(each_s)
                progress += 1
            await asyncio.sleep(still_s)
        await asyncio.sleep(1000.0)  # nobody waits any more

    run(main())
    assert len(result) == ended
    assert not ended or "stands still: no iteration for" in str(result[0])


def test_the_first_progress_may_take_as_long_as_a_start() -> None:
    result: list[EngineError] = []

    async def main() -> float:
        with HangWatch(lambda: 0, result.append, first_s=100.0).over():
            while not result:  # noqa: ASYNC110 - no event
                await asyncio.sleep(1.0)
            return asyncio.get_running_loop().time()

    assert run(main()) == pytest.approx(101.0, abs=1.0)

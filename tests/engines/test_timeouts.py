"""An engine that lives and makes no progress."""

import asyncio
from typing import TYPE_CHECKING

import pytest

from tuner.engines.paged import HangWatch
from tuner.engines.sim.virtual_time import run

if TYPE_CHECKING:
    from tuner.errors import EngineError


@pytest.mark.parametrize(
    ("steps", "still_s", "ended"),
    [(0, 590.0, False), (0, 610.0, True), (20, 115.0, False), (20, 125.0, True)],
)
def test_an_engine_is_ended_that_makes_no_progress_and_later_before_its_first(
    steps: int, still_s: float, *, ended: bool
) -> None:
    result: list[EngineError] = []
    progress = 7

    async def main() -> None:
        nonlocal progress
        watch = HangWatch(lambda: progress, result.append)
        with watch.over(), watch.over():
            for _ in range(steps):
                await asyncio.sleep(4.0)
                progress += 1
            await asyncio.sleep(still_s)
        await asyncio.sleep(1000.0)  # nobody waits any more

    run(main())
    assert len(result) == ended
    assert not ended or "stands still: no iteration for" in str(result[0])

import asyncio
import threading

import pytest

from tuner.engines.sim.virtual_time import DeadlockError, VirtualTimeLoop, run


def test_a_deadlock_is_an_error_that_names_the_task_that_waits() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.create_task(wait(), name="waits for godot")

    with pytest.raises(DeadlockError, match="waits for godot"):
        run(main())


def test_time_stands_still_while_a_thread_works() -> None:
    go = threading.Event()

    async def release() -> None:
        go.set()

    async def main() -> float:
        work = asyncio.create_task(asyncio.to_thread(go.wait, 10))
        late = asyncio.create_task(asyncio.sleep(1000))
        await asyncio.create_task(release())
        assert await work
        late.cancel()
        return asyncio.get_running_loop().time()

    assert run(main()) == 0


class Ticker:
    """Has news every ``period_s``, and a task that wants to hear it."""

    def __init__(self, period_s: float, news: list[float]) -> None:
        self.at_s = period_s
        self.period_s = period_s
        self.news = news

    def advance(self, until: float) -> float:
        if self.at_s > until:
            return until
        now_s = self.at_s
        self.at_s += self.period_s
        self.news.append(now_s)
        return now_s


def test_a_process_advances_up_to_the_next_timer() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        news = list[float]()
        ticker = Ticker(2.0, news)
        loop.attach(ticker.advance)
        await asyncio.sleep(5)
        loop.detach()
        await asyncio.sleep(5)
        return news

    assert run(main()) == [2, 4]

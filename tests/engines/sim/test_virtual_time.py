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


def test_a_process_advances_up_to_the_next_timer() -> None:
    news = list[float]()

    def tick(until_s: float) -> float:
        """Have news every two seconds."""
        at_s = 2.0 * (len(news) + 1)
        if at_s > until_s:
            return until_s
        news.append(at_s)
        return at_s

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        loop.attach(tick)
        await asyncio.sleep(5)
        loop.detach()
        await asyncio.sleep(5)

    run(main())
    assert news == [2, 4]

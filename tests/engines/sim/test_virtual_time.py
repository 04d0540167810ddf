import asyncio

import pytest

from tuner.engines.sim.virtual_time import VirtualTimeLoop, run


def test_a_deadlock_is_an_error() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="every task waits"):
        run(wait())


def test_no_time_passes_for_what_is_done_in_a_thread() -> None:
    async def main() -> float:
        assert await asyncio.to_thread(sum, (1, 2)) == 3
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(divmod, 1, 0)
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
        loop.attach(None)
        await asyncio.sleep(5)

    run(main())
    assert news == [2, 4]

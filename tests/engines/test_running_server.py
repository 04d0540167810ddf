"""A server that runs already: what is sent to it at most, and what it tells."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from tests.engines.conftest import generate, request
from tests.support.builders import facts
from tests.support.completions import DONE, HEAD, TOKEN, Exchange, completions, usage
from tuner.engines.paged import WARM_UPS
from tuner.engines.sampling import GREEDY
from tuner.engines.seam import UNKNOWN, Reply, RequestFailedError
from tuner.engines.server import RunningServer
from tuner.errors import EngineError

Answer = Callable[[Exchange], Awaitable[None]]
REQUEST = request(1, prompt=5, output=4)


def engine_of(
    answer: Answer,
    work: Callable[[RunningServer], Coroutine[Any, Any, Any]],
    **changes: Any,  # noqa: ANN401 - any field
) -> Any:  # noqa: ANN401 - what the work returns
    """Ask a server that answers its warm-up as it should, and then so."""
    count = 0

    async def warmed(exchange: Exchange) -> None:
        nonlocal count
        count += 1
        if count > WARM_UPS:
            await answer(exchange)
            return
        await exchange.send(HEAD)
        for _ in range(exchange.body["max_tokens"]):
            await exchange.event(TOKEN)
            await asyncio.sleep(0.002)
        await exchange.event(usage(exchange.body["max_tokens"]), DONE)
        await exchange.end()

    async def main(url: str) -> Any:  # noqa: ANN401
        server = RunningServer(
            url=url, model="m", facts=facts(engine="server"), served=lambda: float(count),
            **{"sampling": GREEDY, **changes},
        )  # fmt: skip
        engine = await server.start(max_num_seqs=8)
        try:
            return await work(engine)
        finally:
            await engine.stop()

    with completions(warmed) as url:
        return asyncio.run(main(url))


async def failing(exchange: Exchange) -> None:
    await exchange.send(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")


async def served(exchange: Exchange) -> None:
    await exchange.answer(exchange.body["max_tokens"])


async def outcomes(engine: RunningServer) -> list[str]:
    """Ask on until the engine gives up; return what came of each request."""
    result = []
    while True:
        try:
            await generate(engine, REQUEST)
        except RequestFailedError:
            result.append("failed")
        except EngineError as error:
            return [*result, str(error)]
        else:
            result.append("ok")


def test_after_five_failures_in_a_row_it_is_sent_no_more() -> None:
    *before, last = engine_of(failing, outcomes)
    assert before == ["failed"] * 4
    assert "5 requests in a row failed, the last: 500" in last


def test_what_its_clients_do_not_see_is_not_known_and_not_zero() -> None:
    async def work(engine: RunningServer) -> tuple[Reply, int]:
        return await generate(engine, REQUEST), len(await engine.iterations())

    reply, iterations = engine_of(served, work)
    assert reply.output_tokens == 4
    assert math.isnan(reply.queued_s + reply.scheduled_s + reply.first_s + reply.last_s)
    assert (reply.cached_tokens, iterations) == (UNKNOWN, 0)


@pytest.mark.attack
def test_how_tokens_are_drawn_sets_nothing_else_of_a_request() -> None:
    bodies: list[dict[str, Any]] = []

    async def kept(exchange: Exchange) -> None:
        bodies.append(exchange.body)
        await served(exchange)

    words = {"max_tokens": 1e6, "stream": 0.0, "temperature": 0.5}
    engine_of(kept, lambda engine: generate(engine, REQUEST), sampling=words)
    assert [(body["max_tokens"], body["stream"]) for body in bodies] == [(4, True)]
    assert bodies[0]["temperature"] == 0.5

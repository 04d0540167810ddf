"""At which rate an engine serves so many requests at a time."""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from tuner.engines.seam import Engine, EngineRequest, Reply, RequestFailedError
from tuner.errors import EngineError
from tuner.trace import TraceRequest

LEAST = 30
"""Requests that are counted at least: fewer of different lengths say little."""

ROUNDS = 3
"""Times each of the requests in flight is replaced; the first is not counted."""


async def rate_at(
    in_flight: int,
    requests: Sequence[TraceRequest],
    engine: Engine,
    *,
    prompt: Callable[[TraceRequest], Sequence[int]],
    seed: int,
) -> float:
    """Return requests per second with ``in_flight`` of these requests always in the engine.

    By Little's law that is the arrival rate which keeps so many in flight. Tokens are counted, and
    divided by the requests' mean length. Raises EngineError.
    """
    loop = asyncio.get_running_loop()
    order = np.random.default_rng(seed).permutation(len(requests)).tolist()
    last = max(LEAST, ROUNDS * in_flight)
    places = iter(range(last + in_flight))
    replies: list[Reply] = []
    ended = 0
    marks: list[tuple[float, int]] = []
    """(time, tokens so far) when the first round is over, and at the end."""

    async def client() -> None:
        nonlocal ended
        for place in places:
            one = requests[order[place % len(order)]]
            tokens = max(1, one.output_length)
            replies.append(Reply())
            asked = EngineRequest(f"calibration-{in_flight}-{place}", prompt(one), tokens)
            try:
                await engine.generate(asked, replies[-1])
            except RequestFailedError as failure:
                raise EngineError(
                    f"the engine refuses a request of {one.input_length} + {tokens} tokens: "
                    f"{failure}",
                    hint="Try the engine arguments with vllm serve first.",
                ) from failure
            ended += 1
            if ended in {in_flight, last}:
                marks.append((loop.time(), sum(reply.output_tokens for reply in replies)))

    await engine.reset_prefix_cache()
    clients = [asyncio.ensure_future(client()) for _ in range(in_flight)]
    try:
        done, _ = await asyncio.wait(clients, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    for task in done:
        task.result()
    (begin_s, before), (end_s, after) = marks
    mean_tokens = sum(max(1, one.output_length) for one in requests) / len(requests)
    return (after - before) / (end_s - begin_s) / mean_tokens

"""The probe of an idle engine: a few of the trace's requests, one at a time."""

import asyncio
import math
from collections.abc import Callable, Sequence

import numpy as np

from tuner.engines.seam import (
    ITERATION,
    Engine,
    EngineRequest,
    IterationLog,
    Reply,
    RequestFailedError,
)
from tuner.errors import EngineError
from tuner.replay.records import ProbeResult
from tuner.trace.trace import TraceRequest

PROBES = 7
"""Requests on an idle engine. More of them fit the line of TTFT over prompt length better; fewer
take less time before anything is tuned. An odd number has a median request, which warms up."""

MAX_PROBE_TOKENS = 64
"""Enough to time a token; the rest of a long reply would cost time and say nothing new."""


async def probe(
    requests: Sequence[TraceRequest],
    engine: Engine,
    *,
    prompt: Callable[[TraceRequest], Sequence[int]],
) -> tuple[list[ProbeResult], IterationLog]:
    """Send requests of evenly spread prompt lengths one by one, after one that warms up.

    Return what they took, and all iterations.

    An accelerator gets all of them twice, and the second time counts: for the first request of a
    length kernels may have been compiled or tuned. Raises EngineError when the engine refuses one.
    """
    loop = asyncio.get_running_loop()
    by_length = sorted(requests, key=lambda one: (one.input_length, one.row))
    chosen = [by_length[(2 * i + 1) * len(by_length) // (2 * PROBES)] for i in range(PROBES)]
    is_compiling = engine.facts.device.get("kind", "cpu") != "cpu"
    warm_ups = chosen if is_compiling else [chosen[PROBES // 2]]
    results, logs = list[ProbeResult](), [np.zeros(0, ITERATION)]
    for request in [*warm_ups, *chosen]:
        await engine.prepare()
        token_ids = prompt(request)
        tokens = min(max(2, request.output_length), MAX_PROBE_TOKENS)
        tokens = min(tokens, engine.facts.max_model_len - len(token_ids))
        reply, start_s = Reply(), loop.time()
        try:
            await engine.generate(EngineRequest(token_ids, tokens), reply)
        except RequestFailedError as failure:
            raise EngineError(
                f"the engine refuses a request of {len(token_ids)} + {tokens} tokens: {failure}",
                hint="Try the engine arguments with vllm serve first.",
            ) from failure
        seen_s = reply.seen_s
        tpot_s = (seen_s[-1] - seen_s[0]) / (tokens - 1) if tokens > 1 else None
        logs.append(await engine.iterations())  # which completes the reply
        results.append(
            ProbeResult(
                request.input_length,
                seen_s[0] - start_s,
                tpot_s,
                output_tokens=tokens,
                passage_s=_passage_s(reply, start_s),
            )
        )
    return results[len(warm_ups) :], np.concatenate(logs)


def _passage_s(reply: Reply, start_s: float) -> tuple[float, ...]:
    if math.isnan(reply.queued_s) or math.isnan(reply.last_s):
        return ()
    engine_s = (reply.queued_s, reply.first_s, reply.last_s)
    sent_s = start_s if reply.sent_s is None else reply.sent_s
    return (sent_s, *engine_s, reply.seen_s[0], reply.seen_s[-1])

"""The probe of an idle engine: a few of the trace's requests, one at a time."""

import asyncio
import math
from collections.abc import Callable, Sequence

import numpy as np

from tuner.engines.seam import Engine, EngineRequest, IterationLog, Reply
from tuner.replay.ramp import served
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
    """Send requests of evenly spread prompt lengths one by one, after one that warms up; return
    what they took, and all iterations.

    An accelerator gets all of them twice, and the second time counts: for the first request of a
    length kernels may have been compiled or tuned. Raises EngineError when the engine refuses one.
    """
    clock = asyncio.get_running_loop().time
    by_length = sorted(requests, key=lambda item: (item.input_length, item.row))
    chosen = [by_length[(2 * i + 1) * len(by_length) // (2 * PROBES)] for i in range(PROBES)]
    is_compiling = engine.facts.device.get("kind", "cpu") != "cpu"
    warm_ups = chosen if is_compiling else [chosen[PROBES // 2]]
    results, logs = list[ProbeResult](), list[IterationLog]()
    for request in [*warm_ups, *chosen]:
        await engine.prepare()
        token_ids, reply = prompt(request), Reply()
        tokens = min(max(2, request.output_length), MAX_PROBE_TOKENS)
        tokens = min(tokens, engine.facts.max_model_len - len(token_ids))
        start_s = clock()
        await served(engine, EngineRequest(token_ids, tokens), reply)
        logs.append(await engine.iterations())  # which completes the reply
        first_s, last_s = reply.seen_s[0], reply.seen_s[-1]
        sent_s = start_s if reply.sent_s is None else reply.sent_s
        passage_s = (sent_s, reply.queued_s, reply.first_s, reply.last_s, first_s, last_s)
        results.append(
            ProbeResult(
                request.input_length,
                first_s - start_s,
                (last_s - first_s) / (tokens - 1) if tokens > 1 else None,
                output_tokens=tokens,
                passage_s=() if any(map(math.isnan, passage_s)) else passage_s,
            )
        )
    return results[len(warm_ups) :], np.concatenate(logs)

"""What is sent to an engine beside the trace: probes one at a time, and the ramp.

The ramp sends 1, 2, 3, … requests at a time up to the ceiling and down again, over and over. It
shows how long an iteration takes at every batch size within seconds of each other, so that a
machine whose speed varies within minutes is compared with itself. A minute of it tells more of
the step-time law than a minute of replay at every cap (docs/deciding.md).
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from itertools import cycle

import numpy as np

from tuner.engines.seam import Engine, EngineRequest, IterationLog, Reply, RequestFailedError
from tuner.errors import EngineError
from tuner.replay.records import ProbeResult
from tuner.trace.trace import TraceRequest

PROBES = 7
"""Requests on an idle engine. More of them fit the line of TTFT over prompt length better; fewer
take less time before anything is tuned. An odd number has a median request, which warms up."""

MAX_PROBE_TOKENS = 64
"""Enough to time a token; the rest of a long reply would cost time and say nothing new."""

DWELL = 5
"""Iterations at each size: the fewer, the better neighbouring sizes compare; but the first one
computes the prompt of the request that came new."""

PATIENCE = 20
"""Times as long at a size, at most, until the prompt of the request that came new is computed: a
long one takes as much as many iterations, and until then one sequence less is decoded."""

DENSE_SIZES = 32
"""Every size up to it is visited, so that none is left to guess; above it a step is 1/16 of the
size, or else one way up to a large ceiling would take all of a ramp."""


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


def sizes_upto(ceiling: int) -> list[int]:
    """Return the sizes of one ramp: every one up to 32, then 1/16 apart.

    >>> sizes_upto(40)[29:]
    [30, 31, 32, 34, 37, 40]
    """
    sizes = [1]
    while sizes[-1] < ceiling:
        step = 1 if sizes[-1] < DENSE_SIZES else -(-sizes[-1] // 16)
        sizes.append(min(ceiling, sizes[-1] + step))
    return sizes


async def ramp(  # noqa: PLR0913 - what is sent where, how high and how long
    requests: Sequence[TraceRequest],
    engine: Engine,
    *,
    ceiling: int,
    length_s: float,
    tpot_s: float,
    prompt: Callable[[TraceRequest], Sequence[int]],
    seed: int = 0,
) -> tuple[IterationLog, float]:
    """Ramp up and down for ``length_s``; return the iterations, and when it began by the loop.

    The engine is idle and admits ``ceiling``, and every request fits it; ``tpot_s`` is about the
    time of one iteration. The iterations' times count from the beginning. Raises EngineError.
    """
    loop = asyncio.get_running_loop()
    logs = [(await engine.iterations())[:0]]
    begin_s = loop.time()
    clients = _Clients(requests, engine, prompt, seed)
    sizes = sizes_upto(ceiling)
    dwell_s, is_over = dict.fromkeys(sizes, DWELL * tpot_s), False
    try:
        for size in cycle([*sizes, *sizes[:0:-1]]):  # at the top for two dwells, as elsewhere
            clients.become(size)
            for _ in range(PATIENCE):
                await clients.live(dwell_s[size])
                is_over = loop.time() - begin_s >= length_s
                if is_over or clients.newest.seen_s:
                    break
            if is_over:
                break
            if size == 1:  # stay as long as DWELL iterations of that size have taken
                logs.append(await engine.iterations())
                log = np.concatenate(logs)
                for seqs in sizes:
                    if len(took_s := log["duration_s"][log["decode_seqs"] == seqs]):
                        dwell_s[seqs] = DWELL * float(np.median(took_s))
    finally:
        await clients.stop()
    logs.append(await engine.iterations())
    log = np.concatenate(logs)
    log["start_s"] -= begin_s
    return log, begin_s


class _Clients:
    """So many clients, each of which sends a request as soon as its last one is answered."""

    def __init__(
        self,
        requests: Sequence[TraceRequest],
        engine: Engine,
        prompt: Callable[[TraceRequest], Sequence[int]],
        seed: int,
    ) -> None:
        self._requests, self._engine, self._prompt = requests, engine, prompt
        self._rng = np.random.default_rng(seed)
        self._order = list[int]()
        self._tasks: list[asyncio.Task[None]] = []
        self.newest = Reply()
        """The first reply of the client that came last: without a token of it fewer decode."""

    def become(self, size: int) -> None:
        """Let clients come, or some of them leave at once."""
        while len(self._tasks) < size:
            self.newest = Reply()
            self._tasks.append(asyncio.create_task(self._send(self.newest)))
        while len(self._tasks) > size:
            self._tasks.pop(int(self._rng.integers(len(self._tasks)))).cancel()
            self.newest = Reply(seen_s=[0.0])  # of those that stay all came before

    async def live(self, seconds: float) -> None:
        """Wait; raise what a client fails with."""
        done, _ = await asyncio.wait(
            self._tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION
        )
        for task in done:
            task.result()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self, reply: Reply) -> None:
        while True:
            self._order = self._order or self._rng.permutation(len(self._requests))[::-1].tolist()
            request = self._requests[self._order.pop()]
            tokens = max(1, request.output_length)
            await served(self._engine, EngineRequest(self._prompt(request), tokens), reply)
            reply = Reply()


async def served(engine: Engine, request: EngineRequest, reply: Reply) -> None:
    """Generate; raise EngineError for a request that the engine refuses, too."""
    try:
        await engine.generate(request, reply)
    except RequestFailedError as failure:
        raise EngineError(
            f"the engine refuses a request of {len(request.prompt_token_ids)} + "
            f"{request.output_length} tokens: {failure}",
            hint="Try the engine arguments with vllm serve first.",
        ) from failure

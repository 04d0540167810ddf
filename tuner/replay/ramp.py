"""What is sent to an engine beside the trace: probes one at a time, and the ramp.

The ramp sends 1, 2, 3, … requests at a time up to the ceiling and down again, over and over. It
shows how long an iteration takes at every batch size within seconds of each other, so that a
machine whose speed varies within minutes is compared with itself. A minute of it tells more of
the step-time law than a minute of replay at every cap (docs/deciding.md).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle

import numpy as np

from tuner.engines.seam import Engine, EngineRequest, IterationLog, Reply
from tuner.replay.records import ProbeResult
from tuner.replay.replay import Prompt
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
    requests: Sequence[TraceRequest], engine: Engine, *, prompt: Prompt
) -> tuple[list[ProbeResult], IterationLog]:
    """Send requests of evenly spread prompt lengths one by one, after one that warms up; return
    what they took, and all iterations.

    An accelerator gets all of them twice, and the second time counts: for the first request of a
    length kernels may have been compiled or tuned. Raises EngineError when the engine refuses one.
    """
    clock, facts = asyncio.get_running_loop().time, engine.facts
    by_length = sorted(requests, key=lambda item: (item.input_length, item.row))
    chosen = [by_length[(2 * i + 1) * len(by_length) // (2 * PROBES)] for i in range(PROBES)]
    is_compiling = facts.device.get("kind", "cpu") != "cpu"
    warm_ups = chosen if is_compiling else [chosen[PROBES // 2]]
    results, logs = list[ProbeResult](), list[IterationLog]()
    for request in [*warm_ups, *chosen]:
        await engine.prepare()
        ids, start_s = prompt(request), clock()
        reply = Reply(sent_s=start_s)
        wanted = min(max(2, request.output_length), MAX_PROBE_TOKENS)
        tokens = min(wanted, facts.max_model_len - len(ids))
        await engine.generate(EngineRequest(ids, tokens), reply)
        logs.append(await engine.iterations())  # which completes the reply
        first_s, last_s = reply.seen_s[0], reply.seen_s[-1]
        passage_s = (reply.sent_s, reply.queued_s, reply.first_s, reply.last_s, first_s, last_s)
        results.append(
            ProbeResult(
                request.input_length,
                first_s - start_s,
                (last_s - first_s) / (tokens - 1) if tokens > 1 else None,
                tokens,
                () if np.isnan(passage_s).any() else passage_s,
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
    prompt: Prompt,
    seed: int = 0,
) -> tuple[IterationLog, float]:
    """Ramp up and down for ``length_s``; return the iterations, and when it began by the loop.

    The engine is idle and admits ``ceiling``, and every request fits it; ``tpot_s`` is about the
    time of one iteration. The iterations' times count from the beginning. Raises EngineError.
    """
    logs, loop = [(await engine.iterations())[:0]], asyncio.get_running_loop()
    begin_s, sizes = loop.time(), sizes_upto(ceiling)
    dwell_s, is_over = dict.fromkeys(sizes, DWELL * tpot_s), False
    try:
        async with asyncio.TaskGroup() as group:
            clients = _Clients(group, requests, engine, prompt, np.random.default_rng(seed))
            for size in cycle([*sizes, *sizes[:0:-1]]):  # at the top for two dwells, as elsewhere
                clients.become(size)
                for _ in range(PATIENCE):
                    await asyncio.sleep(dwell_s[size])
                    is_over = loop.time() - begin_s >= length_s
                    if is_over or clients.newest.seen_s:
                        break
                if is_over:
                    clients.become(0)
                    break
                if size == 1:  # stay as long as DWELL iterations of that size have taken
                    logs.append(await engine.iterations())
                    log = np.concatenate(logs)
                    for seqs in sizes:
                        if len(took_s := log["duration_s"][log["decode_seqs"] == seqs]):
                            dwell_s[seqs] = DWELL * float(np.median(took_s))
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
    logs.append(await engine.iterations())
    log = np.concatenate(logs)
    log["start_s"] -= begin_s
    return log, begin_s


@dataclass
class _Clients:
    """So many clients, each of which sends a request as soon as its last one is answered."""

    group: asyncio.TaskGroup
    requests: Sequence[TraceRequest]
    engine: Engine
    prompt: Prompt
    rng: np.random.Generator
    order: list[int] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    newest: Reply = field(default_factory=Reply)
    """The first reply of the client that came last: without a token of it fewer decode."""

    def become(self, size: int) -> None:
        """Let clients come, or some of them leave at once."""
        while len(self.tasks) < size:
            self.newest = Reply()
            self.tasks.append(self.group.create_task(self._send(self.newest)))
        while len(self.tasks) > size:
            self.tasks.pop(int(self.rng.integers(len(self.tasks)))).cancel()
            self.newest = Reply(seen_s=[0.0])  # of those that stay all came before

    async def _send(self, reply: Reply) -> None:
        while True:
            self.order = self.order or self.rng.permutation(len(self.requests))[::-1].tolist()
            request = self.requests[self.order.pop()]
            tokens = max(1, request.output_length)
            await self.engine.generate(EngineRequest(self.prompt(request), tokens), reply)
            reply = Reply()

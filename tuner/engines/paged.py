"""What the engines that tuner has started have in common: facts, limits, log and death."""

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

from tuner.engines import devices
from tuner.engines.page import SERVED, About, Page, name_of
from tuner.engines.seam import (
    STOPPED,
    EngineFacts,
    EngineRequest,
    IterationLog,
    Reply,
    RequestFailedError,
)
from tuner.engines.vllm.process import Processes
from tuner.engines.vllm.start import Resolved, VllmStarter
from tuner.errors import EngineError, StoodStillError

WARM_UPS = 8
"""Requests that are sent before the others."""

WARM_UP_TOKENS = 8

FIRST_S, HANG_S = 600.0, 120.0
"""An engine that has work hangs after so long without progress: kernels are compiled for the first
prompt; later an iteration may take a minute on a slow machine."""

_WATCH_S = 0.5

_LOOK_S = 0.002
"""Between two looks whether an engine is idle: there is no event for it."""


class PagedEngine(ABC):
    """An engine whose scheduler has a page. See the seam: tuner.engines.seam.Engine."""

    def __init__(
        self, starter: VllmStarter, resolved: Resolved, processes: Processes, page: Page
    ) -> None:
        self._starter, self._resolved = starter, resolved
        self._processes, self._page = processes, page
        self.facts = resolved.facts
        self._by_priority = self.facts.arguments.get("scheduling_policy") == "priority"
        self._numbers = count(secrets.randbits(40))
        self._replies: dict[int, Reply] = {}
        """By the request's number: those that the log has still to complete."""

        self._in_flight = 0
        self._watch = HangWatch(lambda: page.iterations, self._end)
        self._cause: EngineError | None = None
        """Why tuner has ended it."""

    @abstractmethod
    async def open(self) -> None:
        """Start its processes, and wait until they serve. Raises EngineError with the reason."""

    @abstractmethod
    async def _ask(self, name: str, request: EngineRequest, reply: Reply) -> None:
        """Send a request of this name and fill ``reply``.

        Raises RequestFailedError, once its processes show it if the engine has died of it.
        """

    @abstractmethod
    async def _close(self) -> None:
        """End its processes in order, or what has been opened of it."""

    async def generate(self, request: EngineRequest, reply: Reply) -> None:
        """See the seam."""
        self._check_running()
        self.facts.check_length(request)
        if not self._by_priority:
            request = replace(request, priority=0)
        number = next(self._numbers)
        self._replies[number] = reply
        self._in_flight += 1
        try:
            with self._watch.over():
                await self._ask(name_of(number), request, reply)
        except RequestFailedError:
            self._check_running()
            raise
        finally:
            self._in_flight -= 1
        if reply.output_tokens != request.output_length:
            raise RequestFailedError(f"{reply.output_tokens} of {request.output_length} tokens")

    async def prepare(
        self, *, max_num_seqs: int | None = None, max_num_batched_tokens: int | None = None
    ) -> None:
        """See the seam."""
        self._check_running()
        self.facts.check_limits(max_num_seqs, max_num_batched_tokens, in_flight=self._in_flight)
        await self.iterations()
        self._page.set(max_num_seqs, max_num_batched_tokens)
        # takes both over, so that no request that is measured waits for it
        await self.generate(EngineRequest([1], 1), Reply())
        await self.iterations()
        self._replies.clear()

    async def iterations(self) -> IterationLog:
        """See the seam."""
        self._check_running()
        if not self._in_flight:
            await self._drained()
        log, served = self._page.take()
        for each in served:
            if (reply := self._replies.pop(int(each["number"]), None)) is not None:
                for name in (SERVED.names or ())[1:]:
                    setattr(reply, name, each[name].item())
        return log

    async def begin(self, begun_s: float) -> None:
        """Take its facts, and send the first requests, whose cost is not the others'."""
        self.facts = _completed(self.facts, self._page.about())
        length = min(WARM_UP_TOKENS, self.facts.max_model_len // 2)
        request = EngineRequest([1] * length, length)
        await asyncio.gather(*(self.generate(request, Reply()) for _ in range(WARM_UPS)))
        await self.prepare()
        start_s = asyncio.get_running_loop().time() - begun_s
        self.facts = replace(self.facts, start_s=start_s)

    async def stop(self) -> None:
        """See the seam."""
        if self._cause is STOPPED:
            return
        self._cause = STOPPED
        try:
            await self._close()
        finally:
            self._processes.end()
            self._page.remove()
        await devices.given_back(self._processes.memory_before)

    async def _drained(self) -> None:
        """Wait until what was aborted has left the engine, which computes the batches that were
        under way to their end: with asynchronous scheduling several."""
        with self._watch.over():
            while not self._page.is_idle:
                self._check_running()
                await asyncio.sleep(_LOOK_S)

    def _end(self, cause: EngineError) -> None:
        self._cause = cause
        self._processes.end()

    def _check_running(self) -> None:
        if (cause := self._cause or self._processes.death()) is not None:
            raise cause


def _completed(facts: EngineFacts, about: About) -> EngineFacts:
    """Return the facts with what an engine tells once it has started.

    Raises EngineError where it runs with something else than was resolved for it.
    """
    for name, runs_with in about.arguments.items():
        wanted = facts.arguments.get(name, runs_with)
        if name != "model" and runs_with != wanted:
            raise EngineError(
                f"the engine runs with {name}={runs_with}, asked was for {wanted}",
                hint="An environment variable of vLLM may say otherwise: read its log.",
            )
    block_size = int(about.arguments["block_size"])  # some know it after the start only
    return replace(
        facts,
        arguments={**facts.arguments, "block_size": block_size},
        block_size=block_size,
        kv_blocks=about.kv_blocks,
        unmodelled=about.unmodelled,
    )


class HangWatch:
    """Ends an engine that has work and makes no progress for too long.

    ``progress`` returns a number that changes with every iteration or token; ``end`` ends the
    engine, so that whoever waits for it gets the error.
    """

    def __init__(self, progress: Callable[[], int], end: Callable[[StoodStillError], None]) -> None:
        self._progress, self._end = progress, end
        self._at_first, self._waiting = progress(), 0

    @contextmanager
    def over(self) -> Iterator[None]:
        """Watch the engine while somebody waits for it."""
        self._waiting += 1
        if self._waiting == 1:
            self._watching = asyncio.get_running_loop().create_task(self._watch())
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._watching.cancel()

    async def _watch(self) -> None:
        seen, still_s = self._progress(), 0.0
        while still_s <= (FIRST_S if seen == self._at_first else HANG_S):
            await asyncio.sleep(_WATCH_S)
            still_s += _WATCH_S  # not by the clock: we may have stood still ourselves
            if (now := self._progress()) != seen:
                seen, still_s = now, 0.0
        self._end(
            StoodStillError(
                f"The engine stands still: no iteration for {still_s:.0f} s with work waiting",
                hint="See its log, and what the kernel and the driver say (dmesg); then tuner "
                "resume.",
                seconds=still_s,
            )
        )

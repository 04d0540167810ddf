"""What the engines that tuner has started have in common: limits, log and death."""

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from tuner.engines.page import SERVED, Page
from tuner.engines.seam import (
    STOPPED,
    EngineFacts,
    EngineRequest,
    IterationLog,
    Reply,
    RequestFailedError,
)
from tuner.engines.timeouts import HangWatch
from tuner.engines.vllm.log import Compiles
from tuner.errors import EngineError

WARM_UP_TOKENS = 8

_LOOK_S = 0.002
"""Between two looks whether an engine is idle: there is no event for it."""


class PagedEngine(ABC):
    """An engine whose scheduler has a page. See the seam: tuner.engines.seam.Engine."""

    facts: EngineFacts

    def __init__(self, page: Page, log: Path, *, doing: Callable[[], str]) -> None:
        self.compiled: list[str] = []
        self._page, self._compiles = page, Compiles(log)
        self._numbers = count(secrets.randbits(40))
        self._replies: dict[int, Reply] = {}
        """By the request's number: what the log has still to say of them."""

        self._in_flight = self._tokens = 0
        self._watch = HangWatch(lambda: page.iterations + self._tokens, self._end, doing=doing)
        self._stopped = False

    @abstractmethod
    async def generate(self, request: EngineRequest, reply: Reply) -> None:
        """See the seam."""

    @abstractmethod
    def _death(self) -> EngineError | None:
        """Return what the engine died of; None while its processes live."""

    @abstractmethod
    def _end(self, cause: EngineError) -> None:
        """End its processes, which are said to have died of this."""

    async def prepare(
        self, *, max_num_seqs: int | None = None, max_num_batched_tokens: int | None = None
    ) -> None:
        """See the seam."""
        self._check_running()
        limits = {
            "max_num_seqs": (max_num_seqs, 1),
            "max_num_batched_tokens": (max_num_batched_tokens, max_num_seqs or 1),
        }
        for name, (value, least) in limits.items():
            most = int(str(self.facts.arguments[name]))
            if value is not None and not least <= value <= most:
                raise EngineError(
                    f"{name} {value} is not between {least} and {most}",
                    hint="Start the engine with the largest value that will be asked of it.",
                )
        if self._in_flight:
            raise EngineError(
                "the limits cannot change: requests are in flight",
                hint="Let the replay drain first.",
            )
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
        for one in served:
            if (reply := self._replies.pop(int(one["number"]), None)) is not None:
                for name in (SERVED.names or ())[1:]:
                    setattr(reply, name, one[name].item())
        self.compiled += self._compiles.new()
        return log

    @contextmanager
    def _generating(self, request: EngineRequest, reply: Reply) -> Iterator[int]:
        """Count a request as in flight, and give it a number.

        Raises RequestFailedError for what vLLM would refuse, or cut short without a word.
        """
        self._check_running()
        length = len(request.prompt_token_ids) + request.output_length
        if length > self.facts.max_model_len:
            raise RequestFailedError(
                f"{length} tokens of prompt and output, max_model_len is {self.facts.max_model_len}"
            )
        number = next(self._numbers)
        self._replies[number] = reply
        self._in_flight += 1
        try:
            with self._watch.over():
                yield number
        finally:
            self._in_flight -= 1

    async def _drained(self) -> None:
        """Wait until what was aborted has left the engine, which computes the batches that were
        under way to their end: with asynchronous scheduling several."""
        with self._watch.over():
            while not self._page.is_idle:
                self._check_running()
                await asyncio.sleep(_LOOK_S)

    def _check_running(self) -> None:
        if self._stopped:
            raise STOPPED
        if (dead := self._death()) is not None:
            raise dead

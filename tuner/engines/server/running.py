"""A server that runs already, and is not tuner's: asked over HTTP, and left as it is."""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np

from tuner.engines.page import name_of
from tuner.engines.paged import WARM_UP_TOKENS, WARM_UPS, HangWatch
from tuner.engines.sampling import Sampling
from tuner.engines.seam import (
    ITERATION,
    ArgumentValue,
    EngineFacts,
    EngineRequest,
    IterationLog,
    Reply,
    RequestFailedError,
)
from tuner.engines.server.client import CompletionClient
from tuner.errors import EngineError

VOCAB_SIZE = 1000
"""Token ids below this every model has."""

SPECIAL_IDS = 16

FAILED_IN_A_ROW = 5
"""A server that fails so many is not asked further."""

_COUNTED_S = 5.0
_LOOK_S = 0.05

_KEY = "Set TUNER_API_KEY to its key."
_HINTS = {
    "401": _KEY,
    "403": _KEY,
    "404": "Check address and model: completions are asked at /v1/completions.",
    "429": "It limits its clients: verify where nothing limits.",
}


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that somebody else has started, and how to ask it: see the seam, Starter."""

    url: str
    model: str
    """As requests ask for it."""

    facts: EngineFacts
    sampling: Sampling
    served: Callable[[], float]
    """Returns how many requests it has served, by its own counter."""

    key: str | None = field(default=None, repr=False)

    def resolve(self, *, max_num_seqs: int) -> Mapping[str, ArgumentValue]:
        """See the seam: what the server tells."""
        del max_num_seqs
        return self.facts.arguments

    async def start(self, *, max_num_seqs: int) -> "RunningEngine":
        """Start the client alone, and see that the server answers as one of completions does."""
        del max_num_seqs
        engine = RunningEngine(self)
        async with contextlib.AsyncExitStack() as failing:
            failing.push_async_callback(engine.stop)
            await engine.prove()
            failing.pop_all()
        return engine


class RunningEngine:
    """See the seam: tuner.engines.seam.Engine. It tells what its clients see, and no iterations."""

    def __init__(self, server: RunningServer) -> None:
        self.facts, self._server = server.facts, server
        # sampling first: it sets nothing else
        body = {**server.sampling, "model": server.model, "ignore_eos": True}
        self._client = CompletionClient(server.url, body, key=server.key)
        self._numbers = count(secrets.randbits(40))
        self._watch = HangWatch(lambda: self._client.reads, self._end)
        self._cause: EngineError | None = None
        self._closing: asyncio.Task[None] | None = None
        self._shift = secrets.randbelow(VOCAB_SIZE)
        self._failed_in_a_row = 0

    async def generate(self, request: EngineRequest, reply: Reply) -> None:
        """See the seam. Raises EngineError once too many have failed in a row."""
        usable = VOCAB_SIZE - SPECIAL_IDS
        prompt = [
            SPECIAL_IDS + (token - SPECIAL_IDS + self._shift) % usable
            for token in request.prompt_token_ids
        ]
        wanted = replace(request, prompt_token_ids=prompt, priority=0)
        name = name_of(next(self._numbers))
        try:
            with self._watch.over():
                await self._client.complete(wanted, reply, name=name)
            came, length = reply.output_tokens, request.output_length
            why = "" if came == length else f"{came} of {length} tokens"
        except RequestFailedError as failure:
            why = str(failure)
        if why:
            self._count_failure(why)
            raise RequestFailedError(why)
        self._failed_in_a_row = 0

    async def prepare(self, **_limits: int | None) -> None:
        """See the seam. Its limits are not tuner's to change. Prompts from here on share nothing
        with those before, which comes to the same as an empty cache."""
        self._shift = (self._shift + 1 + secrets.randbelow(VOCAB_SIZE // 2)) % VOCAB_SIZE

    async def iterations(self) -> IterationLog:
        """See the seam: none."""
        return np.empty(0, ITERATION)

    async def stop(self) -> None:
        """See the seam."""
        await self._client.stop()

    async def prove(self) -> None:
        """Send the first requests, whose cost is not the others', and see that they are answered
        token by token, and by the server whose counters we read. Raises EngineError."""
        served, loop = self._server.served, asyncio.get_running_loop()
        before = await asyncio.to_thread(served)
        first, *others = replies = [Reply() for _ in range(WARM_UPS)]
        wanted = EngineRequest(list(range(SPECIAL_IDS, 32)), WARM_UP_TOKENS)
        try:
            await self.generate(wanted, first)
            await asyncio.gather(*(self.generate(wanted, each) for each in others))
        except RequestFailedError as failure:
            raise self._refuses(str(failure), "the first request failed") from None
        if all(len(reply.seen_s) < 2 < reply.output_tokens for reply in replies):
            raise EngineError(
                f"{self._server.url}: {WARM_UP_TOKENS} tokens come at once each time: something "
                "in front of it buffers what it streams, and no time of a token can be seen",
                hint="Give the server's own address, or turn the proxy's buffering off.",
            )
        until_s = loop.time() + _COUNTED_S
        while (counted := await asyncio.to_thread(served) - before) < WARM_UPS:
            if loop.time() > until_s:
                break
            await asyncio.sleep(_LOOK_S)
        if counted != WARM_UPS:
            raise EngineError(
                f"{WARM_UPS} requests were sent to {self._server.url}, its counter moved by "
                f"{counted:g}: several servers answer there, or others ask it too",
                hint="Give the address of one server that serves nobody else.",
            )

    def _end(self, cause: EngineError) -> None:
        self._cause = cause
        self._closing = asyncio.get_running_loop().create_task(self._client.stop())

    def _count_failure(self, why: str) -> None:
        """Raise EngineError where a failed request is one too many."""
        if self._cause is not None:
            raise self._cause
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= FAILED_IN_A_ROW:
            raise self._refuses(why, f"{self._failed_in_a_row} requests in a row failed, the last")

    def _refuses(self, why: str, what: str) -> EngineError:
        hint = _HINTS.get(why[:3], "Its own log says why.")
        return EngineError(f"{self._server.url}: {what}: {why}", hint=hint)

"""A server that runs already, and is not tuner's: asked over HTTP, and left as it is."""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from tuner.engines.page import name_of
from tuner.engines.sampling import GREEDY, Sampling
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
from tuner.engines.timeouts import HangWatch
from tuner.errors import EngineError

WARM_UPS = 8
"""Requests that are sent before the others, and whose number the server itself must confirm."""

WARM_UP_TOKENS = 8

VOCAB_SIZE = 1000
"""Token ids below this every model has."""

SPECIAL_IDS = 16

FAILED_IN_A_ROW = 5
FAILED_SHARE = 0.05
"""A server that fails so many is not asked further."""

EARLY_SHARE = 0.02
"""Share of answers that may end before the asked length: above it other work is measured."""

FIRST_S = 600.0
"""For the first output: a long prompt on a slow machine."""

_COUNTED_S = 5.0
_LOOK_S = 0.05

_HINTS = {
    "401": "Set TUNER_API_KEY to its key.",
    "403": "Set TUNER_API_KEY to its key.",
    "404": "Check address and model: completions are asked at /v1/completions.",
    "429": "It limits its clients: verify where nothing limits.",
}
_READ_LOG = "Its own log says why."


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that somebody else has started, and how to ask it."""

    url: str
    model: str
    """As requests ask for it."""

    facts: EngineFacts
    planned: int
    """Requests that a replay sends."""

    most: int | None
    """Requests that it may be sent in all; None: as many as it takes."""

    most_rps: float | None = None
    """Requests a second that it is sent in the mean: then the first ones leave one by one."""

    sampling: Sampling = field(default_factory=lambda: GREEDY)
    key: str | None = field(default=None, repr=False)
    takes_ignore_eos: bool = True
    """Whether a length can be forced; else it is only asked for."""

    served: Callable[[], float] | None = None
    """Returns how many requests it has served, by its own counter; None where it does not tell, or
    serves others meanwhile."""


class RunningStarter:
    """Asks a server that runs, in place of starting one. See the seam: Starter."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server

    def resolve(self, *, max_num_seqs: int) -> Mapping[str, ArgumentValue]:
        """See the seam: what the server tells."""
        del max_num_seqs
        return self._server.facts.arguments

    def doing(self) -> Callable[[], str]:
        """See the seam: it runs."""
        return str

    async def start(self, *, max_num_seqs: int) -> "RunningEngine":
        """Start the client alone, and see that the server answers as one of completions does."""
        del max_num_seqs
        server, key = self._server, self._server.key
        engine = RunningEngine(server, CompletionClient(server.url, key=key))
        async with contextlib.AsyncExitStack() as failing:
            failing.push_async_callback(engine.stop)
            await engine.prove()
            failing.pop_all()
        return engine


class RunningEngine:
    """See the seam: tuner.engines.seam.Engine. It tells what its clients see, and no iterations."""

    def __init__(self, server: RunningServer, client: CompletionClient) -> None:
        self.facts, self.compiled = server.facts, list[str]()
        self._server, self._client = server, client
        self._numbers = count(secrets.randbits(40))
        self._reads = 0
        self._watch = HangWatch(lambda: self._reads, client.fail, first_s=FIRST_S)
        self._shift = secrets.randbelow(VOCAB_SIZE)
        self._sent = 0
        self._failed = self._failed_in_a_row = self._early = 0

    @property
    def url(self) -> str:
        return self._server.url

    async def generate(self, request: EngineRequest, reply: Reply) -> None:
        """See the seam. Raises EngineError once too many have failed or ended early, and before
        more is sent than was allowed."""
        self._count_sent()
        try:
            with self._watch.over():
                await self._client.complete(
                    self._body(request),
                    reply,
                    name=name_of(next(self._numbers)),
                    outputs=request.output_length,
                    came=self._came,
                )
            self._check_length(request, reply)
        except RequestFailedError as failure:
            self._count_failure(str(failure))
            raise
        self._failed_in_a_row = 0

    async def prepare(
        self, *, max_num_seqs: int | None = None, max_num_batched_tokens: int | None = None
    ) -> None:
        """See the seam. Its limits are not tuner's to change. Prompts from here on share nothing
        with those before, which comes to the same as an empty cache."""
        limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens}
        for name, value in limits.items():
            if value is not None and value != self.facts.arguments.get(name, value):
                raise EngineError(
                    f"{name} of {self._server.url} is not changed ({value} asked)",
                    hint="tuner live changes it.",
                )
        self._shift = (self._shift + 1 + secrets.randbelow(VOCAB_SIZE // 2)) % VOCAB_SIZE

    async def iterations(self) -> IterationLog:
        return np.empty(0, ITERATION)

    async def stop(self) -> None:
        await self._client.stop()

    async def prove(self) -> None:
        """Send the first requests, whose cost is not the others', and see that they are answered
        token by token, and by the server whose counters we read. Raises EngineError."""
        served = self._server.served
        before = await asyncio.to_thread(served) if served is not None else 0.0
        replies = [Reply() for _ in range(WARM_UPS)]
        asked = EngineRequest(list(range(SPECIAL_IDS, 32)), WARM_UP_TOKENS)
        try:
            await self.generate(asked, replies[0])
            await self._warm_up(asked, replies[1:])
        except RequestFailedError as failure:
            raise self._refuses(str(failure)) from None
        if all(len(one.seen_s) < 2 < one.output_tokens for one in replies):
            raise EngineError(
                f"{self._server.url}: {WARM_UP_TOKENS} tokens come at once each time: something "
                "in front of it buffers what it streams, and no time of a token can be seen",
                hint="Give the server's own address, or turn the proxy's buffering off.",
            )
        if served is not None:
            await self._check_counted(served, before)

    async def _warm_up(self, asked: EngineRequest, replies: Sequence[Reply]) -> None:
        if self._server.most_rps is None:
            await asyncio.gather(*(self.generate(asked, one) for one in replies))
            return
        for one in replies:
            await asyncio.sleep(1 / self._server.most_rps)
            await self.generate(asked, one)

    async def _check_counted(self, served: Callable[[], float], before: float) -> None:
        loop = asyncio.get_running_loop()
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

    def _body(self, request: EngineRequest) -> dict[str, Any]:
        usable = VOCAB_SIZE - SPECIAL_IDS
        shifted = [
            SPECIAL_IDS + (token - SPECIAL_IDS + self._shift) % usable
            for token in request.prompt_token_ids
        ]
        body: dict[str, Any] = {
            **self._server.sampling,  # first: it sets nothing else
            "model": self._server.model,
            "prompt": shifted,
            "max_tokens": request.output_length,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._server.takes_ignore_eos:
            body["ignore_eos"] = True
        return body

    def _came(self, reads: int) -> None:
        self._reads += reads

    def _count_sent(self) -> None:
        if self._server.most is not None and self._sent >= self._server.most:
            raise EngineError(
                f"{self._sent} requests were sent to {self._server.url}, as many as allowed, and "
                "some must be sent again: they had left late",
                hint=f"Run it on a machine with less to do, or allow more: --send-load "
                f"{2 * self._server.most}.",
            )
        self._sent += 1

    def _check_length(self, request: EngineRequest, reply: Reply) -> None:
        asked, came = request.output_length, reply.output_tokens
        if came == asked:
            return
        if self._server.takes_ignore_eos or came > asked:
            raise RequestFailedError(f"{came} of {asked} tokens")
        self._early += 1
        if self._early > max(1.0, EARLY_SHARE * self._server.planned):
            raise EngineError(
                f"{self._early} answers of {self._server.url} ended before the length that was "
                "asked: it would serve other work than the trace's",
                hint="It does not know ignore_eos; verify on a vLLM server.",
            )

    def _count_failure(self, why: str) -> None:
        self._failed += 1
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= FAILED_IN_A_ROW:
            raise self._refuses(why, f"{self._failed_in_a_row} requests in a row failed, the last")
        if self._failed > max(1.0, FAILED_SHARE * self._server.planned):
            raise self._refuses(why, f"{self._failed} requests failed, the last")

    def _refuses(self, why: str, what: str = "the first request failed") -> EngineError:
        return EngineError(
            f"{self._server.url}: {what}: {why}", hint=_HINTS.get(why[:3], _READ_LOG)
        )

"""Servers asked over HTTP, behind the seam: a ``vllm serve`` of our own, and one that runs
already."""

import asyncio
import contextlib
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http.client import responses
from multiprocessing.process import BaseProcess
from typing import Annotated, Any

import aiohttp
import msgspec
import numpy as np

from tuner.engines.arguments import WITHOUT_NEGATIVE, ArgumentValue, command_line
from tuner.engines.paged import WARM_UP_TOKENS, WARM_UPS, PagedEngine
from tuner.engines.sampling import Sampling
from tuner.engines.seam import (
    ITERATION,
    EngineFacts,
    EngineRequest,
    IterationLog,
    Reply,
    RequestFailedError,
)
from tuner.errors import EngineError

# Their client

CONNECT_S, SILENCE_S = 10.0, 600.0
"""The longest time until a server takes a connection, and that it sends nothing to a request."""

HEALTH_S = 1.0

MOST_BYTES = 2**16
"""Of one event; what sends more is no server of completions."""

REASON_LENGTH = 300
OK = 200


class _Usage(msgspec.Struct):
    completion_tokens: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw] = []
    usage: _Usage | None = None
    error: Any = None


class CompletionClient:
    """Sends completions to one server, and times what its streams bring.

    ``key`` is never shown, nor what a server that has it says: that may repeat it. ``socket`` is a
    Unix one, at which the server listens.
    """

    def __init__(
        self,
        url: str,
        model: object,
        sampling: Sampling,
        *,
        key: str | None = None,
        socket: str | None = None,
    ) -> None:
        self._url, self._has_key = url, bool(key)
        self._body = {**sampling, "model": model, "ignore_eos": True}  # it sets nothing else
        unix = aiohttp.UnixConnector(socket, limit=0) if socket else None
        self._session = aiohttp.ClientSession(
            connector=unix or aiohttp.TCPConnector(limit=0),
            headers={
                "Accept-Encoding": "identity",
                "Content-Type": "application/json",
                **({"Authorization": f"Bearer {key}"} if key else {}),
            },
            timeout=aiohttp.ClientTimeout(None, sock_connect=CONNECT_S, sock_read=SILENCE_S),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def complete(self, request: EngineRequest, reply: Reply, *, name: str) -> None:
        """Send, and fill ``reply`` while its stream comes.

        Cancelling closes the connection. Raises RequestFailedError.
        """
        body = {
            **self._body,
            "prompt": list(request.prompt_token_ids),
            "max_tokens": request.output_length,
            "stream": True,
            "stream_options": {"include_usage": True},
            "priority": request.priority,
        }
        content = msgspec.json.encode(body)  # a long prompt takes milliseconds
        reply.sent_s = asyncio.get_running_loop().time()
        try:
            async with self._session.post(
                f"{self._url}/v1/completions",
                data=content,
                headers={"X-Request-Id": name},
                allow_redirects=False,
            ) as response:
                if response.status != OK:
                    status = f"{response.status} {responses.get(response.status, '')}".strip()
                    raise self._refusal(status, await response.content.read(MOST_BYTES))
                await self._read(response, reply, request.output_length)
        except (aiohttp.ClientError, OSError, ValueError, RuntimeError) as problem:
            raise RequestFailedError(f"the connection broke: {type(problem).__name__}") from None

    async def _read(self, response: aiohttp.ClientResponse, reply: Reply, length: int) -> None:
        """Note the outputs of a stream of server-sent events, of which so many are to come."""
        clock, rest, usage = asyncio.get_running_loop().time, b"", None
        async for data in response.content.iter_any():
            now_s, tokens = clock(), 0
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > MOST_BYTES:
                raise RequestFailedError("it answers too much")
            for line in lines:
                content = line[5:].strip()
                if not line.startswith(b"data:") or content in {b"", b"[DONE]"}:
                    continue  # a comment keeps a connection open
                try:
                    chunk = msgspec.json.decode(content, type=_Chunk)
                except (msgspec.DecodeError, RecursionError) as problem:
                    raise RequestFailedError(f"no completion: {problem}") from None
                if chunk.error is not None:
                    raise self._refusal("it reports an error", content)
                usage = chunk.usage or usage
                tokens += bool(chunk.choices)
            if tokens:
                reply.seen_s.append(now_s)
                reply.output_tokens += tokens
        if usage is None:
            raise RequestFailedError(
                "the stream ended without usage: how many tokens came is unknown"
            )
        reply.output_tokens = usage.completion_tokens
        if reply.output_tokens != length:
            raise RequestFailedError(f"{reply.output_tokens} of {length} tokens")
        del reply.seen_s[length:]  # some servers send their end by itself

    def _refusal(self, status: str, content: bytes) -> RequestFailedError:
        shown = "" if self._has_key else content.decode(errors="replace")
        words = " ".join(f"{status}: {shown}".split()).removesuffix(":")
        return RequestFailedError(words[:REASON_LENGTH])

    async def is_healthy(self) -> bool:
        """Whether the server is up."""
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
            async with (
                asyncio.timeout(HEALTH_S),
                self._session.get(f"{self._url}/health") as response,
            ):
                return response.status == OK
        return False

    async def stop(self) -> None:
        """Close every connection. Twice is allowed."""
        await self._session.close()


# Our own server

STOP_S = 10.0
"""Time that a server may take to end by itself."""

_LOOK_S = 0.1


class ServedEngine(PagedEngine):
    """See the seam: tuner.engines.seam.Engine."""

    _server: BaseProcess | None = None

    async def open(self) -> None:
        """Start the server with all that a profile's engine section says, at a socket."""
        command, socket = self._resolved.command, str(self._page.socket)
        words = [*words_of(command), "--uds", socket]
        self._client = CompletionClient(
            "http://localhost", command["model"], self.facts.sampling or {}, socket=socket
        )
        self._server = self._processes.Process(name="vllm serve", target=serve, args=(words,))
        self._server.start()
        while not await self._client.is_healthy():
            if self._processes.death() is not None:
                raise self._processes.failed_to_start()
            await asyncio.sleep(_LOOK_S)

    async def _ask(self, name: str, request: EngineRequest, reply: Reply) -> None:
        try:
            await self._client.complete(request, reply, name=name)
        except RequestFailedError as problem:
            if not str(problem).startswith("4"):  # else it has refused this request alone
                await self._processes.ended()
            raise

    async def _close(self) -> None:
        if self._server is not None:
            self._server.terminate()
            await asyncio.to_thread(self._server.join, STOP_S)
            self._processes.end()  # so that whoever still waits is told
            await self._client.stop()


def serve(words: Sequence[str]) -> None:
    """In the server's process: be ``vllm serve``."""
    from vllm.entrypoints.cli.main import main  # noqa: PLC0415 - in the server's process only

    sys.argv = ["vllm", "serve", *words]
    main()


def words_of(arguments: Mapping[str, ArgumentValue]) -> list[str]:
    """Return the words after ``vllm serve``. Raises EngineError for one that is a flag."""
    words = list[str]()
    try:
        for name in sorted(arguments, key="model".__ne__):  # which comes first
            if arguments[name] is not False or name not in WITHOUT_NEGATIVE:
                words += command_line(name, arguments[name])
    except ValueError as error:
        raise EngineError(
            f"{error}: vllm serve would take it for a flag",
            hint="Give a value that does not begin with a hyphen.",
        ) from None
    return words


# Somebody's

VOCAB_SIZE, SPECIAL_IDS = 1000, 16
"""Token ids below the first every model has; as many at their beginning may be special."""

FAILED_IN_A_ROW = 5
"""A server that fails so many is not asked further."""

_COUNTED_S = 5.0
"""Time that a server's counter may lag behind."""

_HINTS = {
    "401": "Set TUNER_API_KEY to its key.",
    "403": "Set TUNER_API_KEY to its key.",
    "404": "Check address and model: completions are asked at /v1/completions.",
    "429": "It limits its clients: verify where nothing limits.",
}


@dataclass(eq=False)
class RunningServer:
    """A server that is not tuner's, asked and left as it is: a starter, whose engine it is itself.

    It tells what its clients see, and no iterations.
    """

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

    async def start(self, *, max_num_seqs: int) -> "RunningServer":
        """Start the client alone, and see that the server answers as one of completions does."""
        del max_num_seqs
        self._client = CompletionClient(self.url, self.model, self.sampling, key=self.key)
        self._failed_in_a_row, self._shift = 0, secrets.randbelow(VOCAB_SIZE)
        try:
            await self._prove()
        except BaseException:
            await self.stop()
            raise
        return self

    async def generate(self, request: EngineRequest, reply: Reply) -> None:
        """See the seam. Raises EngineError once too many have failed in a row."""
        usable = VOCAB_SIZE - SPECIAL_IDS
        prompt = [
            SPECIAL_IDS + (token - SPECIAL_IDS + self._shift) % usable
            for token in request.prompt_token_ids
        ]
        wanted = replace(request, prompt_token_ids=prompt, priority=0)
        try:
            await self._client.complete(wanted, reply, name=secrets.token_hex(8))
        except RequestFailedError as why:
            self._failed_in_a_row += 1
            if self._failed_in_a_row < FAILED_IN_A_ROW:
                raise
            what = f"{self._failed_in_a_row} requests in a row failed, the last"
            raise self._refuses(what, why) from None
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

    async def _prove(self) -> None:
        """Send the first requests, whose cost is not the others', and see that they are answered
        token by token, and by the server whose counters we read. Raises EngineError."""
        before = await asyncio.to_thread(self.served)
        replies = [Reply() for _ in range(WARM_UPS)]
        wanted = EngineRequest(list(range(SPECIAL_IDS, 32)), WARM_UP_TOKENS)
        try:
            await self.generate(wanted, replies[0])
            await asyncio.gather(*(self.generate(wanted, each) for each in replies[1:]))
        except RequestFailedError as why:
            raise self._refuses("the first request failed", why) from None
        if all(len(reply.seen_s) < 2 < reply.output_tokens for reply in replies):
            raise EngineError(
                f"{self.url}: {WARM_UP_TOKENS} tokens come at once each time: something "
                "in front of it buffers what it streams, and no time of a token can be seen",
                hint="Give the server's own address, or turn the proxy's buffering off.",
            )
        counted, until_s = 0.0, time.monotonic() + _COUNTED_S
        while counted < WARM_UPS and time.monotonic() < until_s:
            await asyncio.sleep(_LOOK_S)
            counted = await asyncio.to_thread(self.served) - before
        if counted != WARM_UPS:
            raise EngineError(
                f"{WARM_UPS} requests were sent to {self.url}, its counter moved by "
                f"{counted:g}: several servers answer there, or others ask it too",
                hint="Give the address of one server that serves nobody else.",
            )

    def _refuses(self, what: str, why: RequestFailedError) -> EngineError:
        hint = _HINTS.get(str(why)[:3], "Its own log says why.")
        return EngineError(f"{self.url}: {what}: {why}", hint=hint)

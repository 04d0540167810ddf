"""The client of a server of completions: sends a request and times what its stream brings."""

import asyncio
import contextlib
import html
import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any
from urllib.parse import quote

import aiohttp
import msgspec

from tuner.engines.seam import STOPPED, EngineRequest, Reply, RequestFailedError
from tuner.errors import EngineError

CONNECT_S = 10.0
REFUSAL_S = 1.0
"""For what a server says of a refusal: it is only shown."""

HEALTH_S = 1.0
READ_BYTES = 2**16
MOST_REFUSAL_BYTES = 2**16
MOST_OUTPUT_BYTES = 4096
"""Of one output, on average: what sends more is no server of completions."""

MOST_EVENT_BYTES = 2**20
REASON_LENGTH = 300
HIDDEN = "***"

_OK = 200

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class _Choice(msgspec.Struct):
    text: str | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: Count | None = None


class _Usage(msgspec.Struct):
    completion_tokens: Count
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")


_CHUNK = msgspec.json.Decoder(_Chunk)


class CompletionStream:
    """One reply as server-sent events: ``feed`` it what was read. Raises RequestFailedError."""

    def __init__(self, reply: Reply, *, outputs: int) -> None:
        """``outputs`` is how many it is to bring: what brings much more is not listened to."""
        self._reply, self._rest = reply, b""
        self._usage: _Usage | None = None
        self._bytes_left = MOST_REFUSAL_BYTES + MOST_OUTPUT_BYTES * outputs
        self._ended_s: float | None = None
        """When an end without text came: some servers then send a token, others none."""

    def feed(self, data: bytes, now_s: float) -> None:
        """Note the outputs in what was read at this time."""
        self._bytes_left -= len(data)
        *events, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        if len(self._rest) > MOST_EVENT_BYTES:
            raise RequestFailedError("no event ends: it is no stream of completions")
        if self._bytes_left < 0:
            raise RequestFailedError("it answers too much")
        if outputs := sum(self._read(event, now_s) for event in events):
            self._reply.seen_s.append(now_s)
            self._reply.output_tokens += outputs

    def end(self) -> None:
        """Complete the reply by what the server has counted."""
        reply, usage = self._reply, self._usage
        if usage is None:
            raise RequestFailedError(
                "the stream ended without usage: how many tokens came is unknown"
            )
        if usage.completion_tokens > reply.output_tokens and self._ended_s is not None:
            reply.seen_s.append(self._ended_s)  # it did bring a token
        reply.late_tokens = max(0, reply.output_tokens - len(reply.seen_s))
        reply.output_tokens = usage.completion_tokens
        if (details := usage.prompt_tokens_details) and details.cached_tokens is not None:
            reply.cached_tokens = details.cached_tokens

    def _read(self, event: bytes, now_s: float) -> bool:
        """Return whether an event brings output."""
        lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
        content = b"\n".join(lines)
        if content in {b"", b"[DONE]"}:  # a comment keeps a connection open
            return False
        try:
            chunk = _CHUNK.decode(content)
        except (msgspec.DecodeError, RecursionError) as problem:
            raise RequestFailedError(f"no completion: {problem}") from None
        if bytes(chunk.error) != b"null":
            raise RequestFailedError(bytes(chunk.error).decode(errors="replace"))
        self._usage = chunk.usage or self._usage
        if not chunk.choices:
            return False
        if chunk.choices[0].finish_reason is None or chunk.choices[0].text:
            return True
        self._ended_s = self._ended_s or now_s
        return False


class CompletionClient:
    """Sends completions to one server. ``key`` is never shown."""

    def __init__(
        self,
        url: str,
        body: Mapping[str, object],
        *,
        key: str | None = None,
        socket: str | None = None,
    ) -> None:
        """``body``: what every request says besides, such as its model; ``socket``: a Unix one, at
        which the server listens."""
        self._url, self._body = url, body
        spellings = set[str]()
        if key:
            spellings = {key, json.dumps(key)[1:-1], html.escape(key), quote(key, safe="")}
        self._spellings = sorted(spellings, key=len, reverse=True)
        self._tasks = set[asyncio.Task[Any]]()
        self._error: EngineError | None = None
        self._session = aiohttp.ClientSession(
            connector=(
                aiohttp.TCPConnector(limit=0)
                if socket is None
                else aiohttp.UnixConnector(socket, limit=0)
            ),
            headers={
                "Accept-Encoding": "identity",
                "Content-Type": "application/json",
                **({"Authorization": f"Bearer {key}"} if key else {}),
            },
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            read_bufsize=READ_BYTES,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def complete(
        self, request: EngineRequest, reply: Reply, *, name: str, came: Callable[[], None]
    ) -> None:
        """Send, and fill ``reply`` while its stream comes; call ``came`` for every read.

        A server that sends much more than the requested tokens is not listened to. Cancelling
        closes the connection. Raises RequestFailedError, and what ``fail`` was given.
        """
        self._check_running()
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._exchange(request, reply, name, came)
        except asyncio.CancelledError:
            if self._error is not None:
                task.uncancel()
            self._check_running()
            raise
        except RequestFailedError as problem:
            text = str(problem)
            for spelling in self._spellings:
                text = re.sub(re.escape(spelling), HIDDEN, text, flags=re.IGNORECASE)
            raise RequestFailedError(text[:REASON_LENGTH]) from None
        finally:
            self._tasks.discard(task)

    async def answers(self, path: str) -> bool:
        """Whether the server answers there, with 200."""
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
            async with asyncio.timeout(HEALTH_S), self._session.get(self._url + path) as response:
                return response.status == _OK
        return False

    def _check_running(self) -> None:
        if self._error is not None:
            raise self._error

    def fail(self, error: EngineError) -> None:
        """Let every request, those to come too, end with this error."""
        self._error = self._error or error
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        """Close every connection. Twice is allowed."""
        self.fail(STOPPED)
        await self._session.close()

    async def _exchange(
        self, request: EngineRequest, reply: Reply, name: str, came: Callable[[], None]
    ) -> None:
        stream = CompletionStream(reply, outputs=request.output_length)
        body = {
            **self._body,
            "prompt": list(request.prompt_token_ids),
            "max_tokens": request.output_length,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"priority": request.priority} if request.priority else {}),
        }
        clock, headers = asyncio.get_running_loop().time, {"X-Request-Id": name}
        content = msgspec.json.encode(body)  # a long prompt takes milliseconds
        reply.sent_s = clock()
        try:
            async with self._session.post(
                f"{self._url}/v1/completions", data=content, headers=headers, allow_redirects=False
            ) as response:
                await self._check(response)
                async for data in response.content.iter_any():
                    stream.feed(data, clock())
                    came()
            stream.end()
        except aiohttp.ClientConnectorError as problem:
            raise RequestFailedError(f"no connection: {problem.strerror or problem}") from None
        except (aiohttp.ClientError, OSError, ValueError) as problem:
            raise RequestFailedError(f"the connection broke: {type(problem).__name__}") from None

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        """Raise RequestFailedError for a refusal, with what the server says of it."""
        if 300 <= response.status < 400:
            raise RequestFailedError(f"{response.status}: it redirects, which is not followed")
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise RequestFailedError("it answers compressed, which was not asked for")
        if response.status == _OK:
            return
        content, is_complete = bytearray(), False
        with contextlib.suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(REFUSAL_S):
                while piece := await response.content.read(MOST_REFUSAL_BYTES - len(content)):
                    content += piece
                is_complete = True
        hidden = 0 if is_complete else max(map(len, self._spellings), default=0)
        content = content[: max(0, len(content) - hidden)]  # its end may be that of a key
        text = " ".join(content.decode(errors="replace").split())
        raise RequestFailedError(f"{response.status} {response.reason}: {text}")

"""The client of a server of completions: sends a request and times what its stream brings."""

import asyncio
import contextlib
from collections.abc import Mapping
from http.client import responses
from typing import Annotated, Any

import aiohttp
import msgspec

from tuner.engines.seam import EngineRequest, Reply, RequestFailedError

CONNECT_S = 10.0
ANSWER_S = 1.0
"""For a health check, and for what a server says of a refusal: that is only shown."""

READ_BYTES = 2**16
MOST_BYTES = 2**16
MOST_OUTPUT_BYTES = 4096
"""A reply may have MOST_BYTES and, on average, so many of each output; what sends more is no server
of completions."""

REASON_LENGTH = 300
OK = 200

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class _Choice(msgspec.Struct):
    text: str | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    completion_tokens: Count


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")


_CHUNK = msgspec.json.Decoder(_Chunk)


class _Stream:
    """One reply as server-sent events: ``feed`` it what was read. Raises RequestFailedError."""

    def __init__(self, reply: Reply, *, outputs: int) -> None:
        self._reply, self._rest = reply, b""
        self._usage: _Usage | None = None
        self._bytes_left = MOST_BYTES + MOST_OUTPUT_BYTES * outputs
        self._ended_s: float | None = None
        """When an end without text came: some servers then send a token, others none."""

    def feed(self, data: bytes, now_s: float) -> None:
        """Note the outputs in what was read at this time."""
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            raise RequestFailedError("it answers too much")
        *events, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
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
        reply.output_tokens = usage.completion_tokens

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
            raise _Refusal(bytes(chunk.error).decode(errors="replace"))
        self._usage = chunk.usage or self._usage
        if not chunk.choices:
            return False
        if chunk.choices[0].finish_reason is None or chunk.choices[0].text:
            return True
        self._ended_s = self._ended_s or now_s
        return False


class _Refusal(Exception):  # noqa: N818 - the server's words, on their way to who may show them
    """What a server says of a request that it does not serve, with the status in words."""

    def __init__(self, text: str, status: str = "") -> None:
        super().__init__(text)
        self.status = status


class CompletionClient:
    """Sends completions to one server. ``key`` is never shown, nor what a server that has it says:
    that may repeat it."""

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
        self._url, self._body, self._has_key = url, body, bool(key)
        self._tasks, self._is_stopped = set["asyncio.Task[Any]"](), False
        self.reads = 0
        """How often something came."""

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

    async def complete(self, request: EngineRequest, reply: Reply, *, name: str) -> None:
        """Send, and fill ``reply`` while its stream comes.

        Cancelling closes the connection. Raises RequestFailedError, also once the client stops.
        """
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._exchange(request, reply, name)
        except asyncio.CancelledError:
            if not self._is_stopped:
                raise
            task.uncancel()
            raise RequestFailedError("its client was stopped") from None
        finally:
            self._tasks.discard(task)

    async def _exchange(self, request: EngineRequest, reply: Reply, name: str) -> None:
        stream = _Stream(reply, outputs=request.output_length)
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
                    self.reads += 1
            stream.end()
        except _Refusal as refusal:
            words = refusal.status or "it reports an error"
            if not self._has_key:
                words = " ".join(f"{refusal.status}: {refusal}".removeprefix(": ").split())
            raise RequestFailedError(words[:REASON_LENGTH]) from None
        except aiohttp.ClientConnectorError as problem:
            raise RequestFailedError(f"no connection: {problem.strerror or problem}") from None
        except (aiohttp.ClientError, OSError, ValueError, RuntimeError) as problem:
            raise RequestFailedError(f"the connection broke: {type(problem).__name__}") from None

    async def answers(self, path: str) -> bool:
        """Whether the server answers there, with 200."""
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
            async with asyncio.timeout(ANSWER_S), self._session.get(self._url + path) as response:
                return response.status == OK
        return False

    async def stop(self) -> None:
        """Close every connection: its request fails. Twice is allowed."""
        self._is_stopped = True
        for task in self._tasks:
            task.cancel()
        await self._session.close()

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        """Raise _Refusal, with what the server says of it."""
        if response.status == OK:
            return
        content = b""
        with contextlib.suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(ANSWER_S):
                content = await response.content.read(MOST_BYTES)
        status = f"{response.status} {responses.get(response.status, '')}".strip()
        raise _Refusal(content.decode(errors="replace"), status)

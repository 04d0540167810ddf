"""A small server of completions on a real socket, that answers as a test tells it to."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices": [{"index": 0, "text": "a", "finish_reason": null}]}\n\n'
EMPTY_END = b'data: {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def usage(tokens: int) -> bytes:
    return b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": %d}}\n\n' % (
        tokens
    )


@dataclass
class Exchange:
    """One request, and how it is answered: piece by piece."""

    headers: Mapping[str, str]
    body: dict[str, Any]
    writer: asyncio.StreamWriter
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when its client has gone."""

    async def send(self, *pieces: bytes) -> None:
        """Send pieces as they are."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()

    async def event(self, *events: bytes) -> None:
        """Send events as one piece of a chunked answer."""
        data = b"".join(events)
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self) -> None:
        await self.send(b"0\r\n\r\n")

    async def answer(self, tokens: int) -> None:
        """Answer as vLLM does."""
        await self.send(HEAD)
        for _ in range(tokens):
            await self.event(TOKEN)
        await self.event(usage(tokens), DONE)
        await self.end()


Answer = Callable[[Exchange], Awaitable[None]]


class _Server:
    def __init__(
        self, answer: Answer, get: Mapping[str, bytes], statuses: Mapping[str, bytes]
    ) -> None:
        self._answer, self._get, self._statuses = answer, get, statuses
        self._tasks = set[asyncio.Task[None]]()
        self.stopped = asyncio.Event()
        self.ready = threading.Event()
        self.port = 0

    async def run(self, path: str | None) -> None:
        if path is not None:
            server = await asyncio.start_unix_server(self._serve, path)
        else:
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=256)
            self.port = server.sockets[0].getsockname()[1]
        self.ready.set()
        await self.stopped.wait()
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                await self._exchange(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        headers = dict(line.split(": ", 1) for line in lines if line)
        _, path, _ = first.split()
        if not path.endswith("/completions"):
            content = self._get.get(path, b"")
            otherwise = b"200 OK" if path in self._get else b"404 Not Found"
            status = self._statuses.get(path, otherwise)
            writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n" % (status, len(content)))
            writer.write(content)
            return
        length = next(int(v) for name, v in headers.items() if name.lower() == "content-length")
        wanted = Exchange(headers, json.loads(await reader.readexactly(length)), writer)
        gone = asyncio.create_task(self._gone(reader, wanted))
        await self._answer(wanted)
        gone.cancel()
        await asyncio.wait([gone])

    async def _gone(self, reader: asyncio.StreamReader, exchange: Exchange) -> None:
        await reader.read(1)
        exchange.left.set()


@contextmanager
def completions(
    answer: Answer,
    *,
    get: Mapping[str, bytes] | None = None,
    statuses: Mapping[str, bytes] | None = None,
    path: str | None = None,
) -> Iterator[str]:
    """Answer every completion so, and all else with the bytes for its path, and the status that it
    has there; yield the address. ``path``: of a Unix socket to listen at."""
    loop = asyncio.new_event_loop()
    server = _Server(answer, get or {}, statuses or {})
    thread = threading.Thread(target=loop.run_until_complete, args=(server.run(path),))
    thread.start()
    assert server.ready.wait(20)
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        loop.call_soon_threadsafe(server.stopped.set)
        thread.join(20)
        loop.close()

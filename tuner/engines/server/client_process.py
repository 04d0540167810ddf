"""The client that asks a server, in a process of its own.

    python -m tuner.engines.server.client_process

What it is told comes on its standard input, a socket; so does what it tells. When that closes it is
gone, and with it every connection. It does nothing else, so that it reads when something comes.
"""

import asyncio
import contextlib
import gc
import html
import json
import os
import re
import socket
import struct
import sys
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import aiohttp
import msgspec
import uvloop

from tuner.engines.server.client_messages import (
    BROKEN,
    LENGTH,
    NO_CONNECTION,
    Abandon,
    ClientReady,
    Ended,
    Order,
    Progress,
    Report,
    Send,
    ServerAddress,
    framed,
    orders,
)
from tuner.engines.server.stream import CompletionStream, StreamError

TELL_S = 0.5
"""Seconds between two reports of outputs that are not among the first."""

TOLD_AT_ONCE = 2

WATCH_S = 0.5

SILENCES = 20
"""Times the longest silence so far after which the server is taken for stuck."""

MOST_REFUSAL_BYTES = 2**16
MOST_OUTPUT_BYTES = 4096
"""Of one output, on average: what sends more is no server of completions."""

FIRST_IN_LINE = -10
"""The nice value: before what else wants a core, as a client on a machine of its own would be."""

OWN_CORE_FROM = 3
"""Cores of the machine: of two the server needs both, for its engine and its front end."""

READ_BYTES = 2**16

REFUSAL_S = 1.0
"""For what a server says of a refusal: it is only told on."""

REASON_LENGTH = 300
HIDDEN = "***"


@dataclass(frozen=True, slots=True)
class Secrets:
    """Keys that a server is told and nobody else, as they are and as servers spell them."""

    spellings: tuple[str, ...]

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> "Secrets":
        """Return the values of headers, without the word before a key."""
        found = {value.rpartition("Bearer ")[2] for value in headers.values()}
        spelt = {
            spelling
            for key in found - {""}
            for spelling in (key, json.dumps(key)[1:-1], html.escape(key), quote(key, safe=""))
        }
        return cls(tuple(sorted(spelt, key=len, reverse=True)))

    @property
    def longest(self) -> int:
        return max(map(len, self.spellings), default=0)

    def hidden_in(self, text: str) -> str:
        """Return a text of the server, which may be told on.

        >>> Secrets.of({"Authorization": "Bearer sesame"}).hidden_in("401: no such key: Sesame")
        '401: no such key: ***'
        """
        for spelling in self.spellings:
            text = re.sub(re.escape(spelling), HIDDEN, text, flags=re.IGNORECASE)
        return text


class _Flight:
    """One request under way."""

    def __init__(self, order: Send, sent_s: float) -> None:
        self.order = order
        self.sent_s = sent_s
        self.seen_s = array("d")
        self.told = 0
        self.status = 200
        self.stream = CompletionStream()
        self.ended_s: float | None = None
        """When an end without text came."""

        self.is_abandoned = False

    def untold(self) -> bytes:
        content = self.seen_s[self.told :].tobytes()
        self.told = len(self.seen_s)
        return content


class Client:
    """Asks one server for as many streams at a time as it is told."""

    def __init__(self, target: ServerAddress, writer: asyncio.StreamWriter) -> None:
        self._target, self._writer = target, writer
        self._secrets = Secrets.of(target.headers)
        self._loop = asyncio.get_running_loop()
        self._flights: dict[int, tuple[_Flight, asyncio.Task[None]]] = {}
        self._heard_s = time.monotonic()
        self._longest_s = 0.0
        self._is_stuck = False
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            headers={"Accept-Encoding": "identity", **target.headers},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=target.connect_s),
            read_bufsize=READ_BYTES,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    def send(self, order: Send) -> None:
        flight = _Flight(order, time.monotonic())
        if not self._flights:
            self._heard_s = flight.sent_s
        task = self._loop.create_task(self._fly(flight))
        self._flights[order.number] = flight, task

    def abandon(self, order: Abandon) -> None:
        if (found := self._flights.get(order.number)) is not None:
            flight, task = found
            flight.is_abandoned = True
            task.cancel()

    async def tell_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(TELL_S)
            for flight, _ in self._flights.values():
                if flight.told < len(flight.seen_s):
                    self._tell(self._progress(flight))

    async def watch(self) -> None:
        """End every request of a server that has stopped sending to anybody."""
        while True:
            await asyncio.sleep(WATCH_S)
            if not self._flights:
                gc.collect()  # now nobody waits
            elif time.monotonic() - self._heard_s > self._silence_timeout_s():
                self._is_stuck = True
                for _, task in list(self._flights.values()):
                    task.cancel()

    def _silence_timeout_s(self) -> float:
        """Return how long nothing may come: longer while no stream has begun, for then prompts
        are computed."""
        if not any(flight.seen_s for flight, _ in self._flights.values()):
            return self._target.first_s
        return max(self._target.silence_s, SILENCES * self._longest_s)

    async def _fly(self, flight: _Flight) -> None:
        ended = Ended(flight.order.number, flight.sent_s, b"")
        try:
            await self._exchange(flight)
        except StreamError as problem:
            ended.problem = self._secrets.hidden_in(str(problem))[:REASON_LENGTH]
        except aiohttp.ClientConnectorError as problem:
            ended.problem = f"{NO_CONNECTION}: {problem.strerror or problem}"
        except (aiohttp.ClientError, OSError, ValueError) as problem:
            ended.problem = f"{BROKEN}: {type(problem).__name__}"
        except asyncio.CancelledError:
            ended.problem = "abandoned"
            if self._is_stuck and not flight.is_abandoned:
                ended.problem = f"nothing came for {self._silence_timeout_s():.0f} s"
                ended.is_stuck = True
        else:
            if flight.stream.usage is None and not ended.problem:
                ended.problem = "the stream ended without usage: how many tokens came is unknown"
        finally:
            del self._flights[flight.order.number]
            self._heard_s = time.monotonic()
            self._complete(ended, flight)
            self._tell(ended)

    async def _exchange(self, flight: _Flight) -> None:
        """Send a request and read its stream to the end. Raises StreamError, and as aiohttp."""
        headers = {
            "Content-Type": "application/json",
            "X-Request-Id": flight.order.request_id,
        }
        body = msgspec.json.encode(flight.order.body)
        most_bytes = MOST_REFUSAL_BYTES + MOST_OUTPUT_BYTES * flight.order.outputs
        async with self._session.post(
            self._target.url, data=body, headers=headers, allow_redirects=False
        ) as answer:
            flight.status = answer.status
            if answer.status != 200:
                raise StreamError(await self._refusal(answer))
            if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise StreamError("it answers compressed, which was not asked for")
            async for data in answer.content.iter_any():
                now_s = time.monotonic()
                if flight.seen_s:
                    self._longest_s = max(self._longest_s, now_s - self._heard_s)
                self._heard_s = now_s
                most_bytes -= len(data)
                if most_bytes < 0:
                    raise StreamError("it answers too much")
                if flight.stream.feed(data):
                    self._see(flight, now_s)
                if flight.stream.has_empty_end and flight.ended_s is None:
                    flight.ended_s = now_s

    async def _refusal(self, answer: aiohttp.ClientResponse) -> str:
        """Return a status as one line, with what the server says of it."""
        if 300 <= answer.status < 400:
            return f"{answer.status}: it redirects, which is not followed"
        said, is_whole = bytearray(), False
        with contextlib.suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(REFUSAL_S):
                while len(said) < MOST_REFUSAL_BYTES:
                    piece = await answer.content.read(MOST_REFUSAL_BYTES - len(said))
                    if not piece:
                        break
                    said += piece
                is_whole = True
        if not is_whole:  # its end may be the beginning of a key
            said = said[: max(0, len(said) - self._secrets.longest)]
        text = " ".join(said.decode(errors="replace").split())
        return f"{answer.status} {answer.reason}: {text}"

    def _see(self, flight: _Flight, now_s: float) -> None:
        flight.seen_s.append(now_s)
        if len(flight.seen_s) <= TOLD_AT_ONCE:
            self._tell(self._progress(flight))

    def _progress(self, flight: _Flight) -> Progress:
        seen_s = flight.untold()
        return Progress(flight.order.number, flight.sent_s, seen_s, flight.stream.outputs)

    def _complete(self, ended: Ended, flight: _Flight) -> None:
        usage, counted = flight.stream.usage, flight.stream.outputs
        if usage is not None and usage.completion_tokens > counted and flight.ended_s is not None:
            flight.seen_s.append(flight.ended_s)  # it did bring a token
        ended.status = flight.status
        ended.last_seen_s = flight.untold()
        ended.outputs = counted
        if usage is not None:
            ended.tokens, ended.prompt_tokens = usage.completion_tokens, usage.prompt_tokens
            if usage.prompt_tokens_details is not None:
                ended.cached_tokens = usage.prompt_tokens_details.cached_tokens

    def _tell(self, report: Report) -> None:
        self._writer.write(framed(report))


async def main() -> None:
    """Obey until whoever started us is gone."""
    pipe = socket.socket(fileno=os.dup(0))
    reader, writer = await asyncio.open_connection(sock=pipe)
    target = await _next(reader)
    assert isinstance(target, ServerAddress)
    client = Client(target, writer)
    loop = asyncio.get_running_loop()
    background = [loop.create_task(one) for one in (client.tell_now_and_then(), client.watch())]
    _be_quick()
    writer.write(framed(ClientReady()))
    with contextlib.suppress(asyncio.IncompleteReadError, OSError):
        while True:
            order = await _next(reader)
            if isinstance(order, Send):
                client.send(order)
            elif isinstance(order, Abandon):
                client.abandon(order)
    del background
    os._exit(0)  # nobody is left who waits for anything


async def _next(reader: asyncio.StreamReader) -> Order:
    try:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    except struct.error:
        raise asyncio.IncompleteReadError(b"", None) from None
    return orders.decode(await reader.readexactly(length))


def _be_quick() -> None:
    """Keep garbage collection and, where the system allows it, other processes from delaying us.

    Not in real time: such a client would take the server's own core while another one is idle, and
    cost it a tenth of a decode step. Where there are cores enough it keeps to one, the last, so
    that it interrupts the server on no other.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, 0, FIRST_IN_LINE)
    with contextlib.suppress(OSError):  # a session is weighed as a whole: sched(7), autogroup
        Path("/proc/self/autogroup").write_text(str(FIRST_IN_LINE))
    with contextlib.suppress(OSError, AttributeError):
        cores = os.sched_getaffinity(0)
        if len(cores) >= OWN_CORE_FROM:
            os.sched_setaffinity(0, {max(cores)})


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))

"""The client process, seen from tuner: started, told what to send, listened to, ended."""

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from tuner.engines.seam import Reply, RequestFailedError
from tuner.engines.server.client_messages import (
    LENGTH,
    Abandon,
    ClientReady,
    Ended,
    Order,
    Progress,
    Report,
    Send,
    ServerAddress,
    framed,
    reports,
)
from tuner.errors import EngineError
from tuner.system import files, interruption

CONNECT_S = 10.0
SILENCE_S = 30.0
"""Longest time for which a server may send nothing in the middle of its streams. It is longer after
long silences, as of an engine that makes no iteration."""

FIRST_S = 600.0
"""The same while it has sent nothing yet: a long prompt on a slow machine."""

STOP_S = 5.0


@dataclass(slots=True)
class _Flight:
    reply: Reply
    ended: "asyncio.Future[Ended]"


class StreamingClient:
    """Sends completions to one server, and fills replies with what comes."""

    def __init__(self, process: "subprocess.Popen[bytes]", pipe: socket.socket) -> None:
        self._process, self._pipe = process, pipe
        self._loop = asyncio.get_running_loop()
        self._numbers = count()
        self._flights: dict[int, _Flight] = {}
        self._error: EngineError | None = None
        self._ready = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None
        interruption.ends_with_us(self._kill)

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    async def start(
        cls,
        url: str,
        *,
        headers: Mapping[str, str] = {},
        log: Path,
        silence_s: float = SILENCE_S,
        first_s: float = FIRST_S,
    ) -> "StreamingClient":
        """Start a process that asks ``url``/v1/completions. What it has to say goes to the log."""
        with open(log, "ab", opener=files.opened_own) as said:  # noqa: ASYNC230
            ours, theirs = socket.socketpair()
            with theirs:
                process = subprocess.Popen(  # noqa: ASYNC220 - milliseconds
                    [sys.executable, "-P", "-m", "tuner.engines.server.client_process"],
                    stdin=theirs.fileno(),
                    stdout=said,
                    stderr=said,
                    start_new_session=True,
                )
        client = cls(process, ours)
        reader, client._writer = await asyncio.open_connection(sock=ours)
        client._listening = asyncio.create_task(client._listen(reader))
        client._tell(
            ServerAddress(f"{url}/v1/completions", dict(headers), CONNECT_S, silence_s, first_s)
        )
        await client._ready.wait()
        client._check()
        return client

    async def complete(
        self, body: Mapping[str, Any], reply: Reply, *, request_id: str, outputs: int
    ) -> Ended:
        """Send, and fill ``reply`` while its stream comes; return how it ended.

        Cancelling closes the connection. Raises RequestFailedError; EngineError when the server is
        stuck or not there, or the client's process is gone.
        """
        self._check()
        number = next(self._numbers)
        flight = _Flight(reply, self._loop.create_future())
        self._flights[number] = flight
        try:
            self._tell(Send(number, dict(body), request_id, outputs))
            ended = await flight.ended
        except asyncio.CancelledError:
            await self._abandon(number, flight)
            raise
        finally:
            del self._flights[number]
        if ended.is_stuck:
            raise EngineError(
                f"the server is stuck: {ended.problem}", hint="Read its log, then start it again."
            )
        if ended.problem:
            raise RequestFailedError(ended.problem)
        return ended

    async def stop(self) -> None:
        """End the process; whatever it still reads is dropped. Twice is allowed."""
        self.fail(EngineError("the engine is stopped", hint="Start another one."))
        if self._writer is not None:
            self._writer.close()
        self._kill()
        await asyncio.to_thread(self._process.wait, STOP_S)
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])

    async def _abandon(self, number: int, flight: _Flight) -> None:
        """Let the process close the connection, and take what had come until then."""
        if self._error is None:
            self._tell(Abandon(number))
            with contextlib.suppress(EngineError, TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await flight.ended

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                self._take(reports.decode(await reader.readexactly(length)))
        code = await asyncio.to_thread(self._process.wait)
        self.fail(
            EngineError(
                f"the client that asks the server ended with {code}", hint="Read the run's log."
            )
        )

    def _take(self, report: Report) -> None:
        if isinstance(report, ClientReady):
            self._ready.set()
            return
        flight = self._flights.get(report.number)
        if flight is None:
            return
        reply = flight.reply
        reply.sent_s = report.sent_s
        if isinstance(report, Progress):
            reply.seen_s += np.frombuffer(report.seen_s).tolist()
            reply.output_tokens = report.outputs
            return
        reply.seen_s += np.frombuffer(report.last_seen_s).tolist()
        reply.late_tokens = max(0, report.outputs - len(reply.seen_s))
        reply.output_tokens = report.outputs if report.tokens is None else report.tokens
        if not flight.ended.done():
            flight.ended.set_result(report)

    def _tell(self, order: Order) -> None:
        assert self._writer is not None
        self._writer.write(framed(order))

    def fail(self, error: EngineError) -> None:
        """Let every request, those to come too, end with this error."""
        self._error = self._error or error
        self._ready.set()
        for flight in self._flights.values():
            if not flight.ended.done():
                flight.ended.set_exception(self._error)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _kill(self) -> None:
        interruption.has_ended(self._kill)
        self._process.kill()

"""Start, ask and end one worker process, from tuner's side of its two queues."""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.engines.seam import RequestFailedError
from tuner.engines.timeouts import started_in_time
from tuner.engines.vllm import failure as vllm_failure
from tuner.engines.vllm.core_process import CoreContext
from tuner.engines.vllm.log import said_since, size_of
from tuner.engines.workers import worker_process
from tuner.engines.workers.queue_messages import (
    Completion,
    Order,
    OrderResult,
    Prompt,
    Skipped,
    WorkerReady,
)
from tuner.engines.workers.seam import Batching
from tuner.errors import EngineError

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.sharedctypes import Synchronized

_LISTEN_S = 0.2
"""Seconds between two looks of a listening thread whether it still should."""

Message = Completion | OrderResult | Skipped
Received = Callable[[Message, float], None]
"""Called on the event loop with a message and when it was read."""


class QueueWorker:
    """One worker process with its two queues."""

    def __init__(  # noqa: PLR0913 - what it runs, and who hears of it
        self,
        arguments: Mapping[str, Any],
        batching: Batching,
        *,
        queue_size: int,
        log: Path,
        received: Received,
        died: Callable[[EngineError], None],
    ) -> None:
        self._context = CoreContext(log)
        self._log, self._log_start = log, size_of(log)
        self._requests: Queue[Prompt | Order] = self._context.Queue(queue_size)
        self._results: Queue[Any] = self._context.Queue()
        self._wanted_from: Synchronized[int] = self._context.Value("q", 0)
        self._process = self._context.Process(
            target=worker_process.work,
            args=(dict(arguments), batching, self._requests, self._results, self._wanted_from),
        )
        self._received, self._died = received, died
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[WorkerReady] = self._loop.create_future()
        self._listener = threading.Thread(target=self._listen, name="worker-replies", daemon=True)
        self._stopped = False
        self.in_hand = 0
        """Prompts that were sent and not answered, whoever still waits for them."""

    async def start(self) -> WorkerReady:
        """Start and wait until it serves. Failed or cancelled, nothing is left behind."""
        async with contextlib.AsyncExitStack() as failing:
            failing.push_async_callback(self.stop)
            starting = self._loop.run_in_executor(None, self._process.start)
            # not to begin to live after its end
            failing.push_async_callback(asyncio.wait, [starting])
            await asyncio.wait([starting])
            starting.result()
            self._loop.add_reader(self._process.sentinel, self._ended)
            self._listener.start()
            async with started_in_time(self._log):
                ready = await self._ready
            failing.pop_all()
        return ready

    def send(self, prompt: Prompt) -> None:
        """Put a prompt into the queue. Raises RequestFailedError when that is full."""
        try:
            self._requests.put_nowait(prompt)
        except queue.Full:
            raise RequestFailedError("the queue is full") from None
        self.in_hand += 1

    async def order(self, order: Order) -> None:
        """Ask for something once the prompts before it are done; the queue may be full."""
        while not self._stopped:
            try:
                self._requests.put_nowait(order)
            except queue.Full:
                await asyncio.sleep(_LISTEN_S)
            else:
                return

    def skip_before(self, number: int) -> None:
        """Let it drop the prompts before this one that it has not begun: nobody waits for them."""
        self._wanted_from.value = number

    async def stop(self) -> None:
        """End it; it has nothing to lose. Twice is allowed."""
        if self._stopped:
            return
        self._stopped = True
        if self._process.pid is not None:
            self._loop.remove_reader(self._process.sentinel)
        await asyncio.to_thread(self._context.kill)
        if self._listener.ident is not None:
            await asyncio.to_thread(self._listener.join, 2 * _LISTEN_S + 1)
        for each in (self._requests, self._results):
            each.close()
            each.cancel_join_thread()
        if not self._ready.done():
            self._ready.cancel()

    def _listen(self) -> None:
        """In a thread: read what the worker sends, and stamp it."""
        while not self._stopped:
            try:
                message = self._results.get(timeout=_LISTEN_S)
            except queue.Empty:
                continue
            except (EOFError, OSError, ValueError):
                return  # closed, or cut off in the middle of a message
            now_s = time.monotonic()
            self._loop.call_soon_threadsafe(self._take, message, now_s)

    def _take(self, message: WorkerReady | Message, now_s: float) -> None:
        if isinstance(message, WorkerReady):
            if not self._ready.done():
                self._ready.set_result(message)
            return
        if isinstance(message, Completion | Skipped):
            self.in_hand -= 1
        self._received(message, now_s)

    def _ended(self) -> None:
        """Fail what waits for the process: it is no more, and nobody has stopped it. On the event
        loop."""
        self._loop.remove_reader(self._process.sentinel)
        self._process.join(timeout=1)
        said = said_since(self._log, self._log_start)
        if not self._ready.done():
            cause = RuntimeError(f"the worker ended with {self._process.exitcode}")
            self._ready.set_exception(vllm_failure.failed_to_start(cause, said, str(self._log)))
        else:
            code = self._process.exitcode
            self._died(vllm_failure.died(code, said, str(self._log), who="the worker"))

"""Waits for an engine with an end: until it has started, and while it makes no progress."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import psutil

from tuner.engines import provenance
from tuner.engines.vllm.failure import last_line
from tuner.engines.vllm.log import Since
from tuner.errors import EngineError, StoodStillError

START_ON_CPU_S = 600.0
START_S = 3600.0
"""With an accelerator: weights of hundreds of GB are read and graphs captured."""

HANG_S = 30.0
HANG_FACTOR = 20.0
"""An engine that has work hangs after so long, and so many times as long as it usually needs for an
iteration: one may take seconds on a slow machine."""

_LOOK_S = 0.5


def start_limit_s() -> float:
    """Return how long an engine may take to start."""
    return START_ON_CPU_S if provenance.is_cpu_build() else START_S


@asynccontextmanager
async def started_in_time(path: Path) -> AsyncIterator[None]:
    """Cancel a start that takes too long. Raises EngineError with vLLM's last words."""
    limit_s, log = start_limit_s(), Since(path)
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise EngineError(
            f"vLLM did not start within {limit_s:g} s; its last words: {last_line(log.text())}",
            hint=f"Read {path}: what it waits for may be a download, or a process that hangs.",
        ) from None


class HangWatch:
    """Ends an engine that has work and makes no progress for too long.

    ``progress`` returns a number that changes with every iteration or token; ``end`` ends the
    engine, so that whoever waits for it gets the error; ``pids`` are its processes.
    """

    def __init__(
        self,
        progress: Callable[[], int],
        end: Callable[[StoodStillError], None],
        *,
        pids: Sequence[int] = (),
        first_s: float | None = None,
    ) -> None:
        """``first_s``: how long it may take to its first progress, by default as long as a start:
        kernels are compiled for a first prompt."""
        self._progress, self._end, self._pids = progress, end, pids
        self._first_s = start_limit_s() if first_s is None else first_s
        self._waiting = 0
        self._watching: asyncio.Task[None] | None = None
        self.begin()

    def begin(self) -> None:
        """Forget what the start has shown: its requests are short."""
        self._longest_s: list[float] = []

    @contextmanager
    def over(self) -> Iterator[None]:
        """Watch the engine while somebody waits for it."""
        self._waiting += 1
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting and self._watching is not None:
                self._watching.cancel()
                self._watching = None

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        seen, looked_s, still_s = self._progress(), loop.time(), 0.0
        while True:
            await asyncio.sleep(_LOOK_S)
            # what is longer than that we have stood still ourselves
            still_s += min(loop.time() - looked_s, 2 * _LOOK_S)
            looked_s = loop.time()
            # the second longest: the longest may be a stall
            usual_s = self._longest_s[0] if len(self._longest_s) > 1 else 0.0
            limit_s = HANG_FACTOR * usual_s if self._longest_s else self._first_s
            if (now := self._progress()) != seen:
                self._longest_s = sorted([*self._longest_s, still_s])[-2:]
                seen, still_s = now, 0.0
            elif still_s > max(HANG_S, limit_s):
                problem = f"The engine stands still: no iteration for {still_s:.0f} s"
                cause = StoodStillError(
                    f"{problem} with work waiting{self._stopped()}",
                    hint="See its log, and what the kernel and the driver say (dmesg); then tuner "
                    "resume.",
                    seconds=still_s,
                )
                self._end(cause)
                return

    def _stopped(self) -> str:
        """Say which of its processes a signal has stopped."""
        for pid in self._pids:
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                for each in (process, *process.children(recursive=True)):
                    if each.status() == psutil.STATUS_STOPPED:
                        return f": process {each.pid} was stopped by a signal"
        return ""

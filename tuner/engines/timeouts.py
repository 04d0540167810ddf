"""Waits for an engine with an end: until it has started, and while it makes no progress."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from tuner.engines import provenance
from tuner.engines.vllm.failure import last_line
from tuner.engines.vllm.log import Since
from tuner.errors import EngineError, StoodStillError, UsageError

START_ON_CPU_S = 600.0
START_S = 1800.0
"""With an accelerator: weights of hundreds of GB are read and graphs captured."""

HANG_S = 30.0
HANG_FACTOR = 20.0
"""An engine that has work hangs after so long, and so many times as long as it usually needs for an
iteration: one may take seconds on a slow machine."""

_LOOK_S = 0.5

_START = "TUNER_START_TIMEOUT"


def start_limit_s() -> float:
    """Return how long an engine may take to start. Raises UsageError for a variable that is no
    number of seconds."""
    given = os.environ.get(_START)
    usual_s = START_ON_CPU_S if provenance.is_cpu_build() else START_S
    try:
        return usual_s if given is None else float(given)
    except ValueError:
        raise UsageError(
            f"{_START}: {given!r} is not a number of seconds",
            hint=f"Set it to seconds, as in {_START}=600.",
        ) from None


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
            hint=f"Read {path}, or give it longer: {_START}={3 * limit_s:.0f}.",
        ) from None


class HangWatch:
    """Ends an engine that has work and makes no progress for too long.

    ``progress`` returns a number that changes with every iteration or token; ``end`` ends the
    engine, so that whoever waits for it gets the error; ``doing`` describes its processes.
    """

    def __init__(
        self,
        progress: Callable[[], int],
        end: Callable[[StoodStillError], None],
        *,
        doing: Callable[[], str] = str,
        first_s: float | None = None,
    ) -> None:
        """``first_s``: how long it may take to its first progress, by default as long as a start:
        kernels are compiled for a first prompt."""
        self._progress, self._end, self._doing = progress, end, doing
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
                self._end(
                    StoodStillError(
                        f"{problem} with work waiting{self._doing()}",
                        hint="See its log, and what the kernel and the driver say (dmesg); then "
                        "tuner resume.",
                        seconds=still_s,
                    )
                )
                return

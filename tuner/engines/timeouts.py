"""Waits for an engine with an end: until it has started, and while it does not move."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from tuner.engines import provenance
from tuner.engines.seam import Reply, Stalls
from tuner.engines.vllm.failure import last_line
from tuner.engines.vllm.log import said_since, size_of
from tuner.errors import EngineError, StoodStillError, UsageError

START_ON_CPU_S = 600.0
START_S = 1800.0
"""With an accelerator: weights of hundreds of GB are read and graphs captured."""

STALL_S = 3.0
"""Time after which an engine that has work and does not move stands still, but see STALL_FACTOR."""

STALL_FACTOR = 3.0
"""Times as long as it usually needs, after which it stands still: an iteration may take seconds on
a slow machine."""

HANG_S = 30.0
HANG_FACTOR = 20.0
"""The same two bounds, after which it is taken to have stopped for good."""

_LOOK_S = 0.5
_ASK_S = 1.0
"""Time without a token after which it is asked for its iterations: a long prompt takes many."""

_START = "TUNER_START_TIMEOUT"


def start_limit_s() -> float:
    """Return how long an engine may take to start. Raises UsageError for a variable that is no
    number of seconds."""
    asked = os.environ.get(_START)
    if asked is None:
        return START_ON_CPU_S if provenance.is_cpu_build() else START_S
    try:
        return float(asked)
    except ValueError:
        raise UsageError(
            f"{_START}: {asked!r} is not a number of seconds",
            hint=f"Set it to seconds, as in {_START}=600.",
        ) from None


@asynccontextmanager
async def started_in_time(log: Path) -> AsyncIterator[None]:
    """Cancel a start that takes longer than it may. Raises EngineError with vLLM's last words."""
    limit_s = start_limit_s()
    said_before = size_of(log)
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise EngineError(
            f"vLLM did not start within {limit_s:g} s; its last words: "
            f"{last_line(said_since(log, said_before))}",
            hint=f"Read {log}, or give it longer: {_START}={3 * limit_s:.0f}.",
        ) from None


class MoveWatch:
    """Tells when an engine that has work does not move, and ends it when it has for too long.

    It moves when a token comes or an iteration ends. ``iterations`` returns how many have ended
    since it was called last; ``end`` ends the engine, so that whoever waits for it is told;
    ``doing`` says what is seen of its processes.
    """

    def __init__(
        self,
        iterations: Callable[[], Awaitable[int]],
        end: Callable[[StoodStillError], None],
        doing: Callable[[], str] = str,
    ) -> None:
        self._iterations, self._end, self._doing = iterations, end, doing
        self.stalls = Stalls()
        self._replies: dict[int, Reply] = {}
        self._tokens = self._seen = 0
        self._is_asked = self._has_iterated = False
        self.begin()
        self._watching: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Forget what the start has shown: its requests are short."""
        self._has_moved, self._longest_s = False, (0.0, 0.0)

    @contextmanager
    def over(self, reply: Reply | None = None) -> Iterator[None]:
        """Watch it while somebody waits for a reply, or for anything else of it."""
        answers, reply = reply is None, reply or Reply()
        self._replies[id(reply)] = reply
        if self._watching is None:
            self._is_asked = self._has_iterated = False
            self._watching = asyncio.get_running_loop().create_task(self._watch())
        try:
            yield
        finally:
            del self._replies[id(reply)]
            self._tokens += reply.output_tokens
            if not self._replies:
                if not self._watching.done():  # else it has stood still for good
                    self._leave(is_answered=answers)
                self._watching.cancel()
                self._watching = None

    @property
    def needed_s(self) -> float:
        """Return the longest that it has needed, but for once: that may have been a stall."""
        return self._longest_s[1]

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        looked_s = loop.time()
        while True:
            await asyncio.sleep(_LOOK_S)
            now_s = loop.time()
            passed_s = min(now_s - looked_s, 2 * _LOOK_S)  # the rest we have stood still ourselves
            looked_s = now_s
            if self._has_moved_on():
                self._goes_on()
                continue
            self.stalls.now_s += passed_s
            if self.stalls.now_s > self._hang_timeout_s():
                self._end(self._stood_still())
                return
            if self.stalls.now_s >= _ASK_S and (self._asking is None or self._asking.done()):
                self._asking = loop.create_task(self._ask())

    def _has_moved_on(self) -> bool:
        tokens = self._tokens + sum(reply.output_tokens for reply in self._replies.values())
        iterated, self._has_iterated = self._has_iterated, False
        if tokens != self._seen:
            self._seen, self._is_asked, iterated = tokens, False, True
        self._has_moved |= iterated
        return iterated

    async def _ask(self) -> None:
        with suppress(EngineError):  # whoever waits is told
            found = await self._iterations()
            self._has_iterated |= self._is_asked and found > 0  # the first are those of before
            self._is_asked = True

    def _leave(self, *, is_answered: bool) -> None:
        """End the watch: nobody waits any more, because what was waited for came, or as when a
        replay is cut.

        The time that it stood still until then counts here, and not against whoever asks next.
        """
        if self._has_moved_on() or is_answered:
            self._goes_on()
        else:  # what it needs is not known
            self._note(self.stalls.now_s)
            self.stalls.now_s = 0.0

    def _goes_on(self) -> None:
        self._note(self.stalls.now_s)
        _, *longest = sorted((*self._longest_s, self.stalls.now_s))
        self._longest_s = longest[1], longest[0]
        self.stalls.now_s = 0.0

    def _note(self, seconds: float) -> None:
        if seconds >= max(STALL_S, STALL_FACTOR * self.needed_s):
            self.stalls.lengths_s.append(seconds)

    def _hang_timeout_s(self) -> float:
        """Return how long it may stand still. The first prompt may still be the start's: kernels
        are compiled for its length."""
        if not self._has_moved:
            return max(HANG_S, start_limit_s())
        return max(HANG_S, HANG_FACTOR * self.needed_s)

    def _stood_still(self) -> StoodStillError:
        seconds = self.stalls.now_s
        return StoodStillError(
            f"The engine stands still: no iteration for {seconds:.0f} s with work waiting"
            f"{self._doing()}",
            hint="See its log, and what the kernel and the driver say (dmesg); then tuner resume.",
            seconds=seconds,
        )

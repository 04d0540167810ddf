"""An event loop on which time is free: instead of waiting it jumps to the next thing that happens.

A simulated process, the engine of ``--world``, is attached to the loop. Whenever nothing is
ready to run, it may advance by itself up to the next timer; so it wakes the loop when it has news
and not at each of its steps.
"""

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar, TypeVarTuple

from tuner.system import interruption

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

Advance = Callable[[float], float]
"""Advances a process until there is news for a task, but no further than a time; returns the time
reached. What happens exactly at that time is only finished, not begun: tasks that wake then come
first."""


class DeadlockError(RuntimeError):
    """Every task waits, and nothing can ever happen that would wake one."""


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that never waits, but for threads: those take real time, and none passes here."""

    now_s = 0.0
    threads = 0
    advance: Advance = staticmethod(lambda until_s: until_s)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.threads:
            return super().select(0 if timeout is not None and timeout <= 0 else None)
        events = super().select(0)
        if not events and (timeout is None or timeout > 0):
            now_s = self.advance(math.inf if timeout is None else self.now_s + timeout)
            if math.isinf(now_s):
                tasks = asyncio.all_tasks(asyncio.get_event_loop())
                names = sorted(task.get_name() for task in tasks)
                raise DeadlockError(f"no task can ever wake again, waiting: {', '.join(names)}")
            self.now_s = now_s
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """``loop.time()`` starts at ``begin_s`` and moves only when every task waits."""

    def __init__(self, begin_s: float = 0.0) -> None:
        self._jumping = _JumpingSelector()
        self._jumping.now_s = begin_s
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    def attach(self, advance: Advance) -> None:
        """Let a process advance with this loop's time: one at a time."""
        assert "advance" not in vars(self._jumping)
        self._jumping.advance = advance

    def detach(self) -> None:
        del self._jumping.advance

    def run_in_executor(
        self,
        executor: Executor | None,
        func: Callable[[*Arguments], Result],
        *args: *Arguments,
    ) -> "asyncio.Future[Result]":
        future = super().run_in_executor(executor, func, *args)
        self._jumping.threads += 1
        future.add_done_callback(self._thread_ended)
        return future

    async def shutdown_default_executor(self, *timeout: float | None) -> None:
        self._jumping.threads += 1
        try:
            await super().shutdown_default_executor(*timeout)
        finally:
            self._jumping.threads -= 1

    def _thread_ended(self, _: object) -> None:
        self._jumping.threads -= 1


def run(coroutine: Coroutine[Any, Any, Result], *, begin_s: float = 0.0) -> Result:
    """Run on virtual time from ``begin_s`` on, as ``interruption.run`` does on real time."""
    return interruption.run(coroutine, loop_factory=partial(VirtualTimeLoop, begin_s))

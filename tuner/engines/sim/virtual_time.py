"""An event loop on which time is free: instead of waiting it jumps to the next thing that happens.

A simulated process, the engine of ``--world``, is attached to the loop. Whenever nothing is
ready to run, it may advance by itself up to the next timer; so it wakes the loop when it has news
and not at each of its steps. What a task does in a thread is done at once: no time passes.
"""

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from tuner.system import interruption

Result = TypeVar("Result")

Advance = Callable[[float], float]
"""Advances a process until there is news for a task, but no further than a time; returns the time
reached. What happens exactly at that time is only finished, not begun: tasks that wake then come
first."""


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that never waits."""

    now_s = 0.0
    advance: Advance | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events and (timeout is None or timeout > 0):
            until_s = math.inf if timeout is None else self.now_s + timeout
            self.now_s = until_s if self.advance is None else self.advance(until_s)
            if math.isinf(self.now_s):
                raise RuntimeError("every task waits, and nothing can ever happen that wakes one")
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """``loop.time()`` starts at ``begin_s`` and moves only when every task waits."""

    def __init__(self, begin_s: float = 0.0) -> None:
        self._jumping = _JumpingSelector()
        self._jumping.now_s = begin_s
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    def attach(self, advance: Advance | None) -> None:
        """Let a process advance with this loop's time, one at a time; None: none any more."""
        assert advance is None or self._jumping.advance is None
        self._jumping.advance = advance

    def run_in_executor(
        self, _: object, func: Callable[..., Any], *args: object
    ) -> "asyncio.Future[Any]":
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - whoever waits for it gets it
            future.set_exception(error)
        return future


def run(coroutine: Coroutine[Any, Any, Result], *, begin_s: float = 0.0) -> Result:
    """Run on virtual time from ``begin_s`` on, as ``interruption.run`` does on real time."""
    return interruption.run(coroutine, loop_factory=partial(VirtualTimeLoop, begin_s))

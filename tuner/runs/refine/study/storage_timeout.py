"""Asks what may never answer, or may answer without end: for ANSWER_S and MOST_BYTES at most.

So a database whose server hangs holds up nobody for longer, and one whose server goes on fills no
memory. The question is asked on a thread of its own, always the same one, because drivers keep a
connection for each thread. The run's own thread waits for the answer, and hears signals meanwhile.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

from tuner.system.memory import resident_bytes

ANSWER_S = 30.0
"""How long anybody waits: a study asks for milliseconds of work."""

MOST_BYTES = 1 << 30
"""By how much the process may grow meanwhile: a study is some megabytes."""

LOOK_S = 0.1

T = TypeVar("T")


class TimedStorage:
    """Somebody who asks, and waits for ANSWER_S and MOST_BYTES at most; then ``cut`` is called, so
    that nothing more is heard."""

    def __init__(self, cut: Callable[[], None] = lambda: None) -> None:
        self._cut = cut
        self.is_over = False
        """Whether there was once no answer, or nobody asks any more: there will be none."""

        self._questions: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.thread = Thread(target=self._work, name="storage", daemon=True)
        """A daemon: nobody waits at the end for what never answers."""

        self.thread.start()

    def ask(self, action: Callable[[], T]) -> T:
        """Return what an action returns, or raise what it raises; TimeoutError when that takes too
        long, or too much."""
        if self.is_over:
            raise TimeoutError("it did not answer before")
        answer: Future[T] = Future()

        def work() -> None:
            try:
                answer.set_result(action())
            except Exception as error:  # noqa: BLE001 - whoever asked wants to know
                answer.set_exception(error)

        self._questions.put(work)
        until_s, most_bytes = time.monotonic() + ANSWER_S, resident_bytes() + MOST_BYTES
        while not wait([answer], LOOK_S).done:
            is_endless = resident_bytes() > most_bytes
            if is_endless or time.monotonic() > until_s:
                self.is_over = True
                self._cut()
                why = (
                    "it answers without end" if is_endless else f"no answer within {ANSWER_S:.0f}s"
                )
                raise TimeoutError(why)
        return answer.result()

    def leave(self, action: Callable[[], None]) -> None:
        """Do this last, and wait for it no longer than for an answer."""
        if self.is_over:
            self._questions.put(action)  # in case it ever answers
        else:
            self.ask(action)
            self.is_over = True
        self._questions.put(None)

    def _work(self) -> None:
        while (work := self._questions.get()) is not None:
            work()

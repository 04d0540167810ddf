"""One HTTP request, and the calls to the engine that it leads to."""

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

from tuner.capture.call import Call

CURRENT: "ContextVar[Exchange | None]" = ContextVar("tuner_exchange", default=None)
"""The exchange on whose behalf code runs: inherited by the tasks that a server makes for it."""

REFUSED = frozenset({400, 413, 422, 429, 503})
"""Answers that turn a request away, whether it is too long or the server too full."""

NOT_TRAFFIC = frozenset({401, 403, 404, 405, 415})
"""Wrong keys, routes and models: nothing that any setting of the engine would serve."""


@dataclass(slots=True)
class Exchange:
    """One HTTP request. ``emit`` takes each call that has ended."""

    path: str
    emit: Callable[[Call], None]
    arrival_s: float = field(default_factory=time.monotonic)
    http_status: int | None = None
    answered: bool = False
    """The whole answer was sent."""

    gone: bool = False
    """The client left before that."""

    first_chunk_s: float | None = None
    over: bool = False
    called: bool = False
    """The engine was asked."""

    lost: bool = False
    """Recording it failed: it has no row, and is counted as lost."""

    answered_before: bool = False
    """The engine has answered a call: one that comes now is a further step, such as a beam's."""

    open: dict[Call, Callable[[], None]] = field(default_factory=dict)
    """Calls under way → what looks up how many tokens they have so far."""

    broken: list[Call] = field(default_factory=list)
    """Calls that failed; what that means depends on the answer."""

    def saw_chunk(self) -> None:
        if self.first_chunk_s is None:
            self.first_chunk_s = time.monotonic()

    def call_arrival_s(self) -> float:
        """Return when a call that begins now arrived: with the request, or after the step before.

        The prompts of a batch arrive together; the steps of a beam search do not.
        """
        return time.monotonic() if self.answered_before else self.arrival_s

    def begin(self, call: Call, look_up: Callable[[], None]) -> None:
        self.called = True
        self.open[call] = look_up

    def finished(self, call: Call) -> None:
        if self.open.pop(call, None) is not None:
            self.answered_before = True
            self.emit(call)

    def stopped(self, call: Call, *, failed: bool) -> None:
        """Enter that a call ended before its last output: it failed, or was cancelled."""
        look_up = self.open.pop(call, None)
        if look_up is None:
            return
        if not failed:
            look_up()
            self._cancelled(call)
            return
        call.ends("error", "error")
        if self.over:
            self.emit(call)
        else:
            self.broken.append(call)

    def disconnected(self) -> None:
        """Enter that the client went away. After the whole answer that is no abort."""
        if self.answered or self.gone:
            return
        self.gone = True
        for look_up in self.open.values():
            look_up()

    def ended(self, *, failed: bool) -> None:
        """End it: the server is done with it. Calls still under way belong to the background."""
        self.over = True
        if self.gone or failed:
            for call, look_up in list(self.open.items()):
                if not self.gone:
                    look_up()
                self._cancelled(call)
            self.open.clear()
        for call in self.broken:
            if self.http_status in REFUSED:
                call.ends("rejected", f"http_{self.http_status}")
            self.emit(call)
        self.broken.clear()

    def _cancelled(self, call: Call) -> None:
        if self.gone:
            call.ends("aborted", "abort")
        else:  # the server stopped, or dropped it
            call.ends("error", "abort")
        self.emit(call)

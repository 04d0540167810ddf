"""The control of a live server on its thread: whatever happens to it, the server goes on."""

import os
import threading
from collections.abc import Mapping, Sequence

from tuner.engines.server.peer import Peer
from tuner.engines.server.protocol import About, Answer, Refused, line_of
from tuner.errors import TunerError
from tuner.live.control import socket_files
from tuner.live.control.control import LOOK_S, LiveControl
from tuner.live.control.limits import Knobs
from tuner.live.control.listener import Listener
from tuner.live.control.record import log
from tuner.system.contain_errors import contain_errors

STOP_S = 2.0

_BROKEN = line_of(Answer(ok=False, error="the control failed", hint="See the server's log."))


class LiveThread:
    """The thread that answers. An error on it is in vLLM's log, and nowhere else."""

    def __init__(  # noqa: PLR0913 - what it is told of the server
        self,
        knobs: Knobs,
        path: str,
        *,
        audit: str | None,
        rank: int,
        vllm: str,
        arguments: Mapping[str, str | int | float | bool | None],
        kv_blocks: int,
        unmodelled: Sequence[str],
        cautions: Sequence[str],
    ) -> None:
        self._knobs = knobs
        self._path, self._audit = path, audit
        self._about = About(
            pid=os.getpid(),
            rank=rank,
            vllm=vllm,
            arguments=dict(arguments),
            device=None,
            kv_blocks=kv_blocks,
            unmodelled=list(unmodelled),
            cautions=list(cautions),
        )
        self._listener: Listener | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=contain_errors, args=(switched_off, self._run), name="tuner-live", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take the socket away and end, or leave a thread that hangs behind."""
        self._stopped.set()
        if self._listener is not None:
            self._listener.stop()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        at = socket_files.place(self._path, rank=self._about.rank, audit=self._audit)
        listening = socket_files.listen(at)
        try:
            device = contain_errors(_unknown, _device_facts)
            about = self._about.model_copy(update={"device": device})
            control = LiveControl(self._knobs, at, about)
            control.open()

            def answer(line: bytes, peer: Peer) -> bytes:
                return contain_errors(_complain, control.answer, line, peer) or _BROKEN

            def tick() -> float:
                return contain_errors(_complain, control.tick) or LOOK_S

            self._listener = Listener(
                listening.socket, answer=answer, refuse=control.refuse, tick=tick
            )
            log.info("tuner: live control at %s, audit in %s", at.socket, at.audit)
            if not self._stopped.is_set():
                self._listener.run()
        finally:
            socket_files.withdraw(at, listening)


def switched_off(problem: Exception) -> None:
    """Say that there is no control, or no more, and why."""
    hint = problem.hint if isinstance(problem, TunerError | Refused) else ""
    log.error("tuner: live control is off: %s: %s. %s", type(problem).__name__, problem, hint)


def _complain(problem: Exception) -> None:
    log.error("tuner: live control failed: %s: %s", type(problem).__name__, problem)


def _unknown(problem: Exception) -> None:
    log.warning("tuner: live control cannot tell the device: %s", problem)


def _device_facts() -> dict[str, object]:
    from tuner.engines import devices  # noqa: PLC0415 - a server may lack what it needs

    return dict(devices.device_facts())

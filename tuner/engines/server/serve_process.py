"""A ``vllm serve`` of our own: a process group, and nothing that is left behind."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from tuner.engines import devices
from tuner.engines.page import SOCKET
from tuner.engines.vllm import failure
from tuner.engines.vllm.log import Since
from tuner.errors import EngineError
from tuner.system import files, interruption

STOP_S = 10.0
"""Time that it may take to end by itself."""

GONE_S = 10.0
"""Time after a failed request within which the server may turn out to have ended."""

_LOOK_S = 0.1

_NOT_FOR_IT = ("VLLM_LOGGING_STREAM", "VLLM_API_KEY", SOCKET)
"""Variables that tuner, or a deployment, has set for others: its requests come without a key."""


class ServeProcess:
    """The guardian, and through it the server with all that it has started."""

    def __init__(self, guardian: "subprocess.Popen[bytes]", log: Since) -> None:
        self._guardian, self.log = guardian, log
        self._cause: EngineError | None = None
        self._memory_before = devices.memory_used()
        interruption.ends_with_us(self.kill)
        assert guardian.stdout is not None
        group = guardian.stdout.readline()
        guardian.stdout.close()
        self.group = int(group) if group.strip().isdigit() else 0

    @property
    def pid(self) -> int:
        """The guardian's."""
        return self._guardian.pid

    @classmethod
    def launch(
        cls, command: Sequence[str], *, environment: Mapping[str, str], log: Path
    ) -> "ServeProcess":
        """Start a command; what it prints goes to the log. Raises EngineError without a
        guardian."""
        since = Since(log)
        kept = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_IT}
        with open(log, "ab", opener=files.opened_own) as output:
            guardian = subprocess.Popen(  # noqa: S603 - vLLM, as the user has asked for it
                [sys.executable, "-P", "-m", "tuner.engines.server.guardian", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**kept, **environment},
                start_new_session=True,
            )
        made = cls(guardian, since)
        if not made.group:
            made.kill()
            raise EngineError("the server's guardian did not start", hint=f"Read {log}.")
        return made

    async def ready(self, is_healthy: Callable[[], Awaitable[bool]]) -> None:
        """Wait until it is. Raises EngineError with why it never will be."""
        while not await is_healthy():
            if self._guardian.poll() is not None:
                raise failure.failed_to_start(self.log)
            await asyncio.sleep(_LOOK_S)

    async def death_soon(self, is_alive: Callable[[], bool]) -> EngineError | None:
        """Return what it died of, after a request that failed; None once it shows that it lives.

        Who lost a request may know of the death before we do.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + GONE_S
        while self._guardian.poll() is None and not is_alive() and loop.time() <= until_s:  # noqa: ASYNC110 - a process gives no event
            await asyncio.sleep(_LOOK_S)
        return self.death()

    def death(self) -> EngineError | None:
        """Return what it died of; None while it lives."""
        code = self._guardian.poll()
        if code is None or self._cause is not None:
            return self._cause
        return failure.died(code, self.log, who="vllm serve")

    def end(self, cause: EngineError) -> None:
        """End it now, for this cause."""
        self._cause = cause
        self.kill()

    async def stop(self, *, device: Mapping[str, object] | None = None) -> None:
        """End it in order, or else at once, and wait for the memory of its GPUs, or of all. Twice
        is allowed."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.group, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._guardian.wait, STOP_S)
        await self.abandon(device=device)

    async def abandon(self, *, device: Mapping[str, object] | None = None) -> None:
        """End it at once: a server that has served nobody has nothing to bring to an end."""
        await asyncio.to_thread(self.kill)
        await devices.given_back(self._memory_before, device=device)

    def kill(self) -> None:
        """End all of it now. Any thread may, and twice."""
        interruption.has_ended(self.kill)
        if self.group:  # whose guardian ends it too, unless that was killed itself
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.group, signal.SIGKILL)
        assert self._guardian.stdin is not None
        self._guardian.stdin.close()
        self._guardian.wait()

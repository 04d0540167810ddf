"""Run vLLM's EngineCore in a child process that writes to a log file and ends when we end.

vLLM starts EngineCore through a ``multiprocessing`` context; for the length of one start it is
given ours. On a CPU that is a fork server, which imports vLLM while we do: a start then costs 3 s
instead of 15. The fork server has one thread and has done nothing but import, so forking it is safe
where forking us would not be. With an accelerator it is ``spawn``.
"""

import contextlib
import importlib.util
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext, ForkServerProcess, SpawnProcess
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tuner.engines import devices
from tuner.engines.page import SOCKET
from tuner.engines.vllm.failure import Since
from tuner.system import cores, files, interruption

_PRELOAD = ["vllm.v1.engine.core", "vllm.v1.worker.cpu_worker"]
_READ_ON_LOADING = ("LD_PRELOAD", "OMP_NUM_THREADS")
"""Variables that take effect when a program is loaded, so that the fork server's are final."""

_server_has: dict[str, str | None] = {}
"""The fork server's values of these; empty while there is no fork server."""


class _CoreProcess(BaseProcess):
    log: Path
    environment: dict[str, str]
    cancelled: bool = False

    def start(self) -> None:
        if self.cancelled:
            raise RuntimeError("the start was cancelled")
        self.environment = {**os.environ, **self.environment}
        self.environment.pop(SOCKET, None)  # a deployment's
        with output_to(self.log):
            super().start()

    def kill(self) -> None:
        """End it with the workers that it has started, which are of its process group."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):  # not yet, or no longer, a group
                os.killpg(self.pid, signal.SIGKILL)
            super().kill()

    def run(self) -> None:
        """In the child: guard it, then run what vLLM asked for.

        Its own session, so that Ctrl-C in the terminal reaches the tuner alone, which then stops
        it in order. The environment is the tuner's of now: the fork server's is older.
        """
        os.setsid()
        cores.leave_the_clients_core()
        threading.Thread(target=_die_with_parent, name="die-with-tuner", daemon=True).start()
        os.environ.clear()
        os.environ.update(self.environment)
        with output_to(self.log):
            super().run()


class _ForkServerCore(_CoreProcess, ForkServerProcess):
    pass


class _SpawnCore(_CoreProcess, SpawnProcess):
    pass


class CoreContext:
    """A multiprocessing context whose processes are guarded, logged and known to us.

    ``variables`` are set in them beside our own environment.
    """

    def __init__(self, log: Path, variables: Mapping[str, str] = {}) -> None:
        self.log, self.memory_before = Since(log), devices.memory_used()
        is_forked = _server_has == {name: os.environ.get(name) for name in _READ_ON_LOADING}
        self._kind: type[_CoreProcess] = _ForkServerCore if is_forked else _SpawnCore
        self._base: BaseContext = multiprocessing.get_context(
            "forkserver" if is_forked else "spawn"
        )
        self.processes: list[_CoreProcess] = []
        with output_to(log):
            resource_tracker.ensure_running()  # which tells of what is left when we end at once
        self._variables, self._cancelled = variables, False
        interruption.ends_with_us(self.kill)  # or leaving would wait for the engine for ever

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - all that a context has
        return getattr(self._base, name)

    def Process(self, **kwargs: Any) -> BaseProcess:  # noqa: ANN401, N802 - as in multiprocessing
        process = self._kind(**kwargs)
        process.log, process.environment = self.log.path, {**self._variables}
        process.cancelled = self._cancelled
        self.processes.append(process)
        return process

    def is_alive(self) -> bool:
        return all(process.is_alive() for process in self.processes)

    def kill(self) -> None:
        """End every process now, and let no other one start. Any thread may, and twice."""
        self._cancelled = True
        interruption.has_ended(self.kill)
        for process in self.processes:
            process.cancelled = True
            if process.pid is not None and process.exitcode != 0:
                process.kill()
        for process in self.processes:
            if process.pid is not None:
                process.join(timeout=10)


def preload(log: Path) -> None:
    """Let the fork server begin to import vLLM, unless one runs already. Returns at once."""
    if _server_has:
        return
    os.environ["LD_PRELOAD"] = _with_libraries(os.environ.get("LD_PRELOAD", ""))
    forkserver.set_forkserver_preload(_PRELOAD)
    with output_to(log):
        forkserver.ensure_running()
    _server_has.update({name: os.environ.get(name) for name in _READ_ON_LOADING})
    interruption.ends_with_us(_end_server)


def _end_server() -> None:
    """End the fork server: it ends by itself when we do, but not before its imports are done."""
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]  # noqa: SLF001
    with contextlib.suppress(ProcessLookupError):
        if pid is not None:
            os.kill(pid, signal.SIGTERM)


def _with_libraries(preloaded: str) -> str:
    """Return LD_PRELOAD with what vLLM's CPU platform would add for the processes it starts.

    vLLM does so when it has been imported; the fork server is older than that. Should vLLM find
    something else (vllm/platforms/cpu.py), CoreContext sees the difference and spawns.
    """
    specs = map(importlib.util.find_spec, ("torch", "vllm"))
    torch, vllm = (Path(str(spec and spec.origin)).parent for spec in specs)
    paths = [path for path in preloaded.split(":") if path]
    for name, folder in (
        ("libtcmalloc", vllm / "libs"),
        ("libgomp", torch.parent / "torch.libs"),
        ("libgomp", torch / "lib"),
    ):
        result = sorted(folder.glob(f"{name}*.so*"))
        if result and name not in ":".join(paths):
            paths.append(str(result[0]))
    return ":".join(paths)


def _die_with_parent() -> None:
    """Wait for the tuner's end, however it comes, and end this process and its workers.

    Not ``PR_SET_PDEATHSIG``: the kernel's parent is the fork server or, when spawned, whichever
    thread of the tuner did it, not the tuner.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.killpg(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def output_to(log: Path) -> Iterator[None]:
    """Append this process's standard output and error, and its children's, to the log.

    In the tuner that lasts for the milliseconds in which a process is started.
    """
    descriptor = files.opened_own(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    saved = {number: os.dup(number) for number in (1, 2)}

    def take_back() -> None:
        for number, kept in saved.items():
            os.dup2(kept, number)

    for number in saved:
        os.dup2(descriptor, number)
    interruption.ends_with_us(take_back)  # for the last words of one who is ended meanwhile
    try:
        yield
    finally:
        take_back()
        interruption.has_ended(take_back)
        for each in (*saved.values(), descriptor):
            os.close(each)

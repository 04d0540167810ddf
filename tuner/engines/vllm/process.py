"""The processes of an engine: EngineCore, ``vllm serve``, or workers. They log and end with us,
and what one failed of becomes one line with a cure.

vLLM starts EngineCore through a ``multiprocessing`` context; for the length of one start it is
given ours. On a CPU that is a fork server, which imports vLLM while we do: a start then costs 3 s
instead of 15. The fork server has one thread and has done nothing but import, so forking it is safe
where forking us would not be. With an accelerator it is ``spawn``.
"""

import asyncio
import contextlib
import logging
import multiprocessing
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from importlib import metadata
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerProcess, SpawnProcess
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TextIO

from pydantic import ValidationError

from tuner.engines import devices
from tuner.engines.page import SOCKET
from tuner.errors import EngineError
from tuner.system import cores, files, interruption

# Processes

_PRELOAD = ["vllm.v1.engine.core", "vllm.v1.worker.cpu_worker"]

_READ_ON_LOADING = ("LD_PRELOAD", "OMP_NUM_THREADS")
"""Variables that take effect when a program is loaded, so that the fork server's are final."""

_OF_DEPLOYMENTS = frozenset({SOCKET, "VLLM_API_KEY"})
"""Variables that may be set for a deployed server: no engine of ours is to have them."""

_GONE_S, _LOOK_S = 20.0, 0.1
"""Time after a failed request within which a process may turn out to have ended."""

_server_has: dict[str, str | None] = {}
"""The fork server's values of the variables; empty while there is no fork server."""


class _Process(BaseProcess):
    log: Path
    environment: Mapping[str, str]
    is_cancelled = has_ended = False

    def start(self) -> None:
        if self.is_cancelled:
            raise RuntimeError("the start was cancelled")
        with output_to(self.log):
            super().start()

    def run(self) -> None:
        """In the child: guard it, then run its target.

        Its own session, so that Ctrl-C in the terminal reaches the tuner alone, which then stops
        it in order. The environment is the tuner's of the start: the fork server's is older.
        """
        os.setsid()
        cores.leave_the_clients_core()
        threading.Thread(target=_die_with_parent, name="die-with-tuner", daemon=True).start()
        os.environ.clear()
        os.environ.update(self.environment)
        _redirect(self.log)
        super().run()

    def end(self) -> None:
        """End it with all that it has started, which is of its process group, or let it never
        start. Once it is gone, its number may be another's."""
        self.is_cancelled = True
        if self.pid is None or self.has_ended:
            return
        with contextlib.suppress(ProcessLookupError):  # not yet, or no longer, a group
            os.killpg(self.pid, signal.SIGKILL)
        self.kill()
        self.join(timeout=10)
        self.has_ended = self.exitcode is not None


class _ForkedProcess(_Process, ForkServerProcess):
    pass


class _SpawnedProcess(_Process, SpawnProcess):
    pass


class Processes:
    """A multiprocessing context whose processes are guarded, logged and known to us.

    ``variables`` are set in them beside our own environment.
    """

    def __init__(self, log: Path, variables: Mapping[str, str] = {}) -> None:
        self.log, self.memory_before = log, devices.memory_used()
        self._begin = log.stat().st_size if log.exists() else 0
        is_forked = _server_has == {name: os.environ.get(name) for name in _READ_ON_LOADING}
        self._kind: type[_Process] = _ForkedProcess if is_forked else _SpawnedProcess
        self._base: Any = multiprocessing.get_context("forkserver" if is_forked else "spawn")
        self._variables, self._is_ended, self._started = variables, False, list[_Process]()
        with output_to(log):
            resource_tracker.ensure_running()  # which tells of what is left when we end at once
        interruption.ends_with_us(self.end)  # or leaving would wait for the engine for ever

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - all that a context has
        return getattr(self._base, name)

    def Process(self, **kwargs: Any) -> BaseProcess:  # noqa: ANN401, N802 - as in multiprocessing
        process = self._kind(**kwargs)
        process.log, process.is_cancelled = self.log, self._is_ended
        ours = {name: value for name, value in os.environ.items() if name not in _OF_DEPLOYMENTS}
        process.environment = {**ours, **self._variables}
        self._started.append(process)
        return process

    def text(self) -> str:
        """Return what they have logged; nothing where it cannot be read."""
        with contextlib.suppress(OSError):
            return self.log.read_bytes()[self._begin :].decode(errors="replace")
        return ""

    def death(self) -> EngineError | None:
        """Return what the first that ended died of, while it served; None while all live."""
        if (how := self._first_end()) is None:
            return None
        reason = root_cause(self.text().partition(_FATAL)[2]) or how
        return _failure("The engine died", reason, f"Read {self.log}.")

    def failed_to_start(self, error: BaseException | None = None) -> EngineError:
        """Return what to raise when they did not start: their log knows why, or how one ended, or
        the error."""
        how = self._first_end() or ""
        if error is not None and "killed" not in how:
            how = _message(error)
        reason = root_cause(self.text()) or how
        return _failure("vLLM did not start", reason, f"Read {self.log}.")

    def _first_end(self) -> str | None:
        """Return how the first of them ended."""
        for each in self._started:
            if (code := each.exitcode) is not None:
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else "ended"
                return f"{each.name} {how}"
        return None

    async def ended(self) -> None:
        """Wait until one has, but not for long: who loses a request may know of it earlier."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GONE_S):
                while self._first_end() is None:  # noqa: ASYNC110 - a process gives no event
                    await asyncio.sleep(_LOOK_S)

    def end(self) -> None:
        """End every process now, and let no other one start. Any thread may, and twice."""
        self._is_ended = True
        interruption.has_ended(self.end)
        for process in self._started:
            process.end()


def preload(log: Path) -> None:
    """Let the fork server begin to import vLLM, unless one runs already. Returns at once.

    It is older than what vLLM's CPU platform adds to LD_PRELOAD for the processes it starts, so
    that is added here. Should vLLM decide otherwise (vllm/platforms/cpu.py), or the user, then
    Processes sees the difference and spawns.
    """
    if _server_has:
        return
    site = Path(str(metadata.distribution("torch").locate_file("")))
    gomp = [*site.glob("torch.libs/libgomp*.so*"), *site.glob("torch/lib/libgomp*.so*")]
    libraries = [*sorted(site.glob("vllm/libs/libtcmalloc*.so*"))[:1], *gomp[:1]]
    os.environ.setdefault("LD_PRELOAD", ":".join(map(str, libraries)))
    forkserver.set_forkserver_preload(_PRELOAD)
    with output_to(log):
        forkserver.ensure_running()
    _server_has.update({name: os.environ.get(name) for name in _READ_ON_LOADING})
    interruption.ends_with_us(_end_server)


def _end_server() -> None:
    """End the fork server: it ends by itself when we do, but not before its imports are done."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(forkserver._forkserver._forkserver_pid, signal.SIGTERM)  # type: ignore[attr-defined]  # noqa: SLF001


def _die_with_parent() -> None:
    """Wait for the tuner's end, however it comes, and end this process and its workers.

    Not ``PR_SET_PDEATHSIG``: the kernel's parent is the fork server or, when spawned, whichever
    thread of the tuner did it, not the tuner.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.killpg(os.getpid(), signal.SIGKILL)


# Their log


def _redirect(log: Path) -> None:
    """Append this process's standard output and error to the log."""
    descriptor = files.opened_own(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for number in (1, 2):
        os.dup2(descriptor, number)
    os.close(descriptor)


@contextlib.contextmanager
def output_to(log: Path) -> Iterator[None]:
    """Let what is started write to the log: for the milliseconds of a start, tuner does too."""
    saved = {number: os.dup(number) for number in (1, 2)}
    try:
        _redirect(log)
        yield
    finally:
        for number, kept in saved.items():
            os.dup2(kept, number)
            os.close(kept)


class _Stream:
    """The stream under vLLM's log handler, however often vLLM configures its logging anew.

    In the tuner that is the log file of the engine started last; in vLLM's processes, which import
    this module too, it is standard output, which is their log file.
    """

    file: TextIO | None = None

    def write(self, text: str) -> int:
        return (self.file or sys.stdout).write(text)

    def flush(self) -> None:
        (self.file or sys.stdout).flush()


STREAM = _Stream()


@contextlib.contextmanager
def silent(log: Path) -> Iterator[None]:
    """Let what vLLM logs here go to ``log``, now and afterwards, and let no warning be shown."""
    os.environ["VLLM_LOGGING_STREAM"] = f"ext://{__name__}.STREAM"
    if STREAM.file is not None:
        STREAM.file.close()
    STREAM.file = open(log, "a", buffering=1, errors="replace", opener=files.opened_own)  # noqa: SIM115
    for name in ("vllm", "transformers", "huggingface_hub", "torch", "filelock"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [logging.StreamHandler(STREAM)], False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# What failed

_LONGEST = 300
"""Characters of somebody else's message that still read as one line."""

_CURES = {
    r"less than desired GPU memory utilization|Free memory on device": (
        "Another process holds the device's memory: end it, or lower gpu_memory_utilization."
    ),
    r"(?i)cache blocks|kv cache (is )?needed|kv cache memory|no available memory|gpu_blocks": (
        "Raise gpu_memory_utilization or kv_cache_memory_bytes, or lower max_model_len."
    ),
    r"(?i)out of ?memory|MemoryError|allocate memory|less than requested|primitive|by SIGKILL": (
        "Lower gpu_memory_utilization or kv_cache_memory_bytes, --ceiling or max_model_len."
    ),
    r"max_num_batched_tokens .*max_num_seqs": "Lower --ceiling, or raise max_num_batched_tokens.",
    r"max_model_len": "Set max_model_len to what the model can do.",
    r"(?i)repo id must|repository id|couldn't connect|offline mode|no such file|local folder": (
        "Give a folder with a config.json, a model that this machine can download, or tuner:tiny."
    ),
}
"""What vLLM says → what to do."""

_RAISED = re.compile(r"(?m)(?:^|\s)(?:[a-z_]\w*\.)*([A-Z]\w*(?:Error|Exception)): +(\S.*)$")
_FATAL = "EngineCore encountered a fatal error"
_CONSEQUENCE = re.compile("Engine core initialization failed|EngineDeadError|EngineGenerateError")


def refused(error: Exception) -> EngineError:
    """Return what to raise when vLLM refused its arguments with ``error``."""
    return _failure("vLLM refuses", _message(error), "Change that argument.")


def root_cause(text: str) -> str | None:
    """Return the first error that a process logged, the last line of its traceback."""
    for raised in _RAISED.finditer(text):
        kind, message = raised.groups()
        if not _CONSEQUENCE.search(raised[0]):
            return message if kind in {"ValueError", "RuntimeError"} else raised[0]
    return None


def last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2][:_LONGEST] or "nothing"


def _message(error: BaseException) -> str:
    if not isinstance(error, ValidationError):
        return str(error) or type(error).__name__
    first = error.errors()[0]
    name = next((part for part in first["loc"] if isinstance(part, str)), None)
    message = first["msg"].removeprefix("Value error, ")
    return f"{name.split('.')[0]}: {message}, not {first['input']!r}" if name else message


def _failure(what: str, reason: str, otherwise: str) -> EngineError:
    line = reason.strip().partition("\n")[0]
    cures = (cure for pattern, cure in _CURES.items() if re.search(pattern, line))
    shown = line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
    return EngineError(f"{what}: {shown}", hint=next(cures, otherwise))

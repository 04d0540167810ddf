"""vLLM's log goes to a file, and what failed becomes one line with a cure."""

import contextlib
import logging
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pydantic

from tuner.errors import EngineError
from tuner.system import files

_KIN = ("vllm", "transformers", "huggingface_hub", "torch", "filelock")


class _Stream:
    """The stream under vLLM's log handler, however often vLLM configures its logging anew.

    In the tuner that is the log file of the engine started last; in EngineCore, which imports this
    module too, it is standard output, which is its engine's log file.
    """

    file: TextIO | None = None

    def write(self, text: str) -> int:
        return (self.file or sys.stdout).write(text)

    def flush(self) -> None:
        (self.file or sys.stdout).flush()


STREAM = _Stream()


@contextlib.contextmanager
def silent(log: Path) -> Iterator[None]:
    """Let what is logged go to ``log``, now and afterwards, and let no warning be shown."""
    os.environ["VLLM_LOGGING_STREAM"] = f"ext://{__name__}.STREAM"
    if STREAM.file is None or STREAM.file.name != str(log):
        if STREAM.file is not None:
            STREAM.file.close()
        STREAM.file = open(log, "a", buffering=1, errors="replace", opener=files.opened_own)  # noqa: SIM115
    handler = logging.StreamHandler(STREAM)
    for name in _KIN:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Since:
    """What is written to a log from now on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start = path.stat().st_size if path.exists() else 0

    def text(self) -> str:
        """Return it; nothing where it cannot be read."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._start)
                return file.read().decode(errors="replace")
        except OSError:
            return ""


_LONGEST = 300
"""Characters of somebody else's message that still read as one line."""

_CURES = (
    (
        r"less than desired GPU memory utilization|Free memory on device",
        "Another process holds the device's memory: end it, or lower gpu_memory_utilization.",
    ),
    (
        r"(?i)cache blocks|kv cache (is )?needed|kv cache memory|no available memory|gpu_blocks",
        "Raise gpu_memory_utilization or kv_cache_memory_bytes, or lower max_model_len.",
    ),
    (
        r"(?i)out of ?memory|MemoryError|allocate memory|less than requested|primitive|by SIGKILL",
        "Lower gpu_memory_utilization or kv_cache_memory_bytes, --ceiling or max_model_len.",
    ),
    (
        r"max_num_batched_tokens .*max_num_seqs",
        "Lower --ceiling, or raise max_num_batched_tokens.",
    ),
    (r"max_model_len", "Set max_model_len to what the model can do."),
    (
        r"(?i)repo id must|repository id|couldn't connect|offline mode|no such file|local folder",
        "Give a folder with a config.json, a model that this machine can download, or tuner:tiny.",
    ),
)

_RAISED = re.compile(r"(?:^|\s)(?:[a-z_]\w*\.)*([A-Z]\w*(?:Error|Exception)): +(\S.*)$")
_FATAL = "EngineCore encountered a fatal error"
_KILLED = re.compile(r"Failed core proc\(s\): \{'(\w+)': -(\d+)")
_CONSEQUENCE = re.compile("Engine core initialization failed|EngineDeadError|EngineGenerateError")


def refused(error: Exception) -> EngineError:
    """Return what to raise when vLLM refused its arguments with ``error``."""
    message = _first_line(_message(error))
    return EngineError(f"vLLM refuses: {message}", hint=_cure(message, "Change that argument."))


def failed_to_start(log: Since, error: BaseException | None = None) -> EngineError:
    """Return what to raise when an engine did not start: the child's log knows why, or the error,
    or the log's last line."""
    text = log.text()
    reason = root_cause(text) or (_first_line(_message(error)) if error else last_line(text))
    if (killed := _KILLED.search(reason)) is not None:
        reason = f"{killed[1]} was killed by {_signal_name(int(killed[2]))}"
    return EngineError(f"vLLM did not start: {reason}", hint=_cure(reason, f"Read {log.path}."))


def died(exit_code: int | None, log: Since, *, who: str = "EngineCore") -> EngineError:
    """Return what to raise when the engine, or ``who`` runs it, ended while it served."""
    reason = root_cause(log.text().partition(_FATAL)[2])
    if reason is None and exit_code is not None and exit_code < 0:
        reason = f"{who} was killed by {_signal_name(-exit_code)}"
    reason = reason or f"{who} ended"
    return EngineError(f"The engine died: {reason}", hint=_cure(reason, f"Read {log.path}."))


def root_cause(log_text: str) -> str | None:
    """Return the first error that a process logged, the last line of its traceback."""
    for line in log_text.splitlines():
        raised = _RAISED.search(line)
        if raised and not _CONSEQUENCE.search(line):
            kind, message = raised.groups()
            return _first_line(message if kind in {"ValueError", "RuntimeError"} else raised[0])
    return None


def last_line(log_text: str) -> str:
    """Return the last line that a process logged."""
    return _first_line("\n".join(reversed(log_text.splitlines()))) or "nothing"


def _message(error: BaseException) -> str:
    if not isinstance(error, pydantic.ValidationError):
        return str(error) or type(error).__name__
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    named = [part for part in first["loc"] if isinstance(part, str)]
    return f"{named[0].split('.')[0]}: {message}, not {first['input']!r}" if named else message


def _first_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _signal_name(number: int) -> str:
    known = {each.value: each.name for each in signal.Signals}
    return known.get(number, f"signal {number}")


def _cure(message: str, otherwise: str) -> str:
    return next((cure for pattern, cure in _CURES if re.search(pattern, message)), otherwise)

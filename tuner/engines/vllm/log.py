"""Send what vLLM and its dependencies log to a file, never to tuner's own output."""

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

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

"""The control of a live server with nothing but a scheduler's numbers behind it."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import wait_until
from tuner.live import control
from tuner.live.control import About, Limits, LiveThread

BUILT = Limits(max_num_seqs=32, max_num_batched_tokens=8192)
ARGUMENTS: dict[str, Any] = {"model": "m", "kv_cache_dtype": "auto", "tensor_parallel_size": 1}


@dataclass
class Numbers:
    """What a scheduler would have."""

    built: Limits = BUILT
    cap: int = 32
    running: int = 0
    waiting: int = 0
    is_broken: bool = False

    def limits(self) -> Limits:
        return Limits(self.cap, self.built.max_num_batched_tokens)

    def load(self) -> tuple[int, int]:
        return self.running, self.waiting

    def set_max_num_seqs(self, cap: int) -> None:
        if self.is_broken:
            raise RuntimeError("broken")
        self.cap = cap


@dataclass
class Server:
    path: Path
    numbers: Numbers


@contextmanager
def serving(
    path: Path,
    *,
    rank: int = 0,
    numbers: Numbers | None = None,
    arguments: dict[str, Any] | None = None,
) -> Iterator[Server]:
    """Answer at a socket, as the thread in a server does."""
    numbers = numbers or Numbers()
    about = About(os.getpid(), rank, "0.32.0", {**ARGUMENTS, **(arguments or {})})
    with pytest.MonkeyPatch.context() as unknown:
        unknown.setattr(control, "_device_facts", lambda: None)
        thread = LiveThread(numbers, str(path), about)
        thread.start()
        try:
            wait_until(lambda: thread.listening is not None)
            yield Server(path if rank == 0 else Path(f"{path}.dp{rank}"), numbers)
        finally:
            thread.stop()


def answered(path: Path, line: bytes) -> Any:  # noqa: ANN401 - JSON
    """Send raw bytes and return the answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(20)
        client.connect(str(path))
        client.sendall(line)
        return json.loads(client.makefile().readline())

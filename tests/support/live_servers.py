"""The control of a live server with nothing but a scheduler's numbers behind it."""

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import wait_until
from tuner.live import control, control_client
from tuner.live.control import About, Limits, LiveThread, Refused, State

BUILT = Limits(max_num_seqs=32, max_num_batched_tokens=8192)
ARGUMENTS: dict[str, Any] = {"model": "m", "kv_cache_dtype": "auto", "tensor_parallel_size": 1}


@dataclass
class Numbers:
    """What a scheduler would have."""

    built: Limits = BUILT
    set: Limits = BUILT
    running: int = 0
    waiting: int = 0
    least_tokens: int = 1
    busy: bool = False

    def limits(self) -> Limits:
        return self.set

    def load(self) -> tuple[int, int]:
        return self.running, self.waiting

    def set_limits(self, limits: Limits) -> None:
        if self.busy:
            raise Refused("the engine is busy", hint="Wait.", kind="failed")
        self.set = limits


@dataclass
class Server:
    path: Path
    numbers: Numbers

    @property
    def state(self) -> State:
        return control_client.state(self.path)

    @property
    def cap(self) -> int:
        return self.numbers.set.max_num_seqs


@contextmanager
def serving(
    path: Path,
    *,
    rank: int = 0,
    numbers: Numbers | None = None,
    arguments: dict[str, Any] | None = None,
    vllm: str = "0.32.0",
) -> Iterator[Server]:
    """Answer at a socket, as the thread in a server does."""
    numbers = numbers or Numbers()
    about = About(os.getpid(), rank, vllm, {**ARGUMENTS, **(arguments or {})})
    with pytest.MonkeyPatch.context() as unknown:
        unknown.setattr(control, "_device_facts", lambda: None)
        thread = LiveThread(numbers, str(path), about)
        thread.start()
        try:
            at = path if rank == 0 else path.with_name(f"{path.name}.dp{rank}")
            wait_until(at.exists)
            yield Server(at, numbers)
        finally:
            thread.stop()


def said(path: Path, line: bytes, *, then: Callable[[socket.socket], None] | None = None) -> Any:  # noqa: ANN401 - JSON
    """Send raw bytes and return the answer; None where there is none."""
    received = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(20)
        client.connect(str(path))
        client.sendall(line)
        if then is not None:
            then(client)
        while got := client.recv(2**16):
            received += got
    return json.loads(received) if received else None

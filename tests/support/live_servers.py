"""The control of a live server with nothing but a scheduler's numbers behind it."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.engines import page
from tuner.live import control

ARGUMENTS: dict[str, Any] = {"model": "m", "kv_cache_dtype": "auto", "tensor_parallel_size": 1}


@dataclass
class Server:
    path: Path
    cells: NDArray[np.void] = field(default_factory=lambda: np.zeros(1, page.PAGE))

    @property
    def cap(self) -> int:
        return int(self.cells["max_num_seqs"][0])


@contextmanager
def serving(
    path: Path, *, rank: int = 0, built: int = 32, arguments: dict[str, Any] | None = None
) -> Iterator[Server]:
    """Answer at a socket, as the thread in a server does."""
    server = Server(path if rank == 0 else Path(f"{path}.dp{rank}"))
    server.cells["max_num_seqs"] = built
    state = control.State(
        vllm="0.32.0", rank=rank, built=built, arguments={**ARGUMENTS, **(arguments or {})},
        device={"kind": "cpu"},
    )  # fmt: skip
    stop = control.start(path, state, server.cells)
    try:
        yield server
    finally:
        stop()


def answered(path: Path, line: bytes) -> Any:  # noqa: ANN401 - JSON
    """Send raw bytes and return the answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(20)
        client.connect(str(path))
        client.sendall(line)
        return json.loads(client.makefile().readline())

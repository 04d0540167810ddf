"""The control of a live server with nothing but a scheduler's numbers behind it."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tuner.engines.server import control_client
from tuner.engines.server.protocol import About, Limits, Log, Refused, Served, State
from tuner.live.control import socket_files
from tuner.live.control.control import LiveControl
from tuner.live.control.listener import Listener

DIGEST = "sha256:" + "0" * 64
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
    resets: int = 0
    rows: list[str] = field(default_factory=list)
    """Base64, a part each."""

    served: list[Served] = field(default_factory=list)

    def limits(self) -> Limits:
        return self.set

    def load(self) -> tuple[int, int, int]:
        return self.running, self.waiting, 0

    def set_limits(self, limits: Limits, *, idle: bool = False) -> None:
        if self.busy:
            raise Refused("the engine is busy", hint="Wait.", kind="failed")
        if idle:
            self._check_idle()
        self.set = limits

    def reset_prefix_cache(self) -> None:
        self._check_idle()
        self.resets += 1

    def take_log(self, *, go_on: bool) -> Log:
        rows, self.rows = self.rows[:1], self.rows[1:] if go_on else []
        served, self.served = self.served, []
        return Log(rows="".join(rows), served=served, lost=0, more=bool(self.rows))

    def _check_idle(self) -> None:
        if self.running or self.waiting:
            raise Refused("requests are running or waiting", hint="Wait.")


@dataclass
class Server:
    path: Path
    numbers: Numbers
    control: LiveControl
    clock: "Clock"

    @property
    def audit(self) -> list[dict[str, Any]]:
        return audit(self.path)

    @property
    def state(self) -> State:
        return control_client.state(self.path)

    @property
    def cap(self) -> int:
        return self.numbers.set.max_num_seqs


@dataclass
class Clock:
    """Stands still until it is set."""

    time: datetime = field(default_factory=lambda: datetime(2026, 11, 20, 12, tzinfo=UTC))

    def __call__(self) -> datetime:
        return self.time

    def set(self, text: str) -> None:
        self.time = datetime.fromisoformat(text)


def audit(path: Path) -> list[dict[str, Any]]:
    text = path.with_name(f"{path.name}.audit.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@contextmanager
def serving(  # noqa: PLR0913 - one parameter for each thing that may differ
    path: Path,
    *,
    rank: int = 0,
    numbers: Numbers | None = None,
    clock: Clock | None = None,
    arguments: dict[str, Any] | None = None,
    vllm: str = "0.32.0",
    first: Callable[[Path], None] = lambda _: None,
) -> Iterator[Server]:
    """Answer at a socket, as the thread in a server does; ``first`` comes before it is at work."""
    numbers, clock = numbers or Numbers(), clock or Clock()
    at = socket_files.place(str(path), rank=rank, audit=None)
    listening = socket_files.listen(at)
    about = About(
        pid=1, rank=rank, vllm=vllm, arguments={**ARGUMENTS, **(arguments or {})}, device=None
    )
    control = LiveControl(numbers, at, about, now=clock)
    try:
        control.open()
        listener = Listener(
            listening.socket, answer=control.answer, refuse=control.refuse, tick=control.tick
        )
        thread = threading.Thread(target=listener.run)
        first(at.socket)
        thread.start()
        try:
            yield Server(at.socket, numbers, control, clock)
        finally:
            listener.stop()
            thread.join(20)
            assert not thread.is_alive()
    finally:
        socket_files.withdraw(at, listening)


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

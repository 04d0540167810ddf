"""A real ``vllm serve`` of the tiny model, and a client that keeps to a plan."""

import asyncio
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tuner.engines.models import shipped as models
from tuner.live import prometheus as metrics_text

BIN = Path(sys.executable).parent
CAP = 8
TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"


def now_s() -> float:
    return datetime.now(UTC).timestamp()


@contextmanager
def vllm_serve(folder: Path, *options: str, **environment: str) -> Iterator[str]:
    """Serve until the block ends, then stop as a SIGTERM does; the log is in ``folder``."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "template.jinja").write_text(TEMPLATE)
    with (folder / "serve.log").open("w") as log:
        process = subprocess.Popen(
            [
                *(str(BIN / "vllm"), "serve", models.model_path("tuner:tiny")),
                *("--served-model-name", "tiny", "--port", str(port), "--load-format", "dummy"),
                *("--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", "268435456"),
                *("--max-num-seqs", str(CAP), "--distributed-executor-backend", "uni"),
                *("--chat-template", str(folder / "template.jinja"), *options),
            ],
            cwd=folder,
            stdout=log,
            stderr=log,
            env={
                **os.environ,
                "VLLM_NO_USAGE_STATS": "1",
                "OMP_NUM_THREADS": "1",
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                **environment,
            },
            start_new_session=True,
        )
        url = f"http://127.0.0.1:{port}"
        try:
            _wait(process, url, folder / "serve.log")
            yield url
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _wait(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(0.3)
            pytest.fail(f"the server ended with {code}: {log.read_text()[-2000:]}")
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return


def post(url: str, path: str = "/v1/completions", **body: Any) -> tuple[int, bytes]:  # noqa: ANN401
    """Return status and body of the answer."""
    asked = {"model": "tiny", "max_tokens": 5, "ignore_eos": True, **body}
    request = urllib.request.Request(
        url + path, data=json.dumps(asked).encode(), headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


def hang_up(url: str, **body: Any) -> None:  # noqa: ANN401 - JSON
    """Ask, wait until the engine is at work on it, and leave."""
    asked = json.dumps({"model": "tiny", "ignore_eos": True, **body}).encode()
    host, port = url.removeprefix("http://").split(":")
    tick = threading.Event()
    with socket.create_connection((host, int(port)), 20) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(asked), asked)
        )
        while running(url) == 0:
            tick.wait(0.02)
    while running(url) > 0:  # until the server has noticed
        tick.wait(0.02)


def gauges(url: str) -> tuple[float, float]:
    """Return what the server calls running, and waiting."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=20) as answer:
        found = metrics_text.parse(answer.read().decode(), source=url).gauges
    return found["running"], found["waiting"]


def running(url: str) -> float:
    return gauges(url)[0]


@dataclass(slots=True)
class Gauges:
    """What the server says of its concurrency, again and again."""

    url: str
    every_s: float = 0.1
    times_s: list[float] = field(default_factory=list)
    in_flight: list[float] = field(default_factory=list)

    @contextmanager
    def watched(self) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._watch, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _watch(self, stop: threading.Event) -> None:
        while not stop.wait(self.every_s):
            begun_s = now_s()
            in_flight = sum(gauges(self.url))
            self.times_s.append((begun_s + now_s()) / 2)
            self.in_flight.append(in_flight)


@dataclass(frozen=True, slots=True)
class Planned:
    """A request and when it is sent."""

    at_s: float
    prompt: Sequence[int]
    max_tokens: int
    stream: bool = True


def send(url: str, plan: Sequence[Planned]) -> None:
    """Send every request when it is due, whatever the others do, and wait for all answers."""

    async def one(start_s: float, planned: Planned) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(start_s + planned.at_s - loop.time())
        asked = functools.partial(
            post,
            url,
            prompt=list(planned.prompt),
            max_tokens=planned.max_tokens,
            stream=planned.stream,
        )
        status, _ = await loop.run_in_executor(None, asked)
        assert status == 200

    async def everything() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(64))
        start_s = loop.time()
        await asyncio.gather(*(one(start_s, planned) for planned in plan))

    asyncio.run(everything())

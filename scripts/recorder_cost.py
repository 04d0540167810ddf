"""Measures what the recorder costs a real server, on and off in turn: scripts/recorder_cost.py.

A server gets a middleware that records a request only where a header says so. So both kinds meet
the same server at the same moment, and the machine's moods cancel out. The server is, in turn,

bare        uvicorn with nothing behind it that computes: all that is left to see is the recorder
vllm        vLLM with the tiny model

and measured are

latency     single requests, each recorded or not at random: added time to the first token and to
            the end, at the median and at p99, with a 95 % interval (bootstrap)
throughput  batches of requests, recorded or not in random pairs: the ratio of their durations, and
            the CPU time that the server's process took for them, which neighbours disturb less
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from tuner.capture import TraceRecorder
from tuner.engines.models import shipped as models

ROOT = Path(__file__).parents[1]
HEADER = "x-record"
WORKERS, TOKENS = 2, 16
BATCH_WORKERS, BATCH_TOKENS = 16, 64
BATCH_REQUESTS = {"bare": 400, "vllm": 32}
DRAWS = 2000

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Any]], Any]


class Switched:
    """The recorder, for requests that ask for it."""

    def __init__(self, app: App) -> None:
        self._app, self._recorder = app, TraceRecorder(app)

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:  # noqa: ANN401
        asked = (HEADER.encode(), b"1") in scope.get("headers", ())
        to = self._recorder if asked or scope["type"] != "http" else self._app
        await to(scope, receive, send)


class BareEngine:
    """Puts out tokens as fast as they are taken."""

    async def generate(self, prompt: Any, sampling_params: Any, _: str) -> Any:  # noqa: ANN401
        ids, stats = prompt["prompt_token_ids"], SimpleNamespace(queued_ts=1.0, scheduled_ts=1.0)
        for token in range(1, sampling_params.max_tokens + 1):
            last = token == sampling_params.max_tokens
            stats.num_generation_tokens = token
            choice = SimpleNamespace(
                index=0, token_ids=[7], finish_reason="length" if last else None
            )
            await asyncio.sleep(0)
            yield SimpleNamespace(
                prompt_token_ids=ids, outputs=[choice], finished=last, metrics=stats
            )


class BareApp:
    """Answers as vLLM does, with nothing of what vLLM does for it."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(engine_client=BareEngine())
        self._inner = Switched(self._answer)

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:  # noqa: ANN401
        scope["app"] = self
        await self._inner(scope, receive, send)

    async def _answer(self, scope: Message, receive: Any, send: Any) -> None:  # noqa: ANN401
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        start = {"type": "http.response.start", "status": 200, "headers": []}
        await send(start)
        if body:
            asked = json.loads(body)
            params = SimpleNamespace(n=1, max_tokens=asked["max_tokens"], output_kind=Kind.DELTA)
            prompt = {"type": "token", "prompt_token_ids": asked["prompt"]}
            async for _ in self.state.engine_client.generate(prompt, params, "r"):
                piece = b'data: {"choices":[{"index":0,"text":"w"}]}\n\n'
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class Kind(Enum):
    DELTA = 1


@contextmanager
def served(folder: Path, kind: str) -> Iterator[tuple[int, psutil.Process]]:
    """Return port and process of a server whose requests may be recorded."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    vllm = [
        *(str(Path(sys.executable).parent / "vllm"), "serve", models.model_path("tuner:tiny")),
        *("--served-model-name", "tiny", "--port", str(port), "--load-format", "dummy"),
        *("--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", "268435456"),
        *("--max-num-seqs", str(BATCH_WORKERS), "--distributed-executor-backend", "uni"),
        *("--middleware", "scripts.recorder_cost.Switched", "--disable-uvicorn-access-log"),
    ]
    bare = [
        *(sys.executable, "-m", "uvicorn", "--factory", "scripts.recorder_cost:BareApp"),
        *("--port", str(port), "--log-level", "warning", "--lifespan", "off"),
    ]
    command = vllm if kind == "vllm" else bare
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "TUNER_TRACE_OUT": str(folder / "trace"),
    }
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(  # noqa: S603 - the command is ours
            command, stdout=log, stderr=log, env=environment, cwd=folder, start_new_session=True
        )
    try:
        while True:
            if process.poll() is not None:
                sys.exit(f"the server did not start:\n{(folder / 'log').read_text()[-2000:]}")
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            time.sleep(0.3)
        yield port, psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


class Client:
    """One connection that is kept, and asks for one stream after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, port: int) -> "Client":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, prompt: list[int], tokens: int, *, record: bool) -> tuple[float, float]:
        """Return the seconds until the first token and until the end. Raises ConnectionError."""
        body = json.dumps(
            {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
            | {"stream": True}
        )
        begin_s = time.monotonic()
        self._writer.write(
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"{HEADER}: {int(record)}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        seen, first_s = b"", 0.0
        while not seen.endswith(b"\r\n0\r\n\r\n"):
            piece = await self._reader.read(65536)
            if not piece:
                raise ConnectionError(seen[-500:].decode())
            seen = seen[-200:] + piece
            if not first_s and b"data: " in seen:
                first_s = time.monotonic() - begin_s
        return first_s, time.monotonic() - begin_s


def prompt_of(rng: random.Random, longest: int) -> list[int]:
    return [rng.randrange(20, 400) for _ in range(rng.randrange(16, longest))]


async def latencies(port: int, requests: int) -> dict[bool, NDArray[np.float64]]:
    """Return recorded or not → (requests, 2) seconds to the first token and to the end."""
    rng = random.Random(1)  # noqa: S311 - a load, no secret
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    left = iter(range(requests))

    async def work() -> None:
        client = await Client.connect(port)
        for _ in left:
            record = rng.random() < 0.5
            found[record].append(await client.ask(prompt_of(rng, 128), TOKENS, record=record))

    await asyncio.gather(*(work() for _ in range(WORKERS)))
    return {record: np.array(some) for record, some in found.items()}


async def batch(
    port: int, process: psutil.Process, requests: int, *, record: bool
) -> tuple[float, float, float]:
    """Return how long a batch took, and the CPU seconds of the server and with its engine."""
    rng = random.Random(2)  # noqa: S311 - a load, no secret
    prompts = iter([prompt_of(rng, 64) for _ in range(requests)])
    clients = [await Client.connect(port) for _ in range(BATCH_WORKERS)]

    async def work(client: Client) -> None:
        for prompt in prompts:
            await client.ask(prompt, BATCH_TOKENS, record=record)

    before, begin_s = cpu_s(process), time.monotonic()
    await asyncio.gather(*map(work, clients))
    took_s, after = time.monotonic() - begin_s, cpu_s(process)
    return took_s, after[0] - before[0], after[1] - before[1]


def cpu_s(process: psutil.Process) -> tuple[float, float]:
    """Return CPU seconds of the process that speaks HTTP, and of its engine too."""
    own, *others = [
        sum(one.cpu_times()[:2]) for one in (process, *process.children(recursive=True))
    ]
    return own, own + sum(others)


async def batches(
    port: int, process: psutil.Process, requests: int, pairs: int
) -> dict[bool, NDArray[np.float64]]:
    rng = random.Random(3)  # noqa: S311 - an order, no secret
    found: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
    await batch(port, process, requests, record=True)  # the first warms up
    for _ in range(pairs):
        for record in rng.sample([False, True], 2):
            found[record].append(await batch(port, process, requests, record=record))
    return {record: np.array(some) for record, some in found.items()}


def added(found: dict[bool, NDArray[np.float64]], column: int, quantile: float) -> dict[str, float]:
    """Return by how much recording moves a quantile, in ms, with its 95 % interval."""
    rng = np.random.default_rng(0)
    off, on = found[False][:, column], found[True][:, column]
    draws = [
        np.quantile(rng.choice(on, len(on)), quantile)
        - np.quantile(rng.choice(off, len(off)), quantile)
        for _ in range(DRAWS)
    ]
    low, high = np.quantile(draws, (0.025, 0.975))
    middle = np.quantile(on, quantile) - np.quantile(off, quantile)
    return {"ms": 1e3 * middle, "low_ms": 1e3 * low, "high_ms": 1e3 * high}


def ratio(found: dict[bool, NDArray[np.float64]], column: int) -> dict[str, float]:
    """Return off / on over pairs: 0.99 is a throughput of 99 %; geometric mean, 95 % interval."""
    logs = np.log(found[False][:, column] / found[True][:, column])
    se = logs.std(ddof=1) / np.sqrt(len(logs))
    return {
        "ratio": float(np.exp(logs.mean())),
        "low": float(np.exp(logs.mean() - 1.96 * se)),
        "high": float(np.exp(logs.mean() + 1.96 * se)),
    }


def measured(kind: str, requests: int, pairs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, served(Path(folder), kind) as (port, process):
        asyncio.run(latencies(port, 200))  # warms up
        single = asyncio.run(latencies(port, requests))
        many = asyncio.run(batches(port, process, BATCH_REQUESTS[kind], pairs))
    tokens = BATCH_REQUESTS[kind] * BATCH_TOKENS
    cpu = {record: 1e6 * found[:, 1:] / tokens for record, found in many.items()}
    return {
        "requests": requests,
        "end_off_p50_ms": 1e3 * float(np.median(single[False][:, 1])),
        "end_off_p99_ms": 1e3 * float(np.quantile(single[False][:, 1], 0.99)),
        **{
            f"added_{name}_{label}": added(single, column, quantile)
            for column, name in ((0, "first"), (1, "end"))
            for label, quantile in (("p50", 0.5), ("p99", 0.99))
        },
        "pairs": pairs,
        "server_us_per_token": float(np.median(cpu[False][:, 0])),
        "with_engine_us_per_token": float(np.median(cpu[False][:, 1])),
        "added_us_per_token": float(np.median(cpu[True][:, 0]) - np.median(cpu[False][:, 0])),
        "throughput": ratio(many, 0),
        "server_cpu": ratio(many, 1),
        "with_engine_cpu": ratio(many, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What the recorder costs a real server.")
    parser.add_argument("--server", choices=["bare", "vllm"], action="append")
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    kinds = options.server or ["bare", "vllm"]
    report = {kind: measured(kind, options.requests, options.pairs) for kind in kinds}
    if options.json:
        print(json.dumps(report))
        return
    for kind, values in report.items():
        for name, value in values.items():
            shown = (
                "  ".join(f"{key} {number:.4g}" for key, number in value.items())
                if isinstance(value, dict)
                else f"{value:.4g}"
            )
            print(f"{kind:5} {name:16} {shown}")


if __name__ == "__main__":
    main()

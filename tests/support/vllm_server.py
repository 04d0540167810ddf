"""A real ``vllm serve`` of the tiny model, and a client that keeps to a plan."""

import base64
import contextlib
import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support import paced
from tuner.engines.models import shipped as models

BIN = Path(sys.executable).parent
CAP = 8
RUNNING = "vllm:num_requests_running{"
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


@dataclass(frozen=True, slots=True)
class RealServer:
    """A server into which all is loaded that tuner has for one, with even steps: the recorders, the
    control of its cap, and spans. Its tests leave it idle, and its cap as it was."""

    url: str
    folder: Path
    bodies: list[bytes]
    """What came where it sends its spans to."""

    @property
    def socket(self) -> Path:
        return self.folder / "tuner.sock"

    def recorded(self) -> Path:
        """Return the recorder's file."""
        (path,) = (self.folder / "trace").iterdir()
        return path

    def rows(self) -> int:
        """Return how many requests are in it."""
        files = (self.folder / "trace").glob("*.jsonl")
        return sum(path.read_bytes().count(b"\n") - 1 for path in files)

    def spans(self, *, since_s: float) -> list[dict[str, Any]]:
        """Return the OTLP/JSON of the requests that began later: one object each."""
        later = [_without_earlier(_as_json(body), since_s) for body in self.bodies]
        return [each for each in later if _spans(each)]


@contextmanager
def real_server(folder: Path) -> Iterator[RealServer]:
    with (
        _collector() as (port, bodies),
        vllm_serve(
            folder,
            *("--middleware", "tuner.capture.TraceRecorder"),
            *("--scheduler-cls", "tuner.engines.live_scheduler.LiveScheduler"),
            *("--otlp-traces-endpoint", f"http://127.0.0.1:{port}/v1/traces"),
            TUNER_TRACE_OUT="trace",
            TUNER_LIVE_SOCKET=str(folder / "tuner.sock"),
            OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="http/protobuf",
            OTEL_BSP_SCHEDULE_DELAY="200",  # milliseconds
            **paced.environment(folder),
        ) as url,
    ):
        yield RealServer(url, folder, bodies)


@contextmanager
def _collector() -> Iterator[tuple[int, list[bytes]]]:
    """Yield the port at which spans are taken, and what came there."""
    bodies: list[bytes] = []

    class Take(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            packed = self.headers.get("Content-Encoding") == "gzip"
            bodies.append(gzip.decompress(body) if packed else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Take)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1], bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _as_json(body: bytes) -> dict[str, Any]:
    """Return OTLP/JSON: protobuf's own mapping, but for ids, which are hexadecimal."""
    json_format = pytest.importorskip("google.protobuf.json_format")
    service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    result = json_format.MessageToDict(service.ExportTraceServiceRequest.FromString(body))
    for span in _spans(result):
        for key in {"traceId", "spanId", "parentSpanId"} & span.keys():
            span[key] = base64.b64decode(span[key]).hex()
    plain: dict[str, Any] = json.loads(json.dumps(result))
    return plain


def _spans(export: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        each
        for resource in export["resourceSpans"]
        for scope in resource["scopeSpans"]
        for each in scope["spans"]
    ]


def _without_earlier(export: dict[str, Any], since_s: float) -> dict[str, Any]:
    for resource in export["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            scope["spans"] = [each for each in scope["spans"] if _begin_s(each) >= since_s]
    return export


def _begin_s(span: dict[str, Any]) -> float:
    return int(span["startTimeUnixNano"]) / 1e9


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
    wanted = {"model": "tiny", "max_tokens": 5, "ignore_eos": True, **body}
    request = urllib.request.Request(
        url + path, data=json.dumps(wanted).encode(), headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


def hang_up(url: str, **body: Any) -> None:  # noqa: ANN401 - JSON
    """Ask, wait until the engine is at work on it, and leave."""
    wanted = json.dumps({"model": "tiny", "ignore_eos": True, **body}).encode()
    host, port = url.removeprefix("http://").split(":")
    tick = threading.Event()
    with socket.create_connection((host, int(port)), 20) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(wanted), wanted)
        )
        while running(url) == 0:
            tick.wait(0.02)
    while running(url) > 0:  # until the server has noticed
        tick.wait(0.02)


def running(url: str) -> float:
    """Return what the server calls running."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(RUNNING))


@dataclass(frozen=True, slots=True)
class Planned:
    """A request and when it is sent."""

    at_s: float
    prompt: Sequence[int]
    max_tokens: int
    stream: bool = True


def send(url: str, plan: Sequence[Planned]) -> None:
    """Send every request when it is due, whatever the others do, and wait for all answers."""
    begin_s, tick = time.monotonic(), threading.Event()

    def send(planned: Planned) -> int:
        tick.wait(max(0.0, begin_s + planned.at_s - time.monotonic()))
        wanted: dict[str, Any] = {
            "prompt": list(planned.prompt),
            "max_tokens": planned.max_tokens,
            "stream": planned.stream,
        }
        return post(url, **wanted)[0]

    with ThreadPoolExecutor(len(plan)) as pool:
        assert set(pool.map(send, plan)) == {200}

"""The spans that a real vLLM server sends, read as the collector would have written them."""

import base64
import gzip
import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.spans import export, span
from tests.support.traces import write_lines
from tests.support.vllm_server import hang_up, post, vllm_serve
from tuner.trace.trace import Trace, load

pytestmark = pytest.mark.vllm

TRACE, CLIENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@contextmanager
def collector() -> Iterator[tuple[int, list[bytes]]]:
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


def as_json(body: bytes) -> dict[str, object]:
    """Return OTLP/JSON: protobuf's own mapping, but for ids, which are hexadecimal."""
    json_format = pytest.importorskip("google.protobuf.json_format")
    service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    found = json_format.MessageToDict(service.ExportTraceServiceRequest.FromString(body))
    for resource in found["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for one in scope["spans"]:
                for key in {"traceId", "spanId", "parentSpanId"} & one.keys():
                    one[key] = base64.b64decode(one[key]).hex()
    text: dict[str, object] = json.loads(json.dumps(found))
    return text


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spans")
    with collector() as (port, bodies):
        endpoint = f"http://127.0.0.1:{port}/v1/traces"
        with vllm_serve(
            folder,
            *("--otlp-traces-endpoint", endpoint),
            OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="http/protobuf",
        ) as url:
            assert post(url, prompt=[5] * 20, max_tokens=7)[0] == 200
            assert post(url, prompt=[6] * 21, max_tokens=8, n=3, temperature=0.9)[0] == 200
            hang_up(url, prompt=[7] * 22, max_tokens=1900)
            assert post(url, prompt=[8] * 100_000)[0] == 400
            asked = json.dumps(
                {"model": "tiny", "prompt": [9] * 23, "max_tokens": 6, "ignore_eos": True}
            )
            with urllib.request.urlopen(
                urllib.request.Request(
                    f"{url}/v1/completions",
                    data=asked.encode(),
                    headers={
                        "Content-Type": "application/json",
                        "traceparent": f"00-{TRACE}-{CLIENT}-01",
                    },
                ),
                timeout=60,
            ) as answer:
                assert answer.status == 200
        # The server sends what it still holds when it ends.
    return write_lines(folder / "spans.jsonl", *map(as_json, bodies))


def read(path: Path) -> tuple[str, Trace]:
    trace = load(path)
    return trace.header.source, trace


def test_three_finished_requests_are_three_rows_and_one_has_three_sequences(spans: Path) -> None:
    source, trace = read(spans)
    assert source == "vllm-otlp"
    assert [(one.input_length, one.output_length, one.n) for one in trace.requests] == [
        (20, 7, 1),
        (21, 8, 3),
        (23, 6, 1),
    ]
    assert trace.header.dropped == {"same_request": 2}


def test_the_one_whose_client_left_and_the_one_refused_are_said_to_be_missing(spans: Path) -> None:
    assert {"aborts", "errors"} <= set(read(spans)[1].header.missing)


def test_times_fit_together(spans: Path) -> None:
    for one in read(spans)[1].requests:
        assert one.e2e_s is not None
        assert one.ttft_s is not None
        assert one.queue_s is not None
        assert 0 <= one.queue_s < one.ttft_s <= one.e2e_s < 60
        assert one.replica == 0


def test_a_clients_own_span_above_the_servers_is_counted_once(spans: Path) -> None:
    usage = {
        "gen_ai.operation.name": "chat",
        "gen_ai.usage.input_tokens": 23,
        "gen_ai.usage.output_tokens": 6,
    }
    client = span("chat tiny", kind=3, traceId=TRACE, spanId=CLIENT, attributes=usage)
    path = write_lines(spans.with_name("both.jsonl"), export(client, scope="openai"))
    path.write_text(path.read_text() + spans.read_text())
    trace = load(path, format_name="otel-genai")
    assert [one.input_length for one in trace.requests] == [20, 21, 23]
    assert trace.header.dropped == {"same_request": 3}

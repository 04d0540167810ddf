"""The spans that a real vLLM server sends, read as the collector would have written them."""

import json
import threading
import urllib.request
from pathlib import Path

import pytest

from tests.spans import export, span
from tests.traces import write_lines
from tests.vllm_server import RealServer, hang_up, now_s, post
from tuner.trace import Trace, load

pytestmark = [pytest.mark.vllm, pytest.mark.serve]

SENT = 1 + 3 + 1
"""One request, three sequences of another, and the one with a client's span above it."""

TRACE, CLIENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(scope="module")
def spans(real_server: RealServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    url, begin_s = real_server.url, now_s()
    assert post(url, prompt=[5] * 20, max_tokens=7)[0] == 200
    assert post(url, prompt=[6] * 21, max_tokens=8, n=3, temperature=0.9)[0] == 200
    hang_up(url, prompt=[7] * 22, max_tokens=1900)
    assert post(url, prompt=[8] * 100_000)[0] == 400
    asked = json.dumps({"model": "tiny", "prompt": [9] * 23, "max_tokens": 6, "ignore_eos": True})
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
    tick = threading.Event()
    while json.dumps(found := real_server.spans(since_s=begin_s)).count('"spanId"') < SENT:
        tick.wait(0.1)
    return write_lines(tmp_path_factory.mktemp("spans") / "spans.jsonl", *found)


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

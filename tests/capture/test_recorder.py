"""The recorder in a server: every request leaves its row, none of its text, and no failure."""

import hashlib
import hmac
import json
import struct
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from tests.support.places import ROOT
from tests.support.processes import wait_until
from tests.support.toy_server import ToyEngine, application, served
from tuner.capture import spool
from tuner.capture.call import prefix_ids, pseudonym
from tuner.capture.spool import (
    MAX_PENDING,
    MAX_PENDING_TOKENS,
    SLICE,
    Settings,
    Spool,
    settings_of,
)
from tuner.trace import trace
from tuner.trace.record import Row, TraceHeader
from tuner.trace.trace import Trace, TraceRequest

KEY = b"k" * 32
PROMPT = [*range(1, 34)]
"""Two blocks and a token."""


def ask(url: str, path: str = "/v1/completions", **body: Any) -> bytes:  # noqa: ANN401 - JSON
    """Post; return the whole answer, also that of a refusal."""
    content = {"prompt": PROMPT, "max_tokens": 4, **body}
    request = urllib.request.Request(url + path, data=json.dumps(content).encode())
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.read()  # type: ignore[no-any-return]
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.read()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNER_TRACE_OUT", str(tmp_path / "recorded"))
    return tmp_path / "recorded"


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("trace-*.jsonl"))


def recorded(folder: Path) -> Trace:
    (path,) = files(folder)
    assert path.stat().st_mode & 0o777 == 0o600
    return trace.load(path)


def only(folder: Path) -> TraceRequest:
    (request,) = recorded(folder).requests
    return request


def rows(folder: Path) -> list[dict[str, Any]]:
    (path,) = files(folder)
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def lost(reason: str) -> float:
    """Return how many requests the server's /metrics counts as not recorded."""
    return REGISTRY.get_sample_value("tuner_requests_not_recorded_total", {"reason": reason}) or 0


def test_a_request_is_recorded_as_the_engine_saw_it(folder: Path) -> None:
    with served(application(ToyEngine())) as url:
        ask(url, n=2, session="eve")
    result = only(folder)
    assert (result.input_length, result.output_length, result.output_lengths) == (33, 4, (4, 3))
    assert (result.n, result.max_tokens, result.cached_tokens, result.queue_s) == (2, 4, 4, 0.25)
    assert (result.status, result.finish_reason, result.stream) == ("ok", "length", False)
    assert len(result.hash_ids) == 2
    assert result.session_id not in {None, "eve"}
    assert result.e2e_s is not None
    assert result.ttft_s is None  # the client saw nothing before the end
    header = recorded(folder).header
    assert (header.source, header.model, header.missing) == ("vllm-middleware", "toy", ())


@pytest.mark.parametrize(
    ("status", "kept"),
    [(400, "rejected"), (503, "rejected"), (429, "rejected"), (500, "error"), (404, None)],
)
def test_a_refusal_is_recorded_when_it_is_traffic(
    folder: Path, status: int, kept: str | None
) -> None:
    with served(application(ToyEngine())) as url:
        ask(url, refuse=status)
        ask(url)
    assert [(row.get("status"), row.get("finish_reason")) for row in rows(folder)] == [
        *([(kept, f"http_{status}")] if kept else []),
        (None, "length"),
    ]


def test_without_a_vllm_engine_the_log_says_so_and_nothing_is_recorded(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with served(application(None)) as url:
        assert b"usage" in ask(url)
        assert b"usage" in ask(url)
    assert files(folder) == []
    assert [record.getMessage() for record in caplog.records] == [
        "tuner: nothing is recorded: no vLLM engine is behind this server"
    ]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("TUNER_TRACE_MAX_MB", "plenty", "TUNER_TRACE_MAX_MB=plenty: not a whole number"),
        ("TUNER_TRACE_MAX_MB", "-16", "TUNER_TRACE_MAX_MB=-16: not a whole number"),
        ("TUNER_TRACE_MAX_MB", "9" * 5000, "not a whole number from 1"),
        ("TUNER_TRACE_KEY", "secret", "TUNER_TRACE_KEY: not 32 or more hexadecimal digits"),
        ("TUNER_TRACE_OUT", "/dev/null/x", "Not a directory"),
    ],
)
def test_a_setting_that_cannot_be_used_is_logged_and_the_server_serves(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    value: str,
    message: str,
) -> None:
    monkeypatch.setenv(name, value)
    with served(application(ToyEngine())) as url:
        assert b"usage" in ask(url)
    assert len(caplog.records) == 1
    assert message in caplog.text
    assert "secret" not in caplog.text


def test_an_engine_that_is_not_as_expected_still_serves(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = ToyEngine()
    original = engine.generate

    async def stranger(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever is asked
        async for output in original(*args, **kwargs):
            del output.prompt_token_ids
            yield output

    engine.generate = stranger  # type: ignore[method-assign]
    with served(application(engine)) as url:
        assert b"usage" in ask(url)
        assert b"usage" in ask(url)
    assert caplog.text.count("a request is not recorded") == 1
    assert files(folder) == []


@pytest.mark.attack
@pytest.mark.parametrize("body", [{"prompt": [2**70] * 32}, {"prompt": [-1] * 32}])
def test_a_prompt_that_no_engine_takes_costs_no_other_row(
    folder: Path, body: dict[str, Any]
) -> None:
    with served(application(ToyEngine())) as url:
        ask(url, refuse=400, **body)
        ask(url, **body)
        ask(url)
    assert [row.get("status", "ok") for row in rows(folder)] == ["rejected", "ok", "ok"]
    assert [len(row.get("hash_ids", ())) for row in rows(folder)] == [0, 0, 2]


@pytest.mark.attack
@pytest.mark.parametrize("n", [300_000_000, 2**31 - 1, 16_385])
def test_more_answers_than_any_server_gives_are_not_counted_out(folder: Path, n: int) -> None:
    before = lost("not_recorded")
    with served(application(ToyEngine())) as url:
        ask(url, prompt=[666], n=n)
        ask(url)
    assert [row.get("status", "ok") for row in rows(folder)] == ["ok"]
    assert lost("not_recorded") - before == 1


def row(number: int, origin_s: float = 0.0, settings: Settings | None = None) -> Row:
    del origin_s, settings
    return Row(timestamp=number, input_length=1, output_length=1)


def spool_in(folder: Path, row_of: spool.RowOf[int] = row, **more: str) -> Spool[int]:
    settings = settings_of({"TUNER_TRACE_OUT": str(folder), **more})
    return Spool(settings, lambda: TraceHeader(source="test"), row_of)


def fill(target: Spool[int], count: int) -> None:
    for number in range(count):
        target.put(number)
    target.close()


ENDLESS = """
import sys, threading
from pathlib import Path
from tests.capture.test_recorder import spool_in
written = spool_in(Path(sys.argv[1]))
written.put(1)
written.put(2)
threading.Event().wait()
"""


def test_a_recording_that_was_killed_is_a_trace(tmp_path: Path) -> None:
    running = subprocess.Popen([sys.executable, "-c", ENDLESS, str(tmp_path)], cwd=ROOT)
    wait_until(lambda: files(tmp_path) != [] and files(tmp_path)[0].read_bytes().count(b"\n") == 3)
    running.kill()
    running.wait()
    loaded = recorded(tmp_path)
    assert len(loaded.requests) == 2
    assert loaded.warnings == ()


def test_a_full_file_takes_no_more_and_what_it_lacks_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def long_row(number: int, origin_s: float, settings: Settings) -> Row:
        del origin_s, settings
        return Row(timestamp=number, input_length=1, output_length=1, finish_reason="x" * 4000)

    before = lost("not_written")
    fill(spool_in(tmp_path, long_row, TUNER_TRACE_MAX_MB="1"), 10 * SLICE)
    assert files(tmp_path)[0].stat().st_size < 1_000_000
    assert len(recorded(tmp_path).requests) == 7 * SLICE
    assert lost("not_written") - before == 3 * SLICE
    assert caplog.text.count("TUNER_TRACE_MAX_MB") == 1


def test_what_the_writer_cannot_keep_up_with_is_counted(tmp_path: Path) -> None:
    begun, go, before = threading.Event(), threading.Event(), lost("writer_behind")

    def slow(number: int, origin_s: float, settings: Settings) -> Row:
        begun.set()
        assert go.wait(30)
        return row(number, origin_s, settings)

    written = spool_in(tmp_path, slow)
    written.put(0, tokens=MAX_PENDING_TOKENS)
    assert not written.has_room_for(1)
    assert begun.wait(30)
    for number in range(MAX_PENDING + 5):
        written.put(number)
    go.set()
    written.close()
    assert lost("writer_behind") - before == 5
    assert len(recorded(tmp_path).requests) == MAX_PENDING + 1
    assert written.has_room_for(MAX_PENDING_TOKENS)


@pytest.mark.attack
def test_an_item_that_makes_no_row_costs_that_item_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def only_odd(number: int, origin_s: float, settings: Settings) -> Row:
        if number % 2 == 0:
            raise ValueError(f"{number} is even\x1b[2J")
        return row(number, origin_s, settings)

    before = lost("not_recorded")
    fill(spool_in(tmp_path, only_odd), 7)
    assert [request.arrival_s for request in recorded(tmp_path).requests] == [0.001, 0.003, 0.005]
    assert lost("not_recorded") - before == 4
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "tuner: a request is not recorded: ValueError('0 is even\\x1b[2J')"
    ]


def test_a_folder_that_is_gone_costs_what_comes_meanwhile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = lost("not_written")
    written = spool_in(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for number in range(3):
        written.put(number)
    wait_until(lambda: lost("not_written") - before == 3)
    (tmp_path / "gone").mkdir()
    fill(written, 1)
    assert len(recorded(tmp_path / "gone").requests) == 1
    assert caplog.text.count("No such file or directory") == 1


def test_a_server_that_loads_the_recorder_loads_nothing_heavy_with_it() -> None:
    code = "import sys, tuner.capture; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"vllm", "torch", "numba", "numpy", "optuna", "pydantic", "typer", "rich", "aiohttp"}
    assert heavy & set(done.stdout.split()) == set()


def ids(tokens: list[int], key: bytes = KEY, context: bytes = b"") -> list[int]:
    return list(prefix_ids(tokens, key, 4, context))


def test_an_id_is_the_chained_keyed_hash_of_all_blocks_up_to_its_own() -> None:
    first = hmac.new(KEY, struct.pack("=4q", 1, 2, 3, 4) + b"lora", hashlib.sha256).digest()
    block = first + struct.pack("=4q", 5, 6, 7, 8) + b"lora"
    second = hmac.new(KEY, block, hashlib.sha256).digest()
    assert ids([1, 2, 3, 4, 5, 6, 7, 8, 9], context=b"lora") == [
        int.from_bytes(first[:8], "big") >> 11,
        int.from_bytes(second[:8], "big") >> 11,
    ]
    assert len({*ids([1] * 4), *ids([1] * 4, b"o" * 32), *ids([1] * 4, context=b"lora")}) == 3
    assert pseudonym("eve", KEY, b"session") != pseudonym("eve", KEY, b"lora")


@given(st.lists(st.integers(0, 3), max_size=24), st.lists(st.integers(0, 3), max_size=24))
def test_ids_are_equal_exactly_as_far_as_the_prompts_are(one: list[int], two: list[int]) -> None:
    alike = 0
    while one[alike : alike + 4] == two[alike : alike + 4] and len(one[alike : alike + 4]) == 4:
        alike += 4
    pairs = list(zip(ids(one), ids(two), strict=False))
    assert [a == b for a, b in pairs] == [place < alike // 4 for place in range(len(pairs))]
    assert all(0 <= each < 2**53 for each in ids(one))

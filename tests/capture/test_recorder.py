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
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from tests.support.places import ROOT
from tests.support.processes import wait_until
from tests.support.toy_server import ToyEngine, application, served
from tuner.capture.call import prefix_ids
from tuner.capture.spool import MAX_PENDING, MAX_PENDING_TOKENS, Spool
from tuner.trace import trace
from tuner.trace.record import Row, TraceHeader
from tuner.trace.trace import Trace

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


def rows(folder: Path, count: int) -> list[dict[str, Any]]:
    """Return the rows in the only file, once it has so many."""

    def lines() -> list[str]:
        return [line for path in folder.iterdir() for line in path.read_text().splitlines()]

    wait_until(lambda: len(lines()) > count)
    return [json.loads(line) for line in lines()[1:]]


def recorded(folder: Path, count: int) -> Trace:
    assert len(rows(folder, count)) == count
    (path,) = folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    return trace.load(path)


def lost(reason: str) -> float:
    """Return how many requests the server's /metrics counts as not recorded."""
    return REGISTRY.get_sample_value("tuner_requests_not_recorded_total", {"reason": reason}) or 0


def test_a_request_is_recorded_as_the_engine_saw_it(folder: Path) -> None:
    with served(application(ToyEngine())) as url:
        ask(url, n=2, session="eve")
    made = recorded(folder, 1)
    (result,) = made.requests
    assert (result.input_length, result.output_length, result.output_lengths) == (33, 4, (4, 3))
    assert (result.n, result.max_tokens, result.queue_s) == (2, 4, 0.25)
    assert result.status == "ok"
    assert len(result.hash_ids) == 2
    assert result.session_id not in {None, "eve"}
    assert result.e2e_s is not None
    assert result.ttft_s is None  # the client saw nothing before the end
    header = made.header
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
    expected = [*([kept] if kept else []), None]
    assert [row.get("status") for row in rows(folder, len(expected))] == expected


def test_without_a_vllm_engine_the_log_says_so_and_nothing_is_recorded(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with served(application(None)) as url:
        assert b"usage" in ask(url)
        assert b"usage" in ask(url)
    assert [*folder.iterdir()] == []
    assert [record.getMessage() for record in caplog.records] == [
        "tuner: nothing is recorded: no vLLM engine is behind this server"
    ]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("TUNER_TRACE_MAX_MB", "-16", "TUNER_TRACE_MAX_MB is not a whole number"),
        ("TUNER_TRACE_MAX_MB", "9" * 5000, "TUNER_TRACE_MAX_MB is not a whole number"),
        ("TUNER_TRACE_KEY", "secret", "TUNER_TRACE_KEY is not 32 or more hexadecimal digits"),
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
    before = lost("not_recorded")
    with served(application(engine)) as url:
        assert b"usage" in ask(url)
        assert b"usage" in ask(url)
    assert lost("not_recorded") - before == 2
    assert caplog.text.count("a request is not recorded") == 1
    assert [*folder.iterdir()] == []


@pytest.mark.attack
@pytest.mark.parametrize("body", [{"prompt": [2**70] * 32}, {"prompt": [-1] * 32}])
def test_a_prompt_that_no_engine_takes_costs_no_other_row(
    folder: Path, body: dict[str, Any]
) -> None:
    with served(application(ToyEngine())) as url:
        ask(url, refuse=400, **body)
        ask(url, **body)
        ask(url)
    made = rows(folder, 3)
    assert [row.get("status", "ok") for row in made] == ["rejected", "ok", "ok"]
    assert len(made[2]["hash_ids"]) == 2


@pytest.mark.attack
@pytest.mark.parametrize("n", [300_000_000, 2**31 - 1, 16_385])
def test_more_answers_than_any_server_gives_are_not_counted_out(folder: Path, n: int) -> None:
    before = lost("not_recorded")
    with served(application(ToyEngine())) as url:
        ask(url, prompt=[666], n=n)
        ask(url)
    assert [row.get("status", "ok") for row in rows(folder, 1)] == ["ok"]
    assert lost("not_recorded") - before == 1


def row(number: int) -> Row:
    return Row(timestamp=number, input_length=1, output_length=1)


def spool_in(folder: Path, **more: str) -> Spool:
    return Spool({"TUNER_TRACE_OUT": str(folder), **more}, partial(TraceHeader, source="test"))


RECORDING = """
import sys, threading
from functools import partial
from pathlib import Path
from tests.capture.test_recorder import row, spool_in
written = spool_in(Path(sys.argv[1]))
written.put(partial(row, 1))
written.put(partial(row, 2))
"""


def test_a_recording_that_was_killed_is_a_trace(tmp_path: Path) -> None:
    endless = RECORDING + "threading.Event().wait()"
    running = subprocess.Popen([sys.executable, "-c", endless, str(tmp_path)], cwd=ROOT)
    rows(tmp_path, 2)
    running.kill()
    running.wait()
    assert recorded(tmp_path, 2).warnings == ()


def test_a_process_that_ends_leaves_all_of_its_rows(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", RECORDING, str(tmp_path)], cwd=ROOT, check=True)
    (path,) = tmp_path.iterdir()
    assert len(trace.load(path)) == 2


def test_a_full_file_takes_no_more_and_what_it_lacks_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, written = lost("not_written"), spool_in(tmp_path, TUNER_TRACE_MAX_MB="1")
    for number in range(300):
        written.put(partial(Row, number, 1, 1, session_id="x" * 4000))
    wait_until(lambda: lost("not_written") - before + len(rows(tmp_path, 1)) == 300)
    assert 200 < len(rows(tmp_path, 1)) < 250
    assert caplog.text.count("TUNER_TRACE_MAX_MB") == 1


def test_what_the_writer_cannot_keep_up_with_is_counted(tmp_path: Path) -> None:
    begun, go, before = threading.Event(), threading.Event(), lost("writer_behind")

    def slow() -> Row:
        begun.set()
        assert go.wait(30)
        return row(0)

    written = spool_in(tmp_path)
    written.put(slow, tokens=MAX_PENDING_TOKENS)
    assert not written.has_room_for(1)
    assert begun.wait(30)
    for number in range(MAX_PENDING + 5):
        written.put(partial(row, number))
    go.set()
    assert len(recorded(tmp_path, MAX_PENDING + 1)) == MAX_PENDING + 1
    assert lost("writer_behind") - before == 5
    assert written.has_room_for(MAX_PENDING_TOKENS)


def test_a_folder_that_is_gone_costs_what_comes_meanwhile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, before = tmp_path / "gone", lost("not_written")
    written = spool_in(folder)
    folder.rmdir()
    for number in range(3):
        written.put(partial(row, number))
    wait_until(lambda: lost("not_written") - before == 3)
    folder.mkdir()
    written.put(partial(row, 1))
    assert len(recorded(folder, 1)) == 1
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

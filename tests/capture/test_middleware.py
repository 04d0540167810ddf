"""The recorder in a real server: every request leaves its row, and none of its text."""

import asyncio
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.toy_server import ToyEngine, application, served
from tuner.capture import TraceRecorder
from tuner.capture.engine_tap import attach
from tuner.capture.usage import Overheard, Room
from tuner.trace import trace
from tuner.trace.trace import Trace, TraceRequest

Ask = Callable[..., bytes]


def ask(url: str, path: str = "/v1/completions", **body: Any) -> bytes:  # noqa: ANN401 - JSON
    """Post; return the whole answer, also that of a refusal."""
    asked = {"prompt": [1, 2, 3], "max_tokens": 4, **body}
    request = urllib.request.Request(url + path, data=json.dumps(asked).encode())
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.read()  # type: ignore[no-any-return]
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.read()


def leave(url: str, engine: ToyEngine, **body: Any) -> None:  # noqa: ANN401 - JSON
    """Post, wait until the engine has it, and hang up."""
    engine.entered.clear()
    where = urlsplit(url)
    asked = json.dumps({"prompt": [1, 2, 3], "max_tokens": 9, **body}).encode()
    with socket.create_connection((where.hostname, where.port), 20) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
            % (len(asked), asked)
        )
        assert engine.entered.wait(20)
        if body.get("stream"):
            seen = b""
            while seen.count(b"data: 1") < 2:  # the engine then holds the third
                seen += client.recv(4096)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNER_TRACE_OUT", str(tmp_path / "recorded"))
    monkeypatch.setenv("TUNER_TRACE_BLOCK_SIZE", "2")
    return tmp_path / "recorded"


def recorded(folder: Path) -> Trace:
    (path,) = folder.iterdir()
    return trace.load(path)


def only(folder: Path) -> TraceRequest:
    (request,) = recorded(folder).requests
    return request


def rows(folder: Path) -> list[dict[str, Any]]:
    (path,) = folder.iterdir()
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def test_a_request_is_recorded_as_the_engine_saw_it(folder: Path) -> None:
    with served(application(ToyEngine())) as url:
        ask(url, n=2, session="eve")
    found = only(folder)
    assert (found.input_length, found.output_length, found.output_lengths) == (3, 4, (4, 3))
    assert (found.n, found.max_tokens, found.cached_tokens, found.queue_s) == (2, 4, 4, 0.25)
    assert (found.status, found.finish_reason, found.stream) == ("ok", "length", False)
    assert len(found.hash_ids) == 1
    assert found.session_id not in {None, "eve"}
    assert found.e2e_s is not None
    assert found.ttft_s is None  # the client saw nothing before the end
    header = recorded(folder).header
    assert (header.source, header.model, header.missing) == ("vllm-middleware", "toy", ())
    assert (header.rows_read, header.rows_kept) == (1, 1)


def test_a_stream_is_recorded_with_its_first_token(folder: Path) -> None:
    with served(application(ToyEngine())) as url:
        assert ask(url, stream=True).count(b"data") == 4
    found = only(folder)
    assert (found.output_length, found.finish_reason, found.stream) == (4, "stop", True)
    assert found.ttft_s is not None
    assert found.e2e_s is not None
    assert 0 <= found.ttft_s <= found.e2e_s


def test_the_steps_of_a_beam_search_come_one_after_the_other(folder: Path) -> None:
    with served(application(ToyEngine())) as url:
        ask(url, steps_before=2)
    first, second, third = recorded(folder).requests
    assert first.e2e_s is not None
    assert second.e2e_s is not None
    assert second.arrival_s > first.arrival_s + first.e2e_s - 1e-5  # rounded
    assert third.arrival_s > second.arrival_s + second.e2e_s - 1e-5


@pytest.mark.parametrize(("stream", "tokens"), [(False, 3), (True, 2)])
def test_a_client_that_hangs_up_is_an_abort_with_the_tokens_so_far(
    folder: Path, *, stream: bool, tokens: int
) -> None:
    engine = ToyEngine()
    if not stream:
        engine.go.clear()
    with served(application(engine)) as url:
        leave(url, engine, stream=stream, prompt=[555, 1, 2])
    found = only(folder)
    assert (found.status, found.finish_reason) == ("aborted", "abort")
    assert (found.input_length, found.output_length) == (3, tokens)


def test_an_abort_of_which_nobody_knows_the_tokens_is_counted_and_not_guessed(
    folder: Path,
) -> None:
    engine = ToyEngine()
    with served(application(engine)) as url:
        leave(url, engine, prompt=[444, 1, 2])
        ask(url)
    found = recorded(folder)
    assert found.header.dropped == {"no_tokens": 1}
    assert [one.status for one in found.requests] == ["ok"]


def test_two_recorders_in_one_server_record_once(folder: Path) -> None:
    app = application(ToyEngine())
    app.add_middleware(TraceRecorder)
    with served(app) as url:
        ask(url)
    assert len(rows(folder)) == 1


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


def test_a_failure_of_the_engine_is_an_error(folder: Path) -> None:
    with served(application(ToyEngine())) as url:
        ask(url, prompt=[666, 1, 2])
    assert [row["status"] for row in rows(folder)] == ["error"]


def test_what_does_not_generate_is_no_request(folder: Path) -> None:
    with served(application(None)) as url:
        ask(url, "/v1/embeddings")
        ask(url, "/v1/nothing")
    assert not folder.exists() or list(folder.iterdir()) == []


def test_without_an_engine_to_watch_lengths_come_from_usage(folder: Path) -> None:
    with served(application(None)) as url:
        ask(url)
        ask(url, n=3)
        ask(url, stream=True, stream_options={"include_usage": True}, max_completion_tokens=5)
        ask(url, stream=True, metadata=True)
    whole, several, streamed, stated = recorded(folder).requests
    assert (whole.input_length, whole.output_length, whole.max_tokens) == (3, 4, 4)
    assert (whole.cached_tokens, whole.finish_reason, len(whole.hash_ids)) == (2, "stop", 1)
    assert (several.n, several.output_length, several.output_lengths) == (3, 4, ())
    assert (streamed.output_length, streamed.max_tokens, streamed.stream) == (4, 5, True)
    assert (stated.input_length, stated.output_length) == (3, 9)
    header = recorded(folder).header
    assert header.source == "http-middleware"
    assert "output_lengths" in header.missing


def test_a_stream_that_tells_no_usage_is_counted_and_not_guessed(folder: Path) -> None:
    with served(application(None)) as url:
        ask(url)
        ask(url, stream=True)
    found = recorded(folder)
    assert len(found.requests) == 1
    assert found.header.dropped == {"no_tokens": 1}


def test_no_text_and_no_token_id_is_in_the_file(folder: Path) -> None:
    prompt = [91919191 + place for place in range(8)]
    for engine in (None, ToyEngine()):
        with served(application(engine)) as url:
            ask(url, prompt=prompt)
            ask(url, prompt=prompt, stream=True)
    assert len(list(folder.iterdir())) == 2
    for path in folder.iterdir():
        text = path.read_text()
        assert "secret" not in text
        assert not any(str(token) in text for token in prompt)


def test_prefix_ids_can_be_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_TRACE_PREFIX_IDS", "0")
    with served(application(ToyEngine())) as url:
        ask(url)
    assert only(folder).hash_ids == ()
    assert recorded(folder).header.missing == ("hash_ids",)


def test_a_folder_that_cannot_be_made_leaves_the_server_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TUNER_TRACE_OUT", str(tmp_path / "file" / "recorded"))
    with served(application(ToyEngine())) as url:
        assert b"usage" in ask(url)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["tuner"]


def test_a_setting_that_cannot_be_used_leaves_the_server_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TUNER_TRACE_MAX_MB", "plenty")
    with served(application(ToyEngine())) as url:
        assert b"usage" in ask(url)
    assert "TUNER_TRACE_MAX_MB=plenty" in caplog.text


def test_an_engine_that_is_not_as_expected_still_serves(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = ToyEngine()
    original = engine.generate

    async def stranger(*given: Any, **also: Any) -> Any:  # noqa: ANN401 - whatever is asked
        async for output in original(*given, **also):
            del output.prompt_token_ids
            yield output

    engine.generate = stranger  # type: ignore[method-assign]
    with served(application(engine)) as url:
        assert b"usage" in ask(url)
        assert b"usage" in ask(url)
    assert caplog.text.count("a request is not recorded") == 1
    assert not list(folder.glob("*.jsonl"))


@pytest.mark.attack
@pytest.mark.parametrize("engine", [None, ToyEngine])
@pytest.mark.parametrize("token", [2**63, 2**70, -1, -(2**70)])
def test_a_prompt_that_no_engine_takes_costs_no_other_row(
    folder: Path, engine: Callable[[], ToyEngine] | None, token: int
) -> None:
    with served(application(None if engine is None else engine())) as url:
        ask(url, prompt=[token] * 32, refuse=400)
        ask(url, prompt=[token] * 32)
        ask(url)
    assert [row.get("status", "ok") for row in rows(folder)] == ["rejected", "ok", "ok"]
    assert [len(row.get("hash_ids", ())) for row in rows(folder)] == [0, 0, 1]


@pytest.mark.attack
@pytest.mark.parametrize("body", [{"n": 300_000_000}, {"n": 2**31 - 1}, {"n": 16_385}])
def test_more_answers_than_any_server_gives_are_not_counted_out(
    folder: Path, body: dict[str, Any]
) -> None:
    with served(application(None)) as url:
        ask(url, refuse=422, **body)
        ask(url)
    found = recorded(folder)
    assert [request.status for request in found.requests] == ["ok"]
    assert found.header.dropped == {"not_recorded": 1}


@pytest.mark.attack
def test_all_bodies_that_are_kept_at_one_time_are_bounded() -> None:
    room = Room()
    kept = [Overheard(room) for _ in range(200)]
    for one in kept:
        one.hear_request(b"x" * (4 * 2**20))
    assert sum(one.size for one in kept) == 64 * 2**20
    assert sum(one.whole for one in kept) == 16
    for one in kept:
        one.leaves()
    assert room == Room()


@pytest.mark.attack
def test_all_requests_of_a_server_share_one_bound(folder: Path) -> None:
    body = b"x" * (4 * 2**20)

    async def main() -> tuple[int, Room]:
        all_here = asyncio.Barrier(21)

        async def app(_scope: object, receive: Callable[[], Any], _send: object) -> None:
            await receive()
            await all_here.wait()
            await all_here.wait()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(_message: object) -> None:
            """Nobody listens."""

        recorder = TraceRecorder(app)
        scope = {"type": "http", "method": "POST", "path": "/v1/completions"}
        under_way = [asyncio.ensure_future(recorder(scope, receive, send)) for _ in range(20)]
        await all_here.wait()
        left = recorder._room.left_bytes
        await all_here.wait()
        await asyncio.gather(*under_way)
        assert recorder._spool is not None
        recorder._spool.close()
        return left, recorder._room

    assert asyncio.run(main()) == (0, Room())
    assert [row["status"] for row in rows(folder)] == ["error"] * 20


def test_an_engine_without_generate_is_left_alone() -> None:
    assert not attach(object(), lambda _: None, keep_tokens=True)

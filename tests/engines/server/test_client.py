"""The client process against small servers that do what servers do when something is wrong."""

import asyncio
import html
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.completions import DONE, EMPTY_END, HEAD, TOKEN, Asked, completions, usage
from tests.support.processes import lives, wait_until
from tuner.engines.seam import Reply, RequestFailedError
from tuner.engines.server.client import StreamingClient
from tuner.engines.server.serve_process import ServeProcess
from tuner.engines.vllm.core_process import _output_to
from tuner.engines.vllm.log import silent
from tuner.errors import EngineError, TargetError

Answer = Callable[[Asked], Coroutine[Any, Any, None]]
Work = Callable[[StreamingClient], Coroutine[Any, Any, Any]]


def with_client(url: str, folder: Path, work: Work, **more: Any) -> Any:  # noqa: ANN401 - what the work returns
    async def main() -> Any:  # noqa: ANN401
        client = await StreamingClient.start(url, log=folder / "client.log", **more)
        try:
            return await work(client)
        finally:
            await client.stop()

    return asyncio.run(main())


async def complete(client: StreamingClient, tokens: int = 3) -> Reply:
    reply = Reply()
    body = {"model": "m", "prompt": [1, 2, 3], "max_tokens": tokens, "stream": True}
    await client.complete(body, reply, request_id="r-0", outputs=tokens)
    return reply


def test_a_reply_is_timed_where_it_is_read(tmp_path: Path) -> None:
    async def answer(asked: Asked) -> None:
        assert asked.headers["X-Request-Id"] == "r-0"
        assert asked.body["prompt"] == [1, 2, 3]
        await asked.send(HEAD)
        for _ in range(3):
            await asyncio.sleep(0.05)
            await asked.event(TOKEN)
        await asked.event(usage(3), DONE)
        await asked.end()

    with completions(answer) as url:
        reply = with_client(url, tmp_path, complete)
    assert (reply.output_tokens, reply.joined_tokens, len(reply.seen_s)) == (3, 0, 3)
    assert reply.late_tokens == 0
    assert reply.sent_s is not None
    first_s, second_s, third_s = reply.seen_s
    assert reply.sent_s + 0.05 <= first_s
    assert first_s + 0.02 < second_s < third_s


def test_tokens_that_come_together_are_counted_as_merged(tmp_path: Path) -> None:
    """A proxy that buffers keeps all of them back until the end."""

    async def answer(asked: Asked) -> None:
        await asked.send(HEAD)
        await asked.event(TOKEN, TOKEN, TOKEN, TOKEN, usage(4), DONE)
        await asked.end()

    with completions(answer) as url:
        reply = with_client(url, tmp_path, complete)
    assert (reply.output_tokens, reply.joined_tokens, reply.late_tokens) == (4, 3, 3)


def test_an_end_without_text_brings_a_token_only_if_the_server_counts_it(tmp_path: Path) -> None:
    def counting(tokens: int) -> Answer:
        async def answer(asked: Asked) -> None:
            await asked.send(HEAD)
            for event in (TOKEN, TOKEN, EMPTY_END):
                await asyncio.sleep(0.01)
                await asked.event(event)
            await asked.event(usage(tokens), DONE)
            await asked.end()

        return answer

    async def both(client: StreamingClient) -> list[Reply]:
        return [await complete(client), await complete(client)]

    with completions(one_after_the_other(map(counting, (2, 3)))) as url:
        replies = with_client(url, tmp_path, both)
    assert [(one.output_tokens, len(one.seen_s)) for one in replies] == [(2, 2), (3, 3)]


def status(line: bytes, more: bytes = b"") -> Answer:
    async def answer(asked: Asked) -> None:
        said = b'{"error": {"message": "so\\nthere"}}'
        await asked.send(
            b"HTTP/1.1 %b\r\nContent-Length: %d\r\n%b\r\n%b" % (line, len(said), more, said)
        )

    return answer


def one_after_the_other(answers: Iterable[Answer]) -> Answer:
    """Answer each request in its own way."""
    coming = iter(answers)

    async def answer(asked: Asked) -> None:
        await next(coming)(asked)

    return answer


REFUSALS = {
    b"401 Unauthorized": "401 Unauthorized: .*there",
    b"404 Not Found": "404 Not Found",
    b"429 Too Many Requests": "429 Too Many Requests",
    b"500 Internal Server Error": "500 Internal Server Error",
    b"503 Service Unavailable": "503 Service Unavailable",
}


def test_a_refusal_fails_its_request_alone_and_in_one_line(tmp_path: Path) -> None:
    async def each(client: StreamingClient) -> None:
        for why in REFUSALS.values():
            with pytest.raises(RequestFailedError, match=why) as caught:
                await complete(client)
            assert "\n" not in str(caught.value)

    with completions(one_after_the_other(map(status, REFUSALS))) as url:
        with_client(url, tmp_path, each)


KEY = 'sk-"a+b"/1234'


TOLD = (
    [f"no such key: Bearer {KEY}"],
    ["no such key: ", KEY[:7], KEY[7:]],
    [json.dumps({"error": {"message": f"Invalid: {KEY}"}})],
    [f"{quote(KEY, safe='')} is not known, nor is {html.escape(KEY)}"],
    [KEY.upper() + 295 * "x"],  # only the beginning is told on
)


def test_a_key_that_a_refusal_repeats_is_told_to_nobody(tmp_path: Path) -> None:
    def telling(told: list[str]) -> Answer:
        async def answer(asked: Asked) -> None:
            await asked.send(HEAD.replace(b"200 OK", b"401 Unauthorized"))
            for piece in told:
                await asked.event(piece.encode())
                await asyncio.sleep(0.02)
            await asked.end()

        return answer

    async def each(client: StreamingClient) -> None:
        for told in TOLD:
            with pytest.raises(RequestFailedError) as caught:
                await complete(client)
            said = str(caught.value)
            assert said.startswith("401 Unauthorized: "), told
            assert "***" in said, told
            assert not any(part in said.lower() for part in ("sk-", "1234")), told

    headers = {"Authorization": f"Bearer {KEY}"}
    with completions(one_after_the_other(map(telling, TOLD))) as url:
        with_client(url, tmp_path, each, headers=headers)


def test_of_a_refusal_that_does_not_end_no_part_of_a_key_is_told(tmp_path: Path) -> None:
    async def answer(asked: Asked) -> None:
        await asked.send(HEAD.replace(b"200 OK", b"401 Unauthorized"))
        await asked.event(
            b"the gateway in front of it has never heard of such a key: " + KEY[:7].encode()
        )
        await asked.left.wait()

    headers = {"Authorization": f"Bearer {KEY}"}
    with completions(answer) as url, pytest.raises(RequestFailedError) as caught:
        with_client(url, tmp_path, complete, headers=headers)
    assert str(caught.value).startswith("401 Unauthorized: the gateway in front of it")
    assert "sk-" not in str(caught.value)


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    reached: list[Asked] = []

    async def elsewhere(asked: Asked) -> None:
        reached.append(asked)
        await asked.whole(3)

    with completions(elsewhere) as other:
        redirect = status(b"307 Temporary Redirect", b"Location: %b/\r\n" % other.encode())
        with completions(redirect) as url, pytest.raises(RequestFailedError, match="redirects"):
            with_client(url, tmp_path, complete, headers={"Authorization": "Bearer secret"})
    assert reached == []


async def _no_usage(asked: Asked) -> None:
    await asked.send(HEAD)
    await asked.event(TOKEN, DONE)
    await asked.end()


async def _half(asked: Asked) -> None:
    await asked.send(HEAD)
    await asked.event(TOKEN)
    asked.writer.close()


async def _error(asked: Asked) -> None:
    await asked.send(HEAD)
    await asked.event(TOKEN, b'data: {"error": {"message": "EngineCore encountered an issue"}}\n\n')
    await asked.end()


async def _endless(asked: Asked) -> None:
    await asked.send(HEAD)
    while not asked.left.is_set():
        await asked.event(b": %b\n\n" % (b"x" * 10_000))


async def _not_http(asked: Asked) -> None:
    await asked.send(b"220 smtp.example.org ESMTP\r\n")
    asked.writer.close()


async def _compressed(asked: Asked) -> None:
    await asked.send(HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n"))
    await asked.end()


NOT_WHOLE: dict[Answer, str] = {
    _no_usage: "ended without usage",
    _half: "the connection broke",
    _error: "EngineCore encountered an issue",
    _endless: "answers too much",
    _not_http: "the connection broke",
    _compressed: "answers compressed",
}


def test_a_stream_that_is_not_whole_fails_its_request_alone(tmp_path: Path) -> None:
    async def each_twice(client: StreamingClient) -> None:
        for why in NOT_WHOLE.values():
            for _ in range(2):
                with pytest.raises(RequestFailedError, match=why):
                    await complete(client)

    answers = [answer for answer in NOT_WHOLE for _ in range(2)]
    with completions(one_after_the_other(answers)) as url:
        with_client(url, tmp_path, each_twice)


@pytest.mark.attack
def test_a_count_that_no_message_can_carry_keeps_nobody_waiting(tmp_path: Path) -> None:
    counts = (b"-1", b"1" + 30 * b"0", b"1" + 5000 * b"0")

    def counted(count: bytes) -> Answer:
        usage = b'data: {"usage": {"completion_tokens": %b}}\n\n' % count

        async def answer(asked: Asked) -> None:
            await asked.send(HEAD)
            await asked.event(TOKEN, usage, DONE)
            await asked.end()

        return answer

    async def in_time(client: StreamingClient) -> None:
        for _ in counts:
            with pytest.raises(RequestFailedError, match="no completion"):
                async with asyncio.timeout(20):
                    await complete(client)

    with completions(one_after_the_other(map(counted, counts))) as url:
        with_client(url, tmp_path, in_time)


@pytest.mark.attack
def test_a_link_in_place_of_a_log_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_LOGGING_STREAM", "")
    (tmp_path / "vllm.log").symlink_to("victim")
    log = tmp_path / "vllm.log"
    with pytest.raises(TargetError, match="is a link"):
        asyncio.run(StreamingClient.start("http://localhost:1", log=log))
    with pytest.raises(TargetError, match="is a link"):
        ServeProcess.launch([sys.executable, "-V"], environment={}, log=log)
    with pytest.raises(TargetError, match="is a link"), silent(log):
        pass
    with pytest.raises(TargetError, match="is a link"), _output_to(log):
        pass
    assert not (tmp_path / "victim").exists()


@pytest.mark.attack
def test_nothing_is_imported_from_the_folder_that_tuner_is_run_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("contextlib", "ctypes", "struct", "aiohttp", "tuner"):
        (tmp_path / f"{name}.py").write_text("open('owned', 'w')\n")
    monkeypatch.chdir(tmp_path)
    with completions(lambda asked: asked.whole(3)) as url:
        assert with_client(url, tmp_path, complete).output_tokens == 3
    process = ServeProcess.launch([sys.executable, "-P", "-V"], environment={}, log=Path("log"))
    process.kill()
    assert not (tmp_path / "owned").exists()


def test_where_nobody_listens_every_request_fails(tmp_path: Path) -> None:
    with completions(_half) as url:
        pass
    with pytest.raises(RequestFailedError, match="no connection"):
        with_client(url, tmp_path, complete)


def test_a_server_that_stops_sending_in_the_middle_ends_by_a_deadline(tmp_path: Path) -> None:
    async def answer(asked: Asked) -> None:
        await asked.send(HEAD)
        await asked.event(TOKEN)
        await asked.left.wait()

    with completions(answer) as url, pytest.raises(EngineError, match="the server is stuck"):
        with_client(url, tmp_path, complete, silence_s=0.5)


def test_a_server_that_is_slow_to_begin_is_waited_for_longer(tmp_path: Path) -> None:
    async def answer(asked: Asked) -> None:
        await asyncio.sleep(1.5)
        await asked.whole(3)

    with completions(answer) as url:
        assert with_client(url, tmp_path, complete, silence_s=0.2).output_tokens == 3


def test_cancelling_closes_the_connection_and_keeps_what_had_come(tmp_path: Path) -> None:
    left: list[bool] = []

    async def answer(asked: Asked) -> None:
        await asked.send(HEAD)
        await asked.event(TOKEN, TOKEN)
        left.append(False)
        async with asyncio.timeout(20):
            await asked.left.wait()
        left.append(True)

    async def work(client: StreamingClient) -> Reply:
        reply = Reply()
        body = {"prompt": [1], "max_tokens": 9}
        task = asyncio.create_task(
            client.complete(body, reply, request_id="r", outputs=9),
        )
        while not reply.seen_s:  # noqa: ASYNC110 - a reply tells nobody
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while len(left) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return reply

    with completions(answer) as url:
        reply = with_client(url, tmp_path, work)
    assert reply.output_tokens == 2


def test_a_key_is_sent_to_the_server_and_stands_in_no_list_of_processes(tmp_path: Path) -> None:
    seen: list[str | None] = []

    async def answer(asked: Asked) -> None:
        seen.append(asked.headers.get("Authorization"))
        await asked.whole(3)

    async def work(client: StreamingClient) -> bytes:
        await complete(client)
        return await asyncio.to_thread(Path(f"/proc/{client.pid}/cmdline").read_bytes)

    with completions(answer) as url:
        command = with_client(url, tmp_path, work, headers={"Authorization": "Bearer secret"})
        with_client(url, tmp_path, work)
    assert seen == ["Bearer secret", None]
    assert b"secret" not in command


def test_when_the_client_is_killed_whoever_waits_is_told(tmp_path: Path) -> None:
    async def answer(asked: Asked) -> None:
        await asked.send(HEAD)
        await asked.event(TOKEN)
        await asked.left.wait()

    async def work(client: StreamingClient) -> None:
        task = asyncio.create_task(complete(client))
        await asyncio.sleep(0.2)
        os.kill(client.pid, signal.SIGKILL)
        for waiting in (task, complete(client)):
            with pytest.raises(EngineError, match="the client that asks the server ended with -9"):
                await waiting

    with completions(answer) as url:
        with_client(url, tmp_path, work)


def test_the_client_ends_with_whoever_started_it(tmp_path: Path) -> None:
    async def answer(asked: Asked) -> None:
        await asked.whole(3)

    async def work(client: StreamingClient) -> int:
        await complete(client)
        client._pipe.shutdown(2)  # as the kernel does at kill -9
        return client.pid

    with completions(answer) as url:
        pid = with_client(url, tmp_path, work)
    wait_until(lambda: not lives(pid))


def test_a_hundred_streams_at_once_each_get_their_own(tmp_path: Path) -> None:
    async def answer(asked: Asked) -> None:
        await asked.whole(asked.body["max_tokens"])

    async def work(client: StreamingClient) -> list[Reply]:
        return await asyncio.gather(*(complete(client, 1 + n % 7) for n in range(100)))

    with completions(answer) as url:
        replies = with_client(url, tmp_path, work)
    assert [one.output_tokens for one in replies] == [1 + n % 7 for n in range(100)]

"""The client against small servers that do what servers do when something is wrong."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.support.completions import DONE, EMPTY_END, HEAD, TOKEN, Exchange, completions, usage
from tuner.engines.seam import EngineRequest, Reply, RequestFailedError
from tuner.engines.server import CompletionClient

Answer = Callable[[Exchange], Coroutine[Any, Any, None]]
Work = Callable[[CompletionClient], Coroutine[Any, Any, Any]]

KEY = 'sk-"a+b"/1234'


def result_of(answer: Answer, work: Work, *, key: str | None = None) -> Any:  # noqa: ANN401 - what the work returns
    async def main(url: str) -> Any:  # noqa: ANN401
        client = CompletionClient(url, "m", {}, key=key)
        try:
            async with asyncio.timeout(20):
                return await work(client)
        finally:
            await client.stop()

    with completions(answer) as url:
        return asyncio.run(main(url))


async def complete(client: CompletionClient, tokens: int = 3) -> Reply:
    reply = Reply()
    request = EngineRequest([1, 2, 3], tokens)
    await client.complete(request, reply, name="r-0")
    return reply


def events(*pieces: bytes, every_s: float = 0.05, status: bytes = b"200 OK") -> Answer:
    """Send these events, apart from each other, and end."""

    async def answer(exchange: Exchange) -> None:
        assert exchange.headers["X-Request-Id"] == "r-0"
        await exchange.send(HEAD.replace(b"200 OK", status))
        for piece in pieces:
            await asyncio.sleep(every_s)
            await exchange.event(piece)
        await exchange.end()

    return answer


@pytest.mark.parametrize(
    ("answer", "tokens", "seen"),
    [
        (events(TOKEN, TOKEN, TOKEN, usage(3) + DONE), 3, 3),
        (events(TOKEN * 4 + usage(4) + DONE), 4, 1),  # a proxy that buffers
        (events(TOKEN[:20], TOKEN[20:] + usage(1), DONE), 1, 1),
        (events(b": keep-alive\n\n", TOKEN.replace(b"\n", b"\r\n"), usage(1)), 1, 1),
        (events(TOKEN, TOKEN, EMPTY_END, usage(2) + DONE), 2, 2),
        (events(TOKEN, TOKEN, EMPTY_END, usage(3) + DONE), 3, 3),
    ],
    ids=range(6),
)
def test_a_reply_is_timed_as_it_is_read(answer: Answer, tokens: int, seen: int) -> None:
    reply: Reply = result_of(answer, lambda client: complete(client, tokens))
    assert (reply.output_tokens, len(reply.seen_s)) == (tokens, seen)
    assert reply.seen_s == sorted(set(reply.seen_s))


def refusal(status: bytes, headers: bytes = b"") -> Answer:
    async def answer(exchange: Exchange) -> None:
        text = b'{"error": {"message": "so\\nthere"}}'
        head = b"HTTP/1.1 %b\r\nContent-Length: %d\r\n%b\r\n" % (status, len(text), headers)
        await exchange.send(head, text)

    return answer


async def half(exchange: Exchange) -> None:
    await exchange.send(HEAD)
    await exchange.event(TOKEN)
    exchange.writer.close()


async def endless(exchange: Exchange) -> None:
    await exchange.send(HEAD)
    while not exchange.left.is_set():
        await exchange.event(b": %b" % (b"x" * 10_000))


async def not_http(exchange: Exchange) -> None:
    await exchange.send(b"220 smtp.example.org ESMTP\r\n")
    exchange.writer.close()


def counted(count: bytes) -> bytes:
    return b'data: {"usage": {"completion_tokens": %b}}\n\n' % count


FAILING: list[tuple[Answer, str]] = [
    (refusal(b"401 Unauthorized"), "401 Unauthorized: .*there"),
    (
        refusal(b"307 Temporary Redirect", b"Location: http://127.0.0.1:1/\r\n"),
        "307 Temporary Redirect",
    ),
    (events(TOKEN, DONE), "ended without usage"),
    (half, "the connection broke"),
    (events(b'data: {"error": {"message": "EngineCore failed"}}\n\n'), "EngineCore failed"),
    (events(b"data: no JSON\n\n"), "no completion"),
    (endless, "answers too much"),
    (not_http, "the connection broke"),
    *((events(counted(each)), "no completion") for each in (b"-1", b"1" + 30 * b"0")),
]


@pytest.mark.parametrize(("answer", "why"), FAILING, ids=range(len(FAILING)))
def test_what_is_no_whole_reply_fails_its_request_alone_and_in_one_line(
    answer: Answer, why: str
) -> None:
    async def twice(client: CompletionClient) -> None:
        for _ in range(2):
            with pytest.raises(RequestFailedError, match=why) as caught:
                await complete(client)
            assert "\n" not in str(caught.value)

    result_of(answer, twice)


@pytest.mark.attack
def test_of_a_server_that_has_the_key_no_word_is_shown() -> None:
    """It may repeat the key, however spelled."""
    for answer in (
        events(f"no such key: {KEY}".encode(), status=b"401 Unauthorized"),
        events(b'data: {"error": "%b"}\n\n' % b"sk-a"),
    ):
        with pytest.raises(RequestFailedError) as caught:
            result_of(answer, complete, key=KEY)
        assert str(caught.value) in {"401 Unauthorized", "it reports an error"}


def test_a_request_that_is_given_up_closes_its_connection_and_keeps_what_had_come() -> None:
    has_left = asyncio.Event()

    async def answer(exchange: Exchange) -> None:
        await exchange.send(HEAD)
        await exchange.event(TOKEN + TOKEN)
        await exchange.left.wait()
        has_left.set()

    async def work(client: CompletionClient) -> Reply:
        reply = Reply()
        task = asyncio.create_task(client.complete(EngineRequest([1], 9), reply, name="r"))
        while not reply.seen_s:  # noqa: ASYNC110 - a reply tells nobody
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while not has_left.is_set():  # noqa: ASYNC110 - of another thread's loop
            await asyncio.sleep(0.01)
        return reply

    assert result_of(answer, work).output_tokens == 2

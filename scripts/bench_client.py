"""Measure what reading a stream costs a client: bench_client.py [--json] [--keep bench-client].

A small server streams completions as vLLM does, one token for every stream at a time, at 2,000 and
at 10,000 tokens a second in all. aiohttp and httpx read them in turn, each in a process of its own,
and so does the client that tuner replays with: CPU a token, share of a core, how late a token is
read, and for tuner's how late a request leaves.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import evidence
import numpy as np
import psutil

from tuner.engines.seam import Reply
from tuner.engines.server.client import StreamingClient

RATES = {2_000: 32, 10_000: 128}
"""Tokens a second → how many streams share them."""

LENGTH_S = 10.0
LEAD_S = 1.0
"""From sending a request to its first token, so that all streams are open when tokens come."""

ROUNDS = 3
KEPT = "bench-client"
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
TOKEN = (
    b'data: {"id":"cmpl-3b0b2f3e0ac54b0c9b1e","object":"text_completion","created":1700000000,'
    b'"model":"tiny","choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":null,'
    b'"stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null}],'
    b'"usage":null}\n\n'
)
END = b'data: {"id":"cmpl-1","choices":[],"usage":{"completion_tokens":%d}}\n\ndata: [DONE]\n\n'

Times = dict[int, list[float]]
"""Stream → when each of its tokens was sent, or read."""


async def serve() -> None:
    """Stream so many tokens, so far apart, to whoever asks; tell when each was sent."""
    sent_s: Times = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            said = json.dumps(sent_s).encode()
            sent_s.clear()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(said), said))
        else:
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r")[0])
            await stream(writer, json.loads(await reader.readexactly(length)))
        await writer.drain()
        writer.close()

    async def stream(writer: asyncio.StreamWriter, asked: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        writer.write(HEAD)
        gap_s, times = asked["gap_s"], sent_s.setdefault(asked["stream_number"], [])
        # as an engine does it: a token for each stream, all at once
        begin_s = (LEAD_S + loop.time()) // gap_s * gap_s
        for number in range(asked["tokens"]):
            await asyncio.sleep(begin_s + number * gap_s - loop.time())
            times.append(time.monotonic())
            _send(writer, TOKEN)
        _send(writer, END % asked["tokens"])
        writer.write(b"0\r\n\r\n")

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=512)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    async with server:
        await server.serve_forever()


def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


async def with_aiohttp(url: str, bodies: list[dict[str, Any]]) -> list[AsyncIterator[bytes]]:
    import aiohttp  # noqa: PLC0415 - one of the two

    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def one(body: dict[str, Any]) -> AsyncIterator[bytes]:
        async with session.post(url, json=body) as answer:
            async for data in answer.content.iter_any():
                yield data

    return [one(body) for body in bodies]


async def with_httpx(url: str, bodies: list[dict[str, Any]]) -> list[AsyncIterator[bytes]]:
    import httpx  # noqa: PLC0415 - the other

    client = httpx.AsyncClient(timeout=60.0, limits=httpx.Limits(max_connections=None))

    async def one(body: dict[str, Any]) -> AsyncIterator[bytes]:
        async with client.stream("POST", url, json=body) as answer:
            async for data in answer.aiter_raw():
                yield data

    return [one(body) for body in bodies]


LIBRARIES: dict[str, Callable[..., Any]] = {"aiohttp": with_aiohttp, "httpx": with_httpx}
CLIENTS = (*LIBRARIES, "tuner")


async def read_by(library: str, url: str, bodies: list[dict[str, Any]]) -> dict[str, Any]:
    """Read every stream with a library, in this process."""
    seen_s: Times = {body["stream_number"]: [] for body in bodies}

    async def follow(number: int, stream: AsyncIterator[bytes]) -> None:
        async for data in stream:
            now_s = time.monotonic()
            seen_s[number] += [now_s] * data.count(b'"text"')

    readers = await LIBRARIES[library](url, bodies)
    tasks = [asyncio.create_task(follow(number, one)) for number, one in enumerate(readers)]
    await asyncio.sleep(0.9 * LEAD_S)
    begin_cpu_s = time.process_time()
    await asyncio.gather(*tasks)
    return {"cpu_s": time.process_time() - begin_cpu_s, "seen_s": seen_s}


async def read_by_tuner(url: str, bodies: list[dict[str, Any]]) -> dict[str, Any]:
    """Read every stream with tuner's client, which is another process."""
    replies = [Reply() for _ in bodies]
    due_s: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        client = await StreamingClient.start(
            url.removesuffix("/v1/completions"), log=Path(folder) / "log"
        )
        cost = psutil.Process(client.pid).cpu_times
        tasks = []
        for body, reply in zip(bodies, replies, strict=True):
            due_s.append(time.monotonic())
            sending = client.complete(body, reply, request_id="r", outputs=body["tokens"])
            tasks.append(asyncio.create_task(sending))
            await asyncio.sleep(0)
        await asyncio.sleep(0.9 * LEAD_S)
        before = cost()
        await asyncio.gather(*tasks)
        after = cost()
        await client.stop()
    return {
        "cpu_s": after.user + after.system - before.user - before.system,
        "seen_s": {number: one.seen_s for number, one in enumerate(replies)},
        "left_late_s": [
            (reply.sent_s or 0.0) - due for reply, due in zip(replies, due_s, strict=True)
        ],
    }


async def read(client: str, url: str, streams: int, rate: int) -> dict[str, float]:
    """Read every stream to its end; return what it cost."""
    gap_s = streams / rate
    tokens = int(LENGTH_S / gap_s)
    bodies = [
        {"tokens": tokens, "gap_s": gap_s, "stream_number": number} for number in range(streams)
    ]
    is_ours = client == "tuner"
    found = await (read_by_tuner(url, bodies) if is_ours else read_by(client, url, bodies))
    sent_s = await asyncio.to_thread(_sent_s, url)
    lags = np.concatenate([_lags(sent_s[number], found["seen_s"][number]) for number in sent_s])
    cost = {
        "us_a_token": 1e6 * found["cpu_s"] / (tokens * streams),
        "share_of_a_core": found["cpu_s"] / LENGTH_S,
        "lag_p50_ms": 1e3 * float(np.quantile(lags, 0.5)),
        "lag_p99_ms": 1e3 * float(np.quantile(lags, 0.99)),
    }
    if is_ours:
        cost["request_leaves_late_p99_ms"] = 1e3 * float(np.quantile(found["left_late_s"], 0.99))
    return cost


def _sent_s(url: str) -> Times:
    with urllib.request.urlopen(url) as answer:  # noqa: S310 - our own
        return {int(number): times for number, times in json.load(answer).items()}


def _lags(sent_s: list[float], seen_s: list[float]) -> list[float]:
    """Return how late each token was read; of tokens that were read together each."""
    sent, seen = np.array(sent_s), np.array(seen_s)
    first_read_after = np.searchsorted(seen, sent)
    known = first_read_after < len(seen)
    found: list[float] = (seen[first_read_after[known]] - sent[known]).tolist()
    return found


def measured() -> dict[str, dict[str, float]]:
    """Return the medians of ROUNDS rounds, the clients in turn."""
    command = [sys.executable, __file__]
    found: dict[str, list[dict[str, float]]] = {}
    with subprocess.Popen([*command, "--serve"], stdout=subprocess.PIPE, text=True) as server:  # noqa: S603 - ours
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1/completions"
        try:
            for _ in range(ROUNDS):
                for rate, streams in RATES.items():
                    for client in CLIENTS:
                        asked = [*command, "--read", client, url, str(streams), str(rate)]
                        said = subprocess.run(asked, check=True, capture_output=True, text=True)  # noqa: S603 - ours
                        name = f"{client} at {rate:,}"
                        found.setdefault(name, []).append(json.loads(said.stdout))
        finally:
            server.kill()
    return {
        name: {key: median(one[key] for one in rounds) for key in rounds[0]}
        for name, rounds in found.items()
    }


def kept() -> str:
    """Return what is known of the clients, for docs/experiments.md."""
    if not (evidence.FOLDER / f"{KEPT}.json").exists():
        return "Not measured yet on a quiet machine."
    rows = [
        (name, f"{one['us_a_token']:.0f} µs", f"{one['share_of_a_core']:.0%}",
         f"{one['lag_p50_ms']:.1f} ms", f"{one['lag_p99_ms']:.1f} ms")
        for name, one in evidence.found(KEPT).items()
    ]  # fmt: skip
    head = ("client at tokens/s", "CPU a token", "of a core", "read late, p50", "p99")
    return f"{evidence.table(head, rows)}\n\nBy {evidence.source(KEPT)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--keep", metavar="NAME", help="write docs/evidence/NAME.json")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--read", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve())
    elif options.read:
        client, url, streams, rate = options.read
        sys.stdout.write(json.dumps(asyncio.run(read(client, url, int(streams), int(rate)))))
        sys.stdout.flush()
        os._exit(0)  # what the libraries leave open is nobody's concern
    else:
        results = measured()
        if options.json:
            sys.stdout.write(json.dumps(results) + "\n")
        for name, numbers in () if options.json else results.items():
            shown = ", ".join(f"{key} {value:.3g}" for key, value in numbers.items())
            sys.stdout.write(f"{name:20} {shown}\n")
        evidence.keep(options.keep, results, {name: version(name) for name in LIBRARIES})
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A stand-in for ``vllm serve`` without an engine, in place of ``tuner.engines.server.serve``.

Instead of a scheduler it writes the page of one. What it does otherwise than a server that is well,
the environment says: after STUB_STOPS requests it stops in the middle of a stream.
"""

import asyncio
import os
import sys
import threading
import time
from pathlib import Path

import msgspec
import numpy as np

from tests.support.completions import DONE, HEAD, TOKEN, Exchange, completions, usage
from tuner.engines.page import SERVED, VARIABLE, About

TOKEN_S = 0.002

ABOUT = About(arguments={"block_size": 16}, kv_blocks=100, unmodelled=[])


class StubServer:
    """Counts what it has answered."""

    def __init__(self) -> None:
        self.served = 0
        self.stops = int(os.environ.get("STUB_STOPS", sys.maxsize))

    async def answer(self, exchange: Exchange) -> None:
        tokens = exchange.body["max_tokens"]
        await exchange.send(HEAD)
        for _ in range(tokens):
            await exchange.event(TOKEN)
            if self.served >= self.stops:
                await exchange.left.wait()
                return
            await asyncio.sleep(TOKEN_S)
        self.served += 1
        self._log(exchange.headers["X-Request-Id"])
        await exchange.event(usage(tokens), DONE)
        await exchange.end()

    def _log(self, name: str) -> None:
        number = int(name.removeprefix("tuner-"))
        row = np.array([(number, *[time.monotonic()] * 4, 0)], SERVED)
        with (_folder() / "served").open("ab") as file:
            row.tofile(file)


def _folder() -> Path:
    return Path(os.environ[VARIABLE])


def serve(words: list[str]) -> None:
    path = words[words.index("--uds") + 1]
    (_folder() / "about.json").write_bytes(msgspec.json.encode(ABOUT))
    server = StubServer()
    with completions(server.answer, get={"/health": b""}, path=path):
        threading.Event().wait()

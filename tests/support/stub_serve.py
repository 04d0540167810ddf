"""A stand-in for ``vllm serve`` without an engine: python -m tests.support.stub_serve … --port N.

What it does otherwise than a server is well, the environment says: STUB_TAKEN of its starts find
the port taken (counted in the file STUB_STARTS); after STUB_STOPS requests it stops in the middle
of a stream.
"""

import asyncio
import os
import sys
import threading
from pathlib import Path

from tests.support.completions import DONE, HEAD, TOKEN, Asked, completions, usage

TOKEN_S = 0.002

METRICS = """\
vllm:cache_config_info{block_size="16",num_gpu_blocks="101"} 1.0
vllm:request_success_total{finished_reason="length"} %d
"""


class StubServer:
    """Counts what it has answered."""

    def __init__(self) -> None:
        self.served = 0
        self.stops = int(os.environ.get("STUB_STOPS", sys.maxsize))
        self.pages = {"/health": b""}
        self._tell()

    async def answer(self, asked: Asked) -> None:
        tokens = asked.body["max_tokens"]
        await asked.send(HEAD)
        for _ in range(tokens):
            await asked.event(TOKEN)
            if self.served >= self.stops:
                await asked.left.wait()
                return
            await asyncio.sleep(TOKEN_S)
        self.served += 1
        self._tell()
        await asked.event(usage(tokens), DONE)
        await asked.end()

    def _tell(self) -> None:
        self.pages["/metrics"] = (METRICS % self.served).encode()


def main() -> None:
    if starts := os.environ.get("STUB_STARTS"):
        with Path(starts).open("a+") as file:
            file.write("start\n")
            file.seek(0)
            if len(file.readlines()) <= int(os.environ["STUB_TAKEN"]):
                raise OSError(98, "Address already in use")
    server = StubServer()
    port = int(sys.argv[sys.argv.index("--port") + 1])
    with completions(server.answer, get=server.pages, port=port):
        threading.Event().wait()


if __name__ == "__main__":
    main()

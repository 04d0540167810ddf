"""A program with a worker process behind queues: says when it serves, and goes on for ever.

python -m tests.support.lone_workers LOG
"""

import asyncio
import sys
from pathlib import Path

from tuner.engines.seam import EngineRequest, Reply
from tuner.engines.workers.seam import Batching
from tuner.engines.workers.vllm import VllmTestbed


async def main(log: Path) -> None:
    testbed = VllmTestbed(
        {"model": "tuner:tiny", "max_model_len": 512}, None, queue_size=4, log=log
    )
    engine = await testbed.workers(1, Batching())
    try:
        print("serving", flush=True)  # noqa: T201 - what the test waits for
        while True:
            await engine.generate(EngineRequest("r", [5] * 10, 400), Reply())
    finally:
        await engine.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))

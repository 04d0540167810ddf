"""A program with a real engine and a worker process behind queues: says when both generate, and
goes on for ever.

python -m tests.support.lone_engine LOG
"""

import asyncio
import sys
from pathlib import Path

from tuner.engines.seam import ArgumentValue, EngineRequest, Reply
from tuner.engines.vllm.start import VllmStarter
from tuner.engines.workers.seam import Batching
from tuner.engines.workers.vllm import VllmTestbed

TINY: dict[str, ArgumentValue] = {
    "model": "tuner:tiny",
    "max_model_len": 512,
    "gpu_memory_utilization": 0.1,  # two of them
}


async def main(log: Path) -> None:
    engine = await VllmStarter(TINY, log=log).start(max_num_seqs=2)
    try:
        worker = await VllmTestbed(TINY, None, queue_size=4, log=log).workers(1, Batching())
        try:
            print("generating", flush=True)  # noqa: T201 - what the test waits for
            while True:
                asked = [EngineRequest("r", [5] * 10, 400) for _ in range(2)]
                both = (engine, worker)
                await asyncio.gather(
                    *(one.generate(each, Reply()) for one, each in zip(both, asked, strict=True))
                )
        finally:
            await worker.stop()
    finally:
        await engine.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))

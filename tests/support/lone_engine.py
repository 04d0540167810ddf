"""A program with a real engine and a worker process behind queues: says when both generate, and
goes on for ever. Another engine starts then, of which it says when it has.

python -m tests.support.lone_engine LOG
"""

import asyncio
import sys
from pathlib import Path

from tuner.engines.seam import ArgumentValue, Engine, EngineRequest, Reply
from tuner.engines.vllm.start import VllmStarter
from tuner.engines.workers import WorkersStarter

TINY: dict[str, ArgumentValue] = {
    "model": "tuner:tiny",
    "max_model_len": 512,
    "gpu_memory_utilization": 0.1,  # three of them
}


async def main(log: Path) -> None:
    starter = VllmStarter(TINY, log=log)
    engine = await starter.start(max_num_seqs=2)
    try:
        worker = await WorkersStarter(starter, 1).start(max_num_seqs=1)
        try:
            say("generating")
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(generate(engine))
                tasks.create_task(generate(worker))
                another = await starter.start(max_num_seqs=2)
                say("started")
                await another.stop()
        finally:
            await worker.stop()
    finally:
        await engine.stop()


async def generate(engine: Engine) -> None:
    while True:
        await engine.generate(EngineRequest([5] * 10, 400), Reply())


def say(word: str) -> None:
    print(word, flush=True)  # noqa: T201 - what the test waits for


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))

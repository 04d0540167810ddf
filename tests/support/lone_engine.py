"""A program with one real engine: says when it generates, and goes on until it has, or for ever.

python -m tests.support.lone_engine LOG once|for-ever
"""

import asyncio
import sys
from pathlib import Path

from tuner.engines.seam import EngineRequest, Reply
from tuner.engines.vllm.start import VllmStarter


async def main(log: Path, *, once: bool) -> None:
    starter = VllmStarter({"model": "tuner:tiny", "max_model_len": 512}, log=log)
    engine = await starter.start(max_num_seqs=2)
    try:
        print("generating", flush=True)  # noqa: T201 - what the test waits for
        while True:
            reply = Reply()
            await engine.generate(EngineRequest("r", [5] * 10, 400), reply)
            if once:
                print(reply.output_tokens)  # noqa: T201
                break
    finally:
        await engine.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), once=sys.argv[2] == "once"))

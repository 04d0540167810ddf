"""A program with one real engine over several ranks: says what it saw, then generates for ever.

python -m tests.support.lone_ranks LOG ARGUMENTS, these as a JSON object
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from tuner.engines.seam import EngineRequest, Reply
from tuner.engines.vllm.start import VllmStarter

PROMPT, OUTPUT, REQUESTS = 100, 60, 3


async def main(log: Path, arguments: dict[str, Any]) -> None:
    # each rank its own core, as vLLM's CPU build needs it; the same one where there is one
    cores = sorted(os.sched_getaffinity(0))
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"{cores[0]}|{cores[-1]}")
    starter = VllmStarter({"model": "tuner:tiny", "max_model_len": 512, **arguments}, log=log)
    engine = await starter.start(max_num_seqs=2)
    try:
        replies = [Reply() for _ in range(REQUESTS)]
        requests = [EngineRequest([5 + i] * PROMPT, OUTPUT) for i in range(REQUESTS)]
        await asyncio.gather(*map(engine.generate, requests, replies))
        log_ = await engine.iterations()
        seen = {
            "arguments": dict(engine.facts.arguments),
            "output_tokens": [reply.output_tokens for reply in replies],
            "prefill_tokens": int(log_["prefill_tokens"].sum()),
            "decode_tokens": int(log_["decode_seqs"].sum()),
            "running_peak": int(log_["running"].max()),
            "kv_blocks_peak": int(log_["kv_blocks_used"].max()),
        }
        print(json.dumps(seen), flush=True)  # noqa: T201 - what the test waits for
        while True:
            await engine.generate(EngineRequest([5] * 10, 400), Reply())
    finally:
        await engine.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), json.loads(sys.argv[2])))

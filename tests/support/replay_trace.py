"""Replay a trace on a real engine and print how many requests were in flight:
``python -m tests.support.replay_trace TRACE CAP``."""

import asyncio
import json
import sys
from pathlib import Path

from tuner.engines.vllm.start import VllmStarter
from tuner.replay.plan import PlannedRequest
from tuner.replay.replay import CutRule, replay
from tuner.trace import trace
from tuner.traffic.prompts import prompt_token_ids
from tuner.traffic.slo import Slo


async def main(path: Path, cap: int) -> None:
    recorded = trace.load(path)
    starter = VllmStarter({"model": "tuner:tiny"})
    engine = await starter.start(max_num_seqs=cap)
    try:
        plan = [
            PlannedRequest(
                request.row,
                request.arrival_s,
                prompt_token_ids(
                    request,
                    seed=0,
                    vocab_size=engine.facts.vocab_size,
                    block_size=recorded.header.block_size,
                ),
                request.output_length,
                abort_after_s=request.e2e_s if request.status == "aborted" else None,
            )
            for request in recorded.requests
        ]
        done = await replay(
            plan,
            engine,
            max_num_seqs=cap,
            scored_from_s=0.0,
            window_s=plan[-1].planned_s,
            cut_rule=CutRule(Slo(ttft_s=1e9), floor=0.0),
        )
    finally:
        await engine.stop()
    json.dump([(one.planned_s, one.end_s) for one in done.records], sys.stdout)


if __name__ == "__main__":  # a child of vLLM imports this once more
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))

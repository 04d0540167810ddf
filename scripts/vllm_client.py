"""vLLM's own client, `vllm bench serve`, with requests of a trace."""

import json
from collections.abc import Sequence
from pathlib import Path

from tuner.trace.trace import TraceRequest

RESULT = "bench.json"


def bench_serve(
    requests: Sequence[TraceRequest], folder: Path, *, port: int, model: str, seed: int
) -> list[str]:
    """Write the requests into a folder, and return the words after `vllm` that send them to the
    model; RESULT will be there. Every seed has prompts of its own."""
    path = folder / "bench.jsonl"
    with path.open("w") as file:
        for request in requests:
            ids = request.hash_ids or range(1000 * request.row, 1000 * request.row + 200)
            lengths = {"input_length": request.input_length, "output_length": request.output_length}
            hash_ids = [10**7 * seed + block for block in ids]
            print(
                json.dumps({"timestamp": request.arrival_s, **lengths, "hash_ids": hash_ids}),
                file=file,
            )
    return [
        *("bench", "serve", "--model", model, "--port", str(port)),
        *("--dataset-name", "timed_trace", "--dataset-path", str(path)),
        *("--num-prompts", str(len(requests)), "--timed-trace-chunk-hash-size", "16"),
        *("--ignore-eos", "--save-result", "--save-detailed"),
        *("--result-dir", str(folder), "--result-filename", RESULT),
    ]

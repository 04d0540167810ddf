"""The program of a worker process of ``tuner compare``: a queue, ``vllm.LLM``, another queue.

The engine runs in the worker's own process and thread: while it serves a batch nothing else
happens there. Imports vLLM when it runs, not before.
"""

# ruff: noqa: ANN401 - vLLM's objects are untyped where vLLM is not installed

import base64
import contextlib
import os
import queue
import time
import traceback
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tuner.engines.sampling import sampled
from tuner.engines.workers.queue_messages import (
    Completion,
    Order,
    OrderResult,
    Prompt,
    Skipped,
    WorkerReady,
)
from tuner.engines.workers.seam import Batching

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.sharedctypes import Synchronized


def work(
    arguments: Mapping[str, Any],
    batching: Batching,
    requests: "Queue[Prompt | Order]",
    results: "Queue[WorkerReady | Completion | OrderResult | Skipped]",
    wanted_from: "Synchronized[int]",
) -> None:
    """Start the engine, then serve batches until the process is ended."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    with contextlib.ExitStack() as ending:
        ending.push(_say_why)
        engine = _Engine(arguments)
        results.put(engine.ready())
        _serve(engine, batching, requests, results, wanted_from)


def _say_why(
    _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
) -> None:
    """Write an error to the log of this engine, while standard error still is that."""
    if error is not None:
        traceback.print_exception(error)


def _serve(
    engine: "_Engine",
    batching: Batching,
    requests: "Queue[Prompt | Order]",
    results: "Queue[WorkerReady | Completion | OrderResult | Skipped]",
    wanted_from: "Synchronized[int]",
) -> None:
    while True:
        batch, order = _collect(requests, batching)
        wanted = []
        for prompt, read_s in batch:
            if prompt.number < wanted_from.value:
                results.put(Skipped(prompt.number))
            else:
                wanted.append((prompt, read_s))
        if wanted:
            for done in engine.serve(wanted):
                results.put(done._replace(sent_s=time.monotonic()))
            engine.rest()
        if order is not None:
            results.put(OrderResult(order.number, engine.obey(order)))


def _collect(
    requests: "Queue[Prompt | Order]", batching: Batching
) -> tuple[list[tuple[Prompt, float]], Order | None]:
    """Return a batch, each prompt with what the queue took to bring it, and what ended it early."""
    batch: list[tuple[Prompt, float]] = []
    until_s: float | None = None
    while len(batch) < batching.size:
        waiting_s = time.monotonic()
        try:
            message = requests.get(
                timeout=None if until_s is None else max(0.0, until_s - waiting_s)
            )
        except queue.Empty:
            break
        now_s = time.monotonic()
        if isinstance(message, Order):
            return batch, message
        # it may have lain there while we were at work: that is not the queue's doing
        batch.append((message, now_s - max(waiting_s, message.sent_s)))
        until_s = until_s or now_s + batching.wait_s
    return batch, None


class _Engine:
    """``vllm.LLM``, and when it had which token."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        from vllm import LLM  # noqa: PLC0415 - in the worker process only

        self._llm = LLM(**arguments)
        self._arguments = arguments
        client = self._llm.llm_engine.engine_core
        self._scheduler = client.engine_core.scheduler
        self._scheduler.take_log()  # from now on it has one
        self._token_s: dict[str, list[float]] = {}
        step = client.get_output

        def timed_step() -> Any:
            outputs = step()
            now_s = time.monotonic()
            for one in outputs.outputs:
                if one.new_token_ids:
                    # vLLM adds to its own number what makes it unique
                    self._token_s.setdefault(one.request_id.partition("-")[0], []).append(now_s)
            return outputs

        client.get_output = timed_step

    def ready(self) -> WorkerReady:
        from tuner.engines.vllm.config import (  # noqa: PLC0415 - imports vLLM
            pinned,
            prompt_vocabulary,
        )

        config = self._llm.llm_engine.vllm_config
        return WorkerReady(
            arguments=pinned(config, {"model": self._arguments["model"]}, is_started=True),
            max_model_len=config.model_config.max_model_len,
            vocab_size=prompt_vocabulary(config.model_config),
            block_size=config.cache_config.block_size,
            kv_blocks=self._scheduler.kv_blocks,
        )

    def serve(self, batch: Sequence[tuple[Prompt, float]]) -> list[Completion]:
        """Generate a batch, and return when the slowest is done."""
        from tuner.engines.vllm.llm import exactly  # noqa: PLC0415 - imports vLLM

        config = self._llm.llm_engine.vllm_config.model_config
        sampling = sampled(config.get_diff_sampling_param(), {})
        begun_s = time.monotonic()
        outputs = self._llm.generate(
            [{"prompt_token_ids": list(prompt.token_ids)} for prompt, _ in batch],
            [exactly(prompt.output_length, sampling) for prompt, _ in batch],
            use_tqdm=False,
        )
        done_s = time.monotonic()
        return [
            Completion(
                number=prompt.number,
                output_tokens=len(output.outputs[0].token_ids),
                output_s=tuple(self._token_s.pop(output.request_id)),
                read_s=read_s,
                begun_s=begun_s,
                batch_done_s=done_s,
                sent_s=done_s,
            )
            for (prompt, read_s), output in zip(batch, outputs, strict=True)
        ]

    def rest(self) -> None:
        """Let the scheduler hear of the last ends, as EngineCore's own loop does before it idles;
        else the time until the next batch would count as busy."""
        self._llm.llm_engine.step()

    def obey(self, order: Order) -> bytes | bool:
        if order.what == "take_iterations":
            return self._take_rows()
        return bool(self._llm.reset_prefix_cache())

    def _take_rows(self) -> bytes:
        rows = bytearray()
        while True:
            log = self._scheduler.take_log()
            rows += base64.b64decode(log.rows)
            if not log.more:
                return bytes(rows)

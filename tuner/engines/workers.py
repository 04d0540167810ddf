"""Worker processes behind a queue, a synchronous ``vllm.LLM`` in each that serves one prompt or one
batch at a time, as services were built before continuous batching. Only ``tuner compare`` measures
them."""

# ruff: noqa: ANN401 - multiprocessing's and vLLM's objects are untyped here

import asyncio
import os
import queue
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import structs

from tuner.engines.paged import HangWatch, PagedEngine
from tuner.engines.seam import ITERATION, EngineRequest, IterationLog, Reply, RequestFailedError

_LOOK_S = 0.01
_READY, _WARM_UP = "ready", EngineRequest([1] * 8, 8)
"""What a worker serves first, by itself."""

Output = dict[str, Any]
"""Fields of a reply, in seconds of the monotonic clock that processes share."""


class Workers(PagedEngine):
    """See tuner.engines.seam.Engine. Whichever worker is free takes the next prompt."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._served = self._cache = 0
        self._watch = HangWatch(lambda: self._served, self._end)
        self._prompts = self._processes.Queue()
        self._waiting = dict[str, "asyncio.Future[Output]"]()

    async def open(self) -> None:
        """Start one after the other, each of which measures what the one before has left, and let
        it pay what only its first request pays."""
        from tuner.engines.vllm.config import for_llm  # noqa: PLC0415 - imports vLLM

        arguments = for_llm(self._resolved, share=1 / self._starter.workers)
        for _ in range(self._starter.workers):
            pipe, sender = self._processes.Pipe(duplex=False)
            args = (arguments, self._starter.size, self._starter.wait_s, self._prompts, sender)
            self._processes.Process(name="the worker", target=work, args=args).start()
            sender.close()  # the worker's end closes the pipe
            asyncio.get_running_loop().add_reader(pipe, self._read, pipe)
            try:
                await self._output(_READY)
            except RequestFailedError as error:
                raise self._processes.failed_to_start(error) from None

    async def begin(self, begun_s: float) -> None:
        """Take its facts."""
        start_s = asyncio.get_running_loop().time() - begun_s
        self.facts = replace(self.facts, start_s=start_s)

    async def prepare(self, **_limits: int | None) -> None:
        """See the seam. Workers keep the limits that they were started with."""
        self._check_running()
        while self._waiting:  # a replay that was cut leaves prompts
            with suppress(queue.Empty):
                while prompt := self._prompts.get_nowait():
                    self._waiting.pop(prompt[1]).cancel()
            await asyncio.sleep(_LOOK_S)
            self._check_running()
        self._cache += 1  # each empties its own before the next prompt

    async def iterations(self) -> IterationLog:
        """See the seam: none, without tuner's scheduler."""
        self._check_running()
        return np.empty(0, ITERATION)

    async def _ask(self, name: str, request: EngineRequest, reply: Reply) -> None:
        reply.queued_s = asyncio.get_running_loop().time()
        self._prompts.put((self._cache, name, request))
        for field, value in (await self._output(name)).items():
            setattr(reply, field, value)
        reply.seen_s.append(asyncio.get_running_loop().time())

    async def _output(self, name: str) -> Output:
        waiting: asyncio.Future[Output] = asyncio.get_running_loop().create_future()
        self._waiting[name] = waiting
        return await waiting

    def _read(self, pipe: Any) -> None:
        """Take what a worker has served, or its end."""
        try:
            name, output = pipe.recv()
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(pipe)
            pipe.close()
            self._closing = asyncio.create_task(self._fail())
            return
        self._served += 1
        waiting = self._waiting.pop(name)
        if not waiting.done():
            waiting.set_result(output)

    async def _fail(self) -> None:
        """Fail all who wait, once the end of a worker shows."""
        await self._processes.ended()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(RequestFailedError("a worker has ended"))

    async def _close(self) -> None:
        self._prompts.close()
        self._prompts.cancel_join_thread()
        self._processes.end()
        await self._fail()


def work(arguments: dict[str, Any], size: int, wait_s: float, prompts: Any, sender: Any) -> None:
    """In the worker process: serve one batch after the other until it is ended, with an empty
    prefix cache where another one is meant than before."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM  # noqa: PLC0415 - in the worker process only

    llm = LLM(**arguments)
    cache, batch = 0, [(0, _READY, _WARM_UP)]
    while True:
        if batch[0][0] != cache:
            llm.reset_prefix_cache()
            cache = batch[0][0]
        begun_s, usual = time.monotonic(), llm.get_default_sampling_params()
        usual.ignore_eos, usual.detokenize = True, False
        inputs = [{"prompt_token_ids": list(each.prompt_token_ids)} for _, _, each in batch]
        sampling = [structs.replace(usual, max_tokens=each.output_length) for _, _, each in batch]
        for each, output in zip(batch, llm.generate(inputs, sampling, use_tqdm=False), strict=True):
            result = {
                "scheduled_s": begun_s,
                "output_tokens": len(output.outputs[0].token_ids),
                "first_s": output.metrics.first_token_ts,
                "last_s": output.metrics.last_token_ts,
            }
            sender.send((each[1], result))
        batch, until_s = [prompts.get()], time.monotonic() + wait_s
        with suppress(queue.Empty):
            while len(batch) < size:
                batch.append(prompts.get(timeout=max(0.0, until_s - time.monotonic())))

"""An engine in this process: vLLM's AsyncLLM behind the seam. Imports vLLM."""

# mypy: allow-subclassing-any
# ruff: noqa: ANN401 - vLLM's objects are untyped where vLLM is not installed

import asyncio
import gc
from typing import Any

from vllm import SamplingParams, exceptions
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import utils as engine_utils
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from tuner.engines import devices
from tuner.engines.page import Page
from tuner.engines.paged import PagedEngine
from tuner.engines.seam import STOPPED, EngineRequest, Reply, RequestFailedError
from tuner.engines.vllm import failure
from tuner.engines.vllm.core_process import CoreContext
from tuner.engines.vllm.start import Resolved
from tuner.errors import EngineError

_STOP_S = 10.0
"""Time that EngineCore may take to end by itself."""

_OF_A_REQUEST = (EngineDeadError, EngineGenerateError, exceptions.VLLMError, ValueError)
"""Errors that vLLM raises for one request, or for all."""


class _Llm(AsyncLLM):
    def __del__(self) -> None:
        """Do nothing: ``stop`` has done it; vLLM's own fails when the interpreter ends."""


def _construct(config: Any, context: CoreContext) -> _Llm:
    """Start EngineCore and what talks to it; blocks until it is ready. Meanwhile vLLM is given a
    context of ours, in a global of its own."""
    theirs, engine_utils.get_mp_context = engine_utils.get_mp_context, lambda: context
    try:
        llm: _Llm = _Llm.from_vllm_config(config, disable_log_stats=True)
        return llm
    finally:
        engine_utils.get_mp_context = theirs


def _close(llm: _Llm, timeout_s: float) -> None:
    """Let EngineCore end by itself for so long, then end it."""
    llm.shutdown(timeout=timeout_s)
    llm.engine_core.resources.ctx.destroy(linger=0)  # which vLLM leaves open


class VllmEngine(PagedEngine):
    """See the seam: tuner.engines.seam.Engine."""

    def __init__(self, llm: _Llm, context: CoreContext, page: Page, resolved: Resolved) -> None:
        super().__init__(page, [each.pid for each in context.processes if each.pid is not None])
        self._llm, self._context, self._by_priority = llm, context, resolved.by_priority
        self._sampling = {
            **resolved.sampling,
            "ignore_eos": True,
            "detokenize": False,
            "output_kind": RequestOutputKind.DELTA,
        }

    @classmethod
    async def start(
        cls, resolved: Resolved, context: CoreContext, page: Page, begun_s: float
    ) -> "VllmEngine":
        """Start what was configured. Failed or cancelled, nothing is left behind.

        Raises EngineError with vLLM's reason.
        """
        loop = asyncio.get_running_loop()
        construction = loop.run_in_executor(None, _construct, resolved.config, context)
        cancelled = False
        try:
            await asyncio.wait([construction])
        except asyncio.CancelledError:
            cancelled = True  # and raised below: this one's traceback holds what is to be freed
            context.kill()  # so that the construction fails, whatever it waits for
            await asyncio.wait([construction])
        error = construction.exception()
        if cancelled or error is not None:
            if error is None:
                _close(construction.result(), 0)
            context.kill()
            problem = failure.failed_to_start(context.log, error) if error is not None else None
            del construction, error
            gc.collect()  # its sockets and threads
            page.remove()
            await devices.given_back(context.memory_before)
            raise asyncio.CancelledError if cancelled or problem is None else problem
        engine = cls(construction.result(), context, page, resolved)
        await engine.begin(resolved, engine="vllm", begun_s=begun_s)
        return engine

    async def _ask(self, name: str, request: EngineRequest, reply: Reply) -> None:
        clock = asyncio.get_running_loop().time
        # as a server is asked: min_tokens would mask stop tokens in every iteration
        parameters = SamplingParams(max_tokens=request.output_length, **self._sampling)
        priority = request.priority if self._by_priority else 0
        prompt = tokens_input(list(request.prompt_token_ids))
        try:
            async for output in self._llm.generate(prompt, parameters, name, priority=priority):
                if tokens := len(output.outputs[0].token_ids):
                    reply.seen_s.append(clock())
                    reply.output_tokens += tokens
        except _OF_A_REQUEST as error:
            raise RequestFailedError(str(error.__cause__ or error)) from error

    async def stop(self) -> None:
        """See the seam."""
        if self._cause is STOPPED:
            return
        self._cause = STOPPED
        self._llm.output_processor.propagate_error(EngineDeadError())  # whoever still generates
        try:
            await asyncio.to_thread(_close, self._llm, _STOP_S)
        finally:
            self._kill()
            self._page.remove()
        await devices.given_back(self._context.memory_before)

    def _kill(self) -> None:
        self._context.kill()

    def _death(self) -> EngineError | None:
        if not self._llm.errored and self._context.is_alive():
            return None
        codes = [process.exitcode for process in self._context.processes if process.exitcode]
        return failure.died(codes[0] if codes else None, self._context.log)

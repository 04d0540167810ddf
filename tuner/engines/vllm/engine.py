"""An engine in this process: vLLM's AsyncLLM behind the seam. Imports vLLM."""

# mypy: allow-subclassing-any

import asyncio
import gc
from typing import Any

from vllm import SamplingParams, exceptions
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import utils as engine_utils
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from tuner.engines.paged import PagedEngine
from tuner.engines.seam import EngineRequest, Reply, RequestFailedError

_STOP_S = 10.0
"""Time that EngineCore may take to end by itself."""

_OF_A_REQUEST = (EngineDeadError, EngineGenerateError, exceptions.VLLMError, ValueError)
"""Errors that vLLM raises for one request, or for all."""


class _Llm(AsyncLLM):
    def __del__(self) -> None:
        """Do nothing: ``stop`` has done it; vLLM's own fails when the interpreter ends."""


class VllmEngine(PagedEngine):
    """See the seam: tuner.engines.seam.Engine."""

    _llm: Any = None

    async def open(self) -> None:
        """Start EngineCore and what talks to it. Raises EngineError with vLLM's reason."""
        construction = asyncio.get_running_loop().run_in_executor(None, self._construct)
        problem: BaseException | None = None
        try:
            await asyncio.wait([construction])
        except asyncio.CancelledError:
            # raised anew: this one's traceback holds what is to be freed
            problem = asyncio.CancelledError()
            self._processes.end()  # so that the construction fails, whatever it waits for
            await asyncio.wait([construction])
        if (error := construction.exception()) is None:
            self._llm = construction.result()
        elif problem is None:
            problem = self._processes.failed_to_start(error)
        if problem is not None:
            del construction, error
            gc.collect()  # its sockets and threads
            raise problem

    def _construct(self) -> _Llm:
        """Block until it is ready. Meanwhile vLLM is given a context of ours, in a global of its
        own."""
        theirs, engine_utils.get_mp_context = engine_utils.get_mp_context, lambda: self._processes
        try:
            llm: _Llm = _Llm.from_vllm_config(self._resolved.config, disable_log_stats=True)
            return llm
        finally:
            engine_utils.get_mp_context = theirs

    async def _ask(self, name: str, request: EngineRequest, reply: Reply) -> None:
        clock = asyncio.get_running_loop().time
        prompt = tokens_input(list(request.prompt_token_ids))
        try:
            # as a server is asked: min_tokens would mask stop tokens in every iteration
            parameters = SamplingParams(
                max_tokens=request.output_length,
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
                **(self.facts.sampling or {}),
            )
            async for output in self._llm.generate(
                prompt, parameters, name, priority=request.priority
            ):
                if tokens := len(output.outputs[0].token_ids):
                    reply.seen_s.append(clock())
                    reply.output_tokens += tokens
        except _OF_A_REQUEST as error:
            if self._llm.errored:
                await self._processes.ended()
            raise RequestFailedError(str(error.__cause__ or error)) from error

    async def _close(self) -> None:
        if (llm := self._llm) is not None:
            llm.output_processor.propagate_error(EngineDeadError())  # whoever still generates
            await asyncio.to_thread(llm.shutdown, timeout=_STOP_S)
            llm.engine_core.resources.ctx.destroy(linger=0)  # which vLLM leaves open

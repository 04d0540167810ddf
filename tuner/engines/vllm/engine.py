"""An engine in this process: vLLM's AsyncLLM behind the seam. Imports vLLM."""

# mypy: allow-subclassing-any
# ruff: noqa: ANN401 - vLLM's objects are untyped where vLLM is not installed

import asyncio
import contextlib
import dataclasses
import gc
import threading
import warnings
from pathlib import Path
from typing import Any

from vllm import SamplingParams, exceptions
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import utils as engine_utils
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from tuner.engines import devices, provenance
from tuner.engines.page import Page, name_of
from tuner.engines.paged import WARM_UP_TOKENS, PagedEngine
from tuner.engines.seam import STOPPED, EngineFacts, EngineRequest, Reply, RequestFailedError
from tuner.engines.vllm import failure
from tuner.engines.vllm.config import pinned
from tuner.engines.vllm.core_process import CoreContext
from tuner.engines.vllm.installed import in_one_process
from tuner.engines.vllm.log import said_since, start_phases_s
from tuner.engines.vllm.start import Resolved
from tuner.errors import EngineError

_STOP_S = 10.0
"""Time that EngineCore may take to end by itself."""

_OF_A_REQUEST = (EngineGenerateError, exceptions.VLLMError, ValueError)
"""Errors that vLLM raises for one request."""

_CONSTRUCTING = threading.Lock()
"""For the time of a construction vLLM is given a context of ours, in a global of its own."""


class _Llm(AsyncLLM):
    def __del__(self) -> None:
        """Do nothing: ``stop`` has done it; vLLM's own fails when the interpreter ends."""


def _construct(config: Any, context: CoreContext) -> _Llm:
    """Start EngineCore and what talks to it; blocks until it is ready."""
    with _CONSTRUCTING:
        theirs, engine_utils.get_mp_context = engine_utils.get_mp_context, lambda: context
        try:
            llm: _Llm = _Llm.from_vllm_config(config, disable_log_stats=True)
            return llm
        finally:
            engine_utils.get_mp_context = theirs


def _close(llm: _Llm, *, timeout_s: float) -> None:
    """Let EngineCore end by itself for so long, then end it."""
    llm.shutdown(timeout=timeout_s)
    llm.engine_core.resources.ctx.destroy(linger=0)  # which vLLM leaves open


class VllmEngine(PagedEngine):
    """See the seam: tuner.engines.seam.Engine."""

    def __init__(
        self, llm: _Llm, context: CoreContext, page: Page, log: Path, resolved: Resolved
    ) -> None:
        pids = [one.pid for one in context.processes if one.pid is not None]
        super().__init__(page, log, doing=lambda: devices.state_of(pids))
        self._llm, self._context, self._log = llm, context, log
        self._log_start = context.log_start
        self._cause: EngineError | None = None
        self._by_priority = resolved.by_priority
        self._sampling = {**resolved.sampling, "ignore_eos": True, "detokenize": False}

    @classmethod
    async def start(
        cls,
        resolved: Resolved,
        context: CoreContext,
        page: Page,
        log: Path,
        begun_s: float,
    ) -> "VllmEngine":
        """Start what was configured. Failed or cancelled, nothing is left behind.

        Raises EngineError with vLLM's reason.
        """
        loop = asyncio.get_running_loop()
        construction = loop.run_in_executor(None, _construct, resolved.config, context)
        llm, problem, cancelled = None, None, False
        try:
            await asyncio.wait([construction])
        except asyncio.CancelledError:
            cancelled = True  # and raised below: this one's traceback holds what is to be freed
            context.kill()  # so that the construction fails, whatever it waits for
            await asyncio.wait([construction])
        if (error := construction.exception()) is None:
            llm = construction.result()
        else:
            problem = failure.failed_to_start(error, said_since(log, context.log_start), str(log))
        if cancelled or llm is None:
            if llm is not None:
                _close(llm, timeout_s=0)
            context.kill()
            del construction, error, llm
            with warnings.catch_warnings():  # of its sockets and threads, freed here
                warnings.simplefilter("ignore", ResourceWarning)
                gc.collect()
            page.remove()
            await devices.given_back(context.memory_before)
            raise problem if problem is not None and not cancelled else asyncio.CancelledError
        engine = cls(llm, context, page, log, resolved)
        async with contextlib.AsyncExitStack() as failing:
            failing.push_async_callback(engine.stop)
            engine.facts = _facts(llm, resolved, page, said_since(log, context.log_start))
            await engine._warm_up()
            failing.pop_all()
        engine.facts = dataclasses.replace(engine.facts, start_s=loop.time() - begun_s)
        return engine

    async def generate(self, request: EngineRequest, reply: Reply) -> None:
        """See the seam."""
        reason: str | None = None
        clock = asyncio.get_running_loop().time
        with self._generating(request, reply) as number:
            try:
                async for output in self._llm.generate(
                    tokens_input(list(request.prompt_token_ids)),
                    # as a server is asked: min_tokens would mask stop tokens in every iteration
                    SamplingParams(
                        max_tokens=request.output_length,
                        output_kind=RequestOutputKind.DELTA,
                        **self._sampling,
                    ),
                    name_of(number),
                    priority=request.priority if self._by_priority else 0,
                ):
                    completion = output.outputs[0]
                    reason = completion.finish_reason
                    if tokens := len(completion.token_ids):
                        reply.seen_s.append(clock())
                        reply.output_tokens += tokens
                        self._tokens += tokens
            except EngineDeadError as error:
                raise self._dead() from error
            except _OF_A_REQUEST as error:
                if self._llm.errored:
                    raise self._dead() from error
                raise RequestFailedError(str(error.__cause__ or error)) from error
        if reply.output_tokens != request.output_length:
            raise RequestFailedError(
                f"{reply.output_tokens} of {request.output_length} tokens, then {reason}"
            )

    async def stop(self) -> None:
        """See the seam."""
        if self._stopped:
            return
        self._stopped = True
        self._llm.output_processor.propagate_error(EngineDeadError())  # whoever still generates
        try:
            await asyncio.to_thread(_close, self._llm, timeout_s=_STOP_S)
        finally:
            self._context.kill()
            self._page.remove()
        device = self.facts.device if hasattr(self, "facts") else None  # its start failed
        await devices.given_back(self._context.memory_before, device=device)

    async def _warm_up(self) -> None:
        """Pay what only the first request pays, here and in EngineCore, and forget it."""
        length = min(WARM_UP_TOKENS, self.facts.max_model_len // 2)
        await self.generate(EngineRequest([1] * length, length), Reply())
        await self.prepare()
        self.compiled.clear()
        self._watch.begin()

    def _end(self, cause: EngineError) -> None:
        self._cause = cause
        self._context.kill()

    def _death(self) -> EngineError | None:
        return None if self._context.is_alive() else self._dead()

    def _dead(self) -> EngineError:
        if self._stopped:
            return STOPPED
        if self._cause is not None:
            return self._cause
        codes = [process.exitcode for process in self._context.processes if process.exitcode]
        return failure.died(
            codes[0] if codes else None, said_since(self._log, self._log_start), str(self._log)
        )


def _facts(llm: _Llm, resolved: Resolved, page: Page, log_text: str) -> EngineFacts:
    config, about = llm.vllm_config, page.about()
    arguments = pinned(config, resolved.given, is_started=True)
    return EngineFacts(
        engine="vllm",
        arguments=arguments,
        max_model_len=resolved.max_model_len,
        vocab_size=resolved.vocab_size,
        block_size=config.cache_config.block_size,
        kv_blocks=about.kv_blocks,
        start_s=0.0,
        versions=provenance.versions(),
        device=devices.device_of(arguments, resolved.how, log_text),
        environment=provenance.environment(),
        sampling=resolved.sampling,
        phases_s=start_phases_s(log_text),
        cautions=(*in_one_process(arguments), *about.cautions),
        unmodelled=about.unmodelled,
    )

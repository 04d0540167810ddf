"""A running AsyncLLM behind the seam. Imports vLLM."""

import asyncio
import dataclasses
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm import exceptions
from vllm.inputs.engine import tokens_input
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from tuner.engines import devices, gpus, provenance
from tuner.engines.seam import (
    EngineFacts,
    EngineRequest,
    IterationLog,
    Reply,
    RequestFailedError,
)
from tuner.engines.server.engine_control import ControlledEngine, EngineControl
from tuner.engines.server.protocol import About
from tuner.engines.vllm import failure as vllm_failure
from tuner.engines.vllm import llm as vllm_llm
from tuner.engines.vllm.config import Configuration, how, pinned, prompt_vocabulary
from tuner.engines.vllm.core_process import CoreContext
from tuner.engines.vllm.installed import in_one_process
from tuner.engines.vllm.llm import Llm
from tuner.engines.vllm.log import Compiles, said_since, size_of, start_phases_s
from tuner.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

_STOP_S = 10.0
"""Time that EngineCore may take to end by itself."""

_OF_A_REQUEST = (
    EngineGenerateError,
    getattr(exceptions, "VLLMError", ValueError),
    ValueError,  # before vLLM 0.28
)
"""Errors that vLLM raises for one request."""

_WARM_UP_TOKENS = 8


class VllmEngine(ControlledEngine):
    """See the seam: tuner.engines.seam.Engine."""

    def __init__(
        self, llm: Llm, context: CoreContext, control: Path, log: Path, log_start: int
    ) -> None:
        super().__init__(
            EngineControl(control, dead=self._death, end=self._end, doing=self._seen_of_it)
        )
        self._llm = llm
        self._context = context
        self._log = log
        self._log_start = log_start
        self._numbers = count()
        self._compiles = Compiles(log)
        self._cause: EngineError | None = None
        self._sampling: Mapping[str, float] = {}
        self._by_priority = llm.vllm_config.scheduler_config.policy == "priority"
        self._memory_before: Mapping[str, int] = {}

    @classmethod
    async def start(
        cls,
        configuration: Configuration,
        context: CoreContext,
        control: Path,
        log: Path,
        begun_s: float,
    ) -> "VllmEngine":
        """Start what was configured. Failed or cancelled, nothing is left behind.

        Raises EngineError with vLLM's reason.
        """
        log_start, memory_before = size_of(log), gpus.memory_used()
        loop = asyncio.get_running_loop()
        construction = loop.run_in_executor(None, vllm_llm.construct, configuration.config, context)
        cancelled = False
        try:
            await asyncio.wait([construction])
        except asyncio.CancelledError:
            cancelled = True  # and raised below: this one's traceback holds what is to be freed
        if cancelled:
            context.kill()  # so that the construction fails, whatever it waits for
            await asyncio.wait([construction])
            if construction.exception() is None:
                vllm_llm.close(construction.result(), timeout_s=0)
            with vllm_llm.letting_go():
                del construction
            await gpus.given_back(memory_before)
            raise asyncio.CancelledError
        error = construction.exception()
        if error is not None:
            context.kill()
            failure = vllm_failure.failed_to_start(error, said_since(log, log_start), str(log))
            with vllm_llm.letting_go():
                del construction, error
            await gpus.given_back(memory_before)
            raise failure
        llm = construction.result()
        engine = cls(llm, context, control, log, log_start)
        engine._memory_before, engine._sampling = memory_before, configuration.sampling
        try:
            state = await engine._control.opened()
            engine.facts = _facts(
                llm,
                configuration,
                about=state.about,
                log_text=said_since(log, log_start),
            )
            await engine._warm_up()
        except BaseException:
            await engine.stop()
            raise
        engine.facts = dataclasses.replace(
            engine.facts,
            start_s=loop.time() - begun_s,
            phases_s=start_phases_s(said_since(log, log_start)),
        )
        return engine

    async def generate(self, request: EngineRequest, reply: Reply) -> None:
        self._check_running()
        self._check_length(request)
        try:
            with self._control.generating(reply):
                reason = await self._read(request, reply)
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

    async def _read(self, request: EngineRequest, reply: Reply) -> str | None:
        """Fill the reply with the outputs as they come; return why they ended."""
        clock = asyncio.get_running_loop().time
        metrics: Any = None
        reason: str | None = None
        try:
            async for output in self._llm.generate(
                tokens_input(list(request.prompt_token_ids)),
                vllm_llm.exactly(request.output_length, self._sampling),
                f"tuner-{next(self._numbers)}",
                priority=request.priority if self._by_priority else 0,
            ):
                now_s = clock()
                completion = output.outputs[0]
                tokens = len(completion.token_ids)
                metrics, reason = output.metrics, completion.finish_reason
                if not tokens:
                    continue
                if not reply.seen_s:
                    reply.queued_s, reply.scheduled_s = metrics.queued_ts, metrics.scheduled_ts
                    reply.first_s = metrics.last_token_ts
                    reply.cached_tokens = output.num_cached_tokens or 0
                reply.output_tokens += tokens
                reply.seen_s.append(now_s)
                reply.last_s = metrics.last_token_ts
        finally:
            # Absent before vLLM 0.27; the iteration log has the sum.
            reply.preemptions = getattr(metrics, "num_preemptions", 0)
        return reason

    async def take_iterations(self) -> IterationLog:
        self._check_running()
        log, _ = await self._control.take_log()
        self.stalls.compiled += self._compiles.new()
        return log

    async def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self._llm.output_processor.propagate_error(EngineDeadError())  # whoever still generates
        try:
            await asyncio.to_thread(vllm_llm.close, self._llm, timeout_s=_STOP_S)
        finally:
            self._context.kill()
        device = self.facts.device if hasattr(self, "facts") else None  # its start failed
        await gpus.given_back(self._memory_before, device=device)

    async def _warm_up(self) -> None:
        """Pay what only the first request pays, here and in EngineCore, and forget it."""
        length = min(_WARM_UP_TOKENS, self.facts.max_model_len // 2)
        await self.generate(EngineRequest([1] * length, length), Reply())
        while not await self.is_idle():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
        await self.reset_prefix_cache()
        await self.take_iterations()
        self._control.watch.begin()

    def _end(self, cause: EngineError) -> None:
        self._cause = cause
        self._context.kill()

    def _seen_of_it(self) -> str:
        return devices.state_of(one.pid for one in self._context.processes if one.pid is not None)

    def _death(self) -> EngineError | None:
        """Return what the engine died of; None while its processes live."""
        return None if self._context.is_alive() else self._dead()

    def _dead(self) -> EngineError:
        if self._stopped:
            return EngineError("the engine is stopped", hint="Start another one.")
        if self._cause is not None:
            return self._cause
        codes = [process.exitcode for process in self._context.processes if process.exitcode]
        return vllm_failure.died(
            codes[0] if codes else None, said_since(self._log, self._log_start), str(self._log)
        )


def _facts(llm: Llm, configuration: Configuration, *, about: About, log_text: str) -> EngineFacts:
    config = llm.vllm_config
    arguments = pinned(config, configuration.arguments, is_started=True)
    return EngineFacts(
        engine="vllm",
        arguments=arguments,
        max_model_len=config.model_config.max_model_len,
        vocab_size=prompt_vocabulary(config.model_config),
        block_size=config.cache_config.block_size,
        kv_blocks=about.kv_blocks or 0,
        start_s=0.0,
        versions=provenance.versions(),
        device=devices.device_of(arguments, how(config), log_text),
        environment=provenance.environment(),
        sampling=configuration.sampling,
        cautions=(*in_one_process(arguments), *about.cautions),
        unmodelled=about.unmodelled,
    )

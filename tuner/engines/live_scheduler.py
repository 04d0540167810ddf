"""vLLM's scheduler with limits that change while it serves, and a log of its iterations.

    TUNER_LIVE_SOCKET=/run/vllm/tuner.sock \\
        vllm serve … --scheduler-cls tuner.engines.live_scheduler.LiveScheduler

Runs inside the EngineCore process: vLLM imports this module when it resolves ``scheduler_cls``.
Without the variable it opens nothing, and is vLLM's own scheduler. It is the one of deployed
servers (docs/operating.md) and of every engine that tuner measures (docs/engines.md), which gets
its limits from a page of memory and writes its log beside it.
"""

# mypy: allow-subclassing-any
# ruff: noqa: ANN401 - vLLM's objects are untyped where vLLM is not installed

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from tuner.engines import page
from tuner.engines.scheduler.unmodelled import unasked, unmodelled
from tuner.live.control import LiveThread, about_server, switched_off
from tuner.live.protocol import Limits, Refused
from tuner.system.contain_errors import contain_errors

BOUNDARY_S = 2.0
"""Longest wait of a change for the end of one ``schedule()``, which takes milliseconds."""


class LiveScheduler(Scheduler):
    """vLLM's scheduler, for ``--scheduler-cls``, whatever async scheduling resolves to.

    Only ``max_num_active_reqs`` is moved. vLLM looks at it before it lets a waiting request in. So
    above a lowered cap what runs goes on until it is done, and nothing is preempted.

    vLLM before 0.31 has one limit for what is built and what is let in, and fails where more run.
    There the second limit is ours, and the cap is never below what runs.
    """

    if TYPE_CHECKING:
        max_num_running_reqs: int
        max_num_active_reqs: int
        max_num_scheduled_tokens: int
        running: list[Any]
        vllm_config: Any
        kv_cache_config: Any
        kv_cache_manager: Any

        def get_request_counts(self) -> tuple[int, int]: ...

    def __new__(cls, vllm_config: Any, *_: Any, **__: Any) -> Self:
        if getattr(vllm_config, "diffusion_config", None) is not None:
            raise ValueError("LiveScheduler is not for diffusion models: drop --scheduler-cls")
        is_async = vllm_config.scheduler_config.async_scheduling
        made: Self = super().__new__(
            LiveAsyncScheduler if is_async and cls is LiveScheduler else cls
        )
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._knows_active = hasattr(self, "max_num_active_reqs")
        if not self._knows_active:
            self.max_num_active_reqs = self.max_num_running_reqs
        self._boundary = threading.Lock()
        folder = os.environ.get(page.VARIABLE)
        self._log = page.SchedulerLog(self, Path(folder), _about(self)) if folder else None
        path = os.environ.get(page.SOCKET)
        self._live = contain_errors(switched_off, _control, self, path) if path else None

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        with self._boundary:
            begun_s, log = time.monotonic(), self._log
            if log is not None:
                seqs, tokens = log.limits()
                self.max_num_active_reqs = seqs or self.max_num_active_reqs
                self.max_num_scheduled_tokens = tokens or self.max_num_scheduled_tokens
            with self._letting_in():
                output = super().schedule(*args, **kwargs)
            if log is not None and output.total_num_scheduled_tokens:
                log.scheduled(output, begun_s)
        return output

    @contextmanager
    def _letting_in(self) -> Iterator[None]:
        """Let in no more than ``max_num_active_reqs``, where vLLM does not know that limit."""
        if self._knows_active:
            yield
            return
        built = self.max_num_running_reqs
        self.max_num_running_reqs = max(self.max_num_active_reqs, len(self.running))
        try:
            yield
        finally:
            self.max_num_running_reqs = built

    def update_from_output(self, scheduler_output: Any, *args: Any) -> Any:
        result = super().update_from_output(scheduler_output, *args)
        if self._log is not None:
            self._log.computed(scheduler_output, result)
        return result

    def add_request(self, request: Any) -> None:
        if self._log is not None:
            self._log.queued(request)
        super().add_request(request)

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        if self._log is not None:
            self._log.preempted(request)
        super()._preempt_request(request, *args, **kwargs)

    def finish_requests(self, request_ids: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().finish_requests(request_ids, *args, **kwargs)
        if self._log is not None:
            named = [request_ids] if isinstance(request_ids, str) else list(request_ids or ())
            for request_id in named:
                self._log.ended(request_id)
            self._log.counted()
        return result

    @property
    def kv_blocks(self) -> int:
        return int(self.kv_cache_manager.block_pool.num_gpu_blocks) - 1  # one is the null block

    def shutdown(self) -> None:
        if self._live is not None:
            contain_errors(switched_off, self._live.stop)
        if self._log is not None:
            self._log.close()
        super().shutdown()


class LiveAsyncScheduler(LiveScheduler, AsyncScheduler):
    """LiveScheduler where async scheduling is on."""


def _about(scheduler: LiveScheduler) -> page.About:
    config = scheduler.vllm_config
    return page.About(
        arguments=arguments_of(config),
        kv_blocks=scheduler.kv_blocks,
        unmodelled=unmodelled(config, scheduler.kv_cache_config.kv_cache_groups),
        cautions=unasked(config),
    )


def _control(scheduler: LiveScheduler, path: str) -> LiveThread:
    about = about_server(
        rank=int(scheduler.vllm_config.parallel_config.data_parallel_index),
        vllm=vllm.__version__,
        arguments=arguments_of(scheduler.vllm_config),
    )
    thread = LiveThread(_Knobs(scheduler), path, about)
    thread.start()
    return thread


class _Knobs:
    """The limits that the control thread may touch: see ``live.control.Knobs``."""

    def __init__(self, scheduler: LiveScheduler) -> None:
        self._scheduler = scheduler
        config = scheduler.vllm_config
        self.built = Limits(
            max_num_seqs=most_seqs(scheduler),
            max_num_batched_tokens=scheduler.max_num_scheduled_tokens,
        )
        # A prompt, an image or a draft that must fit into one iteration would wait for ever.
        whole = (
            not config.scheduler_config.enable_chunked_prefill
            or config.model_config.is_multimodal_model
            or config.speculative_config is not None
        )
        self.least_tokens = self.built.max_num_batched_tokens if whole else 1

    def limits(self) -> Limits:
        return Limits(
            max_num_seqs=self._scheduler.max_num_active_reqs,
            max_num_batched_tokens=self._scheduler.max_num_scheduled_tokens,
        )

    def load(self) -> tuple[int, int]:
        return self._scheduler.get_request_counts()

    def set_limits(self, limits: Limits) -> None:
        """Set both limits. The lock is held for two assignments; while the engine idles it is
        free."""
        boundary = self._scheduler._boundary  # noqa: SLF001 - one class in two
        if not boundary.acquire(timeout=BOUNDARY_S):
            raise Refused(
                f"the engine did not end an iteration's schedule within {BOUNDARY_S:g} s",
                hint="See whether the server is alive: its log, /health.",
                kind="failed",
            )
        try:
            self._scheduler.max_num_active_reqs = limits.max_num_seqs
            self._scheduler.max_num_scheduled_tokens = limits.max_num_batched_tokens
        finally:
            boundary.release()


def most_seqs(scheduler: LiveScheduler) -> int:
    """Return the largest cap that a scheduler which was just built can have.

    vLLM 0.33 lets in only as many as the draft pass of DFlash or DSpark has room for.
    """
    drafts = scheduler.vllm_config.speculative_config
    if drafts is None or getattr(drafts, "method", None) not in {"dflash", "dspark"}:
        return scheduler.max_num_running_reqs
    return min(scheduler.max_num_running_reqs, scheduler.max_num_active_reqs)


def arguments_of(config: Any) -> dict[str, str | int | float | bool | None]:
    """Return the engine arguments that a profile is held against, as resolved."""
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    return {
        "model": str(model.model),
        "revision": model.revision,
        "quantization": None if model.quantization is None else str(model.quantization),
        "kv_cache_dtype": str(cache.cache_dtype),
        "tensor_parallel_size": int(parallel.tensor_parallel_size),
        "pipeline_parallel_size": int(parallel.pipeline_parallel_size),
        "max_num_seqs": int(config.scheduler_config.max_num_seqs),
        "max_num_batched_tokens": int(config.scheduler_config.max_num_batched_tokens),
        "enable_prefix_caching": bool(cache.enable_prefix_caching),
        "max_model_len": int(model.max_model_len),
        "block_size": int(cache.block_size),
    }

"""vLLM's scheduler with limits that change while it serves.

    TUNER_LIVE_SOCKET=/run/vllm/tuner.sock \\
        vllm serve … --scheduler-cls tuner.engines.live_scheduler.LiveScheduler

Runs inside the EngineCore process: vLLM imports this module when it resolves ``scheduler_cls``.
Without the variable it opens nothing, and is vLLM's own scheduler. docs/live.md tells how to use
it; every vLLM name used here is checked by tests/engines/vllm/test_names.py.
"""

# mypy: allow-subclassing-any
# ruff: noqa: ANN401 - vLLM's objects are untyped where vLLM is not installed

import os
import threading
from typing import TYPE_CHECKING, Any, Self

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from tuner.engines.server.protocol import Limits, Refused
from tuner.live.control.thread import LiveThread, switched_off
from tuner.system.contain_errors import contain_errors

SOCKET = "TUNER_LIVE_SOCKET"
AUDIT = "TUNER_LIVE_AUDIT"

BOUNDARY_S = 2.0
"""How long a change waits for the end of one ``schedule()``, which takes milliseconds."""


class LiveScheduler(Scheduler):
    """For ``--scheduler-cls``, whatever async scheduling resolves to.

    ``max_num_active_reqs`` alone is moved: it is looked at before a waiting request is let in, so
    that what runs goes on above a lowered cap until it is done, and nothing is preempted.
    """

    if TYPE_CHECKING:
        max_num_running_reqs: int
        max_num_active_reqs: int
        max_num_scheduled_tokens: int
        vllm_config: Any

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
        self._boundary = threading.Lock()
        path = os.environ.get(SOCKET)
        self._live = contain_errors(switched_off, _control, self, path) if path else None

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        with self._boundary:
            return super().schedule(*args, **kwargs)

    def shutdown(self) -> None:
        if self._live is not None:
            contain_errors(switched_off, self._live.stop)
        super().shutdown()


class LiveAsyncScheduler(LiveScheduler, AsyncScheduler):
    """What LiveScheduler becomes where async scheduling is on."""


def _control(scheduler: LiveScheduler, path: str) -> LiveThread:
    thread = LiveThread(
        _Knobs(scheduler),
        path,
        audit=os.environ.get(AUDIT) or None,
        rank=int(scheduler.vllm_config.parallel_config.data_parallel_index),
        vllm=vllm.__version__,
        arguments=arguments_of(scheduler.vllm_config),
    )
    thread.start()
    return thread


class _Knobs:
    """What the control thread may touch of a scheduler: see ``live.limits.Knobs``."""

    def __init__(self, scheduler: LiveScheduler) -> None:
        self._scheduler = scheduler
        if not hasattr(scheduler, "max_num_active_reqs"):
            raise Refused(
                "this vLLM has one limit for what it builds and what it lets in, and takes it for "
                "a fault when more than that run",
                hint="Use a vLLM that knows --max-num-active-seqs.",
            )
        config = scheduler.vllm_config
        self.built = Limits(
            max_num_seqs=scheduler.max_num_running_reqs,
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
        """The lock is held for two assignments; while the engine idles it is free."""
        scheduler = self._scheduler
        if not scheduler._boundary.acquire(timeout=BOUNDARY_S):  # noqa: SLF001 - one class in two
            raise Refused(
                f"the engine did not end an iteration's schedule within {BOUNDARY_S:g} s",
                hint="See whether the server is alive: its log, /health.",
                kind="failed",
            )
        try:
            scheduler.max_num_active_reqs = limits.max_num_seqs
            scheduler.max_num_scheduled_tokens = limits.max_num_batched_tokens
        finally:
            scheduler._boundary.release()  # noqa: SLF001


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
    }

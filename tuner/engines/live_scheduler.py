"""vLLM's scheduler with limits that change while it serves, and a log of its iterations.

    TUNER_LIVE_SOCKET=/run/vllm/tuner.sock \\
        vllm serve … --scheduler-cls tuner.engines.live_scheduler.LiveScheduler

Runs inside the EngineCore process: vLLM imports this module when it resolves ``scheduler_cls``.
Without the variable it opens nothing, and is vLLM's own scheduler. Deployed servers use it
(docs/operating.md), and so does every engine that tuner measures (docs/engines.md). Limits come
from a page of memory: that of the folder which tuner shares, or one of its own for live control.
"""

# mypy: allow-subclassing-any
# ruff: noqa: ANN401 - vLLM's objects are untyped where vLLM is not installed

import math
import os
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np
import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from tuner.engines import page
from tuner.engines.seam import ITERATION, UNKNOWN
from tuner.live.control import State, complain, start
from tuner.system.contain_errors import contain_errors

_NAME = re.compile(r"(?:cmpl-)?tuner-(\d{1,18})(?!\d)")


class LiveScheduler(Scheduler):
    """vLLM's scheduler, for ``--scheduler-cls``, whatever async scheduling resolves to.

    A cap limits who is let in. So above a lowered cap what runs continues until it is done, and
    nothing is preempted. vLLM 0.30 has one limit for what is built and what is let in, and fails
    where more run: there it is never below what runs.
    """

    if TYPE_CHECKING:
        max_num_running_reqs: int
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
        self._cap = "max_num_active_reqs"
        if not hasattr(self, self._cap):  # vLLM 0.30
            self._cap = "max_num_running_reqs"
        self._cells = np.zeros(1, page.PAGE)
        self._log: SchedulerLog | None = None
        self.log_into(os.environ.get(page.VARIABLE))
        path = os.environ.get(page.SOCKET)
        self._live = contain_errors(complain, self._control, path) if path else None

    def log_into(self, folder: str | None) -> None:
        """Take limits from the page of a folder, and log there; None: neither."""
        if folder is not None:
            self._cells = page.mapped(Path(folder))
            self._log = SchedulerLog(self, Path(folder), self._cells)
        self._cells["max_num_seqs"] = getattr(self, self._cap)
        self._cells["max_num_batched_tokens"] = self.max_num_scheduled_tokens

    def _control(self, path: str) -> Callable[[], None]:
        """Let the socket at a path set the cap; return what takes it away."""
        from tuner.engines import devices  # noqa: PLC0415 - a server may lack what it needs

        drafts = self.vllm_config.speculative_config is not None
        state = State(
            vllm=vllm.__version__,
            rank=int(self.vllm_config.parallel_config.data_parallel_index),
            arguments=arguments_of(self.vllm_config),
            device=dict(devices.device_facts()),
            built=int(self._cells["max_num_seqs"][0] if drafts else self.max_num_running_reqs),
        )
        return start(Path(path), state, self._cells)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        begun_s, (cells,) = time.monotonic(), self._cells
        if cells["resets"] > cells["resets_done"] and self.reset_prefix_cache():
            cells["resets_done"] = cells["resets"]
        least = len(self.running) if self._cap == "max_num_running_reqs" else 0
        setattr(self, self._cap, max(int(cells["max_num_seqs"]), least))
        self.max_num_scheduled_tokens = int(cells["max_num_batched_tokens"])
        output = super().schedule(*args, **kwargs)
        if self._log is not None and output.total_num_scheduled_tokens:
            self._log.scheduled(output, begun_s)
        return output

    def update_from_output(self, scheduler_output: Any, *args: Any) -> Any:
        result = super().update_from_output(scheduler_output, *args)
        if self._log is not None:
            self._log.computed(scheduler_output, result)
        return result

    def add_request(self, request: Any) -> None:
        if self._log is not None:
            self._log.queued(request.request_id)
        super().add_request(request)

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        if self._log is not None:
            self._log.preemptions += 1
            self._log.lost_tokens += request.num_computed_tokens
        super()._preempt_request(request, *args, **kwargs)

    def finish_requests(self, request_ids: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().finish_requests(request_ids, *args, **kwargs)
        if self._log is not None:
            for name in [request_ids] if isinstance(request_ids, str) else request_ids or ():
                self._log.ended(name, math.nan)
            self._log.counted()
        return result

    def shutdown(self) -> None:
        if self._live is not None:
            contain_errors(complain, self._live)
        super().shutdown()


class LiveAsyncScheduler(LiveScheduler, AsyncScheduler):
    """LiveScheduler where async scheduling is on."""


class SchedulerLog:
    """The log of a measured scheduler: a row for each iteration, and for each request that ended.

    A row's time runs from the moment the previous iteration's tokens were out, or, after idling,
    from the moment the scheduler began, until this iteration's tokens are out. So the rows tile
    the busy time, also where one iteration is scheduled while another runs (async scheduling).
    """

    def __init__(self, scheduler: LiveScheduler, folder: Path, cells: Any) -> None:
        self._scheduler: Any = scheduler
        self._cells = cells[0]
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._iterations, self._served = (
            os.open(folder / name, flags, 0o600) for name in ("iterations", "served")
        )
        self._pending: deque[tuple[Any, float, tuple[int, ...]]] = deque()
        self._busy_since: float | None = None
        self.preemptions = self.lost_tokens = 0
        """Of the iteration that is being scheduled."""

        self._marks: dict[str, np.void] = {}
        """By the request's name, its row of SERVED."""

        pool = scheduler.kv_cache_manager.block_pool
        self._blocks = int(pool.num_gpu_blocks) - 1  # the null block
        config = scheduler.vllm_config
        about = page.About(
            arguments=arguments_of(config),
            kv_blocks=self._blocks,
            unmodelled=unmodelled(config, scheduler.kv_cache_config.kv_cache_groups),
            cautions=cautions_of(config),
        )
        (folder / "about.json").write_bytes(msgspec.json.encode(about))

    def queued(self, request_id: str) -> None:
        name = _NAME.match(request_id)
        number = int(name[1]) if name else UNKNOWN
        row = (number, time.monotonic(), math.nan, math.nan, math.nan, UNKNOWN)
        self._marks[request_id] = np.array([row], page.SERVED)[0]
        self._cells["unfinished"] += 1

    def scheduled(self, output: Any, begun_s: float) -> None:
        """Note an iteration that is about to run."""
        self._cells["under_way"] += 1
        self._pending.append((output, begun_s, self._composition(output)))
        self.preemptions = self.lost_tokens = 0
        for new in output.scheduled_new_reqs:
            mark = self._marks.get(new.req_id)
            if mark is not None and math.isnan(mark["scheduled_s"]):
                mark["scheduled_s"], mark["cached_tokens"] = begun_s, new.num_computed_tokens

    def computed(self, output: Any, result: Mapping[int, Any]) -> None:
        """Note that an iteration's tokens are out; ``result`` is what goes to the clients."""
        now_s = time.monotonic()
        if self._pending and self._pending[0][0] is output:
            _, begun_s, composition = self._pending.popleft()
            start_s = begun_s if self._busy_since is None else self._busy_since
            row = np.array([(start_s, now_s - start_s, *composition)], ITERATION)
            os.write(self._iterations, row.tobytes())
            self._busy_since = now_s
            self._cells["iterations"] += 1
            self._cells["under_way"] -= 1
        for outputs in result.values():
            for each in outputs.outputs:
                if each.prefill_stats is not None and each.request_id in self._marks:
                    self._marks[each.request_id]["first_s"] = now_s
                if each.finish_reason is not None:
                    self.ended(each.request_id, now_s)
        self.counted()

    def ended(self, request_id: str, last_s: float) -> None:
        """Note that a request is finished or, without its last token, aborted."""
        if (mark := self._marks.pop(request_id, None)) is not None:
            mark["last_s"] = last_s
            os.write(self._served, mark.tobytes())

    def counted(self) -> None:
        """Tell tuner how many requests there are."""
        left = sum(self._scheduler.get_request_counts())
        self._cells["unfinished"] = left
        if not left and not self._pending:
            self._busy_since = None

    def _composition(self, output: Any) -> tuple[int, ...]:
        """Return a row's fields from ``decode_seqs`` on.

        A sequence decodes when all tokens that it had were computed already and only the newest
        one (and drafts of the next ones) goes in. Everything else is prefill: prompts, and what a
        preempted sequence computes again.
        """
        decode = context = prefill = prefill_tokens = prefill_context = 0
        scheduler, drafts = self._scheduler, output.scheduled_spec_decode_tokens
        for request_id, tokens in output.num_scheduled_tokens.items():
            request = scheduler.requests[request_id]
            before = request.num_computed_tokens - tokens
            if (
                (tokens == 1 or tokens == 1 + len(drafts.get(request_id, ())))
                and before >= request.num_prompt_tokens
                and not request.is_prefill_chunk
            ):
                decode += 1
                context += before
            else:
                prefill += 1
                prefill_tokens += tokens
                prefill_context += tokens * before
        again = output.scheduled_cached_reqs
        cached = sum(new.num_computed_tokens for new in output.scheduled_new_reqs) + sum(
            computed
            for request_id, computed in zip(again.req_ids, again.num_computed_tokens, strict=True)
            if request_id in again.resumed_req_ids
        )
        used = self._blocks - scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        counts = (decode, prefill, prefill_tokens, context, *scheduler.get_request_counts(), used)
        return (*counts, self.preemptions, self.lost_tokens, cached, prefill_context)


def arguments_of(config: Any) -> dict[str, str | int | float | bool | None]:
    """Return the engine arguments that a profile is compared with, as resolved."""
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


def unmodelled(
    config: Any,
    kv_cache_groups: Sequence[Any],
) -> list[str]:
    """Return what an engine does that the model knows nothing of; empty where it knows all.

    ``kv_cache_groups`` are of vLLM's KVCacheConfig: layers with caches of one kind each, which
    take blocks from one pool.
    """
    scheduler, parallel = config.scheduler_config, config.parallel_config
    long_prefill = scheduler.long_prefill_token_threshold
    watermark = getattr(scheduler, "watermark", 0)
    interval = getattr(scheduler, "prefill_schedule_interval", 1)
    stages = parallel.pipeline_parallel_size
    contexts = getattr(parallel, "decode_context_parallel_size", 1)
    result = {
        f"KV caches of {len(kv_cache_groups)} kinds in one pool": len(kv_cache_groups) > 1,
        "speculative decoding": config.speculative_config is not None,
        "priorities": str(scheduler.policy) != "fcfs",
        f"long_prefill_token_threshold={long_prefill}": long_prefill > 0,
        f"watermark={watermark:g}": watermark > 0,
        f"prefill_schedule_interval={interval}": interval > 1,
        "prompts in one piece": not scheduler.enable_chunked_prefill,
        "a KV connector": config.kv_transfer_config is not None,
        f"pipeline_parallel_size={stages}": stages > 1,
        f"decode_context_parallel_size={contexts}": contexts > 1,
    }
    return [name for name, does in result.items() if does]


def cautions_of(config: Any) -> list[str]:
    """Return cautions: what a server with these arguments can do and no replay asks for, or shows
    as it is."""
    result = list[str]()
    if config.lora_config is not None:
        result.append(
            f"no replay asks for a LoRA adapter: what max_loras={config.lora_config.max_loras} "
            "and the adapters cost is not measured"
        )
    if config.model_config.is_multimodal_model:
        result.append("no replay sends an image, a sound or a video: their encoder is not measured")
    if config.speculative_config is not None:
        result.append(
            "prompts of random tokens: how many drafts are accepted here says nothing of production"
        )
    if config.model_config.is_moe and str(config.load_config.load_format) == "dummy":
        result.append(
            "a mixture of experts with made-up weights: tokens go to other experts than with "
            "trained ones, so that its speed is not the model's"
        )
    return result

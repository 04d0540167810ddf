"""vLLM's scheduler with limits that change while it serves, and a log of its iterations.

    TUNER_LIVE_SOCKET=/run/vllm/tuner.sock \\
        vllm serve … --scheduler-cls tuner.engines.live_scheduler.LiveScheduler

Runs inside the EngineCore process: vLLM imports this module when it resolves ``scheduler_cls``.
Without the variable it opens nothing, and is vLLM's own scheduler. Deployed servers use it
(docs/operating.md); every engine that tuner measures has the one that also logs (docs/engines.md).
"""

# mypy: allow-subclassing-any
# ruff: noqa: ANN401 - vLLM's objects are untyped where vLLM is not installed

import math
import os
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import vllm
from numpy.typing import NDArray
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
        requests: dict[str, Any]
        running: list[Any]
        vllm_config: Any
        kv_cache_config: Any
        kv_cache_manager: Any

        def get_request_counts(self) -> tuple[int, int]: ...

    def __new__(cls, vllm_config: Any, *_: Any, **__: Any) -> Any:
        if getattr(vllm_config, "diffusion_config", None) is not None:
            raise ValueError("LiveScheduler is not for diffusion models: drop --scheduler-cls")
        kind = cls
        if vllm_config.scheduler_config.async_scheduling:
            kind = type(cls.__name__, (cls, AsyncScheduler), {})
        return super().__new__(kind)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._cap = "max_num_active_reqs"
        if not hasattr(self, self._cap):  # vLLM 0.30
            self._cap = "max_num_running_reqs"
        self._cells = self._page()
        self._cells["max_num_seqs"] = getattr(self, self._cap)
        self._cells["max_num_batched_tokens"] = self.max_num_scheduled_tokens
        path = os.environ.get(page.SOCKET)
        self._live = contain_errors(complain, self._control, path) if path else None

    def _page(self) -> NDArray[np.void]:
        """Return an array of one page, whose limits hold."""
        return np.zeros(1, page.PAGE)

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
        (cells,) = self._cells
        if cells["resets"] > cells["resets_done"] and self.reset_prefix_cache():
            cells["resets_done"] = cells["resets"]
        least = len(self.running) if self._cap == "max_num_running_reqs" else 0
        setattr(self, self._cap, max(int(cells["max_num_seqs"]), least))
        self.max_num_scheduled_tokens = int(cells["max_num_batched_tokens"])
        return super().schedule(*args, **kwargs)

    def shutdown(self) -> None:
        if self._live is not None:
            contain_errors(complain, self._live)
        super().shutdown()


class MeasuredScheduler(LiveScheduler):
    """Takes limits from the page of the folder that tuner shares, and logs there: a row for each
    iteration, and for each request that ended.

    A row's time runs from the moment the previous iteration's tokens were out, or, after idling,
    from the moment the scheduler began, until this iteration's tokens are out. So the rows tile
    the busy time, also where one iteration is scheduled while another runs (async scheduling).
    """

    def _page(self) -> NDArray[np.void]:
        folder = Path(os.environ[page.VARIABLE])
        self._iterations, self._served = (
            (folder / name).open("ab", buffering=0) for name in ("iterations", "served")
        )
        self._pending = deque[tuple[Any, float, tuple[int, ...]]]()
        self._busy_since: float | None = None
        self._preemptions = self._lost_tokens = 0  # of the iteration that is being scheduled
        self._marks = dict[str, np.void]()  # by the request's name, its row of SERVED
        self._blocks = int(self.kv_cache_manager.block_pool.num_gpu_blocks) - 1  # the null block
        about = page.About(
            arguments=arguments_of(self.vllm_config),
            kv_blocks=self._blocks,
            unmodelled=unmodelled(self.vllm_config, self.kv_cache_config.kv_cache_groups),
        )
        (folder / "about.json").write_bytes(msgspec.json.encode(about))
        return page.mapped(folder)

    def add_request(self, request: Any) -> None:
        name = _NAME.match(request.request_id)
        number = int(name[1]) if name else UNKNOWN
        row = (number, time.monotonic(), math.nan, math.nan, math.nan, UNKNOWN)
        self._marks[request.request_id] = np.array([row], page.SERVED)[0]
        self._cells["unfinished"] += 1
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        begun_s = time.monotonic()
        output = super().schedule(*args, **kwargs)
        if output.total_num_scheduled_tokens:
            self._cells["under_way"] += 1
            self._pending.append((output, begun_s, self._composition(output)))
            self._preemptions = self._lost_tokens = 0
            for new in output.scheduled_new_reqs:
                mark = self._marks.get(new.req_id)
                if mark is not None and math.isnan(mark["scheduled_s"]):
                    mark["scheduled_s"], mark["cached_tokens"] = begun_s, new.num_computed_tokens
        return output

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        self._preemptions += 1
        self._lost_tokens += request.num_computed_tokens
        super()._preempt_request(request, *args, **kwargs)

    def update_from_output(self, scheduler_output: Any, *args: Any) -> Any:
        """Note that an iteration's tokens are out; the result is what goes to the clients."""
        result = super().update_from_output(scheduler_output, *args)
        now_s = time.monotonic()
        if self._pending and self._pending[0][0] is scheduler_output:
            _, begun_s, composition = self._pending.popleft()
            start_s = begun_s if self._busy_since is None else self._busy_since
            row = np.array([(start_s, now_s - start_s, *composition)], ITERATION)
            self._iterations.write(row.tobytes())
            self._busy_since = now_s
            self._cells["iterations"] += 1
            self._cells["under_way"] -= 1
        for outputs in result.values():
            for each in outputs.outputs:
                if each.prefill_stats is not None and each.request_id in self._marks:
                    self._marks[each.request_id]["first_s"] = now_s
                if each.finish_reason is not None:
                    self._ended(each.request_id, now_s)
        self._count()
        return result

    def finish_requests(self, request_ids: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().finish_requests(request_ids, *args, **kwargs)
        for name in [request_ids] if isinstance(request_ids, str) else request_ids or ():
            self._ended(name, math.nan)
        self._count()
        return result

    def _ended(self, request_id: str, last_s: float) -> None:
        """Note that a request is finished or, without its last token, aborted."""
        if (mark := self._marks.pop(request_id, None)) is not None:
            mark["last_s"] = last_s
            self._served.write(mark.tobytes())

    def _count(self) -> None:
        """Tell tuner how many requests there are."""
        left = sum(self.get_request_counts())
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
        drafts = output.scheduled_spec_decode_tokens
        for request_id, tokens in output.num_scheduled_tokens.items():
            request = self.requests[request_id]
            before = request.num_computed_tokens - tokens
            if (
                tokens in {1, 1 + len(drafts.get(request_id, ()))}
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
        used = self._blocks - self.kv_cache_manager.block_pool.get_num_free_blocks()
        counts = (decode, prefill, prefill_tokens, context, *self.get_request_counts(), used)
        return (*counts, self._preemptions, self._lost_tokens, cached, prefill_context)


_ARGUMENTS = {
    "model": "model_config.model",
    "revision": "model_config.revision",
    "quantization": "model_config.quantization",
    "kv_cache_dtype": "cache_config.cache_dtype",
    "tensor_parallel_size": "parallel_config.tensor_parallel_size",
    "pipeline_parallel_size": "parallel_config.pipeline_parallel_size",
    "max_num_seqs": "scheduler_config.max_num_seqs",
    "max_num_batched_tokens": "scheduler_config.max_num_batched_tokens",
    "enable_prefix_caching": "cache_config.enable_prefix_caching",
    "max_model_len": "model_config.max_model_len",
    "block_size": "cache_config.block_size",
}
"""Engine arguments that a profile is compared with → where vLLM's configuration has them."""


def arguments_of(config: Any, places: Mapping[str, str] = _ARGUMENTS) -> dict[str, Any]:
    """Return engine arguments as resolved."""
    return {name: attrgetter(place)(config) for name, place in places.items()}


_MODELED: Mapping[str, Mapping[str, object]] = {
    "scheduler_config": {
        "policy": "fcfs",
        "long_prefill_token_threshold": 0,
        "watermark": 0,
        "prefill_schedule_interval": 1,
        "enable_chunked_prefill": True,
    },
    "parallel_config": {"pipeline_parallel_size": 1, "decode_context_parallel_size": 1},
}
"""What the model of the scheduler takes as given; not every vLLM has all of these."""


def unmodelled(config: Any, kv_cache_groups: Sequence[Any]) -> list[str]:
    """Return what an engine does that the model knows nothing of; empty where it knows all.

    ``kv_cache_groups`` are of vLLM's KVCacheConfig: layers with caches of one kind each, which
    take blocks from one pool.
    """
    features = {
        f"KV caches of {len(kv_cache_groups)} kinds in one pool": len(kv_cache_groups) > 1,
        "speculative decoding": config.speculative_config is not None,
        "a KV connector": config.kv_transfer_config is not None,
    }
    result = [name for name, does in features.items() if does]
    for part, usual in _MODELED.items():
        for name, modeled in usual.items():
            value = getattr(getattr(config, part), name, modeled)
            if value != modeled:
                result.append(f"{name}={value}")
    return result

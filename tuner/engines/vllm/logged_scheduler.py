"""vLLM's scheduler with a cap that changes between replays and a log of its iterations.

Runs inside the EngineCore process: vLLM imports this module when it resolves ``scheduler_cls``.
Importing it adds three utility methods to EngineCore, which the front end calls by name and which
run between two iterations. Every vLLM name used here is checked by tests/engines/vllm.
"""

# mypy: allow-subclassing-any
# ruff: noqa: ANN401 - vLLM's objects are untyped where vLLM is not installed

import struct
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore

from tuner.engines.seam import ITERATION

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

_CODES = {"f8": "d", "i4": "i", "i8": "q"}
_ROW = struct.Struct("<" + "".join(_CODES[field[1][1:]] for field in ITERATION.descr))


class _Logged:
    """Mixed into vLLM's schedulers: limits that change while idle, and one log row per iteration.

    A row's time runs from the moment the previous iteration's tokens were out, or, after idling,
    from the moment the scheduler began, until this iteration's tokens are out. So the rows tile
    the busy time, also where one iteration is scheduled while another runs (async scheduling).
    """

    if TYPE_CHECKING:
        max_num_running_reqs: int
        max_num_active_reqs: int
        max_num_scheduled_tokens: int
        kv_cache_manager: Any
        requests: dict[str, Request]

        def get_request_counts(self) -> tuple[int, int]: ...
        def has_requests(self) -> bool: ...

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._built_seqs = self.max_num_running_reqs
        self._built_tokens = self.max_num_scheduled_tokens
        self._rows = bytearray()
        self._pending: deque[tuple[SchedulerOutput, float, tuple[int, ...]]] = deque()
        self._busy_since: float | None = None
        self._preempted = 0
        self._lost_tokens = 0

    # -- the iteration log

    def schedule(self, *args: Any, **kwargs: Any) -> "SchedulerOutput":
        begun_s = time.monotonic()
        self._preempted = self._lost_tokens = 0
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        if output.total_num_scheduled_tokens:
            self._pending.append((output, begun_s, self._composition(output)))
        return output

    def update_from_output(self, scheduler_output: "SchedulerOutput", *args: Any) -> Any:
        result = super().update_from_output(scheduler_output, *args)  # type: ignore[misc]
        now_s = time.monotonic()
        if self._pending and self._pending[0][0] is scheduler_output:
            _, begun_s, composition = self._pending.popleft()
            start_s = begun_s if self._busy_since is None else self._busy_since
            self._rows += _ROW.pack(start_s, now_s - start_s, *composition)
            self._busy_since = now_s
        if not self._pending and not self.has_requests():
            self._busy_since = None
        return result

    def _preempt_request(self, request: "Request", *args: Any, **kwargs: Any) -> None:
        self._preempted += 1
        self._lost_tokens += request.num_computed_tokens
        super()._preempt_request(request, *args, **kwargs)  # type: ignore[misc]

    def _composition(self, output: "SchedulerOutput") -> tuple[int, ...]:
        """Return a row's fields from ``decode_seqs`` on.

        A sequence decodes when all tokens that it had were computed already and only the newest
        one (and drafts of the next ones) goes in. Everything else is prefill: prompts, and what a
        preempted sequence computes again.
        """
        decode = context = prefill = prefill_tokens = 0
        requests, drafts = self.requests, output.scheduled_spec_decode_tokens
        for request_id, tokens in output.num_scheduled_tokens.items():
            request = requests[request_id]
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
        cached = sum(new.num_computed_tokens for new in output.scheduled_new_reqs)
        again = output.scheduled_cached_reqs
        if again.resumed_req_ids:
            cached += sum(
                computed
                for request_id, computed in zip(
                    again.req_ids, again.num_computed_tokens, strict=True
                )
                if request_id in again.resumed_req_ids
            )
        running, waiting = self.get_request_counts()
        pool = self.kv_cache_manager.block_pool
        used = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()  # one block is the null block
        return (
            *(decode, prefill, prefill_tokens, context, running, waiting, used),
            *(self._preempted, self._lost_tokens, cached),
        )

    # -- what EngineCore's utility methods call

    def tuner_take_iterations(self) -> bytes:
        """Return the rows since the last call, as the bytes of an ITERATION array."""
        rows, self._rows = bytes(self._rows), bytearray()
        return rows

    def tuner_state(self) -> dict[str, int]:
        running, waiting = self.get_request_counts()
        return {
            "running": running,
            "waiting": waiting,
            "in_flight": len(self._pending),
            "kv_blocks": self.kv_cache_manager.block_pool.num_gpu_blocks - 1,
            "max_num_seqs": getattr(self, "max_num_active_reqs", self.max_num_running_reqs),
            "max_num_batched_tokens": self.max_num_scheduled_tokens,
        }

    def tuner_set_limits(self, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        """Raises ValueError out of range, RuntimeError unless idle; the caller sees the message."""
        if not 1 <= max_num_seqs <= self._built_seqs:
            raise ValueError(f"max_num_seqs {max_num_seqs} is not in 1..{self._built_seqs}")
        if not max_num_seqs <= max_num_batched_tokens <= self._built_tokens:
            raise ValueError(
                f"max_num_batched_tokens {max_num_batched_tokens} is not in "
                f"{max_num_seqs}..{self._built_tokens}"
            )
        if any(self.get_request_counts()) or self._pending:
            raise RuntimeError("requests are running or waiting")
        if hasattr(self, "max_num_active_reqs"):
            self.max_num_active_reqs = max_num_seqs
        else:  # vLLM before max_num_active_seqs: one attribute sizes and admits
            self.max_num_running_reqs = max_num_seqs
        self.max_num_scheduled_tokens = max_num_batched_tokens


class LoggedScheduler(_Logged, Scheduler):
    """For engines without async scheduling, such as all on a CPU."""


class LoggedAsyncScheduler(_Logged, AsyncScheduler):
    """For engines with async scheduling."""


def _set_limits(self: EngineCore, max_num_seqs: int, max_num_batched_tokens: int) -> None:
    self.scheduler.tuner_set_limits(max_num_seqs, max_num_batched_tokens)


def _state(self: EngineCore) -> dict[str, int]:
    state: dict[str, int] = self.scheduler.tuner_state()
    return state


def _take_iterations(self: EngineCore) -> bytes:
    rows: bytes = self.scheduler.tuner_take_iterations()
    return rows


EngineCore.tuner_set_limits = _set_limits
EngineCore.tuner_state = _state
EngineCore.tuner_take_iterations = _take_iterations

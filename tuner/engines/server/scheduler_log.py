"""The log that a scheduler keeps of its iterations while somebody takes it.

Lives in vLLM's scheduler inside EngineCore, and needs of vLLM what an iteration's output says.
"""

# ruff: noqa: ANN401 - vLLM's objects are untyped where vLLM is not installed

import base64
import struct
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.engines.seam import ITERATION
from tuner.engines.server.protocol import Log, Served

MOST_ROWS = 2**19
"""Iterations that are kept for whoever takes the log: an hour of short ones, 50 MB."""

MOST_SERVED = 2**17

ROWS_AT_ONCE = 4096
SERVED_AT_ONCE = 1024
"""With these an answer stays well below what a client takes."""

_CODES = {"f8": "d", "i4": "i", "i8": "q"}
_ROW = struct.Struct("<" + "".join(_CODES[field[1][1:]] for field in ITERATION.descr))


@dataclass(slots=True)
class _Mark:
    """The progress of one request."""

    queued_s: float
    scheduled_s: float | None = None
    first_token_s: float | None = None
    cached_tokens: int = 0
    preemptions: int = 0


class SchedulerLog:
    """One row an iteration, one entry a finished request.

    A row's time runs from the moment the previous iteration's tokens were out, or, after idling,
    from the moment the scheduler began, until this iteration's tokens are out. So the rows tile
    the busy time, also where one iteration is scheduled while another runs (async scheduling).

    The scheduler's thread writes, another one takes.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._rows: deque[bytes] = deque()
        self._served: deque[Served] = deque()
        self._lost = 0
        self._pending: deque[tuple[Any, float, tuple[int, ...]]] = deque()
        self._busy_since: float | None = None
        self._preempted = 0
        self._lost_tokens = 0
        self._marks: dict[str, _Mark] = {}

    def take(self) -> Log:
        """Return the oldest part and forget it."""
        rows = [self._rows.popleft() for _ in range(min(len(self._rows), ROWS_AT_ONCE))]
        served = [self._served.popleft() for _ in range(min(len(self._served), SERVED_AT_ONCE))]
        return Log(
            rows=base64.b64encode(b"".join(rows)).decode("ascii"),
            served=served,
            lost=self._lost,
            more=bool(self._rows or self._served),
        )

    # -- what the scheduler tells

    def queued(self, request: Any) -> None:
        if len(self._marks) > MOST_SERVED:  # of clients that left
            alive: Mapping[str, object] = self._scheduler.requests
            self._marks = {name: mark for name, mark in self._marks.items() if name in alive}
        self._marks[request.request_id] = _Mark(time.monotonic())

    def preempted(self, request: Any) -> None:
        self._preempted += 1
        self._lost_tokens += request.num_computed_tokens
        if (mark := self._marks.get(request.request_id)) is not None:
            mark.preemptions += 1

    def scheduled(self, output: Any, begun_s: float) -> None:
        """Note an iteration that is about to run."""
        self._pending.append((output, begun_s, self._composition(output)))
        self._preempted = self._lost_tokens = 0
        for new in output.scheduled_new_reqs:
            if (mark := self._marks.get(new.req_id)) is not None and mark.scheduled_s is None:
                mark.scheduled_s, mark.cached_tokens = begun_s, new.num_computed_tokens

    def computed(self, output: Any, result: Mapping[int, Any]) -> None:
        """Note that an iteration's tokens are out; ``result`` is what goes to the clients."""
        now_s = time.monotonic()
        if self._pending and self._pending[0][0] is output:
            _, begun_s, composition = self._pending.popleft()
            start_s = begun_s if self._busy_since is None else self._busy_since
            self._keep(self._rows, _ROW.pack(start_s, now_s - start_s, *composition), MOST_ROWS)
            self._busy_since = now_s
        for outputs in result.values():
            for one in outputs.outputs:
                if one.prefill_stats is not None or one.finish_reason is not None:
                    self._progress(one, now_s)
        if not self._pending and not self._scheduler.has_requests():
            self._busy_since = None
            self._marks.clear()

    def _progress(self, one: Any, now_s: float) -> None:
        """Note a request's first token, or its last."""
        mark = self._marks.get(one.request_id)
        if mark is None:
            return  # it came before the log began
        if mark.first_token_s is None:
            mark.first_token_s = now_s
        if one.finish_reason is None or mark.scheduled_s is None:
            return
        del self._marks[one.request_id]
        served = Served(
            request_id=one.request_id,
            queued_s=mark.queued_s,
            scheduled_s=mark.scheduled_s,
            first_token_s=mark.first_token_s,
            last_token_s=now_s,
            cached_tokens=mark.cached_tokens,
            preemptions=mark.preemptions,
        )
        self._keep(self._served, served, MOST_SERVED)

    def _keep(self, kept: deque[Any], one: object, most: int) -> None:
        kept.append(one)
        if len(kept) > most:
            kept.popleft()
            self._lost += 1

    def _composition(self, output: Any) -> tuple[int, ...]:
        """Return a row's fields from ``decode_seqs`` on.

        A sequence decodes when all tokens that it had were computed already and only the newest
        one (and drafts of the next ones) goes in. Everything else is prefill: prompts, and what a
        preempted sequence computes again.
        """
        decode = context = prefill = prefill_tokens = prefill_context = 0
        scheduler = self._scheduler
        requests, drafts = scheduler.requests, output.scheduled_spec_decode_tokens
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
                prefill_context += tokens * before
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
        running, waiting = scheduler.get_request_counts()
        pool = scheduler.kv_cache_manager.block_pool
        used = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()  # one block is the null block
        return (
            *(decode, prefill, prefill_tokens, context, running, waiting, used),
            *(self._preempted, self._lost_tokens, cached, prefill_context),
        )

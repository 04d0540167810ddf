"""The engine's own view of its requests: a plug-in for vLLM's statistics. Imports vLLM.

vLLM loads it into every server that has tuner installed beside it (entry point group
``vllm.stat_logger_plugins``). It does nothing unless TUNER_STATS_OUT names a folder. Written
against vLLM 0.32, which calls its statistics unstable: a field that is gone is left out.
"""

# ruff: noqa: ANN401 - vLLM's objects are untyped where vLLM is not installed

import time
from dataclasses import dataclass
from typing import Any

from vllm.v1.metrics.loggers import AggregateStatLoggerBase

from tuner.capture.call import ms
from tuner.capture.environment import STATS_OUT
from tuner.capture.spool import spool_asked_for
from tuner.system.contain_errors import contain_errors
from tuner.trace.formats.reading.header import TraceHeader
from tuner.trace.formats.reading.record import Row, Status

MISSING = ("aborts", "n", "hash_ids", "session_id", "lora")
"""Facts that vLLM 0.32 does not tell its stat loggers. A request whose client left is forgotten
without being counted as finished; each sequence of n > 1 finishes as a request of its own."""

STATUS: dict[str, Status] = {"abort": "aborted", "error": "error"}


@dataclass(slots=True)
class Finished:
    """A request that the engine is done with. ``stats`` is vLLM's FinishedRequestStats, None for
    one that was not let in."""

    end_s: float
    """Seconds since the recording began, on the wall clock, as vLLM stamps its statistics."""

    engine: int | None
    reason: str
    stats: Any = None


class EngineRecorder(AggregateStatLoggerBase):  # type: ignore[misc] # Any, where vLLM is not checked
    """Writes a row for every request that finishes, with the engine's own times."""

    def __init__(self, vllm_config: Any, engine_indexes: list[int]) -> None:
        self._several = len(engine_indexes) > 1
        model = getattr(getattr(vllm_config, "model_config", None), "model", None)
        header = TraceHeader(
            source="vllm-stats",
            model=model if isinstance(model, str) else None,
            missing=MISSING,
        )
        self._spool = spool_asked_for(
            out=STATS_OUT, default=None, name="stats", header=lambda: header, row_of=row_of
        )

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Record the requests that finished in an iteration. Never raises: that would kill the
        engine."""
        del scheduler_stats, mm_cache_stats
        if self._spool is not None and iteration_stats is not None:
            contain_errors(self._lacks, self._record, iteration_stats, engine_idx)

    def record_admission_rejection(self, reason: str) -> None:
        if self._spool is not None:
            now_s = time.monotonic() - self._spool.origin_s
            contain_errors(self._lacks, self._spool.put, Finished(now_s, None, str(reason)))

    def log_engine_initialized(self) -> None:
        """Do nothing: there is nothing to say."""

    def _record(self, iteration_stats: Any, engine_idx: int) -> None:
        if self._spool is None:
            return
        end_s = iteration_stats.iteration_timestamp - self._spool.began.timestamp()
        for stats in iteration_stats.finished_requests:
            engine = engine_idx if self._several else None
            self._spool.put(Finished(end_s, engine, str(stats.finish_reason), stats))

    def _lacks(self, problem: Exception) -> None:
        if self._spool is not None:
            self._spool.lacks("not_recorded", problem)


def row_of(finished: Finished) -> Row:
    """Return the row: queue and first token as the engine timed them, the end as clients saw it."""
    stats = finished.stats
    if stats is None:
        return Row(timestamp=ms(finished.end_s), status="rejected", finish_reason=finished.reason)
    queue_s = getattr(stats, "queued_time", None)
    prefill_s = getattr(stats, "prefill_time", None)
    first_s = None if queue_s is None or prefill_s is None else queue_s + prefill_s
    return Row(
        timestamp=ms(finished.end_s - stats.e2e_latency),
        input_length=stats.num_prompt_tokens,
        output_length=stats.num_generation_tokens,
        status=STATUS.get(finished.reason, "ok"),
        max_tokens=getattr(stats, "max_tokens_param", None),
        e2e_ms=ms(stats.e2e_latency),
        ttft_ms=None if first_s is None else ms(first_s),
        queue_ms=None if queue_s is None else ms(queue_s),
        finish_reason=finished.reason,
        replica=finished.engine,
        cached_tokens=getattr(stats, "num_cached_tokens", None),
    )

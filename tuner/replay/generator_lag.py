"""Refuses replays whose requests left, or whose outputs were read, too late. Pure.

Their numbers would describe us and not the engine.
"""

from collections.abc import Sequence

import numpy as np

from tuner.engines.seam import EngineFacts
from tuner.errors import GeneratorLateError, ReadLateError
from tuner.replay.records import Replay

MIN_LAG_LIMIT_S = 0.005
LAG_SHARE_OF_ITL = 0.10
"""Lower limits throw replays away on a machine that others use too; higher ones let a lateness of
ours pass for the engine's. A slow engine hides more of it, hence the share (docs/measuring.md)."""

MERGED_LIMIT = 0.10
"""Share of the output tokens that we may read so late that they come together with others: they
give one gap instead of several, so that more of them would make the ITL ours."""


def check_generator(blocks: Sequence[Replay]) -> None:
    """Refuse replays whose requests left late: their numbers describe us and not the engine.

    Raises GeneratorLateError when the p99 lag exceeds max(5 ms, 10 % of the median ITL).
    """
    gaps = [gap for block in blocks for record in block.records for gap in record.itl_s]
    limit_s = max(MIN_LAG_LIMIT_S, LAG_SHARE_OF_ITL * float(np.median(gaps)) if gaps else 0.0)
    p99_s = lag_p99_s(blocks)
    if p99_s > limit_s:
        raise GeneratorLateError(
            f"max_num_seqs={blocks[0].max_num_seqs}: requests left late "
            f"(p99 lag {p99_s * 1e3:.1f} ms, limit {limit_s * 1e3:.1f} ms)",
            hint="Give tuner a core of its own, or stop what else runs here; then --resume.",
        )


def check_reading(one: Replay, facts: EngineFacts) -> None:
    """Refuse a replay whose outputs we read late.

    Raises ReadLateError above MERGED_LIMIT; GeneratorLateError where a process of its own read them
    already. Outputs that the server itself joins are not late, nor are those that drafts or
    ``stream_interval`` join: its users see them so. On a CPU nothing is refused, because the engine
    takes the cores that we read on: there the times between tokens are the engine's own.
    """
    tokens = sum(record.output_tokens for record in one.records)
    if facts.device.get("kind", "cpu") == "cpu" or not tokens:
        return
    arguments = facts.arguments
    joins = arguments.get("speculative_config") or arguments.get("stream_interval") not in {None, 1}
    late = sum(record.late_outputs or 0 for record in one.records)
    if facts.engine == "vllm" and not joins:
        late = sum(record.merged_outputs for record in one.records)
    if late / tokens > MERGED_LIMIT:
        kind = GeneratorLateError if facts.is_served else ReadLateError
        elsewhere = "" if facts.is_served else ", or read in a process of its own: --engine serve"
        raise kind(
            f"max_num_seqs={one.max_num_seqs}: outputs were read late ({late / tokens:.0%} of them "
            f"together with others, limit {MERGED_LIMIT:.0%})",
            hint=f"Give tuner a core of its own{elsewhere}.",
        )


def lag_p99_s(blocks: Sequence[Replay]) -> float:
    """Return the 99th percentile of how late requests left, in seconds."""
    lags = [record.lag_s for block in blocks for record in block.records]
    return float(np.percentile(lags, 99)) if lags else 0.0

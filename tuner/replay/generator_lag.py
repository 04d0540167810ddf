"""Whether our own requests left in time: else the numbers describe us and not the engine. Pure."""

from collections.abc import Sequence

import numpy as np

from tuner.errors import GeneratorLateError
from tuner.replay.records import Replay

MIN_LAG_LIMIT_S = 0.005
LAG_SHARE_OF_ITL = 0.10


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


def lag_p99_s(blocks: Sequence[Replay]) -> float:
    """Return the 99th percentile of how late requests left, in seconds."""
    lags = [record.lag_s for block in blocks for record in block.records]
    return float(np.percentile(lags, 99)) if lags else 0.0

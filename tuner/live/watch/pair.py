"""One window of a baseline and of its canary, each held against the twin by its own limits. Pure.

The canary runs the profile; the baseline what was there before. Of that a server tells the size of
its KV cache, and shows its cap where requests wait; ``max_num_batched_tokens`` it does not tell.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.live.watch.canary import Pair
from tuner.live.watch.verdict import Watch
from tuner.live.watch.windows import ScrapeWindow

MOST_BLOCKS = 10_000_000


@dataclass(frozen=True, slots=True)
class PairedWindows:
    baseline: Pair
    canary: Pair
    incomparable: str
    """Why the twin can say nothing of the baseline."""


def paired(
    watches: tuple[Watch, Watch],
    windows: tuple[ScrapeWindow, ScrapeWindow],
    *,
    kv_blocks: int | None,
) -> PairedWindows:
    """Hold both windows against the twin; ``kv_blocks`` are the baseline's, where it tells.

    What runs is taken in; the rest is ``Watch.account``'s.
    """
    for watch, window in zip(watches, windows, strict=True):
        watch.running.add(window)
    baseline, canary = watches
    planned, known = baseline.promised.max_num_seqs, baseline.promised.known_cap
    cap = baseline.running.cap(planned)
    found = baseline.compared(windows[0], cap=min(cap, known), kv_blocks=kv_blocks)
    return PairedWindows(
        baseline=(windows[0], found),
        canary=(windows[1], canary.compared(windows[1], cap=planned)),
        incomparable=f"the baseline ran {cap} requests at a time, and the twin saw {known} at most"
        if cap > known
        else "",
    )


def kv_blocks_said(cache_config: Mapping[str, str], *, block_size: int) -> int | None:
    """Return the KV cache of ``vllm:cache_config_info`` in blocks of this size; None if untold.

    vLLM counts a block among them that no request gets.
    """
    try:
        blocks, size = int(cache_config["num_gpu_blocks"]), int(cache_config["block_size"])
    except (KeyError, ValueError):
        return None
    if blocks < 2 or size < 1:
        return None
    return min(MOST_BLOCKS, max(1, (blocks - 1) * size // block_size))

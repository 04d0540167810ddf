"""``--ceiling auto``: the largest max_num_seqs that is worth trying, before anything starts."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

from tuner.commands.shared.dry_run import asked_of, cache_of
from tuner.commands.sweep.one_trace import SweptTraffic
from tuner.commands.sweep.options import AUTO, SweepOptions
from tuner.engines.models.memory import memory_of
from tuner.engines.seam import Starter
from tuner.engines.vllm.start import VllmStarter
from tuner.trace.trace import TraceRequest

MOST = 256
"""What vLLM's server takes by itself on most devices: few deployments go beyond it."""


def auto_ceiling(
    requests: Sequence[TraceRequest],
    *,
    server: int | None,
    kv_tokens: int | None,
    is_stated: bool = False,
) -> tuple[int, str]:
    """Return the ceiling for this traffic, and why it is that.

    ``server`` is the max_num_seqs of a server that is told none, or what is stated for it,
    ``kv_tokens`` how many tokens the KV cache holds; None where that is not known. The least of
    both and MOST counts, rounded up to a power of two, and never above what the server takes.
    """
    median = statistics.median(one.input_length + one.output_length for one in requests)
    reasons = {f"more than {MOST} is rarely worth its time": MOST}
    if server is not None:
        takes = (
            f"max_num_seqs {server} is set" if is_stated else f"a server takes {server} by itself"
        )
        reasons[takes] = server
    if kv_tokens is not None:
        fit = max(1, int(kv_tokens / median))
        reasons[f"{fit:,} sequences of the median length fit into the KV cache"] = fit
    least = min(reasons.values())
    reason = next(text for text, cap in reasons.items() if cap == least)
    rounded = 1 << (least - 1).bit_length()
    return (rounded if server is None else min(rounded, server)), reason


def with_ceiling(
    options: SweepOptions, traffic: SweptTraffic, starter: Starter
) -> tuple[SweepOptions, SweptTraffic, list[str]]:
    """Return options and traffic with the ceiling as a number, and what is to be said of it; as
    they are where a number was given. Imports vLLM for ``auto``."""
    if options.ceiling != AUTO:
        return options, traffic, []
    requests = traffic.requests
    server, is_stated, is_real = None, False, False
    if isinstance(starter, VllmStarter):
        (server, is_stated), is_real = starter.server_max_num_seqs(), True
    arguments = asked_of(starter, max_num_seqs=server or MOST)
    memory = memory_of(arguments) if is_real else "simulated"
    cache = cache_of(arguments, memory, requests, is_simulated=not is_real)
    kv_tokens = None if isinstance(cache, str) else cache.blocks * cache.block_size
    ceiling, reason = auto_ceiling(
        requests, server=server, kv_tokens=kv_tokens, is_stated=is_stated
    )
    traffic = replace(traffic, settings=replace(traffic.settings, ceiling=ceiling))
    return replace(options, ceiling=ceiling), traffic, [f"--ceiling auto is {ceiling}: {reason}"]

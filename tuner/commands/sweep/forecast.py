"""What a sweep would run, in what memory, and what could go wrong; nothing is started for it."""

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tuner.commands.options import AUTO, SweepOptions
from tuner.commands.shared.next_step import again
from tuner.commands.sweep.one_trace import SweptTraffic, simulated_start_s, taken_from_base
from tuner.engines import devices, provenance
from tuner.engines.models.memory import OWN_BLOCKS, ModelMemory, memory_of
from tuner.engines.seam import ArgumentValue, Starter
from tuner.engines.vllm.start import VllmStarter
from tuner.profile.summary import minutes
from tuner.runs.ladder import STEPS, doubling
from tuner.trace.trace import TraceRequest
from tuner.traffic.arrivals import busiest_window
from tuner.traffic.routing import S_PER_OUTPUT_TOKEN, S_PER_PROMPT_TOKEN
from tuner.traffic.sampling import sample_windows
from tuner.traffic.window import choose_part
from tuner.traffic.workload import LOADED, MIN_STEP_S, affordable_step_s
from tuner.views.page import Page
from tuner.views.text import print_json, print_page

MOST = 256
"""What vLLM's server takes by default on most devices: few deployments go beyond it."""

CPU_BLOCK_SIZE, GPU_BLOCK_SIZE = 128, 16
"""vLLM's defaults; some attention backends take more."""

GPU_SHARE = 0.92
"""vLLM's default ``gpu_memory_utilization``."""

GIB = 2**30


@dataclass(frozen=True, slots=True)
class CacheForecast:
    """The size that the KV cache will have, and the sequences of a trace that it holds."""

    blocks: int
    block_size: int
    source: str
    mean_fit: int
    """Sequences of the mean length that fit at a time: more slots wait for memory."""

    longest_fit: int
    """Sequences of the longest length: fewer slots never do."""


def arguments_of(starter: Starter, *, max_num_seqs: int) -> dict[str, ArgumentValue]:
    """Return the arguments that an engine will get. Without vLLM."""
    if isinstance(starter, VllmStarter):
        return {**starter.asked, "max_num_seqs": max_num_seqs}
    return dict(starter.resolve(max_num_seqs=max_num_seqs))


def cache_of(
    arguments: Mapping[str, ArgumentValue],
    memory: ModelMemory | str,
    requests: Sequence[TraceRequest],
    *,
    is_simulated: bool = False,
) -> CacheForecast | str:
    """Return the KV cache that these arguments come to here, or why that is not known."""
    on_cpu = provenance.is_cpu_build()
    default = CPU_BLOCK_SIZE if on_cpu else GPU_BLOCK_SIZE
    block_size = int(str(arguments.get("block_size") or default))
    given = arguments.get("num_gpu_blocks_override")
    if given is not None:
        blocks = int(str(given)) - (0 if is_simulated else OWN_BLOCKS)
        source = "num_gpu_blocks_override"
    elif isinstance(memory, str):
        return memory
    else:
        result = _cache_bytes(arguments, memory, on_cpu=on_cpu)
        if isinstance(result, str):
            return result
        size, source = result
        blocks = memory.kv_blocks(size, block_size)
    held = [math.ceil((each.input_length + each.output_length) / block_size) for each in requests]
    mean_fit, longest_fit = int(blocks / float(np.mean(held))), blocks // max(held)
    return CacheForecast(blocks, block_size, source, mean_fit, longest_fit)


def _cache_bytes(
    arguments: Mapping[str, ArgumentValue], memory: ModelMemory, *, on_cpu: bool
) -> tuple[int, str] | str:
    """Return the bytes for the KV cache of all ranks, and where that is from."""
    ranks = devices.gpus_of(arguments)
    given = arguments.get("kv_cache_memory_bytes")
    if given is not None:
        return int(str(given)) * ranks, f"kv_cache_memory_bytes {_size(int(str(given)))}"
    if on_cpu:
        space = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "")
        if space.isdecimal() and int(space):
            return int(space) * GIB, f"VLLM_CPU_KVCACHE_SPACE {space} GiB"
        return "vLLM decides on the memory of the cache when it starts on a CPU"
    here = devices.device_facts()
    total = here.get("memory_bytes")
    if here.get("kind") != "gpu" or not isinstance(total, int):
        return "there is no GPU here whose memory could be read"
    share = float(str(arguments.get("gpu_memory_utilization") or GPU_SHARE))
    of = f"{share:.0%} of {ranks} x {_size(total)}"
    left = int(share * total * ranks) - memory.weight_bytes
    if left <= 0:
        return f"the weights alone, {_size(memory.weight_bytes)}, do not fit into {of}"
    return left, f"{of} less weights; graphs and batches take some"


def with_ceiling(
    options: SweepOptions, traffic: SweptTraffic, starter: Starter
) -> tuple[SweepOptions, SweptTraffic, list[str]]:
    """Return options and traffic with ``--ceiling auto`` as a number, and why it is that. Imports
    vLLM for ``auto``."""
    if options.ceiling != AUTO:
        return options, traffic, []
    server, is_stated, is_real = None, False, isinstance(starter, VllmStarter)
    if isinstance(starter, VllmStarter):
        server, is_stated = starter.server_max_num_seqs()
    arguments = arguments_of(starter, max_num_seqs=server or MOST)
    memory = memory_of(arguments) if is_real else "simulated"
    cache = cache_of(arguments, memory, traffic.requests, is_simulated=not is_real)
    kv_tokens = None if isinstance(cache, str) else cache.blocks * cache.block_size
    ceiling, reason = auto_ceiling(
        traffic.requests, server=server, kv_tokens=kv_tokens, is_stated=is_stated
    )
    traffic = replace(traffic, settings=replace(traffic.settings, ceiling=ceiling))
    return replace(options, ceiling=ceiling), traffic, [f"--ceiling auto is {ceiling}: {reason}"]


def auto_ceiling(
    requests: Sequence[TraceRequest],
    *,
    server: int | None,
    kv_tokens: int | None,
    is_stated: bool = False,
) -> tuple[int, str]:
    """Return the ceiling for this traffic, and why it is that.

    ``server`` is the max_num_seqs that a server takes or that is stated for it, ``kv_tokens`` how
    many tokens the KV cache holds; None where that is not known. The least of both and MOST counts,
    rounded up to a power of two, and never above what the server takes.
    """
    reasons = {f"more than {MOST} is rarely worth its time": MOST}
    if server is not None:
        default = f"a server takes {server} by default"
        reasons[f"max_num_seqs {server} is set" if is_stated else default] = server
    if kv_tokens is not None:
        median = statistics.median(each.input_length + each.output_length for each in requests)
        fit = max(1, int(kv_tokens / median))
        reasons[f"{fit:,} sequences of the median length fit into the KV cache"] = fit
    least = min(reasons.values())
    rounded = 1 << (least - 1).bit_length()
    ceiling = rounded if server is None else min(rounded, server)
    return ceiling, next(reason for reason, cap in reasons.items() if cap == least)


def show(
    options: SweepOptions, traffic: SweptTraffic, starter: Starter, ceiling: Sequence[str]
) -> None:
    """Print what a sweep of this traffic would run; ``ceiling`` says how that was found. Raises
    UsageError for a budget that is too small for any."""
    is_simulated = options.world is not None
    arguments = arguments_of(starter, max_num_seqs=options.ceiling)
    memory = "a simulated engine" if is_simulated else memory_of(arguments)
    cache = cache_of(arguments, memory, traffic.requests, is_simulated=is_simulated)
    facts = {
        "trace": _trace(traffic.requests),
        **_steps(options, traffic),
        **({"ceiling": ceiling[0]} if ceiling else {}),
        "engine": ", ".join(f"{key}={value}" for key, value in arguments.items()),
        "memory": _memory(memory, cache),
    }
    warnings = [*taken_from_base(options), *traffic.warnings]
    if not isinstance(cache, str):
        facts["fits"] = (
            f"{cache.mean_fit:,} sequences of this trace's mean length, "
            f"{cache.longest_fit:,} of the longest"
        )
        if cache.mean_fit < options.ceiling:
            warnings.insert(
                0,
                f"max_num_seqs {options.ceiling} is more than the {cache.mean_fit:,} sequences "
                "that fit into memory: the largest steps will wait for KV blocks or preempt",
            )
    warnings = [*_too_long(arguments, traffic.requests), *warnings]
    command = again("sweep", options, dry_run=False)
    if options.json:
        print_json(_json(facts, arguments, memory, cache) | {"next": command, "warnings": warnings})
        return
    title = "dry run: nothing was started"
    page = Page(
        subject="Dry run", title=title, facts=list(facts.items()), warnings=warnings, next=command
    )
    print_page(page, details=True)


def _steps(options: SweepOptions, traffic: SweptTraffic) -> dict[str, str]:
    """Return caps, windows and time of a sweep, as far as they are known before an engine is
    timed."""
    settings, starts = traffic.settings, 2
    steps, start_s = STEPS, simulated_start_s(options)
    step_s = affordable_step_s(
        settings.step_s,
        steps=steps,
        budget_s=settings.budget_s,
        starts_s=starts * (start_s or 0.0),
    )
    longest_s = (settings.budget_s - MIN_STEP_S * steps) / starts
    start = f"at most {minutes(longest_s)}" if start_s is None else minutes(start_s)
    requests = traffic.requests
    part = choose_part(requests, settings.window, length_s=step_s, busiest=busiest_window)
    ends_s = [
        each.input_length * S_PER_PROMPT_TOKEN + each.output_length * S_PER_OUTPUT_TOKEN
        for each in requests
    ]
    drain_s = LOADED * float(np.percentile(ends_s, 95))
    windows = sample_windows(requests, part, step_s=step_s, drain_s=drain_s)
    caps = ", ".join(map(str, doubling(settings.ceiling)))
    fresh = "on a fresh one" if settings.confirm == "inproc" else "behind a fresh server"
    return {
        "steps": f"max_num_seqs {caps}, live on one engine, then the choice {fresh}",
        "windows": f"a step replays {', '.join(map(str, windows))}; others on an engine of another "
        f"speed than {S_PER_OUTPUT_TOKEN * 1e3:g} ms an output token, which is timed first",
        "time": f"at most {minutes(settings.budget_s)} of engine: {starts} starts of {start} each, "
        f"and replays of {steps:.2g} times {minutes(step_s)} at most",
    }


def _trace(requests: Sequence[TraceRequest]) -> str:
    length_s = requests[-1].arrival_s - requests[0].arrival_s
    prompts = np.mean([each.input_length for each in requests])
    outputs = np.mean([each.output_length for each in requests])
    return (
        f"{len(requests):,} requests in {minutes(length_s)}, on average {prompts:,.0f} tokens in "
        f"and {outputs:,.0f} out"
    )


def _memory(memory: ModelMemory | str, cache: CacheForecast | str) -> str:
    parts = []
    if isinstance(memory, ModelMemory):
        per_token = _size(memory.kv_bytes_per_token)
        parts.append(f"{_size(memory.weight_bytes)} of weights, {per_token} of KV cache a token")
    if isinstance(cache, str):
        parts.append(f"KV blocks are not known: {cache}")
    else:
        tokens = cache.blocks * cache.block_size
        blocks = f"{cache.blocks:,} KV blocks of {cache.block_size} ({tokens:,} tokens)"
        parts.append(f"{blocks} by {cache.source}")
    return "; ".join(parts)


def _too_long(
    arguments: Mapping[str, ArgumentValue], requests: Sequence[TraceRequest]
) -> list[str]:
    longest = arguments.get("max_model_len")
    if longest is None:
        return []
    most = int(str(longest))
    count = sum(each.input_length + max(1, each.output_length) > most for each in requests)
    return [f"{count:,} requests are longer than max_model_len {most:,}: left out"] * bool(count)


def _json(
    facts: Mapping[str, str],
    arguments: Mapping[str, ArgumentValue],
    memory: ModelMemory | str,
    cache: CacheForecast | str,
) -> dict[str, Any]:
    model = None if isinstance(memory, str) else memory
    result = None if isinstance(cache, str) else cache
    return {
        "dry_run": True,
        "facts": dict(facts),
        "engine_arguments": dict(arguments),
        "weight_bytes": model and model.weight_bytes,
        "kv_bytes_per_token": model and model.kv_bytes_per_token,
        "kv_blocks": result and result.blocks,
        "mean_fit": result and result.mean_fit,
        "longest_fit": result and result.longest_fit,
    }


def _size(count: int) -> str:
    """Return a number of bytes for people.

    >>> _size(6144), _size(268435456), _size(80 * 2**30)
    ('6.0 KiB', '256 MiB', '80.0 GiB')
    """
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} {units[0]}" if value >= 100 else f"{value:.1f} {units[0]}"

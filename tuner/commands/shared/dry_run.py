"""``--dry-run`` of a command: says what would run, in what memory, and what could go wrong.

Nothing is started, and vLLM is not imported for it: all of it takes about a second.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tuner.commands.shared.console import console_for, print_rows, print_warnings, shown
from tuner.commands.shared.output import print_json
from tuner.engines import devices, provenance
from tuner.engines.models.memory import OWN_BLOCKS, ModelMemory, memory_of
from tuner.engines.seam import ArgumentValue, Starter
from tuner.engines.vllm.start import VllmStarter
from tuner.profile.summary import minutes
from tuner.trace.trace import TraceRequest
from tuner.traffic.arrivals import busiest_window
from tuner.traffic.routing import S_PER_OUTPUT_TOKEN, S_PER_PROMPT_TOKEN
from tuner.traffic.sampling import sample_windows
from tuner.traffic.window import choose_part
from tuner.traffic.workload import LOADED

CPU_BLOCK_SIZE = 128
GPU_BLOCK_SIZE = 16
"""What vLLM takes where nothing is said; some attention backends take more."""

GPU_SHARE = 0.92
"""``gpu_memory_utilization`` where nothing is said."""

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """Everything that a command would do."""

    command: str
    """The same without ``--dry-run``."""

    rows: Sequence[tuple[str, str]]
    """Of the command itself: what it replays, in which steps, and for how long."""

    arguments: Mapping[str, ArgumentValue]
    """As the engine will get them; all else is its own to choose."""

    requests: Sequence[TraceRequest]
    most_seqs: int
    """The largest max_num_seqs that is tried."""

    is_simulated: bool

    warnings: Sequence[str] = field(default_factory=tuple)


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


def asked_of(starter: Starter, *, max_num_seqs: int) -> dict[str, ArgumentValue]:
    """Return the arguments that an engine will get. Without vLLM."""
    if isinstance(starter, VllmStarter):
        return {**starter.asked, "max_num_seqs": max_num_seqs}
    return dict(starter.resolve(max_num_seqs=max_num_seqs))


def show(run: DryRun, *, as_json: bool) -> None:
    """Print what would be run, as rows or as one JSON object."""
    memory = "a simulated engine" if run.is_simulated else memory_of(run.arguments)
    cache = cache_of(run.arguments, memory, run.requests, is_simulated=run.is_simulated)
    rows = [
        ("trace", _trace(run.requests)),
        *run.rows,
        ("engine", ", ".join(f"{key}={value}" for key, value in run.arguments.items())),
        ("memory", _memory(memory, cache)),
        *([] if isinstance(cache, str) else [("fits", _fits(cache))]),
    ]
    warnings = [*_doubts(run, cache), *run.warnings]
    if as_json:
        print_json(_json(run, rows, memory, cache, warnings))
        return
    console = console_for()
    console.print("[bold]dry run: nothing was started[/]")
    print_rows(console, rows)
    console.print(f"  next     {shown(run.command)}", soft_wrap=True)
    print_warnings(console, warnings, all_=True)


def cache_of(
    arguments: Mapping[str, ArgumentValue],
    memory: ModelMemory | str,
    requests: Sequence[TraceRequest],
    *,
    is_simulated: bool = False,
) -> CacheForecast | str:
    """Return the KV cache that these arguments come to here, or why that cannot be said."""
    on_cpu = provenance.is_cpu_build()
    block_size = int(
        str(arguments.get("block_size") or (CPU_BLOCK_SIZE if on_cpu else GPU_BLOCK_SIZE))
    )
    given = arguments.get("num_gpu_blocks_override")
    if given is not None:
        blocks = int(str(given)) - (0 if is_simulated else OWN_BLOCKS)
        source = "num_gpu_blocks_override"
    elif isinstance(memory, str):
        return memory
    else:
        found = _cache_bytes(arguments, memory, on_cpu=on_cpu)
        if isinstance(found, str):
            return found
        size, source = found
        blocks = memory.kv_blocks(size, block_size)
    held = [math.ceil((one.input_length + one.output_length) / block_size) for one in requests]
    return CacheForecast(
        blocks=blocks,
        block_size=block_size,
        source=source,
        mean_fit=int(blocks / float(np.mean(held))),
        longest_fit=blocks // max(held),
    )


def windows_of(requests: Sequence[TraceRequest], asked: str, *, step_s: float) -> str:
    """Say which windows a step replays, as far as that is known before an engine is timed."""
    part = choose_part(requests, asked, length_s=step_s, busiest=busiest_window)
    ends_s = [
        one.input_length * S_PER_PROMPT_TOKEN + one.output_length * S_PER_OUTPUT_TOKEN
        for one in requests
    ]
    drain_s = LOADED * float(np.percentile(ends_s, 95))
    windows = sample_windows(requests, part, step_s=step_s, drain_s=drain_s)
    return (
        f"{', '.join(map(str, windows))}, where an output token takes "
        f"{S_PER_OUTPUT_TOKEN * 1e3:g} ms and one of a prompt {S_PER_PROMPT_TOKEN * 1e3:g} ms; "
        "others on an engine of another speed, which is timed first"
    )


def _cache_bytes(
    arguments: Mapping[str, ArgumentValue], memory: ModelMemory, *, on_cpu: bool
) -> tuple[int, str] | str:
    """Return the bytes for the KV cache of the whole model, and where that is from."""
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
    left = int(share * total * ranks) - memory.weight_bytes
    if left <= 0:
        return (
            f"the weights alone, {_size(memory.weight_bytes)}, do not fit into {share:.0%} of "
            f"{ranks} x {_size(total)}"
        )
    return (
        left,
        f"{share:.0%} of {ranks} x {_size(total)} less weights; graphs and batches take some",
    )


def _trace(requests: Sequence[TraceRequest]) -> str:
    length_s = requests[-1].arrival_s - requests[0].arrival_s
    prompts = np.mean([one.input_length for one in requests])
    outputs = np.mean([one.output_length for one in requests])
    return (
        f"{len(requests):,} requests in {minutes(length_s)}, on average {prompts:,.0f} tokens in "
        f"and {outputs:,.0f} out"
    )


def _memory(memory: ModelMemory | str, cache: CacheForecast | str) -> str:
    parts = []
    if isinstance(memory, ModelMemory):
        parts.append(
            f"{_size(memory.weight_bytes)} of weights, {_size(memory.kv_bytes_per_token)} of KV "
            "cache a token"
        )
    if isinstance(cache, str):
        parts.append(f"KV blocks are not known: {cache}")
    else:
        tokens = cache.blocks * cache.block_size
        parts.append(
            f"{cache.blocks:,} KV blocks of {cache.block_size} ({tokens:,} tokens) by "
            f"{cache.source}"
        )
    return "; ".join(parts)


def _fits(cache: CacheForecast) -> str:
    return (
        f"{cache.mean_fit:,} sequences of this trace's mean length: the largest max_num_seqs that "
        f"memory fills; up to {cache.longest_fit:,} it never binds, for so many of the longest fit"
    )


def _doubts(run: DryRun, cache: CacheForecast | str) -> list[str]:
    """Return what could go wrong that is seen from here."""
    found = []
    longest = run.arguments.get("max_model_len")
    if longest is not None:
        most = int(str(longest))
        left_out = sum(one.input_length + max(1, one.output_length) > most for one in run.requests)
        if left_out:
            found.append(f"{left_out:,} requests are longer than max_model_len {most:,}: left out")
    if not isinstance(cache, str) and cache.mean_fit < run.most_seqs:
        found.append(
            f"max_num_seqs {run.most_seqs} is more than the {cache.mean_fit:,} sequences that fit "
            "into memory: the largest steps will wait for KV blocks or preempt"
        )
    return found


def _json(
    run: DryRun,
    rows: Sequence[tuple[str, str]],
    memory: ModelMemory | str,
    cache: CacheForecast | str,
    warnings: Sequence[str],
) -> dict[str, Any]:
    known = None if isinstance(memory, str) else memory
    here = None if isinstance(cache, str) else cache
    return {
        "dry_run": True,
        "said": dict(rows),
        "engine_arguments": dict(run.arguments),
        "weight_bytes": known and known.weight_bytes,
        "kv_bytes_per_token": known and known.kv_bytes_per_token,
        "kv_blocks": here and here.blocks,
        "mean_fit": here and here.mean_fit,
        "longest_fit": here and here.longest_fit,
        "next": run.command,
        "warnings": list(warnings),
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

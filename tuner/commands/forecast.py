"""What a sweep would run, in what memory, and what could go wrong; nothing is started for it."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tuner.engines import devices, provenance
from tuner.engines.models.memory import OWN_BLOCKS, ModelMemory, memory_of
from tuner.engines.seam import ArgumentValue, Starter
from tuner.engines.vllm.start import VllmStarter
from tuner.profile.summary import minutes
from tuner.runs.ladder import STEPS, doubling
from tuner.trace.trace import TraceRequest
from tuner.traffic.constants import LOADED, MIN_STEP_S
from tuner.traffic.routing import S_PER_OUTPUT_TOKEN, S_PER_PROMPT_TOKEN
from tuner.traffic.sampling import choose_part, sample_windows
from tuner.traffic.workload import affordable_step_s
from tuner.views.page import Page
from tuner.views.text import print_json, print_page

if TYPE_CHECKING:
    from tuner.commands.sweep import Job

CPU_BLOCK_SIZE, GPU_BLOCK_SIZE = 128, 16
"""vLLM's defaults; some attention backends take more."""
GPU_SHARE = 0.92
"""vLLM's default ``gpu_memory_utilization``."""
GIB = 2**30
STARTS = 2
"""Of engines: the ladder's, and the one that confirms."""


@dataclass(frozen=True, slots=True)
class Cache:
    """The KV cache that there will be, and the sequences of a trace that it holds."""

    blocks: int
    block_size: int
    source: str
    mean_fit: int
    """Sequences of the mean length that fit at a time: more slots wait for memory."""
    longest_fit: int
    """Sequences of the longest length: fewer slots never do."""


def show(job: "Job", command: str) -> None:
    """Print what a sweep would run. Raises UsageError for a budget that is too small for any."""
    arguments, memory, cache = _forecast(job.starter, job.requests, job.options.ceiling)
    facts = {"trace": _trace(job.requests), **_steps(job)}
    facts["engine"] = ", ".join(f"{key}={value}" for key, value in arguments.items())
    facts["memory"] = _memory(memory, cache)
    warnings, ceiling = [*job.warnings], job.options.ceiling
    if isinstance(cache, Cache):
        facts["fits"] = (
            f"{cache.mean_fit:,} sequences of this trace's mean length, "
            f"{cache.longest_fit:,} of the longest"
        )
        if cache.mean_fit < ceiling:
            warnings.insert(
                0,
                f"max_num_seqs {ceiling} is more than the {cache.mean_fit:,} sequences that fit "
                "into memory: the largest steps will wait for KV blocks or preempt",
            )
    longest = arguments.get("max_model_len")
    if longest is not None:
        lengths = [each.input_length + max(1, each.output_length) for each in job.requests]
        if dropped := sum(length > int(str(longest)) for length in lengths):
            warnings.insert(
                0, f"{dropped:,} requests are longer than max_model_len {longest}: left out"
            )
    if job.options.json:
        known = cache if isinstance(cache, Cache) else None
        print_json(
            {
                "dry_run": True,
                "facts": facts,
                "engine_arguments": dict(arguments),
                "kv_blocks": known and known.blocks,
                "mean_fit": known and known.mean_fit,
                "longest_fit": known and known.longest_fit,
                "next": command,
                "warnings": warnings,
            }
        )
        return
    title = "Dry run: nothing was started"
    rows = list(facts.items())
    print_page(
        Page(subject=title, title=title, facts=rows, warnings=warnings, next=command), details=True
    )


def _forecast(
    starter: Starter, requests: Sequence[TraceRequest], cap: int
) -> tuple[Mapping[str, ArgumentValue], ModelMemory | str, Cache | str]:
    """Return an engine's arguments, the memory of its model, and its KV cache; words where they are
    not known. Without vLLM."""
    if isinstance(starter, VllmStarter):
        arguments = {**starter.given, "max_num_seqs": cap}
        memory = memory_of(arguments)
        return arguments, memory, cache_of(arguments, memory, requests)
    arguments = dict(starter.resolve(max_num_seqs=cap))
    cache = cache_of(arguments, "simulated", requests, is_simulated=True)
    return arguments, "a simulated engine", cache


def cache_of(
    arguments: Mapping[str, ArgumentValue],
    memory: ModelMemory | str,
    requests: Sequence[TraceRequest],
    *,
    is_simulated: bool = False,
) -> Cache | str:
    """Return the KV cache that these arguments come to here, or why that is not known."""
    default = CPU_BLOCK_SIZE if provenance.is_cpu_build() else GPU_BLOCK_SIZE
    block_size = int(str(arguments.get("block_size") or default))
    given = arguments.get("num_gpu_blocks_override")
    if given is not None:
        blocks = int(str(given)) - (0 if is_simulated else OWN_BLOCKS)
        source = "num_gpu_blocks_override"
    elif isinstance(memory, str):
        return memory
    else:
        result = _cache_bytes(arguments, memory)
        if isinstance(result, str):
            return result
        size, source = result
        blocks = memory.kv_blocks(size, block_size)
    held = [math.ceil((each.input_length + each.output_length) / block_size) for each in requests]
    return Cache(blocks, block_size, source, int(blocks / np.mean(held)), blocks // max(held))


def _cache_bytes(
    arguments: Mapping[str, ArgumentValue], memory: ModelMemory
) -> tuple[int, str] | str:
    """Return the bytes for the KV cache of all ranks, and where that is from."""
    ranks = devices.gpus_of(arguments)
    if (given := arguments.get("kv_cache_memory_bytes")) is not None:
        return int(str(given)) * ranks, f"kv_cache_memory_bytes {_size(int(str(given)))}"
    if provenance.is_cpu_build():
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


def _steps(job: "Job") -> dict[str, str]:
    """Return caps, windows and time of a sweep, as far as they are known before an engine is
    timed."""
    settings, requests = job.settings, job.requests
    start_s = None
    if job.options.world is not None:
        from tuner.engines.sim.world import read_world  # noqa: PLC0415 - numba

        start_s = read_world(job.options.world).engine_start
    step_s = affordable_step_s(
        settings.step_s,
        steps=STEPS,
        budget_s=settings.budget_s,
        starts_s=STARTS * (start_s or 0.0),
    )
    longest_s = (settings.budget_s - MIN_STEP_S * STEPS) / STARTS
    start = f"at most {minutes(longest_s)}" if start_s is None else minutes(start_s)
    part = choose_part(requests, settings.window, length_s=step_s)
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
        "time": f"at most {minutes(settings.budget_s)} of engine: {STARTS} starts of {start} each, "
        f"and replays of {STEPS:.2g} times {minutes(step_s)} at most",
    }


def _trace(requests: Sequence[TraceRequest]) -> str:
    length_s = requests[-1].arrival_s - requests[0].arrival_s
    prompts = np.mean([each.input_length for each in requests])
    outputs = np.mean([each.output_length for each in requests])
    return (
        f"{len(requests):,} requests in {minutes(length_s)}, on average {prompts:,.0f} tokens in "
        f"and {outputs:,.0f} out"
    )


def _memory(memory: ModelMemory | str, cache: Cache | str) -> str:
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

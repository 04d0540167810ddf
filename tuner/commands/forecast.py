"""What a sweep would run, in what memory, and what could go wrong; nothing is started for it."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tuner.engines import devices, provenance
from tuner.engines.models.memory import OWN_BLOCKS, ModelMemory, memory_of
from tuner.engines.seam import ArgumentValue
from tuner.engines.vllm.start import VllmStarter
from tuner.profile.summary import minutes
from tuner.runs.ladder import STEPS, doubling
from tuner.traffic.constants import MIN_STEP_S
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


def show(job: "Job", command: str) -> None:
    """Print what a sweep would run. Raises UsageError for a budget that is too small for any."""
    requests, ceiling, warnings = job.requests, job.options.ceiling, [*job.warnings]
    is_real = isinstance(job.starter, VllmStarter)
    if isinstance(job.starter, VllmStarter):  # without vLLM
        arguments = {**job.starter.given, "max_num_seqs": ceiling}
        memory = memory_of(arguments)
    else:
        arguments = dict(job.starter.resolve(max_num_seqs=ceiling))
        memory = "a simulated engine"
    cache = cache_of(arguments, memory, is_real=is_real)
    prompts, outputs = np.array([(each.input_length, each.output_length) for each in requests]).T
    length_s = requests[-1].arrival_s - requests[0].arrival_s
    facts = {
        "trace": f"{len(requests):,} requests in {minutes(length_s)}, on average "
        f"{prompts.mean():,.0f} tokens in and {outputs.mean():,.0f} out",
        **_steps(job),
        "engine": ", ".join(f"{key}={value}" for key, value in arguments.items()),
    }
    document = {"dry_run": True, "facts": facts, "engine_arguments": arguments, "next": command}
    if isinstance(cache, str):
        facts["memory"] = f"KV blocks are not known: {cache}"
    else:
        facts["memory"] = f"{cache.blocks:,} KV blocks of {cache.block_size} by {cache.source}"
        taken = np.ceil((prompts + outputs) / cache.block_size)
        fit, longest_fit = int(cache.blocks / taken.mean()), int(cache.blocks // taken.max())
        document |= {"kv_blocks": cache.blocks, "mean_fit": fit, "longest_fit": longest_fit}
        facts["fits"] = (
            f"{fit:,} sequences of this trace's mean length, {longest_fit:,} of the longest"
        )
        if fit < ceiling:
            warnings.insert(
                0,
                f"max_num_seqs {ceiling} is more than the {fit:,} sequences that fit into memory: "
                "the largest steps will wait for KV blocks or preempt",
            )
    longest = arguments.get("max_model_len")
    if longest is not None:
        dropped = int((prompts + np.maximum(1, outputs) > int(str(longest))).sum())
        if dropped:
            warnings.insert(
                0, f"{dropped:,} requests are longer than max_model_len {longest}: left out"
            )
    if job.options.json:
        print_json({**document, "warnings": warnings})
        return
    title = "Dry run: nothing was started"
    rows = list(facts.items())
    page = Page(subject=title, title=title, facts=rows, warnings=warnings, next=command)
    print_page(page, details=True)


class Cache(NamedTuple):
    """The KV cache that there will be."""

    blocks: int
    block_size: int
    source: str


def cache_of(
    arguments: Mapping[str, ArgumentValue], memory: ModelMemory | str, *, is_real: bool = True
) -> Cache | str:
    """Return the KV cache that these arguments come to here, or why that is not known."""
    block_size = CPU_BLOCK_SIZE if provenance.is_cpu_build() else GPU_BLOCK_SIZE
    block_size = int(str(arguments.get("block_size") or block_size))
    if (given := arguments.get("num_gpu_blocks_override")) is not None:
        blocks = int(str(given)) - OWN_BLOCKS * is_real
        return Cache(blocks, block_size, "num_gpu_blocks_override")
    if isinstance(memory, str):
        return memory
    size, source = _cache_bytes(arguments, memory)
    return Cache(memory.kv_blocks(size, block_size), block_size, source) if size else source


def _cache_bytes(arguments: Mapping[str, ArgumentValue], memory: ModelMemory) -> tuple[int, str]:
    """Return the bytes for the KV cache of all ranks, and where that is from; 0, and why, where
    they are not known."""
    ranks = devices.gpus_of(arguments)
    if (given := arguments.get("kv_cache_memory_bytes")) is not None:
        return int(str(given)) * ranks, f"kv_cache_memory_bytes {_size(int(str(given)))}"
    if provenance.is_cpu_build():
        space = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "")
        if space.isdecimal() and int(space):
            return int(space) * GIB, f"VLLM_CPU_KVCACHE_SPACE {space} GiB"
        return 0, "vLLM decides on the memory of the cache when it starts on a CPU"
    here = devices.device_facts()
    total = here.get("memory_bytes")
    if here.get("kind") != "gpu" or not isinstance(total, int):
        return 0, "there is no GPU here whose memory could be read"
    share = float(str(arguments.get("gpu_memory_utilization") or GPU_SHARE))
    of, left = f"{share:.0%} of {ranks} x {_size(total)}", int(share * total * ranks)
    left -= memory.weight_bytes
    if left <= 0:
        return 0, f"the weights alone, {_size(memory.weight_bytes)}, do not fit into {of}"
    return left, f"{of} less weights; graphs and batches take some"


def _steps(job: "Job") -> dict[str, str]:
    """Return caps and time of a sweep, as far as they are known before an engine is timed."""
    settings, start_s = job.settings, None
    if job.options.world is not None:
        from tuner.engines.sim.world import read_world  # noqa: PLC0415 - numba

        start_s = read_world(job.options.world).engine_start
    budget_s, starts_s = settings.budget_s, STARTS * (start_s or 0.0)
    step_s = affordable_step_s(settings.step_s, steps=STEPS, budget_s=budget_s, starts_s=starts_s)
    longest = f"at most {minutes((budget_s - MIN_STEP_S * STEPS) / STARTS)}"
    start = longest if start_s is None else minutes(start_s)
    caps = ", ".join(map(str, doubling(settings.ceiling)))
    fresh = "on a fresh one" if settings.confirm == "inproc" else "behind a fresh server"
    return {
        "steps": f"max_num_seqs {caps}, live on one engine, then the choice {fresh}",
        "time": f"at most {minutes(budget_s)} of engine: {STARTS} starts of {start} each, and "
        f"replays of {STEPS:.2g} times {minutes(step_s)} at most",
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

"""Every unstable name of vLLM that an engine needs, and which of them are missing. Imports vLLM."""

# ruff: noqa: ANN401 - vLLM's objects are untyped where vLLM is not installed

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Table = Mapping[str, Sequence[str]]

CALLED: Table = {
    "vllm.v1.core.sched.scheduler.Scheduler": [
        *("schedule", "update_from_output", "_preempt_request"),
        *("get_request_counts", "has_requests", "reset_prefix_cache", "shutdown"),
    ],
    "vllm.v1.core.sched.async_scheduler.AsyncScheduler": ["schedule", "update_from_output"],
    "vllm.v1.core.block_pool.BlockPool": ["get_num_free_blocks"],
    "vllm.v1.engine.async_llm.AsyncLLM": [
        *("from_vllm_config", "generate", "shutdown", "reset_prefix_cache", "errored"),
    ],
    "vllm.v1.engine.core_client.AsyncMPClient": ["call_utility_async"],
    "vllm.v1.engine.output_processor.OutputProcessor": ["propagate_error"],
    "vllm.v1.engine.core.EngineCoreProc": ["run_engine_core"],
    "vllm.v1.engine.utils": ["get_mp_context"],
    "vllm.v1.metrics.loggers.PrometheusStatLogger": ["record", "log_engine_initialized"],
    "vllm.config.ModelConfig": [
        *("get_vocab_size", "get_diff_sampling_param", "is_multimodal_model"),
    ],
    "vllm.inputs.engine": ["tokens_input"],
    "vllm.utils.argparse_utils": ["FlexibleArgumentParser"],
}
"""Class or module → functions."""

SET_BY_INIT: Table = {
    "vllm.v1.core.sched.scheduler.Scheduler": [
        *("max_num_running_reqs", "max_num_scheduled_tokens", "requests", "kv_cache_manager"),
        "vllm_config",  # max_num_active_reqs is looked for: vLLM before 0.31 has none
    ],
    "vllm.v1.core.kv_cache_manager.KVCacheManager": ["block_pool"],
    "vllm.v1.core.block_pool.BlockPool": ["num_gpu_blocks"],
    "vllm.v1.request.Request": ["num_computed_tokens", "num_prompt_tokens", "is_prefill_chunk"],
    "vllm.v1.engine.core.EngineCore": ["scheduler"],
    "vllm.v1.engine.async_llm.AsyncLLM": ["engine_core", "output_processor", "vllm_config"],
    "vllm.v1.engine.core_client.MPClient": ["resources"],
    "vllm.outputs.RequestOutput": ["outputs", "metrics", "num_cached_tokens"],
}
"""Class → attributes that its ``__init__`` sets."""

FIELDS: Table = {
    "vllm.v1.core.sched.output.SchedulerOutput": [
        *("total_num_scheduled_tokens", "num_scheduled_tokens", "scheduled_new_reqs"),
        *("scheduled_cached_reqs", "scheduled_spec_decode_tokens"),
    ],
    "vllm.v1.core.sched.output.NewRequestData": ["num_computed_tokens"],
    "vllm.v1.core.sched.output.CachedRequestData": [
        *("req_ids", "resumed_req_ids", "num_computed_tokens"),
    ],
    "vllm.v1.metrics.stats.RequestStateStats": ["queued_ts", "scheduled_ts", "last_token_ts"],
    "vllm.outputs.CompletionOutput": ["token_ids", "finish_reason"],
    "vllm.config.ModelConfig": [
        *("dtype", "max_model_len", "enforce_eager", "seed"),
        *("model", "revision", "quantization"),
    ],
    "vllm.config.CacheConfig": [
        *("gpu_memory_utilization", "kv_cache_memory_bytes", "cache_dtype", "block_size"),
        "enable_prefix_caching",
    ],
    "vllm.config.SchedulerConfig": [
        *("max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill"),
        *("async_scheduling", "scheduler_cls", "policy"),
    ],
    "vllm.config.ParallelConfig": [
        *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_index"),
        "distributed_executor_backend",
    ],
    "vllm.config.VllmConfig": ["speculative_config", "diffusion_config"],
    "vllm.engine.arg_utils.AsyncEngineArgs": [
        *("model", "load_format", "skip_tokenizer_init", "disable_log_stats"),
        *("enable_log_requests", "otlp_traces_endpoint"),
        *("data_parallel_size", "num_gpu_blocks_override"),
    ],
}
"""Dataclass → fields."""

ACCEPTED: Table = {
    "vllm.v1.engine.async_llm.AsyncLLM.from_vllm_config": ["stat_loggers", "disable_log_stats"],
    "vllm.v1.engine.async_llm.AsyncLLM.shutdown": ["timeout"],
    "vllm.v1.engine.async_llm.AsyncLLM.generate": ["priority"],
    "vllm.engine.arg_utils.AsyncEngineArgs.create_engine_config": ["usage_context"],
}
"""Function → parameters."""

SERVE_PARSERS = (
    "vllm.entrypoints.common.cli_args",
    "vllm.entrypoints.launchers.cli_args",  # before vLLM 0.33
    "vllm.entrypoints.openai.cli_args",  # before vLLM 0.29
)
"""Modules of which one has the parser of ``vllm serve``."""

_CHANGED = (AttributeError, TypeError, ValueError)
"""Errors of asking for a name whose owner has become something else."""


def missing() -> list[str]:
    """Return the names that the vLLM installed here has not, as dotted paths."""
    return [
        *_lacking(CALLED, hasattr),
        *_lacking(SET_BY_INIT, lambda owner, name: name in owner.__init__.__code__.co_names),
        *_lacking(FIELDS, lambda owner, name: name in {x.name for x in dataclasses.fields(owner)}),
        *_lacking(ACCEPTED, lambda owner, name: name in inspect.signature(owner).parameters),
        *_without_parser(),
    ]


def _lacking(table: Table, has: Callable[[Any, str], bool]) -> Iterator[str]:
    for path, names in table.items():
        owner = _find(path)
        if owner is None:
            yield path
        else:
            yield from (f"{path}.{name}" for name in names if not _has(has, owner, name))


def _has(has: Callable[[Any, str], bool], owner: Any, name: str) -> bool:
    try:
        return has(owner, name)
    except _CHANGED:
        return False


def _without_parser() -> Iterator[str]:
    if all(_find(f"{module}.make_arg_parser") is None for module in SERVE_PARSERS):
        yield f"{SERVE_PARSERS[0]}.make_arg_parser"


def _find(path: str) -> Any:
    """Return the module, class or function of a dotted path; None where there is none, or none that
    can be imported."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
            for name in parts[length:]:
                found = getattr(found, name, None)
        except (ImportError, *_CHANGED):
            continue
        return found
    return None

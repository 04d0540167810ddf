"""Engine arguments that a profile, a trace or a run folder may set: somebody else may have made it.

Anybody can compute a profile's digest, so what it says of the engine is data of a stranger's. What
is listed here changes how fast a server is, how much memory it takes, and what it serves as data.
Not listed is what loads code (``trust_remote_code``, classes, plugins, parsers), opens files, ports
or addresses, sends data, or changes who may ask: that is for the user's own ``--set``. Pure.
"""

from collections.abc import Callable, Mapping

from tuner.engines.seam import ArgumentValue

_PLAIN = frozenset(
    {
        *(
            "api_server_count",
            "async_scheduling",
            "block_size",
            "calculate_kv_scales",
            "cpu_offload_gb",
        ),
        *("cudagraph_capture_sizes", "data_parallel_size", "dbo_decode_token_threshold"),
        *("dbo_prefill_token_threshold", "decode_context_parallel_size", "disable_cascade_attn"),
        *("disable_chunked_mm_input", "disable_custom_all_reduce"),
        *("disable_hybrid_kv_cache_manager", "disable_log_stats", "disable_sliding_window"),
        *("dtype", "enable_chunked_prefill", "enable_dbo", "enable_eplb"),
        *("enable_expert_parallel", "enable_flashinfer_autotune", "enable_lora"),
        *("enable_prefix_caching", "enforce_eager", "fully_sharded_loras"),
        *("gpu_memory_utilization", "kv_cache_dtype", "kv_cache_memory_bytes"),
        *("kv_sharing_fast_prefill", "language_model_only", "limit_mm_per_prompt"),
        *("long_prefill_token_threshold", "long_prefill_token_threshold_adaptive"),
        *("mamba_block_size", "mamba_cache_dtype", "mamba_ssm_cache_dtype", "max_cpu_loras"),
        *("max_cudagraph_capture_size", "max_logprobs", "max_long_partial_prefills"),
        *("max_lora_rank", "max_loras", "max_model_len", "max_num_active_seqs"),
        *("max_num_batched_tokens", "max_num_partial_prefills", "max_num_queued_reqs"),
        *("max_num_queued_tokens", "max_num_scheduled_tokens", "max_num_seqs"),
        *("max_parallel_loading_workers", "mm_processor_cache_gb", "model"),
        *("num_gpu_blocks_override", "optimization_level", "performance_mode"),
        *("pipeline_parallel_size", "prefill_context_parallel_size"),
        *("prefill_schedule_interval", "prefix_caching_hash_algo", "quantization"),
        *("revision", "runner", "scheduler_reserve_full_isl", "scheduling_policy", "seed"),
        *("skip_mm_profiling", "stream_interval", "tensor_parallel_size"),
        *("tokenizer", "tokenizer_revision"),
    }
)

_COMPILED = frozenset(
    {
        *("cudagraph_capture_sizes", "cudagraph_mode", "cudagraph_num_of_warmups", "level"),
        *("max_cudagraph_capture_size", "mode", "pass_config", "use_inductor"),
    }
)
"""Keys of ``compilation_config``; others name code, or folders to write into."""

_AS_DATA = frozenset({"auto", "dummy", "safetensors"})
"""Formats of weights that are read as numbers, from the model's own folder."""


def _is_compilation(value: ArgumentValue) -> bool:
    return isinstance(value, dict) and all(
        key in _COMPILED and _has_no_text(inner, but=key == "cudagraph_mode")
        for key, inner in value.items()
    )


def _has_no_text(value: object, *, but: bool) -> bool:
    if isinstance(value, Mapping):
        return all(_has_no_text(inner, but=False) for inner in value.values())
    if isinstance(value, list):
        return all(_has_no_text(inner, but=False) for inner in value)
    return but or not isinstance(value, str)


_SOME: dict[str, Callable[[ArgumentValue], bool]] = {
    "compilation_config": _is_compilation,
    "load_format": lambda value: value in _AS_DATA,
    "tokenizer_mode": lambda value: value == "auto",
    "trust_remote_code": lambda value: value is False,
}
"""Arguments of which some values may be set."""


def is_allowed(name: str, value: ArgumentValue) -> bool:
    """Whether somebody else's file may set an engine argument to this. None leaves it to vLLM.

    >>> is_allowed("max_num_seqs", 64), is_allowed("worker_cls", "a.B")
    (True, False)
    """
    if value is None:
        return True
    return name in _PLAIN or (name in _SOME and _SOME[name](value))


def not_allowed(arguments: Mapping[str, ArgumentValue]) -> list[str]:
    """Return the arguments that only the user may set, in order."""
    return sorted(name for name, value in arguments.items() if not is_allowed(name, value))

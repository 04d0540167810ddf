"""Engine arguments that a profile, a trace or a run folder may set: somebody else may have made it.
Pure.

Anybody can compute a profile's digest, so what it says of the engine is a stranger's data. Listed
is what changes how fast a server is, how much memory it takes, and what it serves as data. Not
listed is what loads code (``trust_remote_code``, classes, plugins, parsers), opens files, ports or
addresses, sends data, or changes who may ask: that is for the user's own ``--set``.
"""

from collections.abc import Mapping

from tuner.engines.arguments import ArgumentValue

NAMES = frozenset(
    {
        *("api_server_count", "async_scheduling", "block_size", "calculate_kv_scales"),
        *("cpu_offload_gb", "cudagraph_capture_sizes", "data_parallel_size"),
        *("dbo_decode_token_threshold", "dbo_prefill_token_threshold"),
        *("decode_context_parallel_size", "disable_cascade_attn", "disable_chunked_mm_input"),
        *("disable_custom_all_reduce", "disable_hybrid_kv_cache_manager", "disable_log_stats"),
        *("disable_sliding_window", "dtype", "enable_chunked_prefill", "enable_dbo", "enable_eplb"),
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
        *("pipeline_parallel_size", "prefill_context_parallel_size", "prefill_schedule_interval"),
        *("prefix_caching_hash_algo", "quantization", "revision", "runner", "scheduling_policy"),
        *("scheduler_reserve_full_isl", "seed", "skip_mm_profiling", "stream_interval"),
        *("tensor_parallel_size", "tokenizer", "tokenizer_revision"),
    }
)

_ONLY: Mapping[str, tuple[ArgumentValue, ...]] = {
    "load_format": ("auto", "dummy", "safetensors"),  # read as numbers, from the model's own folder
    "tokenizer_mode": ("auto",),
    "trust_remote_code": (False,),
}
"""Argument → its only values."""

_COMPILED = frozenset(
    {
        *("cudagraph_capture_sizes", "cudagraph_num_of_warmups", "level"),
        *("max_cudagraph_capture_size", "mode", "pass_config", "use_inductor"),
    }
)
"""Keys of ``compilation_config``; others name code, or folders to write into."""


def is_allowed(name: str, value: ArgumentValue) -> bool:
    """Whether somebody else's file may set an engine argument to this.

    None leaves it to vLLM, and takes away what a deployment has: of the arguments here alone.

    >>> is_allowed("max_num_seqs", 64), is_allowed("model", "--tool-parser-plugin=evil.py")
    (True, False)
    """
    if name in _ONLY:
        return value in (None, *_ONLY[name])
    if name == "compilation_config" and isinstance(value, dict):
        rest = {**value}
        mode = rest.pop("cudagraph_mode", None)
        return rest.keys() <= _COMPILED and _is_numbers(rest) and (mode is None or _is_word(mode))
    if name not in NAMES:
        return name == "compilation_config" and value is None
    return value is None or _is_word(value) or _is_numbers(value)


def _is_word(value: object) -> bool:
    """Whether it is a text that no command line takes for a flag."""
    return isinstance(value, str) and value[:1] not in {"", "-"}


def _is_numbers(value: object) -> bool:
    """Whether it is a number, a switch, or a list or mapping of such."""
    if isinstance(value, list):
        return all(map(_is_numbers, value))
    if isinstance(value, dict):
        return all(str(key).isidentifier() for key in value) and all(
            map(_is_numbers, value.values())
        )
    return isinstance(value, bool | int | float)


def not_allowed(arguments: Mapping[str, ArgumentValue]) -> list[str]:
    """Return the arguments that only the user may set, in order."""
    return sorted(name for name, value in arguments.items() if not is_allowed(name, value))

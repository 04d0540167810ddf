"""Engine arguments that a profile, a trace or a run folder may set: somebody else may have made it.
Pure.

Anybody can compute a profile's digest, so what it says of the engine is a stranger's data. Listed
is what changes how fast a server is, how much memory it takes, and what it serves as data. Not
listed is what loads code (``trust_remote_code``, classes, plugins, parsers), opens files, ports or
addresses, sends data, or changes who may ask: that is for the user's own ``--set``.
"""

from collections.abc import Callable, Mapping

from tuner.engines.arguments import ArgumentValue

_SWITCHES = frozenset(
    {
        *("async_scheduling", "calculate_kv_scales", "disable_cascade_attn"),
        *("disable_chunked_mm_input", "disable_custom_all_reduce"),
        *("disable_hybrid_kv_cache_manager", "disable_log_stats", "disable_sliding_window"),
        *("enable_chunked_prefill", "enable_dbo", "enable_eplb", "enable_expert_parallel"),
        *("enable_flashinfer_autotune", "enable_lora", "enable_prefix_caching", "enforce_eager"),
        *("fully_sharded_loras", "kv_sharing_fast_prefill", "language_model_only"),
        *("long_prefill_token_threshold_adaptive", "scheduler_reserve_full_isl"),
        "skip_mm_profiling",
    }
)

_WHOLE = frozenset(
    {
        *("api_server_count", "block_size", "data_parallel_size", "dbo_decode_token_threshold"),
        *("dbo_prefill_token_threshold", "decode_context_parallel_size", "kv_cache_memory_bytes"),
        *("long_prefill_token_threshold", "mamba_block_size", "max_cpu_loras"),
        *("max_cudagraph_capture_size", "max_logprobs", "max_long_partial_prefills"),
        *("max_lora_rank", "max_loras", "max_model_len", "max_num_active_seqs"),
        *("max_num_batched_tokens", "max_num_partial_prefills", "max_num_queued_reqs"),
        *("max_num_queued_tokens", "max_num_scheduled_tokens", "max_num_seqs"),
        *("max_parallel_loading_workers", "num_gpu_blocks_override", "pipeline_parallel_size"),
        *("prefill_context_parallel_size", "prefill_schedule_interval", "seed"),
        *("stream_interval", "tensor_parallel_size"),
    }
)

_NUMBERS = frozenset({"cpu_offload_gb", "gpu_memory_utilization", "mm_processor_cache_gb"})

_WORDS = frozenset(
    {
        *("dtype", "kv_cache_dtype", "mamba_cache_dtype", "mamba_ssm_cache_dtype", "model"),
        *("performance_mode", "prefix_caching_hash_algo", "quantization", "revision", "runner"),
        *("scheduling_policy", "tokenizer", "tokenizer_revision"),
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


def is_word(value: object) -> bool:
    """Whether it is a text that no command line takes for a flag.

    >>> is_word("org/model"), is_word("--tool-parser-plugin=evil.py")
    (True, False)
    """
    return isinstance(value, str) and value[:1] not in {"", "-"}


def _is_whole(value: object) -> bool:
    return type(value) is int  # true and false are of another kind


def _is_number(value: object) -> bool:
    return type(value) in {int, float}


def _are_whole(value: ArgumentValue) -> bool:
    return isinstance(value, list) and all(map(_is_whole, value))


def _are_limits(value: object) -> bool:
    """Whether it is how many of each kind, or how large they are, as in ``{"image": 2}``."""
    return isinstance(value, dict) and all(
        str(key).isidentifier() and (_is_number(inner) or _are_limits(inner))
        for key, inner in value.items()
    )


_SOME: dict[str, Callable[[ArgumentValue], bool]] = {
    **dict.fromkeys(_SWITCHES, lambda value: isinstance(value, bool)),
    **dict.fromkeys(_WHOLE, _is_whole),
    **dict.fromkeys(_NUMBERS, _is_number),
    **dict.fromkeys(_WORDS, is_word),
    "compilation_config": _is_compilation,
    "cudagraph_capture_sizes": _are_whole,
    "limit_mm_per_prompt": _are_limits,
    "load_format": lambda value: isinstance(value, str) and value in _AS_DATA,
    "optimization_level": lambda value: _is_whole(value) or is_word(value),
    "tokenizer_mode": lambda value: value == "auto",
    "trust_remote_code": lambda value: value is False,
}
"""Argument → whether a value may be set: anything of another kind could be a flag of its own."""


def is_allowed(name: str, value: ArgumentValue) -> bool:
    """Whether somebody else's file may set an engine argument to this.

    None leaves it to vLLM, and takes away what a deployment has: of the arguments here alone.

    >>> is_allowed("max_num_seqs", 64), is_allowed("max_num_seqs", ["64"])
    (True, False)
    """
    return name in _SOME and (value is None or _SOME[name](value))


def not_allowed(arguments: Mapping[str, ArgumentValue]) -> list[str]:
    """Return the arguments that only the user may set, in order."""
    return sorted(name for name, value in arguments.items() if not is_allowed(name, value))

"""Names of vLLM's arguments, of these versions and of older ones, and what they prove. Pure.

Deployments name arguments that vLLM has had since 0.4, so the tables reach back to it: from
vLLM's pages "Engine Arguments" of 0.4 to 0.11 (docs.vllm.ai/en/v0.4.0/models/engine_args.html and
its like). Those since 0.26 are in ``tuner.engines.vllm.flags``.
"""

from collections.abc import Iterable

from tuner.engines.vllm.flags import GRAMMAR, LISTS, SWITCHES

OLDER_SWITCHES = frozenset(
    {
        *("calculate_kv_scales", "disable_async_output_proc", "disable_frontend_multiprocessing"),
        *("disable_log_requests", "disable_logprobs_during_spec_decoding"),
        *("disable_mm_preprocessor_cache", "enable_lora_bias", "enable_mm_processor_cache"),
        *("enable_multimodal_encoder_data_parallel", "enable_prompt_adapter", "enable_reasoning"),
        *("engine_use_ray", "multi_step_stream_outputs"),
        *("use_v2_block_manager", "worker_use_ray"),
    }
)
"""Flags of older versions that take no word."""

_OLDER_VALUED = frozenset(
    {
        *("chat_template_text_format", "cuda_graph_sizes", "device", "guided_decoding_backend"),
        *("image_feature_size", "image_input_shape", "image_input_type", "image_token_id"),
        *("long_lora_scaling_factors", "lora_extra_vocab_size", "max_context_len_to_capture"),
        *("max_long_partial_prefills", "max_num_partial_prefills", "max_prompt_adapter_token"),
        *("max_prompt_adapters", "max_seq_len_to_capture", "mm_cache_preprocessor"),
        *("ngram_prompt_lookup_max", "ngram_prompt_lookup_min", "num_lookahead_slots"),
        *("num_scheduler_steps", "num_speculative_tokens", "override_neuron_config"),
        *("override_pooler_config", "preemption_mode", "qlora_adapter_name_or_path"),
        *("rope_scaling", "rope_theta", "scheduler_delay_factor"),
        *("spec_decoding_acceptance_method", "speculative_disable_by_batch_size"),
        *("speculative_disable_mqa_scorer", "speculative_draft_tensor_parallel_size"),
        *("speculative_max_model_len", "speculative_model", "speculative_model_quantization"),
        *("swap_space", "task", "tokenizer_pool_extra_config", "tokenizer_pool_size"),
        *("tokenizer_pool_type", "typical_acceptance_sampler_posterior_alpha"),
        *("typical_acceptance_sampler_posterior_threshold",),
    }
)

KNOWN = frozenset(
    {*SWITCHES, *LISTS, *GRAMMAR.words, *GRAMMAR.optional, *OLDER_SWITCHES, *_OLDER_VALUED}
)
"""Every name that is known to be vLLM's, of some version."""

PROOFS = frozenset(
    {
        *("gpu_memory_utilization", "kv_cache_memory_bytes", "max_num_batched_tokens"),
        *("max_num_partial_prefills", "max_num_seqs", "max_seq_len_to_capture"),
        "num_gpu_blocks_override",
    }
)
"""Names that are nobody else's: not an option of SGLang's server (``server_args.py``, 2026-08), of
TGI's launcher (reference, 2026-01), of LMDeploy's ``api_server`` (2026-08), of TRL's trainers, or
of TensorRT-LLM's ``LlmArgs``. ``trl vllm-serve`` hands gpu_memory_utilization on to vLLM."""

_COUNTS_NOT = frozenset(
    {
        *("api_key", "config", "dtype", "host", "model", "port", "seed"),
        *("ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_ciphers", "ssl_keyfile"),
        "tensor_parallel_size",
    }
)
"""Names that any server may have."""

_SHARED = frozenset(
    {
        *("allow_credentials", "allowed_media_domains", "attention_backend", "block_size"),
        *("chat_template", "data_parallel_size", "device", "disable_custom_all_reduce"),
        *("disable_fastapi_docs", "distributed_executor_backend", "download_dir"),
        *("enable_chunked_prefill", "enable_eplb", "enable_lora", "enable_prefix_caching"),
        *("enable_ssl_refresh", "generation_config", "guided_decoding_backend", "hf_overrides"),
        *("kv_cache_dtype", "kv_events_config", "language_model_only", "load_format"),
        *("log_level", "logprobs_mode", "lora_target_modules", "master_addr", "master_port"),
        *("max_log_len", "max_lora_rank", "model_impl", "model_loader_extra_config", "nnodes"),
        *("node_rank", "otlp_traces_endpoint", "pipeline_parallel_size", "quantization"),
        *("reasoning_parser", "revision", "rope_scaling", "root_path", "served_model_name"),
        *("skip_tokenizer_init", "speculative_config", "stream_interval", "task", "tokenizer"),
        *("tokenizer_mode", "tool_call_parser", "tool_server", "trust_remote_code", "uds"),
    }
)
"""vLLM's names that SGLang, TGI, LMDeploy or TensorRT-LLM have too."""

_OF_OTHERS = {
    "Hydra": ("_target_", "defaults", "hydra"),
    "LMDeploy": ("cache_max_entry_count", "model_format", "server_name", "session_len"),
    "SGLang": (
        *("chunked_prefill_size", "context_length", "disable_radix_cache", "max_running_requests"),
        *("mem_fraction_static", "model_path", "schedule_policy", "tp_size"),
    ),
    "TensorRT-LLM": (
        *("cuda_graph_config", "kv_cache_config", "max_batch_size", "max_num_tokens"),
        *("max_seq_len", "free_gpu_memory_fraction"),
    ),
    "TGI": (
        *("max_batch_prefill_tokens", "max_concurrent_requests", "max_input_length"),
        *("max_input_tokens", "max_total_tokens", "model_id", "num_shard", "quantize"),
    ),
    "a program with parameters of sampling": (
        *("frequency_penalty", "max_completion_tokens", "max_new_tokens", "max_tokens", "messages"),
        *("presence_penalty", "prompt", "prompts", "repetition_penalty", "temperature", "top_k"),
        "top_p",
    ),
    "a training": (
        *("dataset_name", "gradient_accumulation_steps", "learning_rate", "num_train_epochs"),
        *("output_dir", "per_device_train_batch_size", "use_vllm", "vllm_mode"),
    ),
    "trl vllm-serve": ("vllm_model_impl",),
}
"""Names that vLLM has never had → whose they are."""

OWNERS = {name: owner for owner, names in _OF_OTHERS.items() for name in names}


def proof(names: Iterable[str]) -> str:
    """Return which of these names prove that whoever takes them all is vLLM; empty: none do.

    One of PROOFS does; so does ``model`` with two others of vLLM's, one of which is nobody else's.
    A name that is somebody else's disproves it.
    """
    found = sorted(set(names))
    if any(name in OWNERS for name in found):
        return ""
    alone = [name for name in found if name in PROOFS]
    if alone:
        return alone[0]
    others = [name for name in found if name in KNOWN - _COUNTS_NOT]
    own = [name for name in others if name not in _SHARED]
    if "model" not in found or len(others) < 2 or not own:
        return ""
    beside = next(name for name in others if name != own[0])
    return f"model, {own[0]} and {beside}"

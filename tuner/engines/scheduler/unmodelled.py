"""Lists what vLLM does and the scheduler's model does not: there replays decide, not the twin."""

from collections.abc import Sequence
from typing import Any


def unmodelled(
    config: Any,  # noqa: ANN401 - vLLM's VllmConfig, resolved; some names came with later versions
    kv_cache_groups: Sequence[Any],
) -> list[str]:
    """Return what an engine does that the model knows nothing of; empty where it knows all.

    ``kv_cache_groups`` are of vLLM's KVCacheConfig: layers with caches of one kind each, which
    take blocks from one pool.
    """
    scheduler, parallel = config.scheduler_config, config.parallel_config
    long_prefill = scheduler.long_prefill_token_threshold
    watermark = getattr(scheduler, "watermark", 0)
    interval = getattr(scheduler, "prefill_schedule_interval", 1)
    stages = parallel.pipeline_parallel_size
    contexts = getattr(parallel, "decode_context_parallel_size", 1)
    result = {
        f"KV caches of {len(kv_cache_groups)} kinds in one pool": len(kv_cache_groups) > 1,
        "speculative decoding": config.speculative_config is not None,
        "priorities": str(scheduler.policy) != "fcfs",
        f"long_prefill_token_threshold={long_prefill}": long_prefill > 0,
        f"watermark={watermark:g}": watermark > 0,
        f"prefill_schedule_interval={interval}": interval > 1,
        "prompts in one piece": not scheduler.enable_chunked_prefill,
        "a KV connector": config.kv_transfer_config is not None,
        f"pipeline_parallel_size={stages}": stages > 1,
        f"decode_context_parallel_size={contexts}": contexts > 1,
    }
    return [name for name, does in result.items() if does]


def cautions_of(config: Any) -> list[str]:  # noqa: ANN401
    """Return cautions: what a server with these arguments can do and no replay asks for, or shows
    as it is."""
    result = list[str]()
    if config.lora_config is not None:
        result.append(
            f"no replay asks for a LoRA adapter: what max_loras={config.lora_config.max_loras} "
            "and the adapters cost is not measured"
        )
    if config.model_config.is_multimodal_model:
        result.append("no replay sends an image, a sound or a video: their encoder is not measured")
    if config.speculative_config is not None:
        result.append(
            "prompts of random tokens: how many drafts are accepted here says nothing of production"
        )
    if config.model_config.is_moe and str(config.load_config.load_format) == "dummy":
        result.append(
            "a mixture of experts with made-up weights: tokens go to other experts than with "
            "trained ones, so that its speed is not the model's"
        )
    return result

"""vLLM's scheduler without the rest of an engine: whatever it schedules is computed at once.

Imports vLLM, so that only what a ``vllm`` test or a benchmark runs may import it.
"""

# ruff: noqa: ANN401 - vLLM's objects are untyped where vLLM is not installed

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm import AsyncEngineArgs, SamplingParams
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from tuner.engines import live_scheduler as live
from tuner.engines.models import shipped as models
from tuner.engines.page import VARIABLE, Page

__all__ = [
    "ABORTED",
    "add",
    "compute",
    "configured",
    "live",
    "measured",
    "schedule",
    "scheduler_of",
    "step",
]

ABORTED = RequestStatus.FINISHED_ABORTED
BLOCKS = 4000
BLOCK_TOKENS = 16


def configured(**arguments: Any) -> Any:
    """Return the configuration of a server for the tiny model."""
    config = AsyncEngineArgs(
        model=models.model_path("tuner:tiny"),
        load_format="dummy",
        dtype="float32",
        enforce_eager=True,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=2**26,
        **{
            "distributed_executor_backend": "uni",
            "max_num_seqs": 8,
            "max_num_batched_tokens": 2048,
            **arguments,
        },
    ).create_engine_config()
    config.cache_config.num_gpu_blocks = BLOCKS
    return config


def scheduler_of(kind: Any, config: Any, *, blocks: int = BLOCKS) -> Any:
    """Make a scheduler as EngineCore does."""
    spec = FullAttentionSpec(
        block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return kind(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_TOKENS,
        hash_block_size=BLOCK_TOKENS,
        log_stats=True,
    )


@contextmanager
def measured(config: Any, *, blocks: int = BLOCKS) -> Iterator[tuple[Any, Page]]:
    """Make a scheduler that logs into a page."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        page = Page(Path(folder) / "page")
        patch.setenv(VARIABLE, str(page.folder))
        yield scheduler_of(live.MeasuredScheduler, config, blocks=blocks), page


def add(scheduler: Any, name: str, *, prompt: int, tokens: int) -> Any:
    """Let a request wait, and return it."""
    request = Request(
        request_id=name,
        prompt_token_ids=list(range(prompt)),
        sampling_params=SamplingParams(max_tokens=tokens, ignore_eos=True),
        pooling_params=None,
    )
    scheduler.add_request(request)
    return request


@dataclass(frozen=True, slots=True)
class Iteration:
    """What was scheduled, and which sequences get a token of it: whose tokens then are computed."""

    output: Any
    ends: tuple[bool, ...]


def schedule(scheduler: Any) -> Iteration:
    output = scheduler.schedule()
    requests = [scheduler.requests[name] for name in output.num_scheduled_tokens]
    return Iteration(
        output, tuple(request.num_computed_tokens >= request.num_tokens for request in requests)
    )


def compute(scheduler: Any, iteration: Iteration) -> None:
    names = list(iteration.output.num_scheduled_tokens)
    scheduler.update_from_output(
        iteration.output,
        ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[[7] if ends else [] for ends in iteration.ends],
        ),
    )


def step(scheduler: Any) -> None:
    """Make one iteration."""
    compute(scheduler, schedule(scheduler))

"""Check, pin and resolve engine arguments, as vLLM's server would. Imports vLLM."""

# ruff: noqa: ANN401 - vLLM's objects are untyped where vLLM is not installed

import dataclasses
import difflib
import re
from collections.abc import Mapping
from typing import Any

from vllm import AsyncEngineArgs, EngineArgs
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext

from tuner.engines.models import shipped as models
from tuner.engines.sampling import sampled
from tuner.engines.seam import ArgumentValue
from tuner.engines.vllm.failure import refused
from tuner.engines.vllm.flags import OF_SERVER
from tuner.errors import EngineError

_TUNER_SETS: dict[str, ArgumentValue] = {
    "disable_log_stats": True,
    "enable_log_requests": False,
    "max_num_queued_reqs": None,  # a replay waits in the queue, it is not turned away
    "max_num_queued_tokens": None,
    "otlp_traces_endpoint": None,
    "skip_tokenizer_init": True,  # prompts are token ids
}
"""How tuner itself runs the engine, whatever a deployment says; never part of a profile."""

_OF_THE_FRONT_END = ("disable_log_stats", "enable_log_requests", "skip_tokenizer_init")
"""Those of them that a server keeps as the deployment has them: its users pay for that."""

_MEMORY = ("kv_cache_memory_bytes", "gpu_memory_utilization", "num_gpu_blocks_override")
"""Arguments that say what an engine may take of the device's memory."""

_GRAPHS = ("max_cudagraph_capture_size", "cudagraph_capture_sizes")
"""Arguments that say which sizes of batches are captured as CUDA graphs."""

_PRIVATE = frozenset({"download_dir", "hf_token", "served_model_name"})
"""Of one machine or one deployment; a profile says nothing of them."""

_PLACEHOLDER = re.compile(
    r"(image|video|audio|vision|media|boi|eoi|boa|eoa)\w*_(id|index)|.*(image|video|audio)_token_id"
)
"""Keys of a model's configuration that name the token of an image, a film or a sound."""

_NEVER_SENT = 16
"""As many ids from 0 on are in no prompt: see traffic.prompts."""

_REFUSED = {
    "max_num_active_seqs": "tuner moves it live to find max_num_seqs",
    "scheduler_cls": "tuner brings its own scheduler class",
    "device_ids": "tuner reads the GPUs that CUDA_VISIBLE_DEVICES shows, so choose with that",
}


SCHEDULER = "tuner.engines.live_scheduler.LiveScheduler"
"""vLLM's own, with limits that change live and a log; it becomes the asynchronous one by itself."""


@dataclasses.dataclass(frozen=True, slots=True)
class Configuration:
    config: Any
    """vLLM's VllmConfig."""

    asked: dict[str, ArgumentValue]
    """What was asked for, by vLLM's names: all the rest is vLLM's to decide."""

    arguments: dict[str, ArgumentValue]
    """What a deployment needs to run the same, by vLLM's names, as resolved."""

    sampling: dict[str, float]
    """How tokens are drawn while it is measured."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits that were asked for; of those that were not, the server's own.

    They hold at every cap. vLLM moves tokens and graphs with max_num_seqs: between two caps several
    things would change at once.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    graphs: Mapping[str, ArgumentValue]
    """The argument that keeps the sizes of CUDA graphs; none where nothing moves them."""


def configure(
    arguments: Mapping[str, ArgumentValue],
    *,
    max_num_seqs: int,
    limits: ServerLimits,
    ranks: int = 1,
    sampling: Mapping[str, float] = {},
) -> Configuration:
    """Let vLLM resolve and check everything as its server would, without starting anything.

    ``ranks`` are those of a data-parallel server, of which this is one. Raises EngineError with
    what vLLM has against it.
    """
    kept = {**arguments, **limits.graphs}
    tokens = limits.max_num_batched_tokens
    its_own = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": tokens}
    config = _create(kept | its_own)
    if limits.graphs and (sizes := _with_full_batch(config)) != _graph_sizes(config):
        kept = {**arguments, "cudagraph_capture_sizes": list[object](sizes)}
        config = _create(kept | its_own)
    _check_ranks(config, ranks)
    check_drafts(config)
    config.scheduler_config.scheduler_cls = SCHEDULER
    drawn = sampled(config.model_config.get_diff_sampling_param(), sampling)
    pins = pinned(config, kept, is_started=False)
    return Configuration(config, kept | its_own, pins, drawn)


def check_drafts(config: Any) -> None:
    """Refuse a cap that vLLM lowers: for the draft pass of DFlash and DSpark, since vLLM 0.33.

    Raises EngineError.
    """
    limits = config.scheduler_config
    active = getattr(limits, "max_num_active_seqs", None)  # which vLLM has from 0.31 on
    if active is not None and active < limits.max_num_seqs:
        raise EngineError(
            f"max_num_seqs {limits.max_num_seqs}: vLLM lets in {active} at most, for more the "
            f"drafts have no room in max_num_batched_tokens {limits.max_num_batched_tokens}",
            hint=f"Give --ceiling {active}, or raise max_num_batched_tokens.",
        )


def how(config: Any) -> dict[str, ArgumentValue]:
    """Return how an engine of this configuration computes: what decides speed and is no argument of
    a deployment."""
    compilation = config.compilation_config
    return {
        "model_runner": "V2" if getattr(config, "use_v2_model_runner", False) else "V1",
        "cudagraph_mode": compilation.cudagraph_mode.name,
        "cudagraph_capture_sizes": list[object](_graph_sizes(config)),
    }


def _check_ranks(config: Any, ranks: int) -> None:
    """Refuse what vLLM would find out only after its processes have started, or not at all."""
    parallel = config.parallel_config
    if ranks > 1 and config.model_config.is_moe:
        raise EngineError(
            f"data_parallel_size is {ranks}: ranks of a mixture of experts wait for each other, "
            "and one alone shows nothing of that",
            hint="Tune it as tensor_parallel_size with data_parallel_size 1.",
        )
    if parallel.distributed_executor_backend == "ray" and not current_platform.ray_device_key:
        raise EngineError(
            f"distributed_executor_backend is ray: vLLM's platform {current_platform.device_name} "
            "does not support it",
            hint="Leave distributed_executor_backend out: on one machine vLLM needs no Ray.",
        )
    world = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    if parallel.distributed_executor_backend == "uni" and world > 1:
        raise EngineError(
            f"distributed_executor_backend is uni: one process, for {world} ranks",
            hint="Leave distributed_executor_backend out: vLLM chooses mp.",
        )
    if (
        parallel.pipeline_parallel_size > 1
        and current_platform.is_cpu()
        and config.model_config.enforce_eager
    ):
        raise EngineError(
            "pipeline_parallel_size needs enforce_eager=False on a CPU: vLLM prepares what its "
            "stages hand on while it compiles",
            hint="Add --set enforce_eager=False.",
        )


def server_limits(arguments: Mapping[str, ArgumentValue]) -> ServerLimits:
    """Return the limits. Raises EngineError with what vLLM has against the arguments."""
    seqs: Any = arguments.get("max_num_seqs")
    tokens: Any = arguments.get("max_num_batched_tokens")
    without = {name: value for name, value in arguments.items() if name != "max_num_seqs"}
    config = _create(without)
    return ServerLimits(
        config.scheduler_config.max_num_seqs if seqs is None else seqs,
        config.scheduler_config.max_num_batched_tokens if tokens is None else tokens,
        _kept_graphs(config, without),
    )


def _kept_graphs(config: Any, arguments: Mapping[str, ArgumentValue]) -> dict[str, ArgumentValue]:
    """Return the largest size, which leaves the same sizes for every max_num_seqs; where more of
    them follow it, as with drafts, all of them."""
    sizes = _graph_sizes(config)
    compiled = arguments.get("compilation_config")
    said = {**arguments, **(compiled if isinstance(compiled, dict) else {})}
    if not sizes or any(said.get(name) is not None for name in _GRAPHS):
        return {}
    largest: dict[str, ArgumentValue] = {"max_cudagraph_capture_size": sizes[-1]}
    if _graph_sizes(_create({**arguments, **largest})) == sizes:
        return largest
    return {"cudagraph_capture_sizes": list(sizes)}


def _with_full_batch(config: Any) -> list[int]:
    """Return the sizes with that of a batch of max_num_seqs that all decode.

    vLLM captures whole decode batches up to max_num_seqs, and no larger one. Between the last size
    below and max_num_seqs itself they would run in pieces. vLLM adds that size where it computes
    all of them.
    """
    sizes = _graph_sizes(config)
    each = getattr(config, "uniform_decode_query_len", 1)  # tokens: more than one with drafts
    full = config.scheduler_config.max_num_seqs * each
    return sorted({*sizes, full}) if sizes and full <= sizes[-1] else sizes


def deployed(
    arguments: Mapping[str, ArgumentValue], configuration: Configuration, limits: ServerLimits
) -> dict[str, ArgumentValue]:
    """Return an engine's arguments as a deployment of this size states them: with its own sizes of
    CUDA graphs, and without any where vLLM computes the same for it by itself."""
    if not limits.graphs:
        return dict(arguments)
    asked = configuration.asked
    alone = {name: value for name, value in asked.items() if name not in _GRAPHS}
    rest = {name: value for name, value in arguments.items() if name not in _GRAPHS}
    if _graph_sizes(_create(alone)) == _graph_sizes(configuration.config):
        return rest
    return rest | {name: asked[name] for name in _GRAPHS if asked.get(name) is not None}


def _graph_sizes(config: Any) -> list[int]:
    return list(config.compilation_config.cudagraph_capture_sizes or ())


def _create(arguments: Mapping[str, ArgumentValue]) -> Any:
    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    for name in arguments:
        if name not in known | OF_SERVER:
            close = difflib.get_close_matches(name, known, n=1)
            raise EngineError(
                f"{name} is not an engine argument of this vLLM",
                hint=f"Did you mean {close[0]}?" if close else "See vllm serve --help=all.",
            )
        if name in _REFUSED and arguments[name] is not None:
            raise EngineError(
                f"{name} cannot be set: {_REFUSED[name]}", hint=f"Leave {name} out while tuning."
            )
    if arguments.get("data_parallel_size") not in (None, 1):
        raise EngineError(
            f"data_parallel_size is {arguments['data_parallel_size']}: tuner runs one engine",
            hint="Set data_parallel_size to 1, and --replicas to how many share the traffic.",
        )
    settings = _as_tuner_sets(arguments)
    settings = {name: value for name, value in settings.items() if name in known}
    try:
        config = AsyncEngineArgs(**settings).create_engine_config(UsageContext.OPENAI_API_SERVER)
    except Exception as error:  # vLLM refuses with whatever its depths raise
        raise refused(error) from error
    if config.model_config.is_multimodal_model:
        # Its processor is made when the engine starts, and needs a tokenizer; no prompt of ours is
        # read or written by it.
        config.model_config.skip_tokenizer_init = False
    return config


def prompt_vocabulary(model: Any) -> int:
    """Return the number below which every token id may stand in a prompt of plain text.

    A multimodal model takes some ids for an image or a sound that should have come along. They
    stand near the end of its vocabulary, or below 16, where no prompt of ours goes.
    """
    named = vars(model.hf_config) if hasattr(model.hf_config, "__dict__") else {}
    ids = [
        value
        for name, value in named.items()
        if _PLACEHOLDER.fullmatch(name) and isinstance(value, int) and value >= _NEVER_SENT
    ]
    return min([int(model.get_vocab_size()), *ids])


def _as_tuner_sets(arguments: Mapping[str, ArgumentValue]) -> dict[str, Any]:
    """Return the arguments with how tuner itself runs the engine."""
    return {**arguments, "model": models.model_path(str(arguments["model"])), **_TUNER_SETS}


def for_llm(configuration: Configuration, *, share: float) -> dict[str, Any]:
    """Return what ``vllm.LLM`` is called with to run the same, with a share of the memory.

    What nobody asked for is left to it: the executor decides on ``block_size``, for one.
    """
    known = {field.name for field in dataclasses.fields(EngineArgs)}
    arguments = dict(configuration.asked)
    for name in _MEMORY:
        if (value := configuration.arguments.get(name)) is not None:
            assert isinstance(value, int | float)
            arguments[name] = type(value)(value * share)
    scheduler = configuration.config.scheduler_config.scheduler_cls
    asked = {
        **_as_tuner_sets(arguments),
        "override_generation_config": configuration.sampling,
        "scheduler_cls": scheduler,
        "skip_tokenizer_init": configuration.config.model_config.skip_tokenizer_init,
    }
    return {name: value for name, value in asked.items() if name in known}


def for_serve(
    configuration: Configuration, given: Mapping[str, ArgumentValue]
) -> dict[str, ArgumentValue]:
    """Return what ``vllm serve`` is told to run the same; ``given`` is what the user has said."""
    arguments = configuration.arguments
    told = {
        **arguments,
        **{name: given[name] for name in (*_OF_THE_FRONT_END, "download_dir") if name in given},
        "model": models.model_path(str(arguments["model"])),
        "scheduler_cls": configuration.config.scheduler_config.scheduler_cls,
    }
    return {name: value for name, value in told.items() if value is not None}


def private_environment(given: Mapping[str, ArgumentValue]) -> dict[str, str]:
    """Return what of the arguments must not stand on a command line, where others can read it."""
    token = given.get("hf_token")
    return {"HF_TOKEN": token} if isinstance(token, str) else {}


def pinned(
    config: Any, arguments: Mapping[str, ArgumentValue], *, is_started: bool
) -> dict[str, ArgumentValue]:
    """Return every argument that a deployment must spell out to run as ``config`` does.

    Before an engine has started vLLM does not know the ``block_size`` that it will choose.
    """
    model, cache = config.model_config, config.cache_config
    scheduler, parallel = config.scheduler_config, config.parallel_config
    resolved: dict[str, ArgumentValue] = {
        "model": arguments["model"],
        "dtype": str(model.dtype).removeprefix("torch."),
        "max_model_len": model.max_model_len,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "gpu_memory_utilization": cache.gpu_memory_utilization,
        "kv_cache_memory_bytes": cache.kv_cache_memory_bytes,
        "kv_cache_dtype": cache.cache_dtype,
        "block_size": cache.block_size,
        "enable_prefix_caching": cache.enable_prefix_caching,
        "enable_chunked_prefill": scheduler.enable_chunked_prefill,
        "async_scheduling": scheduler.async_scheduling,
        "enforce_eager": model.enforce_eager,
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "seed": model.seed,
    }
    if not is_started and not cache.user_specified_block_size:
        del resolved["block_size"]
    if cache.kv_cache_memory_bytes is not None:
        del resolved["gpu_memory_utilization"]  # vLLM ignores it beside the other
    also = {
        name: value
        for name, value in arguments.items()
        if name not in resolved and name not in _TUNER_SETS and name not in _PRIVATE
    }
    return {name: value for name, value in (resolved | also).items() if value is not None}

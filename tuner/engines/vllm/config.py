"""Check, pin and resolve engine arguments, as vLLM's server would. Imports vLLM."""

# ruff: noqa: ANN401 - vLLM's objects are untyped where vLLM is not installed
# mypy: allow-subclassing-any

import contextlib
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from vllm import AsyncEngineArgs, EngineArgs
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser

from tuner.engines.models import shipped as models
from tuner.engines.sampling import sampled
from tuner.engines.seam import ArgumentValue
from tuner.engines.vllm.failure import refused
from tuner.engines.vllm.flags import OF_SERVER, Setting, command_line
from tuner.engines.vllm.start import Resolved
from tuner.errors import EngineError, InputError, TunerError, UsageError

# Parsed as text

_KNOWN = {field.name for field in dataclasses.fields(AsyncEngineArgs)}


class _Parser(FlexibleArgumentParser):
    """Parses as vLLM does. Raises ValueError where a command line would print usage and leave."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def parse(settings: Sequence[Setting]) -> dict[str, ArgumentValue]:
    """Return name → value of the engine arguments among them; options of the server are dropped.

    Raises InputError or UsageError with the place of the first that vLLM would not take.
    """
    parser = _serve_parser()
    arguments: dict[str, Any] = {}
    for setting in settings:
        head, dot, key = setting.name.partition(".")
        try:
            read = vars(parser.parse_args(command_line(setting.name, setting.value)))
        except (ValueError, TypeError, SystemExit) as error:
            raise _refused(setting, str(error)) from error
        if head not in read:
            raise _refused(setting, "unrecognized arguments")
        if head not in _KNOWN | OF_SERVER:
            if setting.of_server:
                continue
            raise UsageError(
                f"--set {setting.name}: is an option of the server, not of the engine",
                hint="Leave it out: it does not change what is measured.",
            )
        if dot:
            arguments[head] = _merged(arguments.get(head), _nested(key, setting.value))
        else:  # mappings vLLM reads into classes of its own
            is_mapping = isinstance(setting.value, dict)
            arguments[head] = setting.value if is_mapping else read[head]
    return arguments


def _serve_parser() -> Any:
    try:
        from vllm.entrypoints.common.cli_args import make_arg_parser  # noqa: PLC0415
    except ModuleNotFoundError:  # before vLLM 0.33
        from vllm.entrypoints.launchers.cli_args import make_arg_parser  # noqa: PLC0415
    return make_arg_parser(_Parser())


def flags() -> dict[str, tuple[str, str]]:
    """Return the flags that the parser of the installed vLLM takes: see ``flags.FLAGS``."""
    takes = {0: "switch", None: "word", "+": "words", "?": "optional"}
    result = {}
    for flag, action in sorted(_serve_parser()._option_string_actions.items()):  # noqa: SLF001
        is_off = flag.startswith("--no-") or flag in getattr(action, "negative_option_strings", ())
        if action.dest != "help":
            result[flag] = (action.dest, "off" if is_off else takes[action.nargs])
    return result


def _refused(setting: Setting, why: str) -> TunerError:
    head = setting.name.partition(".")[0]
    kind: type[TunerError] = InputError if setting.of_server else UsageError
    if "unrecognized arguments" in why and head not in _KNOWN | OF_SERVER:
        return kind(
            f"{setting.place}: {head} is not an argument of this vLLM",
            hint="See vllm serve --help=all.",
        )
    # without argparse's beginning, and where in memory a function lies
    reason = re.sub(r"^argument \S+: ", "", why.strip().partition("\n")[0])
    reason = re.sub(r"<function (\w+) at 0x[0-9a-f]+>", r"\1", reason)
    return kind(
        f"{setting.place}: {setting.name}: vLLM does not take {setting.value!r}: {reason}",
        hint="Write the value as vllm serve takes it on its command line.",
    )


def _merged(before: object, after: object) -> Any:
    """Return the union of two nested mappings; of what is in both that of ``after`` counts."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return after
    return before | {key: _merged(before.get(key), value) for key, value in after.items()}


def _nested(key: str, value: object) -> object:
    """Return ``a.b`` and a value as ``{a: {b: value}}``; text is JSON if it can be, as in vLLM."""
    if isinstance(value, str):
        with contextlib.suppress(json.JSONDecodeError):
            value = json.loads(value)
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


# Resolved

SCHEDULER = "tuner.engines.live_scheduler.LiveScheduler"
"""vLLM's own, with limits that change live and a log; it becomes the asynchronous one by itself."""

_TUNER_SETS: dict[str, ArgumentValue] = {
    "disable_log_stats": True,
    "enable_log_requests": False,
    "max_num_queued_reqs": None,  # a replay waits in the queue, it is not turned away
    "max_num_queued_tokens": None,
    "otlp_traces_endpoint": None,
    "skip_tokenizer_init": True,  # prompts are token ids
}
"""How tuner itself runs the engine, whatever a deployment says; never part of a profile."""

_OF_THE_SERVER = (
    "disable_log_stats", "enable_log_requests", "skip_tokenizer_init", "download_dir",
)  # fmt: skip
"""What a server keeps as the deployment has it: its users pay for that."""

_MEMORY = ("kv_cache_memory_bytes", "gpu_memory_utilization", "num_gpu_blocks_override")
"""Arguments that say what an engine may take of the device's memory."""

_GRAPHS = ("max_cudagraph_capture_size", "cudagraph_capture_sizes")
"""Arguments that say which sizes of batches are captured as CUDA graphs."""

_PRIVATE = frozenset({"download_dir", "hf_token", "served_model_name"})
"""Of one machine or one deployment; a profile leaves them out."""

_PLACEHOLDER = re.compile(
    r"(image|video|audio|vision|media|boi|eoi|boa|eoa)\w*_(id|index)|.*(image|video|audio)_token_id"
)
"""Keys of a model's configuration that name the token of an image, a film or a sound."""

_NEVER_SENT = 16
"""As many ids from 0 on are in no prompt: see traffic.clients."""

_REFUSED = {
    "max_num_active_seqs": "tuner moves it live to find max_num_seqs",
    "scheduler_cls": "tuner brings its own scheduler class",
    "device_ids": "tuner reads the GPUs that CUDA_VISIBLE_DEVICES shows, so choose with that",
}


class ServerLimits(NamedTuple):
    """The limits as stated; of those that are not, the server's own."""

    max_num_seqs: int
    fixed: Mapping[str, ArgumentValue]
    """The token budget and the largest CUDA graph, for every cap. vLLM moves both with
    max_num_seqs: between two caps several things would change at once."""


def server_limits(arguments: Mapping[str, ArgumentValue]) -> ServerLimits:
    """Return the limits. Raises EngineError with what vLLM has against the arguments."""
    seqs: Any = arguments.get("max_num_seqs")
    config = _create({name: value for name, value in arguments.items() if name != "max_num_seqs"})
    fixed = {"max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens}
    sizes = config.compilation_config.cudagraph_capture_sizes
    compiled = arguments.get("compilation_config")
    stated = {**arguments, **(compiled if isinstance(compiled, dict) else {})}
    if sizes and all(stated.get(name) is None for name in _GRAPHS):
        fixed["max_cudagraph_capture_size"] = max(sizes)
    return ServerLimits(config.scheduler_config.max_num_seqs if seqs is None else seqs, fixed)


def configure(
    stated: Mapping[str, ArgumentValue],
    given: Mapping[str, ArgumentValue],
    *,
    ranks: int,
    sampling: Mapping[str, float],
) -> Resolved:
    """Let vLLM resolve and check everything as its server would, without starting anything.

    ``stated`` is what the user has stated, ``given`` that with its limits and what a shipped model
    needs; ``ranks`` are those of a data-parallel server, of which this is one. Raises EngineError
    with what vLLM has against it.
    """
    config = _create(given)
    model, scheduler = config.model_config, config.scheduler_config
    if ranks > 1 and model.is_moe:
        raise EngineError(
            f"data_parallel_size is {ranks}: ranks of a mixture of experts wait for each other, "
            "and one alone shows nothing of that",
            hint="Tune it as tensor_parallel_size with data_parallel_size 1.",
        )
    active = getattr(scheduler, "max_num_active_seqs", None)  # since vLLM 0.31
    if active is not None and active < scheduler.max_num_seqs:  # 0.33: for the drafts of DFlash
        raise EngineError(
            f"max_num_seqs {scheduler.max_num_seqs}: vLLM lets in {active} at most, for more the "
            f"drafts have no room in max_num_batched_tokens {scheduler.max_num_batched_tokens}",
            hint=f"Give --ceiling {active}, or raise max_num_batched_tokens.",
        )
    scheduler.scheduler_cls = SCHEDULER
    arguments = _pinned(config, given)
    kept = {name: stated[name] for name in _OF_THE_SERVER if name in stated}
    path = models.model_path(str(arguments["model"]))
    command = {**arguments, **kept, "model": path, "scheduler_cls": SCHEDULER}
    token = stated.get("hf_token")
    return Resolved(
        config=config,
        given=dict(given),
        arguments=arguments,
        command={name: value for name, value in command.items() if value is not None},
        environment={"HF_TOKEN": token} if isinstance(token, str) else {},  # others read commands
        max_model_len=model.max_model_len,
        vocab_size=prompt_vocabulary(model),
        by_priority=scheduler.policy == "priority",
        sampling=sampled(model.get_diff_sampling_param(), sampling),
    )


def _create(arguments: Mapping[str, ArgumentValue]) -> Any:
    for name, why in _REFUSED.items():
        if arguments.get(name) is not None:
            raise EngineError(
                f"{name} cannot be set: {why}", hint=f"Leave {name} out while tuning."
            )
    if arguments.get("data_parallel_size") not in (None, 1):
        raise EngineError(
            f"data_parallel_size is {arguments['data_parallel_size']}: tuner runs one engine",
            hint="Set data_parallel_size to 1, and --replicas to how many share the traffic.",
        )
    # an older vLLM lacks some that tuner sets; what somebody else sets is for vLLM to refuse
    lacking = _TUNER_SETS.keys() - _KNOWN
    settings = {
        name: value
        for name, value in _as_tuner_sets(arguments).items()
        if name not in OF_SERVER | lacking
    }
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


def for_llm(resolved: Resolved, *, share: float) -> dict[str, Any]:
    """Return what ``vllm.LLM`` is called with to run the same, with a share of the memory.

    What nobody stated is left to it: the executor decides on ``block_size``, for one.
    """
    wanted = {
        **_as_tuner_sets(resolved.given),
        "override_generation_config": resolved.sampling,
        "scheduler_cls": SCHEDULER,
        "skip_tokenizer_init": resolved.config.model_config.skip_tokenizer_init,
    }
    for name in _MEMORY:
        if (value := resolved.arguments.get(name)) is not None:
            assert isinstance(value, int | float)
            wanted[name] = type(value)(value * share)
    known = {field.name for field in dataclasses.fields(EngineArgs)}
    return {name: value for name, value in wanted.items() if name in known}


def _pinned(config: Any, arguments: Mapping[str, ArgumentValue]) -> dict[str, ArgumentValue]:
    """Return every argument that a deployment must spell out to run as ``config`` does."""
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
    if not cache.user_specified_block_size:
        del resolved["block_size"]  # vLLM chooses it when the engine has started
    if cache.kv_cache_memory_bytes is not None:
        del resolved["gpu_memory_utilization"]  # vLLM ignores it beside the other
    left_out = {*resolved, *_TUNER_SETS, *_PRIVATE}
    resolved |= {name: value for name, value in arguments.items() if name not in left_out}
    return {name: value for name, value in resolved.items() if value is not None}

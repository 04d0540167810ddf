"""Check, pin and resolve engine arguments, as vLLM's server would. Imports vLLM."""

# ruff: noqa: ANN401 - vLLM's objects are untyped where vLLM is not installed
# mypy: allow-subclassing-any

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from vllm import AsyncEngineArgs, EngineArgs
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser

from tuner.engines import devices, provenance
from tuner.engines.arguments import OF_SERVER, Setting, command_line
from tuner.engines.live_scheduler import arguments_of
from tuner.engines.models import shipped as models
from tuner.engines.sampling import sampled
from tuner.engines.seam import ArgumentValue, EngineFacts
from tuner.engines.vllm.process import refused
from tuner.engines.vllm.start import Resolved, VllmStarter
from tuner.errors import EngineError, TunerError, UsageError

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
    arguments: dict[str, ArgumentValue] = {}
    for each in settings:
        name, value = each.name, each.value
        try:
            read = vars(parser.parse_args(command_line(name, value)))
        except (ValueError, TypeError, SystemExit) as error:
            raise _refused(each, str(error)) from error
        if name not in read:  # argparse completes names
            raise _refused(each, "unrecognized arguments")
        if name in _KNOWN | OF_SERVER:
            # mappings vLLM reads into classes of its own
            arguments[name] = value if isinstance(value, dict) else read[name]
        elif each.error is UsageError:
            raise UsageError(
                f"--set {name}: is an option of the server, not of the engine",
                hint="Leave it out: it does not change what is measured.",
            )
    return arguments


def _refused(setting: Setting, why: str) -> TunerError:
    # without argparse's beginning, and where in memory a function lies
    reason = re.sub(r"^argument \S+: ", "", why.strip().partition("\n")[0])
    reason = re.sub(r"<function (\w+) at 0x[0-9a-f]+>", r"\1", reason)
    return setting.error(
        f"{setting.place}: {setting.name}: vLLM does not take {setting.value!r}: {reason}",
        hint="Write it as on the command line: see vllm serve --help=all.",
    )


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


# Resolved

SCHEDULER = "tuner.engines.live_scheduler.MeasuredScheduler"
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

_MEMORY = frozenset({"kv_cache_memory_bytes", "gpu_memory_utilization", "num_gpu_blocks_override"})
"""Arguments that say what an engine may take of the device's memory."""

_PINNED = {
    "gpu_memory_utilization": "cache_config.gpu_memory_utilization",
    "kv_cache_memory_bytes": "cache_config.kv_cache_memory_bytes",
    "enable_chunked_prefill": "scheduler_config.enable_chunked_prefill",
    "async_scheduling": "scheduler_config.async_scheduling",
    "enforce_eager": "model_config.enforce_eager",
    "seed": "model_config.seed",
}
"""What else a deployment must spell out → where vLLM's configuration has it."""

_PRIVATE = frozenset({"download_dir", "hf_token", "served_model_name"})
"""Of one machine or one deployment; a profile leaves them out."""

_PLACEHOLDER = re.compile(
    r"(image|video|audio|vision|media|boi|eoi|boa|eoa)\w*_(id|index)|.*(image|video|audio)_token_id"
)
"""Keys of a model's configuration that name the token of an image, a film or a sound."""

_NEVER_SENT = 16
"""As many ids from 0 on are in no prompt: see traffic.clients."""

_REFUSED = {
    "data_parallel_size": "tuner runs one engine; say with --replicas how many share the traffic",
    "max_num_active_seqs": "tuner moves it live to find max_num_seqs",
    "scheduler_cls": "tuner brings its own scheduler class",
    "device_ids": "tuner reads the GPUs that CUDA_VISIBLE_DEVICES shows, so choose with that",
}


def _server_limits(
    arguments: Mapping[str, ArgumentValue],
) -> tuple[int, Mapping[str, ArgumentValue]]:
    """Return the server's own max_num_seqs where none is stated, and what is fixed for every cap:
    its token budget and largest CUDA graph.

    vLLM moves both with max_num_seqs: between two caps several things would change at once.
    """
    config = _create({name: value for name, value in arguments.items() if name != "max_num_seqs"})
    fixed = {"max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens}
    sizes = config.compilation_config.cudagraph_capture_sizes
    if sizes and "cudagraph_capture_size" not in str(arguments):  # nobody has stated any
        fixed["max_cudagraph_capture_size"] = max(sizes)
    return config.scheduler_config.max_num_seqs, fixed


def configure(starter: VllmStarter, max_num_seqs: int) -> Resolved:
    """Let vLLM resolve and check everything as its server would, without starting anything.

    Raises EngineError with what vLLM has against it.
    """
    if not starter.limits[0]:
        starter.limits = _server_limits(starter.given)
    given = {**starter.given, **starter.limits[1], "max_num_seqs": max_num_seqs}
    config, stated = _create(given), starter.arguments
    model = config.model_config
    if starter.ranks > 1 and model.is_moe:
        raise EngineError(
            f"data_parallel_size is {starter.ranks}: ranks of a mixture of experts wait for each "
            "other, and one alone shows nothing of that",
            hint="Tune it as tensor_parallel_size with data_parallel_size 1.",
        )
    config.scheduler_config.scheduler_cls = SCHEDULER
    arguments = _pinned(config, given)
    command = {
        **arguments,
        **{name: stated[name] for name in _OF_THE_SERVER if stated.get(name) is not None},
        "model": models.model_path(str(arguments["model"])),
        "scheduler_cls": SCHEDULER,
    }
    facts = EngineFacts(
        engine=starter.kind,
        arguments=arguments,
        max_model_len=model.max_model_len,
        vocab_size=_prompt_vocabulary(model),
        block_size=0,
        kv_blocks=0,
        start_s=0.0,
        cautions=_cautions(config),
        sampling=sampled(model.get_diff_sampling_param(), starter.sampling or {}),
        versions=provenance.versions(),
        device=devices.device_facts(),
        environment=provenance.environment(),
    )
    return Resolved(config, command, facts)


def _create(arguments: Mapping[str, ArgumentValue]) -> Any:
    for name, why in _REFUSED.items():
        if (value := arguments.get(name)) is not None and (name, value) != (
            "data_parallel_size",
            1,
        ):
            raise EngineError(
                f"{name} cannot be set: {why}", hint=f"Leave {name} out while tuning."
            )
    # an older vLLM lacks some that tuner sets; what somebody else sets is for vLLM to refuse
    left_out = OF_SERVER | (_TUNER_SETS.keys() - _KNOWN)
    path = models.model_path(str(arguments["model"]))
    settings: dict[str, Any] = {**arguments, "model": path, **_TUNER_SETS}
    for name in left_out & settings.keys():
        del settings[name]
    try:
        config = AsyncEngineArgs(**settings).create_engine_config(UsageContext.OPENAI_API_SERVER)
    except Exception as error:  # vLLM refuses with whatever its depths raise
        raise refused(error) from error
    if config.model_config.is_multimodal_model:
        # Its processor is made when the engine starts, and needs a tokenizer; no prompt of ours is
        # read or written by it.
        config.model_config.skip_tokenizer_init = False
    return config


def _pinned(config: Any, arguments: Mapping[str, ArgumentValue]) -> dict[str, ArgumentValue]:
    """Return every argument that a deployment must spell out to run as ``config`` does."""
    resolved = arguments_of(config) | arguments_of(config, _PINNED)
    resolved |= {"model": arguments["model"], "dtype": str(config.model_config.dtype)[6:]}  # torch.
    for name in ("revision", "quantization"):  # the model's own, unless stated
        del resolved[name]
    cache = config.cache_config
    if not cache.user_specified_block_size:
        del resolved["block_size"]  # vLLM chooses it when the engine has started
    if cache.kv_cache_memory_bytes is not None:
        del resolved["gpu_memory_utilization"]  # vLLM ignores it beside the other
    left_out = {*resolved, *_TUNER_SETS, *_PRIVATE}
    resolved |= {name: value for name, value in arguments.items() if name not in left_out}
    return {name: value for name, value in resolved.items() if value is not None}


def _prompt_vocabulary(model: Any) -> int:
    """Return the number below which every token id may stand in a prompt of plain text.

    A multimodal model takes some ids for an image or a sound that should have come along. They
    stand near the end of its vocabulary, or below 16, where no prompt of ours goes.
    """
    ids = [int(model.get_vocab_size())]
    for name, value in vars(model.hf_config).items():
        if _PLACEHOLDER.fullmatch(name) and isinstance(value, int) and value >= _NEVER_SENT:
            ids.append(value)
    return min(ids)


def _cautions(config: Any) -> list[str]:
    """Return what a server with these arguments can do and no replay asks for, or shows as it
    is."""
    result = {
        "no replay asks for a LoRA adapter: what adapters cost is not measured": config.lora_config,
        "no replay sends an image, a sound or a video: their encoder is not measured": (
            config.model_config.is_multimodal_model
        ),
        "prompts of random tokens: how many drafts are accepted here says nothing of production": (
            config.speculative_config
        ),
    }
    return [caution for caution, has_it in result.items() if has_it]


def for_llm(resolved: Resolved, *, share: float) -> dict[str, Any]:
    """Return what ``vllm.LLM`` is called with to run the same, with a share of the memory."""
    known = {field.name for field in dataclasses.fields(EngineArgs)}
    known.remove("scheduler_cls")  # it has no page
    arguments: dict[str, Any] = {k: v for k, v in resolved.command.items() if k in known}
    for name in _MEMORY & arguments.keys():
        arguments[name] = type(arguments[name])(arguments[name] * share)
    return {
        **arguments,
        "disable_log_stats": False,  # which hold the times of tokens
        "override_generation_config": resolved.facts.sampling,
        "skip_tokenizer_init": resolved.config.model_config.skip_tokenizer_init,
    }

"""The search space of a refinement: engine arguments, and the values that the engine takes."""

from typing import Any

from tuner.commands.options import RefineOptions
from tuner.engines.engine_arguments import value_of
from tuner.engines.seam import ArgumentValue
from tuner.engines.vllm import start as vllm
from tuner.engines.vllm.flags import Setting
from tuner.errors import TraceError, TunerError, UsageError
from tuner.profile.schema import ServingProfile
from tuner.runs.refine.refine import Vary
from tuner.runs.refine.space import (
    CAP,
    LIVE,
    TOKENS,
    Space,
    TrafficNeeds,
    build_space,
    number,
    parse_search,
)
from tuner.trace.columns import columns_of
from tuner.trace.trace import TraceRequest
from tuner.traffic.summary import describe

FEWEST_REQUESTS = 10
"""Of fewer no percentile and no gain is to be told."""


def space_of(
    options: RefineOptions,
    profile: ServingProfile,
    vary: Vary,
    *,
    requests: list[TraceRequest],
    block_size: int,
) -> Space:
    """Return what is searched. Raises UsageError for what contradicts or is refused, TraceError for
    a trace that can tell nothing."""
    if len(requests) < FEWEST_REQUESTS:
        raise TraceError(
            f"{options.trace}: requests served: {len(requests)}, too few to tell of any limit",
            hint=f"Capture more traffic: at least {FEWEST_REQUESTS} requests, better hundreds.",
        )
    engine: dict[str, Any] = {**profile.engine, "max_model_len": profile.max_model_len}

    def refusal(name: str, value: ArgumentValue) -> str | None:
        cap, tokens = number(engine[CAP]), number(engine[TOKENS])
        if name == CAP:
            cap, tokens = number(value), max(tokens, number(value))
        elif name == TOKENS:
            cap, tokens = min(cap, number(value)), number(value)
        one = {TOKENS: tokens} if name in LIVE else {name: value}
        try:
            resolved = vary(one).resolve(max_num_seqs=cap)
        except TunerError as error:
            return str(error)
        if name not in resolved and value is not None:
            return "it is ignored here, whatever is asked"
        if name in resolved and resolved[name] != value:
            return f"it is {resolved[name]} here, whatever is asked"
        return None

    return build_space(
        engine, _demand(profile, requests, block_size), named_of(options, profile), refusal
    )


def _demand(profile: ServingProfile, requests: list[TraceRequest], block_size: int) -> TrafficNeeds:
    columns = columns_of(requests, block_size=block_size)
    said = describe(columns)
    usage = profile.promise.kv_cache_usage
    return TrafficNeeds(
        shares_prefixes=bool(said.prefix_share),
        kv_peak=0.0 if usage is None else usage.peak,
        caps=tuple(step.max_num_seqs for step in profile.curve),
        requests=len(requests),
        on_gpu=profile.provenance.device.get("kind") == "gpu",
    )


def named_of(
    options: RefineOptions, profile: ServingProfile
) -> dict[str, tuple[ArgumentValue, ...]]:
    """Return what the user named, each value as the engine reads it. Raises UsageError."""
    found: dict[str, tuple[ArgumentValue, ...]] = {}
    for name, words in parse_search(options.search).items():
        values = tuple(_typed(options, profile, name, word) for word in words)
        if name in LIVE and any(
            not isinstance(v, int) or isinstance(v, bool) or v < 1 for v in values
        ):
            raise UsageError(
                f"--search {name}={','.join(words)}: whole numbers of at least 1 are searched",
                hint="As in --search max_num_batched_tokens=1024,2048.",
            )
        found[name] = values
    return found


def _typed(options: RefineOptions, profile: ServingProfile, name: str, word: str) -> ArgumentValue:
    if options.world is not None:
        return int(word) if word.isdecimal() else word
    value = value_of(word, place=f"--search {name}")
    setting = Setting(name, value, "--search", of_server=False)
    return vllm.parse([setting], model=profile.model)[name]

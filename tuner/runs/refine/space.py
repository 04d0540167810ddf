"""The space that a refinement searches: by default, as named, and refused where it cannot be. Pure.

The default space is small: values around the knee, and of the other arguments those that can matter
for this traffic. Whether vLLM takes a value on this machine is asked before.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.engines.seam import ArgumentValue
from tuner.engines.sim.world import padded
from tuner.errors import UsageError
from tuner.runs.refine.knobs import (
    CAP,
    LIVE,
    MEMORY,
    TOKENS,
    Configuration,
    Knob,
    Space,
    memory_of,
    number,
)

MOST_CONFIGURATIONS = 100_000

LONG_PROMPT = 2
"""A prompt of more iterations of prefill makes others wait for it."""

FULL = 0.8
"""KV-cache usage from which on memory can be what binds."""

LESS_MEMORY = (3 / 4, 1 / 2, 1 / 3)
"""Parts of gpu_memory_utilization to try; the last is the 0.3 of 0.92 of who measured it first."""


@dataclass(frozen=True, slots=True)
class TrafficNeeds:
    """The facts of traffic and profile that decide which arguments can matter."""

    longest_prompt: int
    """p99 of the prompts, in tokens."""

    shares_prefixes: bool
    kv_peak: float
    caps: tuple[int, ...]
    """Of the profile's curve."""

    requests: int
    """Of the trace."""

    on_gpu: bool


Search = Mapping[str, tuple[ArgumentValue, ...]]
"""The user's words: argument → values."""

Left = dict[str, str]
"""Argument that is left out → why."""


def default_knobs(
    engine: Configuration, demand: TrafficNeeds
) -> tuple[dict[str, tuple[tuple[ArgumentValue, ...], str]], Left]:
    """Return name → (values, why) around a profile's engine arguments, and what was left out."""
    cap, tokens = number(engine[CAP]), number(engine[TOKENS])
    most = max(demand.caps)
    eighths = {max(1, round(cap * part / 8)) for part in range(4, 9)}
    above = {round(cap * part / 4) for part in range(5, 9)}
    caps = eighths | {one for one in above if one <= max(most, cap)}
    why = "between the doublings around the knee"
    if demand.on_gpu and not engine.get("enforce_eager"):
        # in between a batch costs what the next size does
        caps, why = set(captured(engine, caps)), f"{why}, of the sizes of CUDA graphs"
    found: dict[str, tuple[tuple[ArgumentValue, ...], str]] = {
        CAP: (tuple(sorted(caps)), why),
        TOKENS: (
            tuple(sorted({max(cap, tokens // 4), max(cap, tokens // 2), tokens, 2 * tokens})),
            "fewer keep iterations short, more let prompts in sooner",
        ),
    }
    left: Left = {}
    if demand.shares_prefixes:
        found["enable_prefix_caching"] = ((False, True), "prompts of this trace begin alike")
    else:
        left["enable_prefix_caching"] = "no prompts of this trace are known to begin alike"
    found["async_scheduling"] = ((False, True), "the next iteration is scheduled while one runs")
    if demand.longest_prompt > LONG_PROMPT * tokens:
        found["long_prefill_token_threshold"] = (
            (None, max(1, tokens // 4), max(1, tokens // 2)),
            f"prompts of {demand.longest_prompt} tokens take several iterations",
        )
        found["max_num_partial_prefills"] = ((None, 2), "several long prompts at a time")
    else:
        why = f"few prompts take more than {LONG_PROMPT} iterations"
        left |= {"long_prefill_token_threshold": why, "max_num_partial_prefills": why}
    if demand.kv_peak >= FULL and "block_size" in engine:
        size = number(engine["block_size"])
        found["block_size"] = (
            tuple(sorted({max(1, size // 2), size, 2 * size})),
            "the KV cache fills up: smaller blocks waste less of it",
        )
    else:
        left["block_size"] = "the KV cache does not fill up"
    left["kv_cache_dtype"] = "changes what the model answers, which no replay can judge"
    _memory(engine, demand, found, left)
    return found, left


def captured(engine: Configuration, caps: Collection[int]) -> list[int]:
    """Return the sizes of CUDA graphs that batches of these sizes run at.

    >>> captured({}, [6, 8, 10, 12]), captured({"cudagraph_capture_sizes": [4, 12]}, [6, 13])
    ([8, 16], [12, 13])
    """
    listed = engine.get("cudagraph_capture_sizes")
    if not isinstance(listed, list):
        return sorted(set(padded(np.array(sorted(caps))).tolist()))
    sizes = sorted(size for size in listed if isinstance(size, int))
    return sorted({next((size for size in sizes if size >= cap), cap) for cap in caps})


def _memory(
    engine: Configuration,
    demand: TrafficNeeds,
    found: dict[str, tuple[tuple[ArgumentValue, ...], str]],
    left: Left,
) -> None:
    """Bring in less memory where a GPU is shared out by it; elsewhere say what would do.

    A GPU's engines are restarted for other arguments anyway, and what they leave free serves other
    models. Of a host's memory, or of blocks, the size that would do is known without a trial.
    """
    name = memory_of(engine)
    own = engine.get(name or "")
    if name is None or not isinstance(own, int | float):
        return
    used = f"at most {demand.kv_peak:.0%} of the KV cache was used"
    least = own * demand.kv_peak / FULL  # all of it KV cache: weights only make it more
    if name == "gpu_memory_utilization" and demand.on_gpu:
        values = [value for part in LESS_MEMORY if (value := round(own * part, 2)) >= least]
        if values:
            found[name] = (tuple(sorted({own, *values})), f"{used}: less may do")
        else:
            left[name] = used
    elif least >= own or not isinstance(own, int):
        left[name] = used
    else:
        left[name] = (
            f"{used}; --search {name}={math.ceil(least)} is the least that keeps it off the limit, "
            "and less that serves as well is kept"
        )


def build_space(
    engine: Configuration,
    demand: TrafficNeeds,
    named: Search,
    refusal: Callable[[str, ArgumentValue], str | None],
) -> Space:
    """Return the space of these engine arguments: the default knobs, and those that were named.

    ``refusal`` says why the engine would not take a value, None when it does. Raises UsageError for
    a named value that it refuses, and for what contradicts.
    """
    defaults, left = default_knobs(engine, demand)
    knobs = []
    _check_limits(engine, demand, named)
    for name, values in named.items():
        if (ignored := _ignored(name, engine)) is not None:
            raise UsageError(f"--search {name}: {ignored}", hint=f"Drop --search {name}.")
        for value in values:
            if (said := refusal(name, value)) is not None:
                raise UsageError(
                    f"--search {name}={value}: {said}",
                    hint=f"Leave {value} out of --search {name}.",
                )
        knobs.append(Knob(name, _with(engine.get(name), values), "named with --search"))
        left.pop(name, None)
        if len(knobs[-1].values) == 1:
            left[name] = "the profile's own value alone was named"
    for name, (values, why) in defaults.items():
        if name in named:
            continue
        refused = {
            value: said
            for value in values
            if value is not None and (said := refusal(name, value)) is not None
        }
        kept = _with(engine.get(name), [value for value in values if value not in refused])
        if len(kept) > 1:
            knobs.append(Knob(name, kept, why))
        else:
            left[name] = next(iter(refused.values()), "there is one value only")
    knobs = [knob for knob in knobs if len(knob.values) > 1]
    space = Space(
        knobs=tuple(knobs),
        knee={name: engine.get(name) for name in (*LIVE, *(knob.name for knob in knobs))},
        left_out=_lines(left),
    )
    _check(space, named)
    return space


def _lines(left: Left) -> tuple[str, ...]:
    """Return what is left out, arguments with the same reason in one line."""
    alike: dict[str, list[str]] = {}
    for name, why in left.items():
        alike.setdefault(why, []).append(name)
    return tuple(f"{', '.join(names)}: {why}" for why, names in alike.items())


def _with(own: ArgumentValue, values: Sequence[ArgumentValue]) -> tuple[ArgumentValue, ...]:
    """Return the values with the profile's own (None: vLLM's default), numbers ascending."""
    found = [own, *(value for value in values if value != own)]
    numbers = [one for one in found if isinstance(one, int | float)]
    return tuple(sorted(numbers)) if len(numbers) == len(found) else tuple(found)


def _ignored(name: str, engine: Configuration) -> str | None:
    """Return why an argument changes nothing beside the profile's others."""
    binding = memory_of(engine)
    if name in MEMORY and binding is not None and MEMORY.index(binding) < MEMORY.index(name):
        return f"{binding}={engine[binding]} of the profile sizes the KV cache, whatever it is"
    return None


def _check_limits(engine: Configuration, demand: TrafficNeeds, named: Search) -> None:
    """Refuse what no engine could ever fill: it would only be built too large to start."""
    most_cap = max(demand.requests, *demand.caps, number(engine[CAP]))
    for cap in map(number, named.get(CAP, ())):
        if cap > most_cap:
            raise UsageError(
                f"--search {CAP}={cap}: the trace has {demand.requests} requests in all",
                hint=f"Name at most {most_cap}.",
            )
    caps = [number(engine[CAP]), *demand.caps, *map(number, named.get(CAP, ()))]
    most = max(max(caps) * number(engine["max_model_len"]), number(engine[TOKENS]))
    for tokens in map(number, named.get(TOKENS, ())):
        if tokens > most:
            raise UsageError(
                f"--search {TOKENS}={tokens}: {max(caps)} sequences of max_model_len="
                f"{engine['max_model_len']} are {most} tokens",
                hint=f"Name at most {most}.",
            )


def _check(space: Space, named: Search) -> None:
    """Refuse what leaves nothing to search."""
    caps, tokens = ([number(v) for v in named.get(name, ())] for name in LIVE)
    if caps and tokens and min(caps) > max(tokens):
        raise UsageError(
            f"every --search {CAP} ({min(caps)} and more) is above every {TOKENS} ({max(tokens)} "
            "and less): no iteration could hold them",
            hint=f"Name a {TOKENS} of at least {min(caps)}, or smaller {CAP}.",
        )
    all_caps, all_tokens = (
        [number(v) for k in space.knobs if k.name == name for v in k.values]
        or [number(space.knee[name])]
        for name in LIVE
    )
    for budget in tokens:
        if budget < min(all_caps):
            raise UsageError(
                f"--search {TOKENS}={budget} is less than every {CAP} ({min(all_caps)} and more)",
                hint=f"Give at least {TOKENS}={min(all_caps)}, or a smaller {CAP}.",
            )
    for cap in caps:
        if cap > max(all_tokens):
            raise UsageError(
                f"--search {CAP}={cap} is more than every {TOKENS} ({max(all_tokens)} and less)",
                hint=f"Add --search {TOKENS}={cap}, or leave {cap} out.",
            )
    size = math.prod(len(knob.values) for knob in space.knobs)
    if size > MOST_CONFIGURATIONS:
        raise UsageError(
            f"the space has {size:,} configurations", hint="Name fewer values with --search."
        )
    if not space.knobs or not any(
        one != dict(space.knee)
        for restart in space.configurations(live=False, at=space.knee)
        for one in space.configurations(live=True, at=restart)
    ):
        raise UsageError(
            "the space is empty: nothing differs from the profile",
            hint="Name other values, such as --search max_num_batched_tokens=1024,2048.",
        )

"""What `tuner refine` may change: knobs, each with the values to try, and why. Pure.

The default space is small: values around the knee, and of the other arguments those that can matter
for this traffic. Whether vLLM takes a value on this machine is asked before (``accepts``).
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tuner.engines.seam import ArgumentValue
from tuner.errors import UsageError

Configuration = Mapping[str, ArgumentValue]
"""Engine argument → value, of the knobs alone."""

CAP, TOKENS = "max_num_seqs", "max_num_batched_tokens"
LIVE = (CAP, TOKENS)
"""What a running engine changes without a restart; everything else takes a new engine."""

MEMORY = ("num_gpu_blocks_override", "kv_cache_memory_bytes", "gpu_memory_utilization")
"""What sizes the KV cache; the first of them that the engine has set is the one that counts."""

WORTH_FREEING = 0.2
"""Share of the KV cache that is worth an engine's restart to do without."""

MOST_CONFIGURATIONS = 100_000

LONG_PROMPT = 2
"""A prompt of more iterations of prefill makes others wait for it."""

FULL = 0.8
"""KV-cache usage from which on memory can be what binds."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One engine argument to vary."""

    name: str
    values: tuple[ArgumentValue, ...]
    why: str

    @property
    def is_ordered(self) -> bool:
        return all(
            isinstance(one, int | float) and not isinstance(one, bool) for one in self.values
        )


@dataclass(frozen=True, slots=True)
class Space:
    """The knobs, and the knee around which they vary."""

    knobs: tuple[Knob, ...]
    knee: Configuration
    """The profile's own values of the knobs."""

    left_out: tuple[str, ...]
    """Why which argument is not searched by default."""

    def configurations(self, *, live: bool, at: Configuration) -> list[dict[str, ArgumentValue]]:
        """Return every combination of the live knobs' values (or of the others), the rest as in
        ``at``; those that contradict left out."""
        chosen = [knob for knob in self.knobs if (knob.name in LIVE) == live]
        combined = itertools.product(*(knob.values for knob in chosen))
        found = [
            {**at, **dict(zip((knob.name for knob in chosen), values, strict=True))}
            for values in combined
        ]
        return [one for one in found if not contradicts(one)]

    def most(self, name: str, *others: Configuration) -> int:
        """Return the largest value that will be asked of an engine for a live knob."""
        values = [value for knob in self.knobs if knob.name == name for value in knob.values]
        values += [one[name] for one in (self.knee, *others) if name in one]
        return max(number(value) for value in values)


@dataclass(frozen=True, slots=True)
class Demand:
    """What the traffic and the profile say of which arguments can matter."""

    longest_prompt: int
    """p99 of the prompts, in tokens."""

    shares_prefixes: bool
    kv_peak: float
    caps: tuple[int, ...]
    """Of the profile's curve."""


Search = Mapping[str, tuple[ArgumentValue, ...]]
"""What the user named: argument → values."""


def number(value: ArgumentValue) -> int:
    assert isinstance(value, int)
    return value


def memory_of(one: Configuration) -> str | None:
    """Return which argument sizes the KV cache of an engine; None where none is set."""
    return next((name for name in MEMORY if one.get(name) is not None), None)


def frees(one: Configuration, knee: Configuration) -> bool:
    """Whether a configuration does with a smaller KV cache, by WORTH_FREEING at least."""
    for name in MEMORY:
        here, there = one.get(name), knee.get(name)
        if isinstance(here, int | float) and isinstance(there, int | float):
            return here <= (1 - WORTH_FREEING) * there
    return False


def smallest(one: Configuration) -> tuple[float, int]:
    """Return what orders configurations that serve alike: less memory, then fewer slots."""
    memory = one.get(memory_of(one) or "")
    return (float(memory) if isinstance(memory, int | float) else 0.0, number(one[CAP]))


def contradicts(one: Configuration) -> bool:
    """Whether a configuration cannot be: fewer tokens in an iteration than sequences."""
    return TOKENS in one and CAP in one and number(one[TOKENS]) < number(one[CAP])


def restart_key(one: Configuration) -> tuple[tuple[str, str], ...]:
    """Return what two configurations must have in common to be measured on one engine."""
    return tuple(sorted((name, repr(value)) for name, value in one.items() if name not in LIVE))


def default_knobs(
    engine: Configuration, demand: Demand
) -> tuple[dict[str, tuple[tuple[ArgumentValue, ...], str]], list[str]]:
    """Return name → (values, why) around a profile's engine arguments, and what was left out."""
    cap, tokens = number(engine[CAP]), number(engine[TOKENS])
    most = max(demand.caps)
    eighths = {max(1, round(cap * part / 8)) for part in range(4, 9)}
    above = {round(cap * part / 4) for part in range(5, 9)}
    caps = sorted(eighths | {one for one in above if one <= max(most, cap)})
    found: dict[str, tuple[tuple[ArgumentValue, ...], str]] = {
        CAP: (tuple(caps), "between the doublings around the knee"),
        TOKENS: (
            tuple(sorted({max(cap, tokens // 4), max(cap, tokens // 2), tokens, 2 * tokens})),
            "fewer keep iterations short, more let prompts in sooner",
        ),
    }
    left = []
    if demand.shares_prefixes:
        found["enable_prefix_caching"] = ((False, True), "prompts of this trace begin alike")
    else:
        left.append("enable_prefix_caching: no prompts of this trace are known to begin alike")
    found["async_scheduling"] = ((False, True), "the next iteration is scheduled while one runs")
    if demand.longest_prompt > LONG_PROMPT * tokens:
        found["long_prefill_token_threshold"] = (
            (None, max(1, tokens // 4), max(1, tokens // 2)),
            f"prompts of {demand.longest_prompt} tokens take several iterations",
        )
        found["max_num_partial_prefills"] = ((None, 2), "several long prompts at a time")
    else:
        left.append(
            "long_prefill_token_threshold, max_num_partial_prefills: few prompts take more than "
            f"{LONG_PROMPT} iterations"
        )
    if demand.kv_peak >= FULL and "block_size" in engine:
        size = number(engine["block_size"])
        found["block_size"] = (
            tuple(sorted({max(1, size // 2), size, 2 * size})),
            "the KV cache fills up: smaller blocks waste less of it",
        )
    else:
        left.append("block_size: the KV cache does not fill up")
    left.append("kv_cache_dtype: changes what the model answers, which no replay can judge")
    name = memory_of(engine)
    if name is not None:
        left.append(
            f"{name}: at most {demand.kv_peak:.0%} of the KV cache was used; name values with "
            f"--search {name}=… and the smallest that serves as well is kept"
        )
    return found, left


def build_space(
    engine: Configuration,
    demand: Demand,
    named: Search,
    refusal: Callable[[str, ArgumentValue], str | None],
) -> Space:
    """Return the space of these engine arguments: the default knobs, and those that were named.

    ``refusal`` says why the engine would not take a value, None when it does. Raises UsageError for
    a named value that it refuses, and for what contradicts.
    """
    defaults, left = default_knobs(engine, demand)
    knobs = []
    for name, values in named.items():
        for value in values:
            if (said := refusal(name, value)) is not None:
                raise UsageError(
                    f"--search {name}={value}: {said}",
                    hint=f"Leave {value} out of --search {name}.",
                )
        knobs.append(Knob(name, _with(engine.get(name), values), "named with --search"))
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
            left.append(f"{name}: {next(iter(refused.values()), 'there is one value only')}")
    knobs = [knob for knob in knobs if len(knob.values) > 1]
    space = Space(
        knobs=tuple(knobs),
        knee={name: engine.get(name) for name in (*LIVE, *(knob.name for knob in knobs))},
        left_out=tuple(left),
    )
    _check(space, named)
    return space


def _with(own: ArgumentValue, values: Sequence[ArgumentValue]) -> tuple[ArgumentValue, ...]:
    """Return the values with the profile's own (None: vLLM's default), numbers ascending."""
    found = [own, *(value for value in values if value != own)]
    numbers = [one for one in found if isinstance(one, int | float)]
    return tuple(sorted(numbers)) if len(numbers) == len(found) else tuple(found)


def _check(space: Space, named: Search) -> None:
    """Refuse what leaves nothing to search."""
    caps, tokens = ([number(v) for v in named.get(name, ())] for name in LIVE)
    all_caps = [number(v) for k in space.knobs if k.name == CAP for v in k.values]
    all_caps = all_caps or caps or [number(space.knee[CAP])]
    for budget in tokens:
        if budget < min(all_caps):
            raise UsageError(
                f"--search {TOKENS}={budget} is less than every {CAP} ({min(all_caps)} and more)",
                hint=f"Give at least {TOKENS}={min(all_caps)}, or a smaller {CAP}.",
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

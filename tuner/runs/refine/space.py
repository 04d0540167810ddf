"""What a refinement may change: engine arguments, each with the values to try, and why. Pure.

The default space is small: values around the knee, and of the other arguments those that can matter
for this traffic. Whether vLLM takes a value on this machine is asked before.
"""

import itertools
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.engines.seam import ArgumentValue
from tuner.engines.sim.world import padded
from tuner.errors import UsageError

Configuration = Mapping[str, ArgumentValue]
"""Engine argument → value, of the knobs alone."""

CAP, TOKENS, BLOCKS = "max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks_override"
LIVE = (CAP, TOKENS)
"""Knobs that a running engine changes without a restart; all others take a new engine."""

MODELED = (*LIVE, BLOCKS)
"""Knobs of which the twin can tell."""

MEMORY = (BLOCKS, "kv_cache_memory_bytes", "gpu_memory_utilization")
"""Arguments that size the KV cache; the first of them that the engine has set is the one that
counts."""

WORTH_FREEING = 0.2
"""Share of the KV cache that is worth an engine's restart to do without."""

MOST_CONFIGURATIONS = 100_000
MOST_VALUES = 64

STEPS = 8
"""Into how many steps a range without a step is cut."""

LONG_PROMPT = 2
"""A prompt of more iterations of prefill makes others wait for it."""

FULL = 0.8
"""KV-cache usage from which on memory can be what binds."""

LESS_MEMORY = (3 / 4, 1 / 2, 1 / 3)
"""Parts of gpu_memory_utilization to try; the last is the 0.3 of 0.92 of who measured it first."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One engine argument to vary."""

    name: str
    values: tuple[ArgumentValue, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Space:
    """The knobs, and the knee around which they vary."""

    knobs: tuple[Knob, ...]
    knee: Configuration
    """The profile's own values of the knobs."""

    left_out: tuple[str, ...]
    """Why which argument is not searched by default."""

    @property
    def is_live(self) -> bool:
        """Whether one engine serves all of it."""
        return all(knob.name in LIVE for knob in self.knobs)

    def combined(self, names: Collection[str]) -> list[dict[str, ArgumentValue]]:
        """Return every combination of these knobs' values, the rest as in the knee."""
        chosen = [knob for knob in self.knobs if knob.name in names]
        rows = itertools.product(*(knob.values for knob in chosen))
        found = [
            {**self.knee, **dict(zip((knob.name for knob in chosen), row, strict=True))}
            for row in rows
        ]
        return [one for one in found if number(one[TOKENS]) >= number(one[CAP])]

    def holds(self, one: Configuration) -> bool:
        """Whether it is the knee but for knobs, each at one of its values."""
        values = {knob.name: knob.values for knob in self.knobs}
        return one.keys() == self.knee.keys() and all(
            value == self.knee[name] or value in values.get(name, ()) for name, value in one.items()
        )

    def most(self, name: str) -> int:
        """Return the largest value that will be asked of an engine for a live knob."""
        values = [value for knob in self.knobs if knob.name == name for value in knob.values]
        return max(map(number, [*values, self.knee[name]]))


def number(value: ArgumentValue) -> int:
    assert isinstance(value, int)
    return value


def in_words(one: Configuration) -> str:
    return ", ".join(f"{name}={value}" for name, value in one.items() if value is not None)


def restart_key(one: Configuration) -> str:
    """Return what two configurations must have in common to be measured on one engine."""
    return repr(sorted((name, repr(value)) for name, value in one.items() if name not in LIVE))


def memory_of(one: Configuration) -> str | None:
    """Return which argument sizes the KV cache of an engine; None where none is set."""
    return next((name for name in MEMORY if one.get(name) is not None), None)


def frees(one: Configuration, knee: Configuration) -> bool:
    """Whether a configuration does with a smaller KV cache, by WORTH_FREEING at least."""
    return any(
        isinstance(here := one.get(name), int | float)
        and isinstance(there := knee.get(name), int | float)
        and here <= (1 - WORTH_FREEING) * there
        for name in MEMORY
    )


def smallest(one: Configuration) -> tuple[float, int]:
    """Return what orders configurations that serve alike: less memory, then fewer slots."""
    memory = one.get(memory_of(one) or "")
    return (float(memory) if isinstance(memory, int | float) else 0.0, number(one[CAP]))


def fails_like(one: Configuration, failed: Configuration) -> bool:
    """Whether an engine for ``one`` cannot start either, because it needs a restart for the same
    or is given less memory."""
    name = memory_of(failed) or memory_of(one) or ""
    rest = [restart_key({k: v for k, v in each.items() if k != name}) for each in (one, failed)]
    here, there = one.get(name), failed.get(name)
    less = isinstance(here, int | float) and isinstance(there, int | float) and here <= there
    return rest[0] == rest[1] and (less or here == there)


# --search

_PARTS = re.compile(r'"(?:[^"\\]|\\.)*"?|[][{},]|[^][{},"]+')
"""Parts of a list of values: JSON's strings, brackets and commas, and all else."""


def parse_search(texts: Sequence[str]) -> dict[str, list[str]]:
    """Read ``key=a,b,c`` and ``key=low:high[:log|:step]`` as key → values in words.

    A comma within a JSON mapping or list divides nothing:

    >>> parse_search(['kv_cache_dtype=auto,fp8', 'a_config={"b": 1, "c": [2, 3]},{"b": 2}'])
    {'kv_cache_dtype': ['auto', 'fp8'], 'a_config': ['{"b": 1, "c": [2, 3]}', '{"b": 2}']}

    Raises UsageError for anything else, and for a key that is there twice.
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        name = key.strip().removeprefix("--").replace("-", "_")
        if not equals or not name or not value.strip():
            raise _unreadable(text, "is not KEY=VALUES")
        if "." in name:
            head = name.partition(".")[0]
            hint = f"Name all of it: --search '{head}={{...}},{{...}}'."
            raise UsageError(f"--search {name}: one key of {head} is not searched", hint=hint)
        if name in found:
            raise UsageError(f"--search {name} is there twice", hint="Remove one of the two.")
        is_range = ":" in value and not set(value) & set('[{"')
        words = _range(text, value) if is_range else _words(value)
        if not all(words):
            raise _unreadable(text, "has an empty value")
        found[name] = list(dict.fromkeys(words))
    return found


def _words(value: str) -> list[str]:
    words, depth = [""], 0
    for part in _PARTS.findall(value):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(part, 0)
        if part == "," and depth <= 0:
            words.append("")
        else:
            words[-1] += part
    return [word.strip() for word in words]


def _range(text: str, value: str) -> list[str]:
    low_high, is_log = value.removesuffix(":log"), value.endswith(":log")
    try:
        low, high, *rest = map(float, low_high.split(":"))
        step = rest[0] if rest else (high - low) / STEPS
        is_sane = low < high and step > 0 and len(rest) < 2 and (low > 0 or not is_log)
        if not is_sane or not math.isfinite(high - low) or (high - low) / step > MOST_VALUES:
            raise ValueError  # noqa: TRY301
    except (ValueError, IndexError):
        raise _unreadable(text, f"is no range of at most {MOST_VALUES} numbers") from None
    if is_log:
        values = [low * (high / low) ** (i / STEPS) for i in range(STEPS + 1)]
    else:
        values = [low + i * step for i in range(math.floor((high - low) / step + 1e-9) + 1)]
    if all(one.is_integer() for one in (low, high, *rest)) and "." not in value:
        return [str(round(one)) for one in values]
    return [f"{one:.6g}" for one in values]


def _unreadable(text: str, why: str) -> UsageError:
    return UsageError(
        f"--search {text} {why}",
        hint="Write key=a,b,c or key=low:high, key=low:high:log or key=low:high:step.",
    )


# The default space


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
    on_gpu: bool


Named = Mapping[str, tuple[ArgumentValue, ...]]
"""The user's words: argument → values."""

Refusal = Callable[[str, ArgumentValue], str | None]
"""Says why the engine would not take a value; None when it does."""


def default_knobs(engine: Configuration, needs: TrafficNeeds) -> tuple[list[Knob], dict[str, str]]:
    """Return the knobs around a profile's engine arguments, and why others are left out."""
    cap, tokens = number(engine[CAP]), number(engine[TOKENS])
    eighths = {max(1, round(cap * part / 8)) for part in (4, 5, 6, 7, 8, 10, 12, 14, 16)}
    caps = {one for one in eighths if one <= max(*needs.caps, cap)}
    why = "between the doublings around the knee"
    if needs.on_gpu and not engine.get("enforce_eager"):
        # in between a batch costs what the next size does
        caps, why = set(captured(engine, caps)), f"{why}, of the sizes of CUDA graphs"
    budgets = {max(cap, tokens // 4), max(cap, tokens // 2), tokens, 2 * tokens}
    few = "few prompts take several iterations"
    long_ = needs.longest_prompt > LONG_PROMPT * tokens
    size = engine.get("block_size")
    is_full = needs.kv_peak >= FULL and isinstance(size, int)
    sizes = tuple(sorted({max(1, size // 2), size, 2 * size})) if isinstance(size, int) else ()
    rows: list[tuple[str, Collection[ArgumentValue], str, bool, str]] = [
        (CAP, sorted(caps), why, True, ""),
        (TOKENS, sorted(budgets), "fewer keep iterations short, more let prompts in sooner",
         True, ""),
        ("enable_prefix_caching", (False, True), "prompts of this trace begin alike",
         needs.shares_prefixes, "no prompts of this trace are known to begin alike"),
        ("async_scheduling", (False, True), "the next iteration is scheduled while one runs",
         True, ""),
        ("long_prefill_token_threshold", (None, max(1, tokens // 4), max(1, tokens // 2)),
         f"prompts of {needs.longest_prompt} tokens take several iterations", long_, few),
        ("max_num_partial_prefills", (None, 2), "several long prompts at a time", long_, few),
        ("block_size", sizes, "the KV cache fills up: smaller blocks waste less of it", is_full,
         "the KV cache does not fill up"),
        ("kv_cache_dtype", (), "", False,
         "changes what the model answers, which no replay can judge"),
        *_memory(engine, needs),
    ]  # fmt: skip
    knobs = [Knob(name, tuple(values), why) for name, values, why, is_in, _ in rows if is_in]
    return knobs, {name: why_not for name, _, _, is_in, why_not in rows if not is_in}


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
    engine: Configuration, needs: TrafficNeeds
) -> list[tuple[str, Collection[ArgumentValue], str, bool, str]]:
    """Return less memory as a knob where a GPU is shared out by it; elsewhere what would do.

    Of a host's memory, or of blocks, the size that would do is known without a trial.
    """
    name = memory_of(engine)
    own = engine.get(name or "")
    if name is None or not isinstance(own, int | float):
        return []
    used = f"at most {needs.kv_peak:.0%} of the KV cache was used"
    least = own * needs.kv_peak / FULL  # all of it KV cache: weights only make it more
    if name == "gpu_memory_utilization" and needs.on_gpu:
        parts = [round(own * part, 2) for part in LESS_MEMORY]
        values = sorted({own, *(one for one in parts if one >= least)})
        return [(name, values, f"{used}: less may do", len(values) > 1, used)]
    why_not = used
    if least < own and isinstance(own, int):
        why_not = (
            f"{used}; --search {name}={math.ceil(least)} is the least that keeps it off the limit, "
            "and less that serves as well is kept"
        )
    return [(name, (), "", False, why_not)]


def build_space(
    engine: Configuration, needs: TrafficNeeds, named: Named, refusal: Refusal
) -> Space:
    """Return the space of these engine arguments: the default knobs, and those that were named.

    Raises UsageError for a named value that the engine refuses, and for what contradicts.
    """
    defaults, left = default_knobs(engine, needs)
    knobs = []
    for name, values in named.items():
        _check_named(name, values, engine, needs)
        for value in values:
            if (why := refusal(name, value)) is not None:
                hint = f"Leave {value} out of --search {name}."
                raise UsageError(f"--search {name}={value}: {why}", hint=hint)
        knobs.append(Knob(name, _with(engine.get(name), values), "named with --search"))
        left.pop(name, None)
    for knob in defaults:
        if knob.name in named:
            continue
        refused = {
            value: why
            for value in knob.values
            if value is not None and (why := refusal(knob.name, value)) is not None
        }
        kept = _with(engine.get(knob.name), [v for v in knob.values if v not in refused])
        knobs.append(Knob(knob.name, kept, knob.why))
        if len(kept) < 2:
            left[knob.name] = next(iter(refused.values()), "there is one value only")
    knobs = [knob for knob in knobs if len(knob.values) > 1]
    names: dict[str, list[str]] = {}
    for name, why in left.items():
        names.setdefault(why, []).append(name)
    space = Space(
        knobs=tuple(knobs),
        knee={name: engine.get(name) for name in (*LIVE, *(knob.name for knob in knobs))},
        left_out=tuple(f"{', '.join(each)}: {why}" for why, each in names.items()),
    )
    size = math.prod(len(knob.values) for knob in knobs)
    if size > MOST_CONFIGURATIONS:
        raise UsageError(
            f"the space has {size:,} configurations", hint="Name fewer values with --search."
        )
    if all(one == space.knee for one in space.combined([knob.name for knob in knobs])):
        raise UsageError(
            "the space is empty: nothing differs from the profile, or every max_num_seqs is above "
            "every max_num_batched_tokens",
            hint="Name other values, such as --search max_num_batched_tokens=1024,2048.",
        )
    return space


def _with(own: ArgumentValue, values: Sequence[ArgumentValue]) -> tuple[ArgumentValue, ...]:
    """Return the values with the profile's own (None: vLLM's default), numbers ascending."""
    found = [own, *(value for value in values if value != own)]
    numbers = [one for one in found if isinstance(one, int | float)]
    return tuple(sorted(numbers)) if len(numbers) == len(found) else tuple(found)


def _check_named(
    name: str, values: Sequence[ArgumentValue], engine: Configuration, needs: TrafficNeeds
) -> None:
    """Refuse what changes nothing, and what no engine could ever fill: it would only be built too
    large to start."""
    binding = memory_of(engine)
    if name in MEMORY and binding is not None and MEMORY.index(binding) < MEMORY.index(name):
        why = f"{binding}={engine[binding]} of the profile sizes the KV cache, whatever it is"
        raise UsageError(f"--search {name}: {why}", hint=f"Drop --search {name}.")
    most_cap = max(needs.requests, *needs.caps, number(engine[CAP]))
    most = {CAP: most_cap, TOKENS: most_cap * number(engine["max_model_len"])}
    least = {CAP: 1, TOKENS: min(number(engine[CAP]), *needs.caps)}
    for value in values if name in LIVE else ():
        if not least[name] <= number(value) <= most[name]:
            raise UsageError(
                f"--search {name}={value}: only {least[name]} to {most[name]} can matter for "
                f"{needs.requests} requests",
                hint="Name a value in between.",
            )

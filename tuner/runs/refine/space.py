"""What a refinement may change: engine arguments, each with the values to try, and why. Pure.

The default space is small: values around the knee, and the other arguments that can matter for
this traffic. Whether vLLM takes a value on this machine is checked before.
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
from tuner.runs.events import Configuration

CAP, TOKENS, BLOCKS = "max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks_override"
LIVE = (CAP, TOKENS)
"""Knobs that a running engine changes without a restart; all others take a new engine."""

MODELED = (*LIVE, BLOCKS)
"""Knobs whose effect the twin predicts."""

MEMORY = (BLOCKS, "kv_cache_memory_bytes", "gpu_memory_utilization")
"""Arguments that size the KV cache; the first of them that is set counts."""

WORTH_FREEING = 0.2
"""Share of the KV cache that is worth an engine's restart to do without."""

MOST_CONFIGURATIONS = 100_000
MOST_VALUES = 64
STEPS = 8
"""Into how many steps a range without a step is cut."""

FULL = 0.8
"""KV-cache usage from which on memory can be what binds."""

LESS_MEMORY = (3 / 4, 1 / 2, 1 / 3)
"""Parts of gpu_memory_utilization to try."""


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
        every = [
            {**self.knee, **{knob.name: v for knob, v in zip(chosen, row, strict=True)}}
            for row in rows
        ]
        return [each for each in every if number(each[TOKENS]) >= number(each[CAP])]

    def holds(self, configuration: Configuration) -> bool:
        """Whether it is the knee but for knobs, each at one of its values."""
        values = {knob.name: knob.values for knob in self.knobs}
        return configuration.keys() == self.knee.keys() and all(
            value == self.knee[name] or value in values.get(name, ())
            for name, value in configuration.items()
        )

    def most(self, name: str) -> int:
        """Return the largest value that any configuration has for a live knob."""
        values = [value for knob in self.knobs if knob.name == name for value in knob.values]
        return max(map(number, [*values, self.knee[name]]))


def number(value: ArgumentValue) -> int:
    assert isinstance(value, int)
    return value


def in_words(configuration: Configuration) -> str:
    return ", ".join(f"{name}={v}" for name, v in configuration.items() if v is not None)


def restart_key(configuration: Configuration) -> str:
    """Return what two configurations must have in common to be measured on one engine."""
    return repr(sorted((k, repr(v)) for k, v in configuration.items() if k not in LIVE))


def is_live(here: Configuration, there: Configuration) -> bool:
    """Whether one engine can serve both."""
    return restart_key(here) == restart_key(there)


def _less(here: Configuration, there: Configuration, share: float) -> bool:
    """Whether a configuration has at most this share of the other's memory for the KV cache."""
    pairs = ((here.get(name), there.get(name)) for name in MEMORY)
    return any(
        isinstance(a, int | float) and isinstance(b, int | float) and a <= share * b
        for a, b in pairs
    )


def frees(configuration: Configuration, knee: Configuration) -> bool:
    """Whether it does with a smaller KV cache, by WORTH_FREEING at least."""
    return _less(configuration, knee, 1 - WORTH_FREEING)


def fails_like(configuration: Configuration, failed: Configuration) -> bool:
    """Whether an engine cannot start either: it needs the same restart, or has less memory."""
    return is_live(configuration, failed) or _less(configuration, failed, 1 - 1e-9)


def smallest(configuration: Configuration) -> tuple[float, int]:
    """Return what orders configurations that serve alike: less memory, then fewer slots."""
    sizes = [v for name in MEMORY if isinstance(v := configuration.get(name), int | float)]
    return (float(sizes[0]) if sizes else 0.0, number(configuration[CAP]))


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
    searched: dict[str, list[str]] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        name = key.strip().removeprefix("--").replace("-", "_")
        if not equals or not name or not value.strip():
            raise _unreadable(text, "is not KEY=VALUES")
        if "." in name:
            head = name.partition(".")[0]
            hint = f"Name all of it: --search '{head}={{...}},{{...}}'."
            raise UsageError(f"--search {name}: one key of {head} is not searched", hint=hint)
        if name in searched:
            raise UsageError(f"--search {name} is there twice", hint="Remove one of the two.")
        is_range = ":" in value and not set(value) & set('[{"')
        words = _range(text, value) if is_range else _words(value)
        if not all(words):
            raise _unreadable(text, "has an empty value")
        searched[name] = list(dict.fromkeys(words))
    return searched


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
    is_log = value.endswith(":log")
    try:
        low, high, *rest = map(float, value.removesuffix(":log").split(":"))
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
    if all(each.is_integer() for each in (low, high, *rest)) and "." not in value:
        return [str(round(each)) for each in values]
    return [f"{each:.6g}" for each in values]


def _unreadable(text: str, why: str) -> UsageError:
    return UsageError(
        f"--search {text} {why}",
        hint="Write key=a,b,c or key=low:high, key=low:high:log or key=low:high:step.",
    )


# The default space


@dataclass(frozen=True, slots=True)
class TrafficNeeds:
    """The facts of traffic and profile that decide which arguments can matter."""

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

Row = tuple[str, Collection[ArgumentValue], str, bool, str]
"""Argument, values, why it is searched, whether it is, why it is not."""


def default_rows(engine: Configuration, needs: TrafficNeeds) -> list[Row]:
    """Return what may be searched around a profile's engine arguments."""
    cap, tokens = number(engine[CAP]), number(engine[TOKENS])
    eighths = {max(1, round(cap * part / 8)) for part in (4, 5, 6, 7, 8, 10, 12, 14, 16)}
    caps = {each for each in eighths if each <= max(*needs.caps, cap)}
    if needs.on_gpu and not engine.get("enforce_eager"):
        # in between a batch costs what the next size of CUDA graphs does
        caps = set(padded(np.array(sorted(caps))).tolist())
    budgets = {max(cap, tokens // 4), max(cap, tokens // 2), tokens, 2 * tokens}
    own = engine.get("gpu_memory_utilization")
    is_shared = needs.on_gpu and isinstance(own, float) and not engine.get(BLOCKS)
    parts = [round(own * part, 2) for part in LESS_MEMORY] if isinstance(own, float) else []
    # all of it KV cache: weights only make it more
    least = own * needs.kv_peak / FULL if isinstance(own, float) else 0.0
    less = [part for part in parts if part >= least]
    used = f"at most {needs.kv_peak:.0%} of the KV cache was used"
    return [
        (CAP, sorted(caps), "between the doublings around the knee", True, ""),
        (TOKENS, sorted(budgets), "fewer keep iterations short, more let prompts in sooner",
         True, ""),
        ("enable_prefix_caching", (False, True), "prompts of this trace begin alike",
         needs.shares_prefixes, "no prompts of this trace are known to begin alike"),
        ("async_scheduling", (False, True), "the next iteration is scheduled while one runs",
         True, ""),
        ("gpu_memory_utilization", [*less, own], f"{used}: less may do",
         is_shared and bool(less), used),
    ]  # fmt: skip


def build_space(
    engine: Configuration, needs: TrafficNeeds, named: Named, refusal: Refusal
) -> Space:
    """Return the space of these engine arguments: the default knobs, and those that were named.

    Raises UsageError for a named value that the engine refuses, and for what contradicts.
    """
    knobs, left = [], dict[str, list[str]]()
    for name, values in named.items():
        _check_limits(name, values, engine, needs)
        for value in values:
            if (why := refusal(name, value)) is not None:
                hint = f"Leave {value} out of --search {name}."
                raise UsageError(f"--search {name}={value}: {why}", hint=hint)
        knobs.append(Knob(name, _with(engine.get(name), values), "named with --search"))
    for name, tried, why, is_in, why_not in default_rows(engine, needs):
        if name in named:
            continue
        reasons = [refusal(name, v) for v in tried] if is_in else []
        taken = [v for v, why in zip(tried, reasons, strict=False) if why is None]
        kept = _with(engine.get(name), taken)
        if len(kept) > 1:
            knobs.append(Knob(name, kept, why))
        else:
            refused = next(filter(None, reasons), "there is one value only")
            left.setdefault(refused if is_in else why_not, []).append(name)
    knobs = [knob for knob in knobs if len(knob.values) > 1]
    space = Space(
        knobs=tuple(knobs),
        knee={name: engine.get(name) for name in (*LIVE, *(knob.name for knob in knobs))},
        left_out=tuple(f"{', '.join(names)}: {why}" for why, names in left.items()),
    )
    size = math.prod(len(knob.values) for knob in knobs)
    if size > MOST_CONFIGURATIONS:
        raise UsageError(
            f"the space has {size:,} configurations", hint="Name fewer values with --search."
        )
    if all(each == space.knee for each in space.combined([knob.name for knob in knobs])):
        raise UsageError(
            "the space is empty: nothing differs from the profile, or every max_num_seqs is above "
            "every max_num_batched_tokens",
            hint="Name other values, such as --search max_num_batched_tokens=1024,2048.",
        )
    return space


def _with(own: ArgumentValue, values: Sequence[ArgumentValue]) -> tuple[ArgumentValue, ...]:
    """Return the values with the profile's own (None: vLLM's default), numbers ascending."""
    every = [own, *(value for value in values if value != own)]
    numbers = [each for each in every if isinstance(each, int | float)]
    return tuple(sorted(numbers)) if len(numbers) == len(every) else tuple(every)


def _check_limits(
    name: str, values: Sequence[ArgumentValue], engine: Configuration, needs: TrafficNeeds
) -> None:
    """Refuse what no traffic could ever fill: an engine would only be too large to start."""
    most_cap = max(needs.requests, *needs.caps, number(engine[CAP]))
    limits = {
        CAP: (1, most_cap),
        TOKENS: (min(number(engine[CAP]), *needs.caps), most_cap * number(engine["max_model_len"])),
    }
    for value in values if name in LIVE else ():
        least, most = limits[name]
        if not least <= number(value) <= most:
            raise UsageError(
                f"--search {name}={value}: only {least} to {most} can matter for "
                f"{needs.requests} requests",
                hint="Name a value in between.",
            )

"""What a refinement may change: engine arguments, each with the values to try, and why. Pure.

The default space is small: values around the knee, and the other arguments that can matter for
this traffic. Whether vLLM takes a value on this machine is checked before.
"""

import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.engines.seam import ArgumentValue
from tuner.engines.sim.world import padded
from tuner.errors import UsageError
from tuner.runs.journal import Configuration

CAP, TOKENS, BLOCKS = "max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks_override"
LIVE = (CAP, TOKENS)
"""Knobs that a running engine changes without a restart; all others take a new engine."""

MODELED = (*LIVE, BLOCKS)
"""Knobs whose effect the twin predicts."""

MOST_CONFIGURATIONS = 100_000


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

    def combined(self, names: Collection[str]) -> list[Configuration]:
        """Return every combination of these knobs' values, the rest as in the knee."""
        knobs = [knob for knob in self.knobs if knob.name in names]
        rows = itertools.product(*([(knob.name, v) for v in knob.values] for knob in knobs))
        every = [{**self.knee, **dict(row)} for row in rows]
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


# --search

_PARTS = re.compile(r'"(?:[^"\\]|\\.)*"?|[][{},]|[^][{},"]+')
"""Parts of a list of values: JSON's strings, brackets and commas, and all else."""


def parse_search(texts: Sequence[str]) -> dict[str, list[str]]:
    """Read ``key=a,b,c`` as key → values in words; a comma within JSON divides nothing.

    >>> parse_search(['kv_cache_dtype=auto,fp8', 'a_config={"b": 1, "c": [2, 3]},{"b": 2}'])
    {'kv_cache_dtype': ['auto', 'fp8'], 'a_config': ['{"b": 1, "c": [2, 3]}', '{"b": 2}']}

    Raises UsageError for anything else, and for a key that is there twice.
    """
    searched: dict[str, list[str]] = {}
    for text in texts:
        key, _, value = text.partition("=")
        name, words = key.strip().removeprefix("--").replace("-", "_"), _words(value)
        if not name or "." in name or name in searched or not all(words):
            raise UsageError(
                f"--search {text}: is no list of values, or its key is there twice",
                hint="Write key=a,b,c, a key once; of a JSON argument name all of it: "
                "key={...},{...}.",
            )
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


# The space


@dataclass(frozen=True, slots=True)
class TrafficNeeds:
    """The facts of traffic and profile that decide which arguments can matter."""

    shares_prefixes: bool
    caps: tuple[int, ...]
    """Of the profile's curve."""

    requests: int
    on_gpu: bool


Refusal = Callable[[str, ArgumentValue], str | None]
"""Says why the engine would not take a value; None when it does."""


def default_knobs(engine: Configuration, needs: TrafficNeeds) -> list[Knob]:
    """Return what may be searched around a profile's engine arguments; a knob without values, why
    not."""
    cap, tokens = number(engine[CAP]), number(engine[TOKENS])
    eighths = {max(1, round(cap * part / 8)) for part in (4, 5, 6, 7, 8, 10, 12, 14, 16)}
    caps = {each for each in eighths if each <= max(*needs.caps, cap)}
    if needs.on_gpu and not engine.get("enforce_eager"):
        # in between a batch costs what the next size of CUDA graphs does
        caps = set(padded(np.array(sorted(caps))).tolist())
    budgets = {max(cap, tokens // 4), max(cap, tokens // 2), tokens, 2 * tokens}
    prefixes = Knob("enable_prefix_caching", (False, True), "prompts of this trace begin alike")
    if not needs.shares_prefixes:
        prefixes = Knob(prefixes.name, (), "no prompts of this trace are known to begin alike")
    return [
        Knob(CAP, tuple(sorted(caps)), "between the doublings around the knee"),
        Knob(TOKENS, tuple(sorted(budgets)), "fewer keep iterations short, more let prompts in"),
        prefixes,
        Knob("async_scheduling", (False, True), "the next iteration is scheduled while one runs"),
    ]


def build_space(
    engine: Configuration,
    needs: TrafficNeeds,
    named: Mapping[str, tuple[ArgumentValue, ...]],
    refusal: Refusal,
) -> Space:
    """Return the space of these engine arguments: the default knobs, and those that were named.

    Raises UsageError for a named value that the engine refuses or no traffic could fill, and for a
    space that is empty or too large.
    """
    knobs, left_out = [], list[str]()
    most_cap = max(needs.requests, *needs.caps, number(engine[CAP]))
    for name, values in named.items():
        limit = {CAP: most_cap, TOKENS: most_cap * number(engine["max_model_len"])}.get(name)
        for value in values:
            why = None
            if limit is not None and not 1 <= number(value) <= limit:
                why = f"only up to {limit} can matter for {needs.requests} requests"
            if why := why or refusal(name, value):
                raise UsageError(
                    f"--search {name}={value}: {why}", hint=f"Leave {value} out of it."
                )
        knobs.append(Knob(name, _with(engine.get(name), values), "named with --search"))
    for knob in default_knobs(engine, needs):
        if knob.name in named:
            continue
        refused = {value: refusal(knob.name, value) for value in knob.values}
        kept = _with(engine.get(knob.name), [v for v, why in refused.items() if why is None])
        knobs.append(Knob(knob.name, kept, knob.why))
        if len(kept) == 1:
            why = next(filter(None, refused.values()), "" if knob.values else knob.why)
            left_out.append(f"{knob.name}: {why or 'there is one value only'}")
    knobs = [knob for knob in knobs if len(knob.values) > 1]
    knee = {name: engine.get(name) for name in (*LIVE, *(knob.name for knob in knobs))}
    space = Space(tuple(knobs), knee, tuple(left_out))
    size = math.prod(len(knob.values) for knob in knobs)
    if size > MOST_CONFIGURATIONS or space.combined([knob.name for knob in knobs]) in ([], [knee]):
        raise UsageError(
            f"the space has {size:,} configurations, or none in which max_num_seqs is at most "
            "max_num_batched_tokens and anything differs from the profile",
            hint="Name other values, such as --search max_num_batched_tokens=1024,2048.",
        )
    return space


def _with(own: ArgumentValue, values: Iterable[ArgumentValue]) -> tuple[ArgumentValue, ...]:
    """Return the values with the profile's own (None: vLLM's default), numbers ascending."""
    every = [own, *(value for value in values if value != own)]
    numbers = [each for each in every if isinstance(each, int | float)]
    return tuple(sorted(numbers)) if len(numbers) == len(every) else tuple(every)

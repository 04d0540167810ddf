"""What a refinement may change: engine arguments, each with the values to try, and why. Pure.

The default space is small: values around the knee, and the other arguments that can matter for
this traffic. Whether vLLM takes a value on this machine is checked before.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import yaml

from tuner.engines.seam import ArgumentValue
from tuner.engines.sim.world import padded
from tuner.errors import UsageError
from tuner.profile.profile import ServingProfile
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

    @property
    def is_live(self) -> bool:
        """Whether one engine serves all of it."""
        return all(knob.name in LIVE for knob in self.knobs)

    def modeled(self) -> list[Configuration]:
        """Return every combination of what the twin predicts, the rest as in the knee."""
        knobs = [knob for knob in self.knobs if knob.name in MODELED]
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


def parse_search(texts: Sequence[str]) -> dict[str, tuple[ArgumentValue, ...]]:
    """Read ``key=a,b,c`` as key → values, as YAML and JSON have them.

    >>> parse_search(['kv_cache_dtype=auto,fp8', 'a_config={"b": 1, "c": [2, 3]},{"b": 2}'])
    {'kv_cache_dtype': ('auto', 'fp8'), 'a_config': ({'b': 1, 'c': [2, 3]}, {'b': 2})}

    Raises UsageError for anything else, and for a key that is there twice.
    """
    searched: dict[str, tuple[ArgumentValue, ...]] = {}
    for text in texts:
        key, _, value = text.partition("=")
        name = key.strip().removeprefix("--").replace("-", "_")
        try:
            values = yaml.safe_load(f"[{value}]")
        except (yaml.YAMLError, ValueError, RecursionError):
            values = []
        is_live = all(type(each) is int and each > 0 for each in values) or name not in LIVE
        if not values or not is_live or not name.isidentifier() or name in searched:
            raise UsageError(
                f"--search {text}: is no list of values, or its key is there twice",
                hint="Write key=a,b,c, a key once, numbers above 0 for max_num_seqs and "
                "max_num_batched_tokens; of a JSON argument all of it: key={...},{...}.",
            )
        searched[name] = tuple(values)
    return searched


def build_space(
    profile: ServingProfile,
    named: Mapping[str, tuple[ArgumentValue, ...]],
    refusal: Callable[[str, ArgumentValue], str | None],
    *,
    requests: int,
    shares_prefixes: bool,
) -> Space:
    """Return the space around a profile for the traffic of so many requests: the default knobs, and
    those that were ``named``. ``refusal`` says why the engine would not take a value.

    Raises UsageError for a named value that the engine refuses or no traffic could fill, and for a
    space that is empty or too large.
    """
    engine = profile.engine
    cap, tokens = number(engine[CAP]), number(engine[TOKENS])
    most_cap = max(cap, *(step.max_num_seqs for step in profile.curve))
    eighths = {max(1, round(cap * part / 8)) for part in (4, 5, 6, 7, 8, 10, 12, 14, 16)}
    caps = {each for each in eighths if each <= most_cap}
    if profile.provenance.device.get("kind") == "gpu" and not engine.get("enforce_eager"):
        # in between a batch costs what the next size of CUDA graphs does
        caps = set(padded(np.array(sorted(caps))).tolist())
    budgets = (max(cap, tokens // 4), max(cap, tokens // 2), 2 * tokens)
    prefixes = (False, True) if shares_prefixes else ()
    default = [
        Knob(CAP, tuple(caps), "between the doublings around the knee"),
        Knob(TOKENS, budgets, "fewer keep iterations short, more let prompts in"),
        Knob("enable_prefix_caching", prefixes, "prompts of this trace begin alike"),
        Knob("async_scheduling", (False, True), "the next iteration is scheduled while one runs"),
    ]
    knobs = []
    most_cap = max(most_cap, requests)
    limits = {CAP: most_cap, TOKENS: most_cap * number(engine.get("max_model_len", 1))}
    for name, values in named.items():
        for value in values:
            why = refusal(name, value)
            if name in limits and number(value) > limits[name]:
                why = f"only up to {limits[name]} can matter for {requests} requests"
            if why:
                raise UsageError(
                    f"--search {name}={value}: {why}", hint=f"Leave {value} out of it."
                )
        knobs.append(Knob(name, _with(engine.get(name), values), "named with --search"))
    for knob in default:
        if knob.name not in named:
            kept = [value for value in knob.values if refusal(knob.name, value) is None]
            knobs.append(Knob(knob.name, _with(engine.get(knob.name), kept), knob.why))
    knobs = [knob for knob in knobs if len(knob.values) > 1]
    if not knobs or math.prod(len(knob.values) for knob in knobs) > MOST_CONFIGURATIONS:
        raise UsageError(
            f"--search leaves nothing to search, or more than {MOST_CONFIGURATIONS:,} "
            "configurations",
            hint="Name other values, such as --search max_num_batched_tokens=1024,2048.",
        )
    knee = {name: engine.get(name) for name in (*LIVE, *(knob.name for knob in knobs))}
    return Space(tuple(knobs), knee)


def _with(own: ArgumentValue, values: Iterable[ArgumentValue]) -> tuple[ArgumentValue, ...]:
    """Return the values with the profile's own (None: vLLM's default), numbers ascending."""
    every = [own, *(value for value in values if value != own)]
    numbers = [each for each in every if isinstance(each, int | float)]
    return tuple(sorted(numbers)) if len(numbers) == len(every) else tuple(every)

"""The knobs that `tuner refine` may turn, each with the values to try, and why. Pure."""

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.engines.seam import ArgumentValue
from tuner.errors import UsageError

Configuration = Mapping[str, ArgumentValue]
"""Engine argument → value, of the knobs alone."""

CAP, TOKENS = "max_num_seqs", "max_num_batched_tokens"
LIVE = (CAP, TOKENS)
"""Knobs that a running engine changes without a restart; all others take a new engine."""

MEMORY = ("num_gpu_blocks_override", "kv_cache_memory_bytes", "gpu_memory_utilization")
"""Arguments that size the KV cache; the first of them that the engine has set is the one that
counts."""

WORTH_FREEING = 0.2
"""Share of the KV cache that is worth an engine's restart to do without."""


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


def fails_like(one: Configuration, failed: Configuration) -> bool:
    """Whether an engine for ``one`` cannot start either, because it needs a restart for the same
    or is given less memory."""
    name = memory_of(failed) or memory_of(one) or ""
    rest = [restart_key({k: v for k, v in each.items() if k != name}) for each in (one, failed)]
    here, there = one.get(name), failed.get(name)
    less = isinstance(here, int | float) and isinstance(there, int | float) and here <= there
    return rest[0] == rest[1] and (less or here == there)


def restart_key(one: Configuration) -> tuple[tuple[str, str], ...]:
    """Return what two configurations must have in common to be measured on one engine."""
    return tuple(sorted((name, repr(value)) for name, value in one.items() if name not in LIVE))


STEPS = 8
"""Into how many steps a range without a step is cut."""


MOST_VALUES = 64


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
        head, dot, rest = name.partition(".")
        if dot:
            first = value.partition(",")[0]
            whole = f'{head}={{"{rest}": {first if _is_json(first) else json.dumps(first)}}}'
            raise UsageError(
                f"--search {name}: one key of {head} alone is not searched",
                hint=f"Name all of it: --search '{whole}'.",
            )
        if not equals or not name or not value.strip():
            raise _unreadable(text, "is not KEY=VALUES")
        if name in found:
            raise UsageError(f"--search {name} is there twice", hint="Remove one of the two.")
        words = _range(text, value) if ":" in value and not set(value) & set('[{"') else None
        if words is None:
            words = _words(value)
        if not all(words):
            raise _unreadable(text, "has an empty value")
        found[name] = list(dict.fromkeys(words))
    return found


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


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
    parts = [part.strip() for part in value.split(":")]
    kind = parts[2] if len(parts) == 3 else ""
    numbers = parts[:2] if kind in {"", "log"} else parts
    if len(parts) > 3:
        raise _unreadable(text, "has too many parts")
    try:
        low, high, *step = map(float, numbers)
    except ValueError:
        raise _unreadable(text, "is no range of numbers") from None
    if not all(map(math.isfinite, (low, high, *step))) or low >= high:
        raise _unreadable(text, "is an empty range")
    if (step and step[0] <= 0) or (kind == "log" and low <= 0):
        raise _unreadable(text, "has no such steps")
    if kind == "log":
        values = [low * (high / low) ** (i / STEPS) for i in range(STEPS + 1)]
    else:
        size = step[0] if step else (high - low) / STEPS
        if (high - low) / size > MOST_VALUES:
            raise _unreadable(text, f"has more than {MOST_VALUES} values")
        values = [low + i * size for i in range(math.floor((high - low) / size + 1e-9) + 1)]
    if all(float(one).is_integer() for one in map(float, numbers)) and "." not in value:
        return [str(round(one)) for one in values]
    return [f"{one:.6g}" for one in values]


def _unreadable(text: str, why: str) -> UsageError:
    return UsageError(
        f"--search {text} {why}",
        hint="Write key=a,b,c or key=low:high, key=low:high:log or key=low:high:step.",
    )

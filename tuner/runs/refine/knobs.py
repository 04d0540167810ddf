"""What `tuner refine` may change: knobs, each with the values to try, and why. Pure."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.engines.seam import ArgumentValue

Configuration = Mapping[str, ArgumentValue]
"""Engine argument → value, of the knobs alone."""

CAP, TOKENS = "max_num_seqs", "max_num_batched_tokens"
LIVE = (CAP, TOKENS)
"""What a running engine changes without a restart; everything else takes a new engine."""

MEMORY = ("num_gpu_blocks_override", "kv_cache_memory_bytes", "gpu_memory_utilization")
"""What sizes the KV cache; the first of them that the engine has set is the one that counts."""

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

    def most(self, name: str, *others: Configuration) -> int:
        """Return the largest value that will be asked of an engine for a live knob."""
        values = [value for knob in self.knobs if knob.name == name for value in knob.values]
        values += [one[name] for one in (self.knee, *others) if name in one]
        return max(number(value) for value in values)


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

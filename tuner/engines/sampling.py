"""The parameters by which tokens are drawn while it is measured. Pure.

Drawing takes time in every iteration. So it is done as in production: by the model's generation
configuration, or as the profile that is verified was measured.
"""

import math
from collections.abc import Iterator, Mapping

from tuner.engines.arguments import ArgumentValue

Sampling = Mapping[str, float]
"""vLLM's sampling parameters by their names."""

GREEDY: Sampling = {"temperature": 0.0}

_NAMES = (
    *("temperature", "top_p", "top_k", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)
"""Nothing else of a request is set by a profile; what their values may be is for vLLM to say."""


def sampled(
    defaults: Mapping[str, ArgumentValue], chosen: Mapping[str, ArgumentValue]
) -> dict[str, float]:
    """Return how an engine draws: ``defaults`` are of its generation configuration, ``chosen`` are
    what counts more. vLLM's own temperature is 1.

    >>> sampled({"top_p": 0.8, "max_tokens": 2048}, {"temperature": 0.7})
    {'temperature': 0.7, 'top_p': 0.8}
    """
    merged = {"temperature": 1.0, **defaults, **chosen}
    return {name: value for name in _NAMES if isinstance(value := merged.get(name), int | float)}


def as_sent(sampling: Sampling) -> dict[str, float]:
    """Return parameters as requests carry them: whole numbers without a point."""
    return {name: int(each) if each == int(each) else each for name, each in sampling.items()}


def faults(sampling: Sampling) -> Iterator[str]:
    """Yield what is no parameter of sampling.

    >>> list(faults({"temperature": 0.7, "n": 2.0}))
    ['n is no parameter of sampling']
    """
    for name, value in sampling.items():
        if name not in _NAMES or not math.isfinite(value):
            yield f"{name} is no parameter of sampling"

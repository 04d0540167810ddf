"""The parameters by which tokens are drawn while it is measured. Pure.

Drawing takes time in every iteration. So it is done as in production: by the model's generation
configuration, or as the profile that is verified was measured.
"""

from collections.abc import Iterator, Mapping

from tuner.engines.arguments import ArgumentValue

Sampling = Mapping[str, float]
"""vLLM's sampling parameters by their names."""

GREEDY: Sampling = {"temperature": 0.0}

_RANGES = {
    "temperature": (0.0, 2.0),
    "top_p": (0.001, 1.0),
    "top_k": (0, 2**31),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.001, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}
"""Parameter → least and most; a range of whole numbers takes no others."""


def sampled(
    defaults: Mapping[str, ArgumentValue], chosen: Mapping[str, ArgumentValue]
) -> dict[str, float]:
    """Return how an engine draws: ``defaults`` are of its generation configuration, ``chosen`` are
    what counts more. vLLM's own temperature is 1; what is out of range is taken to its end.

    >>> sampled({"top_p": 0.8, "top_k": -1, "max_tokens": 2048}, {"temperature": 0.7})
    {'temperature': 0.7, 'top_p': 0.8, 'top_k': 0}
    """
    merged = {"temperature": 1.0, **defaults, **chosen}
    return {
        name: type(least)(min(max(value, least), most))
        for name, (least, most) in _RANGES.items()
        if isinstance(value := merged.get(name), int | float)
    }


def faults(sampling: Sampling) -> Iterator[str]:
    """Yield what is no parameter of sampling, or out of its range.

    >>> list(faults({"temperature": 0.7, "n": 2.0, "top_k": 0.5}))
    ['n is no parameter of sampling', 'top_k is not a whole number from 0 to 2147483648']
    """
    for name, value in sampling.items():
        if name not in _RANGES:
            yield f"{name} is no parameter of sampling"
            continue
        least, most = _RANGES[name]
        is_integer = isinstance(least, int)
        if not least <= value <= most or (is_integer and value != int(value)):
            yield f"{name} is not {'a whole number ' * is_integer}from {least} to {most}"


def as_sent(sampling: Sampling) -> dict[str, float]:
    """Return parameters as requests carry them: whole numbers without a point."""
    return {name: type(_RANGES[name][0])(value) for name, value in sampling.items()}

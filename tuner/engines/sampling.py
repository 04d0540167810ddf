"""The parameters by which tokens are drawn while it is measured: ``--sampling``. Pure.

Drawing takes time in every iteration. So it is done as in production: by the model's generation
configuration, and what the option adds.
"""

from collections.abc import Iterator, Mapping

from tuner.engines.arguments import ArgumentValue
from tuner.errors import UsageError

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


def parse_sampling(text: str | None) -> dict[str, float]:
    """Read ``temperature=0.7,top_p=0.9``. Raises UsageError.

    >>> parse_sampling("temperature=0.7, top_k=20")
    {'temperature': 0.7, 'top_k': 20}
    """
    hint = f"Give some of {', '.join(_RANGES)}, as in temperature=0.7,top_p=0.9."
    pairs = [part.partition("=") for part in text.split(",")] if text is not None else []
    try:
        result = {name.strip(): float(written) for name, _, written in pairs}
    except ValueError as problem:
        raise UsageError(f"--sampling {text}: {problem}", hint=hint) from None
    for fault in faults(result):
        raise UsageError(f"--sampling {text}: {fault}", hint=hint)
    return as_sent(result)


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

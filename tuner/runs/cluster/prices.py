"""The prices of GPUs, as somebody states them, and of tokens with that. Pure."""

import math
from collections.abc import Mapping

from tuner.errors import UsageError


def parse_prices(text: str | None) -> dict[str, float]:
    """Return part of a device's name → price per hour. Raises UsageError for what is no price.

    >>> parse_prices("h100=4.1,a100=2.2")
    {'h100': 4.1, 'a100': 2.2}
    """
    result: dict[str, float] = {}
    for part in () if text is None else text.split(","):
        name, _, number = (word.strip().lower() for word in part.partition("="))
        try:
            price = float(number)
        except ValueError:
            price = math.nan
        if not name or name in result or not 0 < price < math.inf:
            raise UsageError(
                f"--prices {part.strip()!r}: is no price, or a second one",
                hint="As in --prices h100=4.1,a100=2.2: per GPU and hour, in any one currency.",
            )
        result[name] = price
    return result


def price_of(prices: Mapping[str, float], kind: str) -> float | None:
    """Return the price of a kind: that of the longest name which is part of its own.

    >>> price_of({"a100": 2.2, "a100-80gb": 2.9}, "nvidia-a100-80gb-pcie")
    2.9
    """
    fitting = [name for name in prices if name in kind.lower()]
    return prices[max(fitting, key=len)] if fitting else None


def per_million_tokens(price_per_hour: float, tokens_per_s: float) -> float:
    """Return what a million tokens cost at this rate; infinite where there are none.

    >>> per_million_tokens(3.6, 1000)
    1.0
    """
    return price_per_hour / 3600 / tokens_per_s * 1e6 if tokens_per_s > 0 else math.inf

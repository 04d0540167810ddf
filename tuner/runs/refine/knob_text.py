"""Knobs as somebody names them: ``key=a,b,c``, ``key=low:high:log``. Pure."""

import json
import math
import re
from collections.abc import Sequence

from tuner.errors import UsageError

STEPS = 8
"""Into how many steps a range without a step is cut."""

MOST_VALUES = 64

_PARTS = re.compile(r'"(?:[^"\\]|\\.)*"?|[][{},]|[^][{},"]+')
"""What a list of values is made of: JSON's strings, brackets and commas, and all else."""


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

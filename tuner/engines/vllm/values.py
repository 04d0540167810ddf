"""The values of vLLM's arguments: what a word spells, and when two are the same. Pure."""

import json
import re

from tuner.engines.arguments import ArgumentValue


def typed(text: str) -> ArgumentValue:
    """Return a word as the number, list or mapping it spells, or else as the text it is."""
    if re.fullmatch(r"-?(0|[1-9]\d{0,15})", text):
        return int(text)
    if re.fullmatch(r"-?\d{1,15}\.\d{1,15}", text):
        return float(text)
    if text[:1] in {"{", "["}:
        try:
            value: ArgumentValue = json.loads(text)
        except ValueError:
            return text
        return value
    return text


def same(first: object, second: object) -> bool:
    """Whether two values are equal in type too: 1, 1.0 and true differ, as they do in JSON."""
    if type(first) is not type(second):
        return False
    if isinstance(first, dict) and isinstance(second, dict):
        first, second = (
            sorted(map(list, each.items()), key=lambda item: repr(item[0]))
            for each in (first, second)
        )
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same, first, second))
    return repr(first) == repr(second)  # NaN is NaN

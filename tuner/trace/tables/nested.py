"""Nested objects within the cells of a table, by their dotted paths. Pure."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from tuner.trace.formats.reading.json_rows import is_text
from tuner.trace.tables.clocks import number

_decode = msgspec.json.Decoder().decode


def holds_text(value: object) -> bool:
    """Whether a cell of a column for text says anything."""
    return is_text(value) and number(str(value)) is None


def flattened(
    value: Mapping[str, Any], prefix: str = "", depth: int = 4
) -> Iterable[tuple[str, Any]]:
    """Yield (dotted path, value) of all that stands in nested objects, also in those that a log
    wraps up as text."""
    for key, held in value.items():
        path = f"{prefix}{key}"
        if (inner := unwrapped(held)) and depth:
            yield from flattened(inner, f"{path}.", depth - 1)
        else:
            yield path, only(held)


def at(found: Mapping[str, Any], path: str) -> Any:  # noqa: ANN401 - any JSON
    """Return what stands at a dotted path, whose parts may have dots themselves."""
    if path in found:
        return only(found[path])
    for key, held in found.items():
        if path.startswith(f"{key}.") and (inner := unwrapped(held)) is not None:
            return at(inner, path[len(key) + 1 :])
    return None


def only(held: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return the only value of a list, as search engines give the fields of a row."""
    if isinstance(held, list) and len(held) == 1 and not isinstance(held[0], dict | list):
        return held[0]
    return held


def unwrapped(held: object) -> dict[str, Any] | None:
    """Return an object, or the one that a text is in JSON; None for what is none."""
    if isinstance(held, str):
        return _wrapped(held) if held.startswith("{") else None
    return held if isinstance(held, dict) else None


@lru_cache(maxsize=4)  # a row asks once for each of its columns
def _wrapped(text: str) -> dict[str, Any] | None:
    try:
        found = _decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None

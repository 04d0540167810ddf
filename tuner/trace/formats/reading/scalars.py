"""Counts, times and flags as gateways and observability tools write them. Pure.

What cannot be read is returned as it is, so that whoever checks the row can say why.
"""

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeGuard

import msgspec

from tuner.trace.formats.reading.recent import MOST, Recent
from tuner.trace.formats.reading.record import Status

ABSENT = frozenset({"", "-", "null", "none", "undefined"})
LONG = 20
"""Characters from which on a text is no word for nothing."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_S = (1.0e9, 4.0e9)
"""2001 to 2096: a number in this range can only be seconds since 1970."""

LARGEST = 1e30
"""No count, time or length is larger; what is cannot be calculated with."""

REJECTED, ABORTED = (429, 503), 499
"""Refused for load; 499 is nginx's code, and others', for a client that went away."""

NO_GENERATION = (
    *("/embeddings", "/pooling", "/classify", "/score", "/rerank", "/tokenize", "/detokenize"),
    *("/models", "/health", "/healthz", "/ping", "/metrics", "/version", "/load", "/ready"),
    *("/livez", "/readyz", "/docs", "/openapi.json", "/favicon.ico"),
)


def first(found: Mapping[str, Any], keys: Iterable[str]) -> Any:  # noqa: ANN401 - whatever is there
    """Return what stands under the first of the keys that says anything."""
    for key in keys:
        value = found.get(key)
        if value is not None and not is_absent(value):
            return value
    return None


def is_absent(value: object) -> bool:
    if isinstance(value, str):
        return len(value) < LONG and value.strip().lower() in ABSENT
    return value is None


def tokens(value: Any) -> Any:  # noqa: ANN401 - what is no count stays what it is
    """Return a count that may be written as text or as 15.0; None where there is none."""
    if type(value) is int:
        return value
    if is_absent(value):
        return None
    if isinstance(value, str):
        value = value.strip()
        return int(value) if len(value) < 20 and value.lstrip("-").isdecimal() else value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def token_sum(usage: Mapping[str, Any], word: str, also: str = "", never: str = "\n") -> object:
    """Return the sum of the counts whose key has the word: Langfuse's own rule; None without any.

    Cached input stands under a key of its own beside the rest.
    """
    counts = [
        tokens(value)
        for key, value in usage.items()
        if word in key.lower()
        and also in key.lower()
        and never not in key.lower()
        and "cost" not in key.lower()
    ]
    known = [count for count in counts if count is not None]
    wrong = [count for count in known if isinstance(count, bool) or not isinstance(count, int)] or [
        count for count in known if count < 0
    ]
    if wrong:
        return wrong[0]
    return sum(known) if known else None


def failed_tokens(value: Any) -> int | None:  # noqa: ANN401
    """Return the count of a request that failed; what cannot be one, such as -1, is unknown."""
    count = tokens(value)
    return count if isinstance(count, int) and 0 <= count < 2**31 else None


def epoch_ms(stamp: Any) -> Any:  # noqa: ANN401 - what is no time stays what it is
    """Return ms since 1970 of a date, or of seconds since 1970; a date without a zone is UTC."""
    if is_absent(stamp):
        return None
    if isinstance(stamp, str):
        if stamp[4:5] == "-":
            return _date_ms(stamp)
        number = real(stamp)
        if not isinstance(number, float):
            return _date_ms(stamp)
        stamp = number
    if isinstance(stamp, int | float) and not isinstance(stamp, bool):
        return stamp * 1000 if EPOCH_S[0] <= stamp <= EPOCH_S[1] else str(stamp)
    return stamp


def real(value: Any) -> Any:  # noqa: ANN401 - what is no number stays what it is
    """Return a finite number that may be written as text; None where there is none."""
    if is_absent(value):
        return None
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return value
        return number if math.isfinite(number) else value
    return value


def as_ms(value: Any) -> Any:  # noqa: ANN401 - what is no number stays what it is
    """Return s as ms, to the microsecond: finer than any clock that stamps requests."""
    return round(value * 1000, 3) if is_number(value) else value


def seconds_ms(value: Any) -> Any:  # noqa: ANN401 - what is no number stays what it is
    """Return ms of a duration in seconds that may be written as text."""
    return as_ms(real(value))


def between_ms(start_ms: object, end_ms: object) -> float | None:
    """Return the time from one to the other; None where one of them is unknown."""
    if is_number(start_ms) and is_number(end_ms):
        return round(end_ms - start_ms, 3)
    return None


def is_number(value: object) -> TypeGuard[float]:
    """Whether this is a number to calculate with; larger ones are left to whoever checks rows."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= LARGEST


def flag(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False, "1": True, "0": False}.get(str(value).strip().lower())


def inner(value: object) -> dict[str, Any]:
    """Return an object that may be written as JSON text inside JSON; else an empty one."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def sequences(n: object, output: object) -> dict[str, Any]:
    """Return the fields of a request of ``n`` sequences, of whose outputs only the sum is known.

    The sum is split evenly: no sequence is known by itself.
    """
    n, output = tokens(n), tokens(output)
    if not (isinstance(n, int) and isinstance(output, int) and 1 < n <= min(output, 16_384)):
        return {"output_length": output}
    each, more = divmod(output, n)
    lengths = (*(each + 1 for _ in range(more)), *(each for _ in range(n - more)))
    return {"n": n, "output_length": lengths[0], "output_lengths": lengths}


def status_of(code: int | None) -> Status:
    """Return what a status code of HTTP means for a request; None is taken for success."""
    if code is None or 100 <= code < 400:
        return "ok"
    if code == ABORTED:
        return "aborted"
    return "rejected" if code in REJECTED else "error"


def may_generate(path: object) -> bool:
    """Whether a request to this path can be one that generates tokens; an unknown one may."""
    if not isinstance(path, str):
        return True
    bare = path.partition("?")[0].rstrip("/").lower()
    return bool(bare) and not bare.endswith(NO_GENERATION)


SPLIT = "outputs of requests with n > 1 are split evenly: only their sum is known"
"""Note to make where ``sequences`` found more than one."""


class Pseudonyms:
    """Pseudonyms names by first sight: 0, 1, … The names themselves are never written.

    Of too many names the oldest are forgotten, and would get a new number.
    """

    def __init__(self, most: int = MOST) -> None:
        self._known: Recent[int] = Recent(most)
        self._next = 0

    def of(self, name: object) -> int | None:
        """Return the number of a name; None where there is none."""
        if is_absent(name):
            return None
        name = str(name)
        number = self._known.get(name, self._next)
        self._next = max(self._next, number + 1)
        self._known.put(name, number)
        return number

    def named(self, letter: str, name: object) -> str | None:
        """Return a pseudonym such as ``s12``."""
        number = self.of(name)
        return None if number is None else f"{letter}{number}"


def _date_ms(text: str) -> float | str:
    text = text.strip()
    try:
        date = datetime.fromisoformat(text.removesuffix(" UTC"))
    except ValueError:
        return text
    if "-" not in text or ":" not in text:
        return text
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return (date - EPOCH) / timedelta(milliseconds=1)

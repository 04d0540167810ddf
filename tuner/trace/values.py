"""Readers of cells, a whole column at once: counts, spans of time, times, and words.

A reader returns numbers, NaN for empty cells, and for each cell the code of the reason why it is
wrong, 0 for none. Numbers are as programs write them, dates ISO 8601 or those of servers' logs.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tuner.trace.record import CODES, MAX_MS, MAX_TOKENS, REFUSED, Status, TimeUnit

PER_S: dict[TimeUnit, int] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
FROM_MS, TO_MS = 1.0e12, 4.0e12
"""2001 to 2096: a number in this range can only be a time since 1970, in one unit."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Cells: TypeAlias = pa.Array | list[Any]
Read = tuple[Floats, NDArray[np.uint8]]


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


NULL = words(r"- null none undefined nil \n nan nat <na> na n/a #n/a {} []") | {""}
"""Words with which databases, pandas and spreadsheets write an empty cell."""


def is_empty(value: object) -> bool:
    """Return whether a cell is empty."""
    return value is None or (len(text := str(value)) < 20 and text.strip().lower() in NULL)


def as_list(cells: Cells) -> list[Any]:
    """Return cells as Python has them."""
    return cells if isinstance(cells, list) else [*cells.to_pylist()]


def as_array(cells: Cells) -> pa.Array:
    """Return cells as one array; as text where they are of several kinds."""
    if isinstance(cells, list):
        with suppress(pa.ArrowException, OverflowError, ValueError):
            cells = pa.array(cells)
    if isinstance(cells, pa.Array) and not pa.types.is_nested(cells.type):
        return cells
    texts = [None if cell is None else str(cell) for cell in as_list(cells)]
    return pa.array(texts, pa.string())


def by_value(
    cells: Cells, rule: Callable[[Any], Any], absent: object, kind: type[Any]
) -> NDArray[Any]:
    """Return the result of a rule for each cell; it sees each distinct cell once."""
    array = as_array(cells).dictionary_encode()
    codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    results = np.array([*map(rule, array.dictionary.to_pylist()), absent], kind)
    return np.asarray(results[codes])


def numbers(cells: Cells) -> tuple[Floats, Mask]:
    """Return numbers, NaN for empty cells, and which cells hold something else."""
    array = as_array(cells)
    if pa.types.is_string(array.type):
        with suppress(pa.ArrowInvalid):
            array = pc.cast(array, pa.float64())
    if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
        values = array.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
        return values, np.zeros(len(values), np.bool_)
    return _one_by_one(array, number)


def _one_by_one(cells: Cells, rule: Callable[[Any], float | None]) -> tuple[Floats, Mask]:
    """Return what a rule makes of each cell, and where it makes nothing of what is not empty."""
    values = by_value(cells, rule, np.nan, np.float64)
    return values, np.isnan(values) & ~by_value(cells, is_empty, absent=True, kind=np.bool_)


_NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def number(value: object) -> float | None:
    """Return a number of JSON or of a table's text; None for anything else."""
    if isinstance(value, str) and len(value) <= 40 and _NUMBER.fullmatch(value.strip()):
        value = int(value) if value.strip().lstrip("-").isdecimal() else float(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and abs(value) < np.inf else None  # type: ignore[return-value, arg-type]


def _judged(values: Floats, *faults: tuple[Mask, str]) -> Read:
    """Return numbers, NaN where they are wrong, and the code of the first fault of each cell."""
    codes = np.zeros(len(values), np.uint8)
    for where, reason in reversed(faults):
        codes[where] = CODES[reason]
    return np.where(codes == 0, values, np.nan), codes


def counts(cells: Cells) -> Read:
    """Read integers, also as 128.0. Text such as 1.000 may be a thousand, and is none."""
    array = as_array(cells)
    values, odd = numbers(array)
    if pa.types.is_string(array.type):
        thousands = pc.match_substring_regex(array, r"^\s*[+-]?\d{1,3}\.\d{3}\s*$")
        odd = odd | thousands.fill_null(False).to_numpy(zero_copy_only=False)
    odd = odd | (np.floor(values) < values)
    return _judged(values, (odd, "not_integer"), (values > MAX_TOKENS, "out_of_range"))


# Spans of time.

UNITS: dict[str, TimeUnit] = {
    **dict.fromkeys(words("s sec secs second seconds"), "s"),
    **dict.fromkeys(words("ms msec msecs milli millis millisecond milliseconds"), "ms"),
    **dict.fromkeys(words("us µs μs usec micro micros microsecond microseconds"), "us"),
    **dict.fromkeys(words("ns nsec nano nanos nanosecond nanoseconds"), "ns"),
}
_CLOCK_SPAN = re.compile(r"(?:(\d+) days?,? )?(\d{1,4}):(\d\d):(\d\d(?:[.,]\d{1,9})?)")
_PARTS = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zµμ]+)")
_WORD_MS = {"h": 3.6e6, "m": 6.0e4} | {word: 1000 / PER_S[unit] for word, unit in UNITS.items()}


def written_ms(text: str) -> float | None:
    """Return ms of a span that names its unit: ``1m2.5s``, ``00:00:01.53``.

    >>> written_ms("1m2.5s"), written_ms("0 days 00:01:02.5"), written_ms("875 tokens")
    (62500.0, 62500.0, None)
    """
    if hit := _CLOCK_SPAN.fullmatch(text):
        parts = (float((part or "0").replace(",", ".")) for part in hit.groups())
        days, hours, minutes, seconds = parts
        return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000, 6)
    text = text.lower().removeprefix("pt")
    spans = _PARTS.findall(text)
    if not spans or _PARTS.sub("", text) or not all(unit in _WORD_MS for _, unit in spans):
        return None
    return sum(float(value) * _WORD_MS[unit] for value, unit in spans)


def in_ms(values: Any, unit: TimeUnit) -> Any:  # noqa: ANN401 - a number, or an array of them
    """Return ms of numbers of this unit."""
    return values * 1000.0 if unit == "s" else values / (PER_S[unit] // 1000)


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of time: numbers of one unit or, without a unit, text that names it."""

    unit: TimeUnit | None = "ms"

    def __str__(self) -> str:
        return f"in {self.unit or 'their units'}"

    def read(self, cells: Cells) -> Read:
        """Return ms."""
        if self.unit is None:
            values, odd = _one_by_one(cells, lambda cell: written_ms(str(cell).strip()[:80]))
        else:
            values, odd = numbers(cells)
            values = in_ms(values, self.unit)
        faults = (
            (odd, "bad_field"),
            (values < 0, "negative_time"),
            (values > MAX_MS, "out_of_range"),
        )
        return _judged(values, *faults)


# Times.

_ISO = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d.*)?")
_LOG = re.compile(r"(\d\d)-([A-Z][a-z]{2})-(\d{4}):")
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=2**16)
def parse(text: str) -> tuple[float, bool] | None:
    """Return (ms since 1970 by its zone or as if in UTC, whether it has a zone); None for no date.

    >>> parse("21/Nov/2026:10:00:00 +0100"), parse("2026-11-21 10:00:00.125 UTC")
    ((1795251600000.0, True), (1795255200125.0, True))
    """
    text = re.sub(r"(?:\s?\+0000)?\s?(?:UTC|GMT)$", "Z", text.strip('[]" ').replace("/", "-"))
    text = re.sub(r"\s(?=[+-]\d)", "", text)
    if hit := _LOG.match(text):
        month = _MONTHS.find(hit[2]) // 3 + 1
        text = f"{hit[3]}-{month:02}-{hit[1]}T{text[hit.end() :]}"
    if _ISO.fullmatch(text) is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = at if at.tzinfo else at.replace(tzinfo=UTC)
    return (moment - _EPOCH) / timedelta(milliseconds=1), at.tzinfo is not None


@dataclass(frozen=True, slots=True)
class Clock:
    """Times: numbers of one unit, or dates."""

    unit: TimeUnit | None = None
    """Of numbers; None for dates."""
    dated: bool = True
    """Times count from 1970; otherwise from a start that is unknown."""
    zoned: bool | None = None
    """Dates name their zone; those without one are taken for UTC. None: each as it comes, and
    numbers as seconds since 1970."""

    def __str__(self) -> str:
        if self.unit is not None:
            return f"{self.unit} {'since 1970' if self.dated else 'from some start'}"
        zone = {None: "UTC where they name no zone", False: "taken for UTC"}
        return f"dates, {zone.get(self.zoned, 'with their zone')}"

    def read(self, cells: Cells) -> Read:
        """Return ms since 1970, or from where the times count."""
        array = as_array(cells)
        values, odd = numbers(array) if self.unit else self._dates(array)
        if self.unit is not None:
            values = in_ms(values, self.unit)
        elif self.zoned is None and odd.any():
            seconds, wrong = numbers(array)
            values, odd = np.where(odd, seconds * 1000, values), odd & wrong
        least = FROM_MS if self.dated and (self.unit or self.zoned is None) else 0.0
        most = TO_MS if self.dated else MAX_MS
        return _judged(values, (odd | (values < least) | (values >= most), "bad_timestamp"))

    def _dates(self, cells: pa.Array) -> tuple[Floats, Mask]:
        """Return ms since 1970 and which cells are no dates; Arrow reads plain ones at once."""
        for zone in ("UTC", None) if pa.types.is_string(cells.type) else ():
            if self.zoned in (None, zone is not None):
                with suppress(pa.ArrowInvalid):
                    nanoseconds = pc.cast(pc.cast(cells, pa.timestamp("ns", zone)), pa.int64())
                    values = nanoseconds.to_numpy(zero_copy_only=False) / 1e6
                    return values, np.zeros(len(cells), np.bool_)

        def ms(cell: object) -> float | None:
            result = parse(str(cell))
            return result[0] if result is not None and self.zoned in (None, result[1]) else None

        return _one_by_one(cells, ms)


def date_ms(value: object) -> float | None:
    """Return ms since 1970 of a date, or of seconds since 1970; None for neither."""
    seconds, date = number(value), parse(str(value))
    result = date[0] if date is not None else (seconds or 0) * 1000
    return result if FROM_MS <= result < TO_MS else None


def date_of(ms: float) -> str:
    """Return ms since 1970 as a date of UTC."""
    return f"{(_EPOCH + timedelta(milliseconds=ms)).replace(tzinfo=None).isoformat()}Z"


# Words.

MAX_NAME = 60
"""Characters of a name that has blanks."""

_CODE = re.compile(r"(?:http(?:/\d(?:\.\d)?)?[\s:]*)?([1-5]\d\d)(?:[\s:-].*)?")
"""A code of HTTP with words around it: ``HTTP/1.1 429 Too Many Requests``."""

_STATUSES: dict[Status, str] = {
    "ok": "ok success succeeded successful true completed complete done finished stop length "
    "passed end_turn eos yes status_code_ok status_code_unset unset max_tokens stop_sequence "
    "tool_calls tool_use incomplete default",
    "aborted": "aborted abort cancelled canceled client_closed disconnected client_disconnected "
    "client_closed_request",
    "rejected": "rejected throttled rate_limited ratelimited overloaded unavailable "
    "too_many_requests service_unavailable resource_exhausted bad_request invalid_argument",
    "error": "error failed fail failure false timeout timed_out exception internal_error no "
    "internal internal_server_error status_code_error deadline_exceeded permission_denied "
    "not_found unauthenticated",
}
STATUSES = {word: status for status, text in _STATUSES.items() for word in text.split()}


def status_of(code: int) -> Status:
    """Return what a status code of HTTP means for a request."""
    if 100 <= code < 400:
        return "ok"
    if code == 499:  # nginx's code, and others', for a client that went away
        return "aborted"
    return "rejected" if code in REFUSED else "error"


def status_in(value: object, *, flag: bool = False) -> Status | None:
    """Return what a status says: a code of HTTP, a word, or a flag; None where it is not known.

    ``flag``: the column says whether it went well, so that 0 means that it did not.
    """
    text = str(value).strip().lower().removesuffix(".0")
    if is_empty(value):
        return "ok"
    if text in ("0", "1") and (flag or text == "0"):
        return "ok" if flag == (text == "1") else "error"
    if code := _CODE.fullmatch(text):
        return status_of(int(code[1]))
    return STATUSES.get(re.sub(r"[\s-]+", "_", text.rpartition(".")[2]))


def error_in(value: object) -> Status:
    """Return what a column of errors says: nothing, or that there was one."""
    nothing = words("false 0 0.0 no ok")
    return "ok" if is_empty(value) or str(value).strip().lower() in nothing else "error"


def from_cache(value: object) -> bool | None:
    """Return whether a gateway answered from its cache; None where the cell does not say.

    >>> from_cache("SEMANTIC HIT"), from_cache("miss"), from_cache(True), from_cache(64)
    (True, False, True, None)
    """
    text = "" if is_empty(value) else re.split(r"[ _]", str(value).strip().lower())[-1]
    if text in ("true", "yes", "1", "hit"):
        return True
    no = words("false no 0 miss disabled bypass refresh dynamic expired")
    return False if not text or text in no else None


def name_in(value: object) -> str | None:
    """Return a name, which may be a number; nothing that is so long that it may be text."""
    name = "" if is_empty(value) or isinstance(value, bool | float) else str(value)
    return None if not name or (len(name) > MAX_NAME and " " in name) else name


def as_object(value: object) -> dict[str, Any] | None:
    """Return an object, or the one that a text is in JSON; None for anything else."""
    if isinstance(value, str):
        return _object_in(value) if value.lstrip().startswith("{") else None
    return value if isinstance(value, dict) else None


@lru_cache(maxsize=4)  # a row asks once for each of its columns
def _object_in(text: str) -> dict[str, Any] | None:
    with suppress(msgspec.DecodeError, UnicodeError, RecursionError):
        result = msgspec.json.decode(text)
        return result if isinstance(result, dict) else None
    return None

"""Readers of columns: counts, spans of time and times, a whole column at once.

A reader returns numbers, and for each cell the code of the reason why it is wrong, 0 for none.
Numbers are as programs write them, dates are ISO 8601 or those of web servers' logs.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tuner.trace.record import CODES, MAX_MS, MAX_TOKENS, Reason

Unit = Literal["s", "ms", "us", "ns"]
PER_S: dict[Unit, int] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
NAMES: dict[Unit, str] = {
    "s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds",
}  # fmt: skip
FROM_MS, TO_MS = 1.0e12, 4.0e12
"""2001 to 2096: a number in this range can only be a time since 1970, in one unit."""

ABSENT = np.iinfo(np.int64).min
"""Stands for an empty cell among counts; among times it is NaN."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Codes = NDArray[np.uint8]
Cells: TypeAlias = pa.Array | list[Any]
Read = tuple[NDArray[Any], Codes]


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
    if isinstance(cells, pa.Array) and not pa.types.is_nested(cells.type):
        return cells
    cells = as_list(cells)
    with suppress(pa.ArrowException, OverflowError, ValueError):
        array = pa.array(cells)
        if not pa.types.is_nested(array.type):
            return array
    return pa.array([None if cell is None else str(cell) for cell in cells], pa.string())


def by_value(
    cells: Cells, rule: Callable[[Any], Any], absent: object, kind: type[Any]
) -> NDArray[Any]:
    """Return the result of a rule for each cell; it sees each distinct cell once."""
    array = as_array(cells).dictionary_encode()
    codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    values = np.array([*map(rule, array.dictionary.to_pylist()), absent], kind)
    result: NDArray[Any] = values[codes]
    return result


_NUMBER = r"^-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def numbers(cells: Cells) -> tuple[Floats, Mask]:
    """Return numbers, NaN for empty cells, and which cells hold something else."""
    array = as_array(cells)
    odd = np.zeros(len(array), np.bool_)
    if pa.types.is_string(array.type):
        try:
            array = pc.cast(array, pa.float64())
        except pa.ArrowInvalid:
            text = pc.utf8_trim_whitespace(array)
            fits = pc.fill_null(pc.match_substring_regex(text, _NUMBER), fill_value=False)
            empty = pc.is_in(pc.utf8_lower(text), pa.array(sorted(NULL)))
            odd = ~pc.or_(pc.or_(fits, empty), pc.is_null(text)).to_numpy(zero_copy_only=False)
            array = pc.cast(pc.if_else(fits, text, None), pa.float64())
    elif not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
        return np.full(len(array), np.nan), array.is_valid().to_numpy(zero_copy_only=False)
    return array.to_numpy(zero_copy_only=False).astype(np.float64, copy=False), odd


def number(value: object) -> float | None:
    """Return a number of JSON or of a table's text; None for anything else."""
    if isinstance(value, str) and len(value) <= 40 and re.match(_NUMBER, value.strip()):
        value = int(value) if value.strip().lstrip("-").isdecimal() else float(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and abs(value) < np.inf else None  # type: ignore[return-value, arg-type]


class Reader(Protocol):
    """Reads a column."""

    def read(self, cells: Cells) -> Read:
        """Return numbers, and the codes of the reasons why cells are wrong."""


def _judged(values: Floats, *faults: tuple[Mask, Reason]) -> Read:
    """Return numbers, NaN where they are wrong, and the code of the first fault of each cell, of
    (where, reason)."""
    codes = np.zeros(len(values), np.uint8)
    for where, reason in reversed(faults):
        codes[where] = CODES[reason]
    return np.where(codes == 0, values, np.nan), codes


@dataclass(frozen=True, slots=True)
class Counts:
    """Integers, also as 128.0. Text such as 1.000 may be a thousand, and is none."""

    least: int = 0

    def read(self, cells: Cells) -> Read:
        array = as_array(cells)
        values, odd = numbers(array)
        if pa.types.is_string(array.type) and pc.any(pc.match_substring(array, ".")).as_py():
            thousands = pc.match_substring_regex(array, r"^\s*[+-]?\d{1,3}\.\d{3}\s*$")
            odd = odd | thousands.fill_null(False).to_numpy(zero_copy_only=False)
        with np.errstate(invalid="ignore"):
            odd = odd | (np.mod(values, 1) > 0)
        large: tuple[Mask, Reason] = (values > MAX_TOKENS, "out_of_range")
        values, codes = _judged(
            values, (odd, "not_integer"), (values < self.least, "negative"), large
        )
        absent = np.isnan(values)
        return np.where(absent, ABSENT, np.where(absent, 0, values).astype(np.int64)), codes


# Spans of time.

_CLOCK_SPAN = re.compile(r"(?:(\d+) days?,? )?(\d{1,4}):(\d\d):(\d\d(?:[.,]\d{1,9})?)")
_PARTS = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zµμ]+)[\s,]*")
UNITS: dict[str, Unit] = {
    **dict.fromkeys(words("s sec secs second seconds"), "s"),
    **dict.fromkeys(words("ms msec msecs milli millis millisecond milliseconds"), "ms"),
    **dict.fromkeys(words("us µs μs usec micro micros microsecond microseconds"), "us"),
    **dict.fromkeys(words("ns nsec nano nanos nanosecond nanoseconds"), "ns"),
}
_WORD_MS = {
    **{word: 1000 / PER_S[unit] for word, unit in UNITS.items()},
    **dict.fromkeys(words("h hour hours"), 3_600_000.0),
    **dict.fromkeys(words("m min minute minutes"), 60_000.0),
}


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of time: numbers of one unit or, without a unit, text that names it."""

    unit: Unit | None = "ms"

    def __str__(self) -> str:
        return "in their units" if self.unit is None else f"in {NAMES[self.unit]}"

    def read(self, cells: Cells) -> Read:
        if self.unit is None:
            values = by_value(cells, lambda cell: written_ms(str(cell)), np.nan, np.float64)
            odd = np.isnan(values) & ~by_value(cells, is_empty, absent=True, kind=np.bool_)
        else:
            values, odd = numbers(cells)
            values = in_ms(values, self.unit)
        long: tuple[Mask, Reason] = (values > MAX_MS, "out_of_range")
        return _judged(values, (odd, "bad_field"), (values < 0, "negative_time"), long)


def in_ms(values: Any, unit: Unit) -> Any:  # noqa: ANN401 - a number, or an array of them
    """Return ms of numbers of this unit."""
    return values * 1000.0 if unit == "s" else values / (PER_S[unit] // 1000)


def written_ms(text: str) -> float | None:
    """Return ms of a span that names its unit: ``1m2.5s``, ``00:00:01.53``, ``0 days 00:00:01``.

    >>> written_ms("1 min 2.5 s"), written_ms("PT1M2.5S"), written_ms("875 tokens")
    (62500.0, 62500.0, None)
    """
    text = text.strip()[:80]
    if hit := _CLOCK_SPAN.fullmatch(text):
        days, hours, minutes, seconds = (
            float((part or "0").replace(",", ".")) for part in hit.groups()
        )
        return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000, 6)
    text = text.lower().removeprefix("pt")
    result = _PARTS.findall(text)
    is_span = result and not _PARTS.sub("", text) and all(unit in _WORD_MS for _, unit in result)
    return sum(float(value) * _WORD_MS[unit] for value, unit in result) if is_span else None


# Times.

_ISO = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d.*)?")
_LOG = re.compile(r"(\d\d)-([A-Z][a-z]{2})-(\d{4}):")
_ZONE = re.compile(r"(?:\s?\+0000)?\s?(?:UTC|GMT)$")
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=2**16)
def parse(text: str) -> tuple[float, bool] | None:
    """Return (ms since 1970 by its zone or as if in UTC, whether it has a zone); None for no date.

    >>> parse("21/Nov/2026:10:00:00 +0100"), parse("2026-11-21 10:00:00.125 UTC")
    ((1795251600000.0, True), (1795255200125.0, True))
    """
    text = _ZONE.sub("Z", text.strip('[]" ').replace("/", "-"))
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

    unit: Unit | None = None
    """Of numbers; None for dates."""
    dated: bool = True
    """Times count from 1970; otherwise from a start that is unknown."""
    zoned: bool | None = None
    """Dates name their zone; those without one are taken for UTC. None: each as it comes, and
    numbers as seconds since 1970."""

    def __str__(self) -> str:
        if self.unit is not None:
            return f"{NAMES[self.unit]} {'since 1970' if self.dated else 'from some start'}"
        zone = {None: "UTC where they name no zone", False: "taken for UTC"}
        return f"dates, {zone.get(self.zoned, 'with their zone')}"

    def read(self, cells: Cells) -> Read:
        if self.unit is None and self.zoned is not None:
            values, odd = self._dates(as_array(cells))
        else:
            values, odd = numbers(cells)
            values = in_ms(values, self.unit or "s")
            if self.unit is None:
                odd = odd | (values < FROM_MS)
                if odd.any():
                    dates, wrong = self._dates(as_array(cells))
                    values, odd = np.where(odd, dates, values), odd & wrong
        least = FROM_MS if self.dated and self.unit is not None else 0.0
        beyond = (np.abs(values) > MAX_MS) & (not self.dated)
        out = odd | (values < least) | (values >= (TO_MS if self.dated else MAX_MS))
        return _judged(values, (beyond, "out_of_range"), (out, "bad_timestamp"))

    def _dates(self, cells: pa.Array) -> tuple[Floats, Mask]:
        """Return ms since 1970 and which cells are no dates; Arrow reads plain ones at once."""
        if not pa.types.is_string(cells.type):
            cells = pa.array([None if cell is None else str(cell) for cell in cells.to_pylist()])
        for zone in ("UTC", None):
            if self.zoned in (None, zone is not None):
                with suppress(pa.ArrowInvalid):
                    whole = pc.cast(pc.cast(cells, pa.timestamp("ns", zone)), pa.int64())
                    values = whole.to_numpy(zero_copy_only=False) / 1e6
                    return values, np.zeros(len(cells), np.bool_)

        def ms(text: str) -> float:
            result = parse(text)
            return result[0] if result is not None and self.zoned in (None, result[1]) else np.nan

        values = by_value(cells, ms, np.nan, np.float64)
        empty = by_value(cells, is_empty, absent=True, kind=np.bool_)
        return values, np.isnan(values) & ~empty


def date_ms(value: object) -> float | None:
    """Return ms since 1970 of a date, or of seconds since 1970; None for neither."""
    seconds, date = number(value), parse(str(value))
    result = date[0] if date is not None else (seconds or 0) * 1000
    return result if FROM_MS <= result < TO_MS else None


def date_of(ms: float) -> str:
    """Return ms since 1970 as a date of UTC."""
    return f"{(_EPOCH + timedelta(milliseconds=ms)).replace(tzinfo=None).isoformat()}Z"


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

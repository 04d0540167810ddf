"""Readers of columns: counts, spans of time and times, a whole column at once.

A reader returns numbers, and for each cell the code of the reason why it is wrong, 0 for none.
Where a number or a date has two readings no reader chooses: ``guess`` asks the user.
"""

import re
from collections.abc import Callable, Sequence
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

from tuner.trace.record import CODES, MAX_MS, MAX_TOKENS

Unit = Literal["s", "ms", "us", "ns"]
UNIT_MS: dict[Unit, float] = {"s": 1000.0, "ms": 1.0, "us": 1e-3, "ns": 1e-6}
FROM_MS, TO_MS = 1.0e12, 4.0e12
"""2001 to 2096: a number in this range can only be a time since 1970, in one unit."""

NAMES: dict[Unit, str] = {
    "s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds",
}  # fmt: skip
ABSENT = np.iinfo(np.int64).min
"""Stands for nothing among counts; among times it is NaN."""

Floats = NDArray[np.float64]
Codes = NDArray[np.uint8]
Cells: TypeAlias = pa.Array | list[Any]
Read = tuple[NDArray[Any], Codes]


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


NULL = words(r"- null none undefined nil \n nan nat <na> na n/a #n/a {} []") | {""}
"""Words with which databases, pandas and spreadsheets write that there is nothing."""


def is_empty(value: object) -> bool:
    """Return whether a cell says nothing."""
    return value is None or (len(text := str(value)) < 20 and text.strip().lower() in NULL)


def as_array(cells: Cells) -> pa.Array:
    """Return cells as one array; as texts where they are of several kinds."""
    if isinstance(cells, pa.Array):
        return cells
    try:
        array = pa.array(cells)
    except (pa.ArrowException, OverflowError, ValueError):
        array = None
    if array is None or pa.types.is_nested(array.type):
        return pa.array([None if one is None else str(one) for one in cells], pa.string())
    return array


def by_value(
    cells: Cells, rule: Callable[[Any], Any], absent: object, kind: type[Any]
) -> NDArray[Any]:
    """Return what a rule makes of each cell; it sees each distinct one once."""
    array = as_array(cells).dictionary_encode()
    codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    values = np.array([*map(rule, array.dictionary.to_pylist()), absent], kind)
    found: NDArray[Any] = values[codes]
    return found


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks within the numbers of a table of text."""

    decimal: str = "."
    thousands: str = ""

    def plain(self, cells: pa.Array) -> pa.Array:
        """Return numbers as programs write them; ``?`` for those with other marks."""
        groups = rf"\d{{1,3}}({re.escape(self.thousands or '|')}\d{{3}})+"
        fits = rf"^\D*$|^[+-]?(\d+|{groups})([{self.decimal}]\d*)?([eE][+-]?\d+)?$"
        bare = pc.replace_substring(cells, self.thousands, "") if self.thousands else cells
        bare = pc.replace_substring(bare, self.decimal, ".")
        return pc.if_else(pc.match_substring_regex(cells, fits), bare, "?")


NO_MARKS = Marks("?", "?")
"""Of counts whose first rows have no mark: three zeros behind a later one may be thousands."""

_MARKED = re.compile(r"[+-]?\d[\d.,'\u2019 \u00a0\u202f_]*(?:[eE][+-]?\d+)?")
_IN_THREES = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}")


def marks_of(  # noqa: PLR0911 - one form of numbers after another
    cells: Sequence[object], decimal: str | None, *, whole: bool
) -> Marks | str:
    """Return the marks in these numbers; a number that has two readings, where one has.

    ``whole``: they are counts, which have no fractions.

    >>> marks_of(["1.234,5"], None, whole=False)
    Marks(decimal=',', thousands='.')
    >>> marks_of(["987", "1.234"], None, whole=False)
    '1.234'
    """
    stripped = (one.strip() for one in cells if isinstance(one, str))
    texts = [one for one in stripped if _MARKED.fullmatch(one)]
    marked = [one for one in texts if "." in one or "," in one]
    for space in "'\u2019 \u00a0\u202f_":
        if any(space in one for one in texts):
            return Marks(decimal or ("," if any("," in one for one in texts) else "."), space)
    if decimal is not None:
        return Marks(decimal, "," if decimal == "." else ".")
    if not marked:
        return NO_MARKS if whole and texts else Marks()
    by_last = {max(".,", key=one.rfind) for one in marked}
    other = {".": ",", ",": "."}
    if several := [one for one in marked if one.count(".") + one.count(",") > 1]:
        last = max(".,", key=several[0].rfind)
        last = other[last] if several[0].count(last) > 1 else last
        return Marks(last, other[last])
    (mark,) = by_last if len(by_last) == 1 else ("?",)
    if mark == "?":
        return marked[0]
    if not all(map(_IN_THREES.fullmatch, marked)):
        return Marks(mark)
    rest = [one for one in texts if one not in marked]
    if whole:
        return marked[0] if all(one.endswith("000") for one in marked) else Marks(other[mark], mark)
    if mark == ",":
        return Marks(".", ",") if rest else marked[0]
    return marked[0] if rest and max(map(len, rest)) < 4 else Marks()


_NUMBER = r"^-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def numbers(cells: Cells, marks: Marks | None = None) -> tuple[Floats, NDArray[np.bool_]]:
    """Return numbers, NaN for nothing, and which cells hold something else."""
    array = as_array(cells)
    odd = np.zeros(len(array), np.bool_)
    if pa.types.is_string(array.type):
        if marks is not None and pc.any(pc.match_substring_regex(array, r"[^0-9]")).as_py():
            array = marks.plain(pc.utf8_trim_whitespace(array))
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
    values = array.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
    return values, odd


def number(value: object) -> float | None:
    """Return a number as JSON or a table's text has it; None for what is none."""
    if isinstance(value, str) and len(value) <= 40 and re.match(_NUMBER, value.strip()):
        value = int(value) if value.strip().lstrip("-").isdecimal() else float(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and abs(value) < np.inf else None  # type: ignore[return-value, arg-type]


class Reader(Protocol):
    """Reads a column."""

    def read(self, cells: Cells) -> Read:
        """Return numbers, and the codes of the reasons why cells are wrong."""


def _judged(values: NDArray[Any], odd: NDArray[np.bool_], *faults: tuple[Any, str]) -> Codes:
    """Return codes of reasons: of the first fault that a cell has, which are (where, reason)."""
    reasons = np.zeros(len(values), np.uint8)
    for where, reason in reversed(faults):
        reasons[where] = CODES[reason]
    reasons[odd] = CODES[faults[0][1]]
    return reasons


@dataclass(frozen=True, slots=True)
class Counts:
    """Whole numbers, which may have a fraction of nothing: 128.0."""

    marks: Marks | None = None
    least: int = 0

    def read(self, cells: Cells) -> Read:
        values, odd = numbers(cells, self.marks)
        reasons = _judged(
            values,
            odd,
            (
                np.mod(values, 1, where=np.isfinite(values), out=np.zeros_like(values)) > 0,
                "not_integer",
            ),
            (values < self.least, "negative"),
            (values > MAX_TOKENS, "out_of_range"),
        )
        absent = np.isnan(values) | (reasons != 0)
        return np.where(absent, ABSENT, np.where(absent, 0, values).astype(np.int64)), reasons


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
    **dict.fromkeys(words("h hr hrs hour hours"), 3_600_000.0),
    **dict.fromkeys(words("m min mins minute minutes"), 60_000.0),
    **{word: UNIT_MS[unit] for word, unit in UNITS.items()},
}


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of time: numbers of one unit or, without a unit, texts that name theirs."""

    unit: Unit | None = "ms"
    marks: Marks | None = None

    def __str__(self) -> str:
        return "in their units" if self.unit is None else f"in {NAMES[self.unit]}"

    def read(self, cells: Cells) -> Read:
        if self.unit is None:
            values = by_value(cells, lambda one: written_ms(str(one)), np.nan, np.float64)
            odd = np.isnan(values) & ~by_value(cells, is_empty, absent=True, kind=np.bool_)
        else:
            values, odd = numbers(cells, self.marks)
            values = in_ms(values, self.unit)
        negative, long = (values < 0, "negative_time"), (values > MAX_MS, "out_of_range")
        reasons = _judged(values, odd, (odd, "bad_field"), negative, long)
        return np.where(reasons == 0, values, np.nan), reasons


def in_ms(values: Any, unit: Unit) -> Any:  # noqa: ANN401 - a number, or an array of them
    """Return ms of numbers of this unit."""
    return values * 1000.0 if unit == "s" else values / round(1 / UNIT_MS[unit])


def written_ms(text: str) -> float | None:
    """Return ms of a span that names its unit: ``1m2.5s``, ``00:00:01.53``, ``0 days 00:00:01``.

    >>> written_ms("1 min 2.5 s"), written_ms("PT1M2.5S"), written_ms("875 tokens")
    (62500.0, 62500.0, None)
    """
    text = text.strip()[:80]
    if hit := _CLOCK_SPAN.fullmatch(text):
        parts = (float((part or "0").replace(",", ".")) for part in hit.groups())
        days, hours, minutes, seconds = parts
        return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000, 6)
    text = text.lower().removeprefix("pt")
    found = _PARTS.findall(text)
    is_span = found and not _PARTS.sub("", text) and all(unit in _WORD_MS for _, unit in found)
    return sum(float(value) * _WORD_MS[unit] for value, unit in found) if is_span else None


# Times.

Order = Literal["ymd", "dmy", "mdy"]
ORDERS: dict[Order, str] = {"ymd": "year", "dmy": "day", "mdy": "month"}
"""Orders of dates in numbers, and what stands first."""

_DATE = re.compile(
    r"\[?(?:[A-Za-z]{3,9},?\s)?(\d{1,4}|[A-Za-z]{3,9})[-/. ]{1,2}(\d{1,2}|[A-Za-z]{3,9})"
    r"[-/., ]{1,2}(\d{1,4})"
    r"(?:[T\s,:@]{1,3}(\d{1,2}):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?\s?(AM|PM|am|pm)?)?"
    r"\s?((?:UTC|GMT|Z)|(?:UTC|GMT)?[+-]\d\d(?::?\d\d)?)?\]?"
)
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=2**16)
def parse(text: str, order: Order) -> tuple[float, bool] | None:
    """Return (ms since 1970 by its zone or as if in UTC, whether it has a zone); None for no date.

    >>> parse("21/Nov/2026:10:00:00 +0100", "ymd"), parse("1.2.2026 1:30 pm", "dmy")
    ((1795251600000.0, True), (1769952600000.0, False))
    """
    if (hit := _DATE.fullmatch(text.strip())) is None:
        return None
    first, second, third, hour, minute, second_, fraction, half, zone = hit.groups()
    by_order = {"ymd": (first, second, third), "dmy": (third, second, first)}
    year, month, day = by_order.get(order, (third, first, second))
    if first.isalpha():
        year, month, day = third, first, second
    elif second.isalpha():
        year, month, day = (first, second, third) if len(first) == 4 else (third, second, first)
    name = month[:3].lower()
    number_of = _MONTHS.index(name) + 1 if name in _MONTHS else month
    hours = int(hour or 0) % 12 + 12 * (half in ("PM", "pm")) if half else int(hour or 0)
    try:
        at = datetime(
            int(year),
            int(number_of),
            int(day),
            hours,
            int(minute or 0),
            int(second_ or 0),
            tzinfo=UTC,
        )
    except ValueError:
        return None
    offset = re.sub("[UTCGMZ:]", "", zone or "")
    minutes = int(offset[1:3] or 0) * 60 + int(offset[3:] or 0)
    at += timedelta(minutes=minutes if offset[:1] == "-" else -minutes)
    whole = (at - _EPOCH) // timedelta(milliseconds=1)
    ms = whole + int((fraction or "").ljust(9, "0")) / 1e6
    return (ms, zone is not None) if len(year) == 4 else None


@dataclass(frozen=True, slots=True)
class Clock:
    """Times: numbers of one unit, or dates of one order."""

    unit: Unit | None = None
    """Of numbers; None for dates."""

    order: Order = "ymd"
    dated: bool = True
    """Times count from 1970; otherwise from a start that is unknown."""

    zoned: bool | None = None
    """Dates name their zone; those without one are taken for UTC. None: each as it comes, and
    numbers as seconds since 1970."""

    marks: Marks | None = None

    def __str__(self) -> str:
        if self.unit is not None:
            return f"{NAMES[self.unit]} {'since 1970' if self.dated else 'from some start'}"
        zone = {None: "UTC where they name no zone", False: "taken for UTC"}
        order = "" if self.order == "ymd" else f", {ORDERS[self.order]} first"
        return f"dates, {zone.get(self.zoned, 'with their zone')}{order}"

    def read(self, cells: Cells) -> Read:
        if self.unit is None and self.zoned is not None:
            values, odd = self._dates(as_array(cells), zoned=self.zoned)
        else:
            values, odd = numbers(cells, self.marks)
            values = in_ms(values, self.unit or "s")
            if self.unit is None:
                odd |= values < FROM_MS
            if self.unit is None and odd.any():
                dates, wrong = self._dates(as_array(cells), zoned=None)
                values = np.where(odd, dates, values)
                odd &= wrong
        least = FROM_MS if self.dated and self.unit is not None else 0.0
        most = TO_MS if self.dated else MAX_MS
        beyond = (np.abs(values) > MAX_MS) & (not self.dated)
        out = (odd | (values < least) | (values >= most)) & ~beyond
        reasons = _judged(values, odd, (out, "bad_timestamp"), (beyond, "out_of_range"))
        return np.where(reasons == 0, values, np.nan), reasons

    def _dates(self, cells: pa.Array, *, zoned: bool | None) -> tuple[Floats, NDArray[np.bool_]]:
        """Return ms since 1970 and which cells are no dates; Arrow reads plain ones at once."""
        if not pa.types.is_string(cells.type):
            cells = pa.array([None if one is None else str(one) for one in cells.to_pylist()])
        for zone in ("UTC", None) if self.order == "ymd" else ():
            if zoned is None or zoned == (zone is not None):
                with suppress(pa.ArrowInvalid):
                    whole = pc.cast(pc.cast(cells, pa.timestamp("ns", zone)), pa.int64())
                    values = whole.to_numpy(zero_copy_only=False) / 1e6
                    return values, np.zeros(len(cells), np.bool_)

        def ms(text: str) -> float:
            found = parse(text, self.order)
            is_of_zone = found is not None and zoned in (None, found[1])
            return found[0] if found is not None and is_of_zone else np.nan

        values = by_value(cells, ms, np.nan, np.float64)
        empty = by_value(cells, is_empty, absent=True, kind=np.bool_)
        return values, np.isnan(values) & ~empty


def date_ms(value: object) -> float | None:
    """Return ms since 1970 of a date, or of seconds since 1970; None for neither."""
    values, reasons = Clock().read([value])
    return None if reasons[0] or np.isnan(values[0]) else float(values[0])


def shown_date(ms: float) -> str:
    """Return a time since 1970 for people."""
    return f"{_EPOCH + timedelta(milliseconds=ms):%Y-%m-%d %H:%M:%S}"


def as_object(value: object) -> dict[str, Any] | None:
    """Return an object, or the one that a text is in JSON; None for what is none."""
    if isinstance(value, str):
        return _object_in(value) if value.lstrip().startswith("{") else None
    return value if isinstance(value, dict) else None


@lru_cache(maxsize=4)  # a row asks once for each of its columns
def _object_in(text: str) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None

"""Finds out from its values how the times of a table are written, and says why. Pure.

Numbers between 2001 and 2096 as seconds, ms, µs or ns since 1970 can be no other unit; smaller ones
count from some start, and only a heading or the user knows in what. Dates say their order of day
and month by a number above 12. Where two readings are possible none is chosen.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal, get_args

from tuner.trace.formats.reading.header import TimeUnit
from tuner.trace.formats.reading.record import Reason
from tuner.trace.tables.headings import Unit
from tuner.trace.tables.marks import plain_number

NANOSECONDS: dict[Unit, int] = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
NAMES: dict[Unit, str] = {
    "s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds",
}  # fmt: skip
FROM_S, TO_S = 1.0e9, 4.0e9
"""2001 to 2096."""

DAYS = (36_526, 73_051)
"""2000 to 2100, as spreadsheets number days."""

MOSTLY = 0.8
"""Share of a column's times that must be of one unit; the others are dropped one by one."""

LARGEST_MS = 10.0**14
LONGEST_DATE = 100
MOST_WHOLE = 10**300

FROM_SOME_START: tuple[TimeUnit, ...] = ("s", "ms")
"""Units that times may have which are too small to be since 1970."""

NAIVE = "dates without a zone, taken for UTC"

Order = Literal["ymd", "dmy", "mdy", "named", "time"]

_ZONE_HOURS = {
    "UTC": 0, "GMT": 0, "WEST": 1, "WET": 0, "CEST": 2, "CET": 1, "EEST": 3, "EET": 2,
    "EST": -5, "EDT": -4, "CDT": -5, "MDT": -6, "PST": -8, "PDT": -7, "JST": 9, "KST": 9,
}  # fmt: skip
"""Zones whose names mean one thing: CST, IST and BST mean two or three."""

_FIRST: dict[Literal["ymd", "dmy", "mdy"], str] = {"dmy": "day", "mdy": "month", "ymd": "year"}
"""Orders of numbers, of which a date such as 10-11-12 may have any."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SPREADSHEET = datetime(1899, 12, 30, tzinfo=UTC)
_CLOCK = (
    r"(?P<hour>\d{1,2})(?:[:.](?P<minute>\d{2})(?:[:.](?P<second>\d{2})(?:[.,](?P<fraction>\d{1,9}))?)?)?"
    r"\s*(?P<half>[AaPp]\.?\s?[Mm]\.?)?"
)
_ZONE = (
    rf"\s*(?P<zone>Z|(?:UTC|GMT)?\s?[+-]\d{{2}}(?::?\d{{2}})?|{'|'.join(_ZONE_HOURS)})?"
    r"(?:(?<=[+-]\d{4})\s[A-Z]{3,4})?(?:\s?[\[(][^\])]{1,60}[\])])?(?:\sm=[+-][\d.]+)?"
)
_TIME = rf"(?:(?:T|[\s,@:]+|-(?=\d\d\.)){_CLOCK}{_ZONE})?"
"""Behind a date: DB2 has a ``-`` there, and points in the time."""

_YEAR = r"(?P<year>\d{4}|\d{2})"
_MONTH = r"(?P<month>[A-Za-z]{3,9})\.?"
_FORMS: dict[Order, tuple[re.Pattern[str], ...]] = {
    "ymd": (
        re.compile(
            rf"(?P<year>\d{{4}})([-/.])\s?(?P<month>\d{{1,2}})\2\s?(?P<day>\d{{1,2}})\.?{_TIME}"
        ),
        re.compile(rf"(?P<year>\d\d)([-/])(?P<month>\d\d)\2(?P<day>\d\d){_TIME}"),
        re.compile(rf"(?P<year>\d{{4}})年(?P<month>\d{{1,2}})月(?P<day>\d{{1,2}})日{_TIME}"),
        re.compile(
            r"(?P<year>\d{4})(?P<month>\d\d)(?P<day>\d\d)T?(?P<hour>\d\d)(?P<minute>\d\d)"
            rf"(?P<second>\d\d)(?:\.?(?P<fraction>\d{{1,9}}))?(?P<half>){_ZONE}"
        ),
    ),
    "dmy": (
        re.compile(rf"(?P<day>\d{{1,2}})([-/.])(?P<month>\d{{1,2}})\2{_YEAR}{_TIME}"),
    ),
    "mdy": (
        re.compile(rf"(?P<month>\d{{1,2}})([-/])(?P<day>\d{{1,2}})\2{_YEAR}{_TIME}"),
    ),
    "named": (
        re.compile(
            rf"(?:[A-Za-z]{{3,9}},?\s+)?(?P<day>\d{{1,2}})[-/ .]+{_MONTH},?[-/ ]+{_YEAR}{_TIME}"
        ),
        re.compile(
            rf"(?:[A-Za-z]{{3,9}},?\s+)?{_MONTH}\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?,?\s+{_YEAR}{_TIME}"
        ),
        re.compile(
            rf"(?:[A-Za-z]{{3,9}},?\s+)?{_MONTH}\s+(?P<day>\d{{1,2}})\s+{_CLOCK}{_ZONE}\s+(?P<year>\d{{4}})"
        ),
    ),
    "time": (re.compile(rf"{_CLOCK}(?P<zone>)"),),
}  # fmt: skip
_MONTHS = {
    name: number
    for number, names in enumerate(
        (
            *("jan ene gen", "feb fev", "mar mrz", "apr abr avr", "may mai mag", "jun giu"),
            *("jul lug", "aug ago", "sep set", "oct okt ott out", "nov", "dec dez dic"),
        ),
        1,
    )
    for name in names.split()
}
"""In the languages of the west, where they are written without accents."""

COMPACT = re.compile(r"20\d\d[01]\d[0-3]\d[0-2]\d[0-5]\d[0-5]\d(?:\d{3}|\d{6})?")
"""A date of digits alone. As a number it could be no time since 1970, in any unit."""


@dataclass(frozen=True, slots=True)
class TwoReadings:
    """Times that may mean two things: what is not clear, and what the user may say of it."""

    what: str
    choices: tuple[TimeUnit, ...]
    odd: float | None = None
    """The first number that does not fit the others."""


@dataclass(frozen=True, slots=True)
class ColumnClock:
    """The spelling of the times in one column."""

    unit: Unit | None
    """Of numbers; None for dates."""

    order: Order = "ymd"
    dated: bool = True
    """Times count from 1970; otherwise from a start that is unknown."""

    zoned: bool = True
    """Times name their zone, or count from 1970; those without are taken for UTC."""

    why: str = ""
    """The rule, to be said aloud."""

    decimal: str = "."
    """Of numbers."""

    def ms(self, value: object) -> float | Reason:
        """Return ms since 1970, or since the unknown start; why not, where it is no such time."""
        if isinstance(value, str):
            text = value.strip()
            if not text:
                return "no_timestamp"
            if not self.unit:
                return self._date_ms(text)
            return self._number_ms(real(text, self.decimal), text)
        if value is None:
            return "no_timestamp"
        if isinstance(value, bool) or not isinstance(value, int | float):
            return "bad_timestamp"
        return self._number_ms(value, value) if self.unit else self._date_ms(str(value))

    def _number_ms(self, value: float | None, given: object) -> float | Reason:
        if value is None:
            return "other_unit" if isinstance(given, str) and is_date(given) else "bad_timestamp"
        if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124 - not a number
            return "not_finite"
        assert self.unit is not None
        ms = scaled(value, self.unit)
        if abs(ms) > LARGEST_MS:
            return "out_of_range" if not self.dated else "other_unit"
        if ms < 0 and not self.dated:
            return "before_origin"
        if self.dated and not FROM_S * 1000 <= ms < TO_S * 1000:
            return "before_origin" if value < 0 else "other_unit"
        return ms

    def _date_ms(self, text: str) -> float | Reason:
        found = parse(text, self.order)
        if found is None:
            return "other_unit" if number(text) is not None else "bad_timestamp"
        ms, zoned = found
        if zoned != self.zoned and self.order != "time":
            return "other_unit"
        return ms if ms >= 0 else "bad_timestamp"


def bounded(value: float) -> float:
    """Return the number; infinity for a whole one that no float can hold, as JSON may have it."""
    if not isinstance(value, int) or -MOST_WHOLE < value < MOST_WHOLE:
        return value
    return math.inf if value > 0 else -math.inf


def scaled(value: float, unit: Unit) -> float:
    """Return ms of a number of this unit."""
    value = bounded(value)
    return value * 1000 if unit == "s" else value / (10**6 // NANOSECONDS[unit])


def number(text: str) -> float | None:
    """Return a number as programs write it, a whole one as int; None for what is none."""
    if len(text) > 40 or "_" in text:
        return None
    try:
        return int(text) if text.lstrip("-").isdecimal() and text.isascii() else float(text)
    except ValueError:
        return None


def real(text: str, decimal: str) -> float | None:
    """Return a number, whose fraction or thousands a comma or a point may part."""
    return number(plain_number(text, decimal))


def as_number(value: object, decimal: str) -> float | None:
    """Return what a cell has instead of a date, where it has a number."""
    if isinstance(value, bool):
        return None
    return bounded(value) if isinstance(value, int | float) else real(str(value).strip(), decimal)


NUMERIC = re.compile(r"[+-]?[\d.,]+")
CUT_SHORT = re.compile(r"\d(?:[.,]\d{1,8})?[eE]\+?\d{1,2}")
"""Of a time since 1970, which has ten digits at least."""


def is_date(text: str) -> bool:
    return any(parse(text, order) is not None for order in get_args(Order))


def clock_of_numbers(
    values: Sequence[float], *, heading: Unit | None, asked: TimeUnit | None
) -> ColumnClock | TwoReadings:
    """Return how these numbers count time; ``heading`` is the unit that their heading names."""
    fits = {
        unit: [value for value in values if FROM_S * 1000 <= scaled(value, unit) < TO_S * 1000]
        for unit in NANOSECONDS
    }
    unit = max(fits, key=lambda one: len(fits[one]))
    if asked in NANOSECONDS:
        return ColumnClock(asked, dated=bool(fits[asked]), why=f"in {NAMES[asked]}, as you say")
    if len(fits[unit]) >= MOSTLY * len(values):
        first = str(fits[unit][0]).removesuffix(".0")
        if heading is not None and heading != unit:
            return TwoReadings(
                f"{first} is a time since 1970 in {NAMES[unit]}, and the heading says "
                f"{NAMES[heading]}",
                (unit, heading),
            )
        moment = _EPOCH + timedelta(milliseconds=scaled(fits[unit][0], unit))
        why = f"epoch {NAMES[unit]}, because {first} then is {moment:%Y-%m-%d %H:%M:%S}"
        return ColumnClock(unit, why=f"{why}, and in no other unit a date from 2001 to 2096")
    if any(fits.values()):
        odd = next(value for value in values if value not in fits[unit])
        return TwoReadings(
            f"times of several units stand in it, {fits[unit][0]:.17g} and {odd:.17g}", (unit,), odd
        )
    if heading is not None:
        return ColumnClock(
            heading, dated=False, why=f"in {NAMES[heading]}, because the heading says so"
        )
    least, most = min(values), max(values)
    what = f"times from {least:g} to {most:g} count from some start, in seconds or in milliseconds"
    if DAYS[0] <= least and most < DAYS[1] and any(value % 1 for value in values):
        day = _SPREADSHEET + timedelta(days=values[0])
        what = (
            f"{values[0]:.12g} may be a spreadsheet's number for {day:%Y-%m-%d %H:%M}: show the "
            "column as dates there, and export it again; or it counts from some start"
        )
    return TwoReadings(what, FROM_SOME_START)


def clock_of_dates(
    texts: Sequence[str], *, asked: TimeUnit | None
) -> ColumnClock | TwoReadings | None:
    """Return how these dates are written; None where they are none."""
    read = {order: [parse(text, order) is not None for text in texts] for order in _FORMS}
    most = max(sum(done) for done in read.values())
    if not most or most < len(texts) / 2:
        return None
    orders = [order for order, done in read.items() if sum(done) == most]
    texts = [text for text, is_read in zip(texts, read[orders[0]], strict=True) if is_read]
    if asked in _FIRST:
        if asked not in orders:
            return None
        orders = [asked]
    if len(several := [one for one in _FIRST if one in orders]) > 1:
        days = {text[: _date_end(text)] for text in texts}
        first, *others = (_FIRST[one] for one in several)
        what = f"{min(days)} may have the {first} first, or the {' or the '.join(others)}"
        return TwoReadings(what, tuple(several))
    order = orders[0]
    found_zones = [found[1] for text in texts if (found := parse(text, order)) is not None]
    zoned = sum(found_zones) * 2 > len(found_zones)
    if order == "time":
        return ColumnClock(None, order, dated=False, why="times of one day, without a date")
    zone = "dates with their zone" if zoned else NAIVE
    first = {"dmy": ", day first", "mdy": ", month first"}.get(order, "")
    return ColumnClock(None, order, zoned=zoned, why=zone + first)


def _date_end(text: str) -> int:
    found = re.match(r"[\d./-]+", text)
    return found.end() if found else len(text)


def parse(  # noqa: PLR0911 - one part after another
    text: str, order: Order
) -> tuple[float, bool] | None:
    """Return (ms since 1970 as if in UTC, or by its zone; whether it has one); None for no date.

    A time of day without a date counts from midnight.
    """
    if len(text) > LONGEST_DATE:
        return None
    if text.startswith("[") and text.endswith("]"):  # as web servers write it
        text = text[1:-1]
    match = next((hit for form in _FORMS[order] if (hit := form.fullmatch(text))), None)
    if match is None:
        return None
    part = match.groupdict()
    if order == "time" and part["minute"] is None:
        return None
    time_ns = _time_ns(part)
    if time_ns is None:
        return None
    day_ns = 0 if order == "time" else _day_ns(part["year"], part["month"], part["day"])
    if day_ns is None:
        return None
    zone_ns = _zone_ns(part["zone"] or "")
    if zone_ns is None:
        return None
    return (day_ns + time_ns - zone_ns) / 10**6, bool(part["zone"])


@lru_cache(maxsize=1024)
def _day_ns(year: str, month: str, day: str) -> int | None:
    number = _MONTHS.get(month[:3].lower(), 0) if month[0].isalpha() else int(month)
    try:
        date = datetime(int(year) + (2000 if len(year) == 2 else 0), number, int(day), tzinfo=UTC)
    except ValueError:
        return None
    return (date - _EPOCH).days * 86_400 * 10**9


def _time_ns(part: dict[str, str | None]) -> int | None:
    hour, minute = int(part["hour"] or 0), int(part["minute"] or 0)
    second = int(part["second"] or 0)
    if half := part["half"]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half[0] in "pP" else 0)
    if hour > 23 or minute > 59 or second > 59:
        return None
    fraction = int((part["fraction"] or "0").ljust(9, "0"))
    return ((hour * 60 + minute) * 60 + second) * 10**9 + fraction


@lru_cache(maxsize=64)
def _zone_ns(zone: str) -> int | None:
    if zone in _ZONE_HOURS:
        return _ZONE_HOURS[zone] * 3600 * 10**9
    digits = zone.removeprefix("UTC").removeprefix("GMT").strip()
    if digits in ("", "Z"):
        return 0
    hours, minutes = int(digits[1:3]), int(digits[3:].lstrip(":") or 0)
    if hours > 23 or minutes > 59:
        return None
    return (-1 if digits[0] == "-" else 1) * (hours * 60 + minutes) * 60 * 10**9

"""How the cells of a column are written, and what they mean: counts, times, spans, statuses.

A reader has one rule for a cell, and may take whole arrays at once where all is plain; whatever is
not plain goes by the rule. Where two readings are possible none is chosen (``guess``).
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, ClassVar, Literal, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tuner.trace.record import MAX_MS, MAX_TOKENS, Reason

Unit = Literal["s", "ms", "us", "ns"]
NANOSECONDS: dict[Unit, int] = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
FROM_MS, TO_MS = 1.0e12, 4.0e12
"""2001 to 2096: a number in this range can only be a time since 1970, in one unit."""


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


def in_order(text: str) -> tuple[str, ...]:
    """Return the words of a text in their order."""
    return tuple(text.split())


NULL = words(r"- null none undefined nil \n nan nat <na> na n/a #n/a") | {""}
"""Words with which databases, pandas and spreadsheets say that there is nothing."""

ABSENT = np.iinfo(np.int64).min
"""What stands for nothing among whole numbers; among times it is NaN."""

Cells = pa.Array | list[Any]
Plain = tuple[NDArray[Any], NDArray[np.bool_]]
"""Values, and which of them are read; the others go by the rule for a cell."""


class Reader(Protocol):
    """Reads the cells of a column."""

    @property
    def kind(self) -> type[np.int64 | np.float64]:
        """The kind of its numbers."""

    def plain(self, cells: pa.Array) -> Plain | None:
        """Return what can be read at once; None where nothing can."""

    def cell(self, value: Any) -> float | Reason | None:  # noqa: ANN401 - whatever it holds
        """Return what a cell says; None where it says nothing, the reason where it is wrong."""


def is_empty(value: object) -> bool:
    """Whether a cell says nothing."""
    if isinstance(value, str):
        return len(value) < 20 and value.strip().lower() in NULL
    return value is None or value != value or value in ({}, [])  # noqa: PLR0124 - NaN is not itself


_NUMBER = r"^[+-]?\d{1,15}(\.\d{1,12})?$"


def numbers(cells: pa.Array, kind: pa.DataType) -> Plain | None:
    """Return numbers that may be written as text; None where the column holds something else."""
    if pa.types.is_null(cells.type):
        return np.full(len(cells), np.nan), np.ones(len(cells), np.bool_)
    clean = None
    if pa.types.is_string(cells.type):
        hexadecimal = pc.match_substring(cells, "x")  # which Arrow reads
        try:
            cells = pc.cast(pc.if_else(pc.fill_null(hexadecimal, False), "?", cells), kind)
        except pa.ArrowInvalid:
            cells = pc.utf8_trim_whitespace(cells)
            fits = pc.match_substring_regex(cells, r"^\d{1,18}$" if kind == pa.int64() else _NUMBER)
            clean = pc.fill_null(fits, fill_value=True).to_numpy(zero_copy_only=False)
            cells = pc.cast(pc.if_else(fits, cells, None), kind)
    if not (pa.types.is_integer(cells.type) or pa.types.is_floating(cells.type)):
        return None
    if pa.types.is_integer(cells.type) and cells.null_count:
        cells = pc.fill_null(pc.cast(cells, pa.int64()), ABSENT)
    values = cells.to_numpy(zero_copy_only=False)
    return values, np.ones(len(values), np.bool_) if clean is None else clean


# Counts of tokens. A fraction of a token does not exist, so 1.234 among counts is 1,234; where a
# mark and three zeros could be either, none is chosen.

GROUPED = re.compile(r"[+-]?\d{1,3}(?:([.,'\u2019 \u00a0\u202f_])\d{3})(?:\1\d{3})*(?:[.,]0*)?")
"""A whole number with a mark between its thousands."""

_DECIMAL = re.compile(r"[+-]?\d+[.,]0*")
_THREE_ZEROS = re.compile(r"[+-]?[1-9]\d{0,2}[.,]000")


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts, which may have marks between their thousands or a fraction of nothing: 128.0."""

    thousands: str = ""
    decimal: str = "."
    """Empty where no count had a mark: then three zeros behind one may be thousands."""

    least: int = 0
    kind: ClassVar = np.int64

    def plain(self, cells: pa.Array) -> Plain | None:
        found = numbers(cells, pa.int64())
        if found is None:
            return None
        values, clean = found
        if values.dtype.kind == "f":
            clean = clean & ((np.floor(values) == values) | np.isnan(values))
            values = np.where(np.abs(values) < 2**53, values, ABSENT)
        values = values.astype(np.int64)
        return values, clean & ((values == ABSENT) | ((values >= 0) & (values <= MAX_TOKENS)))

    def cell(self, value: Any) -> int | Reason | None:  # noqa: ANN401
        if is_empty(value):
            return None
        if isinstance(value, str):
            value = self._number(value.strip())
        if isinstance(value, bool) or not isinstance(value, int | float):
            return "not_integer"
        if isinstance(value, float) and not value.is_integer():
            return "not_integer"
        return (
            "negative"
            if value < self.least
            else int(value)
            if value <= MAX_TOKENS
            else "out_of_range"
        )

    def _number(self, text: str) -> int | None:
        if self.thousands and GROUPED.fullmatch(text):
            text = text.replace(self.thousands, "")
        if not self.decimal and _THREE_ZEROS.fullmatch(text):
            return None
        whole, _, zeros = text.partition(self.decimal or ".")
        digits = whole.removeprefix("+").removeprefix("-")
        if zeros.strip("0") or not (digits.isdecimal() and digits.isascii()) or len(digits) > 400:
            return None
        return int(whole)


def counts_of(cells: Sequence[object], decimal: str | None) -> Counts | str:
    """Return how these counts are written; what is not clear, where two readings are possible."""
    texts = [one.strip() for one in cells if isinstance(one, str) and one.strip()]
    for mark in ("'", "\u2019", "\u00a0", "\u202f", " ", "_"):
        if any(mark in text for text in texts) and _all_grouped(texts, mark):
            return Counts(mark)
    for mark, other in (".", ","), (",", "."):
        marked = [text for text in texts if mark in text]
        if not marked or decimal == other:
            if marked and _all_grouped(marked, mark):
                return Counts(mark, other)
            continue
        if all(_DECIMAL.fullmatch(text) for text in marked):
            is_clear = decimal is not None or not all(_may_be_thousands(text) for text in texts)
            return Counts(decimal=mark) if is_clear else two_readings(marked[0])
        if _all_grouped(marked, mark):
            return Counts(mark, other)
    return Counts(decimal="" if texts and decimal is None else ".")


def _may_be_thousands(text: str) -> bool:
    """Whether a count may have a mark between thousands: three zeros behind it, or it is small."""
    return bool(_THREE_ZEROS.fullmatch(text)) or (text.isdecimal() and len(text) < 4)


def _all_grouped(texts: Sequence[str], mark: str) -> bool:
    grouped = [GROUPED.fullmatch(text) for text in texts if mark in text]
    return all(hit is not None and hit[1] == mark for hit in grouped)


def two_readings(number: str) -> str:
    """Return what a number may be by its mark.

    >>> two_readings("1.234"), two_readings("25,000")
    ('1.234 may be 1234 or 1.234', '25,000 may be 25000 or 25.000')
    """
    mark = "," if "," in number else "."
    return f"{number} may be {number.replace(mark, '')} or {number.replace(mark, '.')}"


_BY_COMMAS = re.compile(r"-?[1-9]\d{0,2}(,\d{3})+(\.\d*)?")
_BY_POINTS = re.compile(r"-?[1-9]\d{0,2}(\.\d{3})+")


def decimal_of(texts: Sequence[str]) -> str:
    """Return the mark before the fractions of these numbers; both where it is not clear.

    >>> decimal_of(["0,800", "1,250"]), decimal_of(["850", "1,250"]), decimal_of(["1,800", "1,250"])
    (',', '.', '.,')
    >>> decimal_of(["0.987", "1.234"]), decimal_of(["987", "1.234"]), decimal_of(["1.234.567"])
    ('.', '.,', ',')
    """
    commas = [text for text in texts if "," in text]
    if commas:
        if not all(_BY_COMMAS.fullmatch(text) for text in commas):
            return ","
        one = [text for text in commas if text.count(",") == 1 and "." not in text]
        return ".," if len(one) == len(texts) else "."
    points = [text for text in texts if "." in text]
    if not points or not all(_BY_POINTS.fullmatch(text) for text in points):
        return "."
    if any(text.count(".") > 1 for text in points):
        return ","
    whole = [text for text in texts if "." not in text]
    return ".," if whole and all(len(text.lstrip("-")) < 4 for text in whole) else "."


def number(value: object, decimal: str = ".") -> float | None:
    """Return a number as programs or spreadsheets write it; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, str):
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None
    text = value.strip()
    if decimal == ",":
        text = text.replace(".", "").replace(",", ".")
    elif "," in text and GROUPED.match(text):
        text = text.replace(",", "")
    if len(text) > 40 or "_" in text:
        return None
    try:
        found = int(text) if text.lstrip("-").isdecimal() and text.isascii() else float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def scaled(value: float, unit: Unit) -> float:
    """Return ms of a number of this unit."""
    if isinstance(value, int) and abs(value) > 10**30:
        return math.inf if value > 0 else -math.inf
    return value * 1000 if unit == "s" else value / (10**6 // NANOSECONDS[unit])


def _scaled(values: NDArray[Any], unit: Unit) -> NDArray[np.float64]:
    """Return the same of an array, where ABSENT becomes NaN."""
    if values.dtype.kind != "f":
        values = np.where(values == ABSENT, np.nan, values)
    return values * 1000.0 if unit == "s" else values / (10**6 // NANOSECONDS[unit])


# Spans of time.

_SPAN = re.compile(r"(?:(\d+) days?,? ?)?(\d{1,4}):(\d{2}):(\d{2})(?:[.,](\d{1,9}))?")
_WITH_UNITS = re.compile(r"(?:\d+(?:\.\d+)?\s*[a-zµμ]+[\s,]*)+")
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zµμ]+)")
_ISO_SPAN = re.compile(r"p(?:(\d+)d)?(?:t(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?)?")
_ISO_PARTS_MS = (86_400_000.0, 3_600_000.0, 60_000.0, 1000.0)
TOKEN_MS = (0.3, 1000.0)
"""Range of an output token's time on any server, in ms: it shows the unit of durations, for it is
somewhat wider than a thousandfold, so that one unit fits, or two do and none is chosen."""

_UNIT_WORDS: dict[Unit, str] = {
    "s": "s sec secs second seconds",
    "ms": "ms msec msecs milli millis millisecond milliseconds",
    "us": "us µs μs usec micro micros microsecond microseconds",
    "ns": "ns nsec nano nanos nanosecond nanoseconds",
}
UNITS = {word: unit for unit, names in _UNIT_WORDS.items() for word in names.split()}
_UNIT_MS: dict[str, float] = {
    **dict.fromkeys(words("h hr hrs hour hours"), 3_600_000.0),
    **dict.fromkeys(words("m min mins minute minutes"), 60_000.0),
    **{word: NANOSECONDS[unit] / 10**6 for word, unit in UNITS.items()},
}


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of time: numbers of one unit, or, without a unit, texts that name theirs."""

    unit: Unit | None = "ms"
    decimal: str = "."
    kind: ClassVar = np.float64

    def plain(self, cells: pa.Array) -> Plain | None:
        if self.unit is None or self.decimal != ".":
            return None
        if (found := numbers(cells, pa.float64())) is None:
            return None
        ms = _scaled(found[0], self.unit)
        return ms, found[1] & (np.isnan(ms) | ((ms >= 0) & (ms <= MAX_MS)))

    def cell(self, value: Any) -> float | Reason | None:  # noqa: ANN401
        if is_empty(value):
            return None
        if self.unit is None:
            ms = written_ms(value.strip()) if isinstance(value, str) else None
        else:
            found = number(value, self.decimal)
            ms = None if found is None else scaled(found, self.unit)
        if ms is None:
            return "bad_field"
        return "negative_time" if ms < 0 else ms if ms <= MAX_MS else "out_of_range"


def written_ms(text: str) -> float | None:
    """Return ms of a span that names its unit: ``1m2.5s``, ``00:00:01.53``, ``0 days 00:00:01``.

    >>> written_ms("1 min 2.5 s"), written_ms("PT1M2.5S"), written_ms("875 tokens")
    (62500.0, 62500.0, None)
    """
    if hit := _SPAN.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in hit.groups()[:4])
        whole_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
        return whole_s * 1000 + float(f"0.{hit[5] or 0}") * 1000
    text = text.lower()
    if len(text) <= 60 and _WITH_UNITS.fullmatch(text):
        parts = [(float(value), _UNIT_MS.get(unit)) for value, unit in _PART.findall(text)]
        known = [value * each_ms for value, each_ms in parts if each_ms is not None]
        return sum(known) if len(known) == len(parts) else None
    if len(text) <= 60 and (hit := _ISO_SPAN.fullmatch(text)) and any(hit.groups()):
        parts_ms = zip(hit.groups(), _ISO_PARTS_MS, strict=True)
        return sum(float(value) * each_ms for value, each_ms in parts_ms if value)
    return None


# Times.

Order = Literal["ymd", "dmy", "mdy", "named", "time"]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ZONE_HOURS = {
    "UTC": 0, "GMT": 0, "WEST": 1, "WET": 0, "CEST": 2, "CET": 1, "EEST": 3, "EET": 2,
    "EST": -5, "EDT": -4, "CDT": -5, "MDT": -6, "PST": -8, "PDT": -7, "JST": 9, "KST": 9,
}  # fmt: skip
"""Zones whose names mean one thing: CST, IST and BST mean two or three."""

_CLOCK = (
    r"(?P<hour>\d{1,2})(?:[:.](?P<minute>\d{2})(?:[:.](?P<second>\d{2})(?:[.,](?P<fraction>\d{1,9}))?)?)?"
    r"\s*(?P<half>[AaPp]\.?\s?[Mm]\.?)?"
)
_ZONE = (
    rf"\s*(?P<zone>Z|(?:UTC|GMT)?\s?[+-]\d{{2}}(?::?\d{{2}})?|{'|'.join(_ZONE_HOURS)})?"
    r"(?:(?<=[+-]\d{4})\s[A-Z]{3,4})?(?:\s?[\[(][^\])]{1,60}[\])])?(?:\sm=[+-][\d.]+)?"
)
_TIME = rf"(?:(?:T|[\s,@:]+|-(?=\d\d\.)){_CLOCK}{_ZONE})?"
_YEAR = r"(?P<year>\d{4}|\d{2})"
_MONTH = r"(?P<month>[A-Za-z]{3,9})\.?"
_DAY = r"(?P<day>\d{1,2})"
_WEEKDAY = r"(?:[A-Za-z]{3,9},?\s+)?"
_OF_DIGITS = (
    r"(?P<year>\d{4})(?P<month>\d\d)(?P<day>\d\d)T?(?P<hour>\d\d)(?P<minute>\d\d)"
    rf"(?P<second>\d\d)(?:\.?(?P<fraction>\d{{1,9}}))?(?P<half>){_ZONE}"
)
_FORMS: dict[Order, tuple[str, ...]] = {
    "ymd": (
        rf"(?P<year>\d{{4}})([-/.])\s?(?P<month>\d{{1,2}})\2\s?{_DAY}\.?{_TIME}",
        rf"(?P<year>\d\d)([-/])(?P<month>\d\d)\2(?P<day>\d\d){_TIME}",
        _OF_DIGITS,
    ),
    "dmy": (rf"{_DAY}([-/.])(?P<month>\d{{1,2}})\2{_YEAR}{_TIME}",),
    "mdy": (rf"(?P<month>\d{{1,2}})([-/]){_DAY}\2{_YEAR}{_TIME}",),
    "named": (
        rf"{_WEEKDAY}{_DAY}[-/ .]+{_MONTH},?[-/ ]+{_YEAR}{_TIME}",
        rf"{_WEEKDAY}{_MONTH}\s+{_DAY}(?:st|nd|rd|th)?,?\s+{_YEAR}{_TIME}",
        rf"{_WEEKDAY}{_MONTH}\s+{_DAY}\s+{_CLOCK}{_ZONE}\s+(?P<year>\d{{4}})",
    ),
    "time": (rf"{_CLOCK}(?P<zone>)",),
}  # fmt: skip
FORMS = {order: tuple(map(re.compile, forms)) for order, forms in _FORMS.items()}
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_ZONE_END = r"\s*(?:UTC|GMT|Z)$"


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

    decimal: str = "."
    kind: ClassVar = np.float64

    def plain(self, cells: pa.Array) -> Plain | None:
        if self.decimal != ".":
            return None
        if self.unit is not None:
            kind = pa.int64() if self.unit == "ns" else pa.float64()
            if (found := numbers(cells, kind)) is None:
                return None
            ms = _scaled(found[0], self.unit)
            least, most = (FROM_MS, TO_MS) if self.dated else (0.0, MAX_MS)
            return ms, found[1] & (ms >= least) & (ms < most)
        if self.order != "ymd" or not pa.types.is_string(cells.type):
            return None
        zoned = self.zoned
        if zoned is None:
            first = next((one for one in cells[:100].to_pylist() if one), "")
            zoned = (read := parse(first, "ymd")) is not None and read[1]
        return _dates(cells, zoned=zoned)

    def cell(self, value: Any) -> float | Reason | None:  # noqa: ANN401
        if is_empty(value):
            return None
        if self.unit is not None:
            found = number(value, self.decimal)
            return "bad_timestamp" if found is None else self._number_ms(found, self.unit)
        text = str(value).strip()
        if self.zoned is None and (found := number(value)) is not None and len(text) < 19:
            return self._number_ms(found, "s")
        orders: tuple[Order, ...] = ("ymd", "named") if self.zoned is None else (self.order,)
        dates = filter(None, (parse(text, order) for order in orders))
        ms, zoned = next(dates, (-1.0, False))
        is_other = self.zoned is not None and zoned != self.zoned and self.order != "time"
        return "bad_timestamp" if ms < 0 or is_other else ms

    def _number_ms(self, value: float, unit: Unit) -> float | Reason:
        ms = scaled(value, unit)
        if abs(ms) > MAX_MS and not self.dated:
            return "out_of_range"
        least, most = (FROM_MS, TO_MS) if self.dated else (0.0, MAX_MS)
        return ms if least <= ms <= most else "bad_timestamp"


def _dates(cells: pa.Array, *, zoned: bool) -> Plain:
    """Return ms since 1970 of dates that Arrow reads as they stand."""
    kind = pa.timestamp("ns", "UTC" if zoned else None)
    clean = np.ones(len(cells), np.bool_)
    try:
        stamps = pc.cast(cells, kind)
    except pa.ArrowInvalid:
        if zoned:
            cells = pc.replace_substring_regex(cells, _ZONE_END, "Z")
            cells = pc.replace_substring_regex(cells, r"\s([+-]\d{2}:?\d{0,2})$", r"\1")
        fraction = r"^\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,9})?"
        zone = r"(Z|[+-]\d\d(:?\d\d)?)$" if zoned else "$"
        fits = pc.match_substring_regex(cells, fraction + zone)
        clean = pc.fill_null(fits, fill_value=True).to_numpy(zero_copy_only=False)
        try:
            stamps = pc.cast(pc.if_else(fits, cells, None), kind)
        except pa.ArrowInvalid:  # a 31st of February
            return np.full(len(cells), np.nan), np.zeros(len(cells), np.bool_)
    whole = pc.fill_null(pc.cast(stamps, pa.int64()), ABSENT).to_numpy(zero_copy_only=False)
    ms = _scaled(whole, "ns")
    return ms, clean & ~(ms < 0)


def parse(text: str, order: Order) -> tuple[float, bool] | None:
    """Return (ms since 1970 as if in UTC, or by its zone; whether it has one); None for no date.

    A time of day without a date counts from midnight.
    """
    if text.startswith("[") and text.endswith("]"):  # as web servers write it
        text = text[1:-1]
    if len(text) > 100:
        return None
    match = next((hit for form in FORMS[order] if (hit := form.fullmatch(text))), None)
    if match is None:
        return None
    part = match.groupdict()
    if order == "time" and part["minute"] is None:
        return None
    time_ns, zone_ns = _time_ns(part), _zone_ns(part["zone"] or "")
    day_ns = 0 if order == "time" else _day_ns(part["year"], part["month"], part["day"])
    if time_ns is None or zone_ns is None or day_ns is None:
        return None
    return (day_ns + time_ns - zone_ns) / 10**6, bool(part["zone"])


@lru_cache(maxsize=1024)
def _day_ns(year: str, month: str, day: str) -> int | None:
    name = month[:3].lower()
    number = _MONTHS.index(name) + 1 if name in _MONTHS else int(month) if month.isdecimal() else 0
    try:
        date = datetime(int(year) + (2000 if len(year) == 2 else 0), number, int(day), tzinfo=UTC)
    except ValueError:
        return None
    return (date - _EPOCH).days * 86_400 * 10**9


def _time_ns(part: dict[str, str | None]) -> int | None:
    hour, minute, second = (int(part[name] or 0) for name in ("hour", "minute", "second"))
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


def shown_date(ms: float) -> str:
    """Return a time since 1970 for people."""
    return f"{_EPOCH + timedelta(milliseconds=ms):%Y-%m-%d %H:%M:%S}"


@dataclass(frozen=True, slots=True)
class Usage(Counts):
    """Counts that may be sums over an object: of all whose key has one of the words.

    So Langfuse counts: cached input stands under a key of its own beside the rest.
    """

    words: tuple[str, ...] = ()
    also: str = ""
    never: str = "cost"

    def cell(self, value: Any) -> int | Reason | None:  # noqa: ANN401
        held = as_object(value)
        if held is None:
            return Counts.cell(self, value)
        if str(held.get("unit") or "TOKENS") != "TOKENS":
            return None
        for word in self.words:
            counts = [
                Counts.cell(self, one)
                for key, one in held.items()
                if word in (name := key.lower()) and self.also in name and self.never not in name
            ]
            known = [count for count in counts if count is not None]
            if wrong := [count for count in known if isinstance(count, str)]:
                return wrong[0]
            if known:
                return sum(count for count in known if isinstance(count, int))
        return None


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

"""A table that no format claims: which column is what, by headings and first rows; or a refusal.

The result is a ``Format`` like any other. What was decided is told with its reason, and nothing is
decided where two readings are possible: then the refusal has the command that settles it. Such a
command is tried before it is shown.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.errors import TraceError, UsageError
from tuner.system.printable import printable
from tuner.trace.formats import NAMES, TABLE, Column, Format
from tuner.trace.headings import (
    BEGIN,
    GAPS,
    NOT_A_COUNT,
    OUTPUT,
    PROMPT,
    ROLES,
    SPANS,
    TIMES,
    TOKENS,
    WRITTEN_RANK,
    Role,
    in_words,
    main_roles,
    meanings,
    role_of,
    unit_of,
    words_of,
)
from tuner.trace.raw import Opened
from tuner.trace.record import TimeUnit
from tuner.trace.text import shown_key
from tuner.trace.values import (
    FORMS,
    FROM_MS,
    NANOSECONDS,
    TO_MS,
    TOKEN_MS,
    Clock,
    Counts,
    Order,
    Spans,
    Unit,
    counts_of,
    decimal_of,
    in_order,
    is_empty,
    number,
    parse,
    scaled,
    shown_date,
    two_readings,
    words,
    written_ms,
)
from tuner.trace.words import error_in, from_cache, status_in

Floats = NDArray[np.float64]

STDIN = "stdin"
"""The name of standard input in messages."""

COUNTS = frozenset(
    {
        *("input_length", "output_length", "total_length", "cached_tokens", "requests"),
        *("cache_creation_tokens", "max_tokens", "num_images"),
    }
)
NEEDED = frozenset(
    {
        *("timestamp", "day", "input_length", "output_length", "total_length", "duration"),
        *("requests", "status", "error", "cache_hit", "kind"),
    }
)
"""Roles of which nothing may be unclear, for they decide over rows: else the table is refused. Of
other roles the column is left out."""

MAIN_COLUMNS: tuple[Role, ...] = ("timestamp", "input_length", "output_length", "end", "duration")
USABLE = 0.5
"""Share of a column's values that must be of its kind; rows with others are judged one by one."""

MOSTLY = 0.8
"""Share of a column's times that must be of one unit; the others are dropped one by one."""

RELATIVE = 3
"""Rank that a time which counts from some start loses against a date."""

SAYS_NOTHING = 10
"""Rank that a time loses which is the same in all rows: it is when a report begins or ends."""

SOME_ROWS = 3
"""Fewer rows are alike by chance."""

SAME_TIME_MS = 1000
"""Two columns of the same time differ by less: one of them may be of whole seconds."""

RUNS_ON_MS = 10 * SAME_TIME_MS
"""Growth in a few rows from which on a span counts from some start."""

FIRST: dict[Order, str] = {"dmy": "day", "mdy": "month", "ymd": "year"}
"""Orders of numbers, of which a date such as 10-11-12 may have any."""

FROM_SOME_START = ({"time_unit": "s"}, {"time_unit": "ms"})
DECIMALS = ({"decimal": ","}, {"decimal": "."})
"""What would settle times that are too small to be since 1970, and marks in numbers."""

CACHE = ("cached_tokens", "cache_creation_tokens")
BEGINS = BEGIN | words("created create creation")
OF_LOGS = words("level severity levelname lvl logger log_type")
OF_HTTP = words("method uri path status request url request_uri proto")
PATHS = words("uri path request url request_uri")
OVER = in_order("complet finish served handled access respon end")
"""Keys of logs and of what a web server logs, and words of messages that a request is over."""

SUMS = "sums over time are no requests"
_METHOD = re.compile(r"(?:GET|POST|PUT|HEAD|DELETE) ")
_CUT_SHORT = re.compile(r"\d(?:[.,]\d{1,8})?[eE]\+?\d{1,2}")
"""Of a time since 1970 that a spreadsheet cut to ``1.79E+12``."""

SHOWN = 12
"""Headings that a refusal lists."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user says of a file; empty where nothing was said."""

    format_name: str | None = None
    time_unit: TimeUnit | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    """Role, or role and unit (``duration_ms``) → heading, dotted path, or ``#`` and number."""

    delimiter: str | None = None
    decimal: str | None = None
    """The mark before fractions: a point or a comma."""

    allow_text: bool = False
    name: str | None = None
    """What messages call the file, if not by its path."""

    def words(self) -> list[str]:
        """Return this as options of the command line."""
        columns = ",".join(f"{role}={name}" for role, name in self.columns.items())
        options = {
            "--columns": columns, "--time-unit": self.time_unit, "--delimiter": self.delimiter,
            "--decimal": self.decimal,
        }  # fmt: skip
        found = [word for name, value in options.items() if value for word in (name, value)]
        return [*found, *(["--allow-text"] if self.allow_text else [])]

    @property
    def is_of_table(self) -> bool:
        """Whether something was said that only a table without a known format has."""
        return bool(self.columns or self.delimiter or self.decimal)


def columns_asked(text: str) -> dict[str, str]:
    """Read ``--columns timestamp=ts,input_length=prompt_tok``. Raises UsageError."""
    found: dict[str, str] = {}
    for part in text.replace("\\,", "\0").split(","):
        role, equals, heading = part.replace("\0", ",").partition("=")
        if not equals or not role.strip():
            raise UsageError(
                f"--columns: cannot read {part!r}",
                hint="Write it as timestamp=ts,input_length=prompt_tok,output_length=gen_tok.",
            )
        found[role.strip()] = heading.strip()
    return found


def delimiter_asked(text: str) -> str:
    """Read ``--delimiter``. Raises UsageError for what is not one character."""
    found = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|"}.get(text, text)
    if len(found) != 1 or found in '"\n\r' or not found.isascii():
        raise UsageError(
            f"--delimiter {text!r} is not one character", hint="Write ';', ',', '|' or tab."
        )
    return found


class UnclearError(Exception):
    """A column that may mean two things, or a table that lacks one; and what would settle it."""

    def __init__(self, what: str, *cures: Mapping[str, Any]) -> None:
        super().__init__(what)
        self.cures = cures
        """Changes of what the user says, each of which may do."""

        self.taken: dict[Role, str] = {}
        """Which heading was taken for what."""

        self.options: list[Asked] = []
        """What the user may say instead: each was tried. Empty where nothing helps."""

        self.is_likely = False
        """It is a table of requests all the same: two of the three main columns are there."""


def guessed(opened: Opened, asked: Asked) -> Format:
    """Return how a table is read, by its columns or else with what their cells hold as JSON.

    Raises UnclearError.
    """
    try:
        return _guessed(opened, asked)
    except UnclearError as problem:
        inner = opened.with_inside()
        if len(inner.headings) == len(opened.headings):
            raise
        try:
            return _guessed(inner, asked)
        except UnclearError as within:
            raise within if within.is_likely and not problem.is_likely else problem from None


def _guessed(opened: Opened, asked: Asked) -> Format:
    guess = _Guess(opened, asked)
    try:
        return guess.format()
    except UnclearError as problem:
        found = {role: guess.found[role] for role in MAIN_COLUMNS if role in guess.found}
        problem.taken = {role: guess.name(column) for role, column in found.items()}
        problem.is_likely = len(main_roles(opened.headings)) >= 2
        for cure in problem.cures:
            columns = {**asked.columns, **cure.get("columns", {})}
            option = replace(asked, **{**cure, "columns": columns})
            with suppress(UnclearError):
                _Guess(opened, option).format()
                problem.options.append(option)
        raise


def refused(place: str, opened: Opened, problem: UnclearError, asked: Asked) -> TraceError:
    """Return the error: what was seen, what was taken for what, and the command that would do."""
    seen = ", ".join(shown(opened, heading) for heading in opened.headings[:SHOWN])
    more = ", …" if len(opened.headings) > SHOWN else ""
    taken = ", ".join(f"{role}={name}" for role, name in problem.taken.items())
    message = printable(
        f"{place}:{max(1, opened.first_line - 1)}: {problem}; columns: {seen}{more}"
        + (f"; taken: {taken}" if taken else "")
    )
    if any("\ufffd" in heading for heading in opened.headings):
        cure = "Convert it first, with the name of its encoding: iconv -f GB18030 -t UTF-8 FILE."
        return TraceError(f"{message}: headings are not UTF-8", hint=cure)
    options = [option.words() for option in problem.options]
    if len(options) == 1:
        file = "-" if place == STDIN else place
        command = ["tuner", "trace", "import", file, *options[0], "-o", "trace.jsonl"]
        return TraceError(message, hint=printable(shlex.join(command)))
    if options:
        choice = "; ".join(map(shlex.join, options))
        return TraceError(message, hint=printable(f"Add one of: {choice}"))
    cure = (
        "Export it as CSV or JSON lines with the time, the prompt's and the output's tokens; or "
        "name their columns: --columns timestamp=HEADING,input_length=…,output_length=…"
    )
    if asked.columns:
        count = len(opened.headings)
        cure = f"--columns ROLE=HEADING takes headings as they stand, or #1 to #{count}."
    return TraceError(message, hint=cure)


def shown(opened: Opened, heading: str) -> str:
    """Return a heading for a message: of text only one that is made of known words, for what looks
    like a heading may be a line of somebody's text."""
    is_safe = in_words(heading) if opened.is_text else shown_key(heading) == heading
    return heading if is_safe else f"#{opened.headings.index(heading) + 1}"


class _Guess:
    """The roles that the columns of one table are given."""

    def __init__(self, opened: Opened, asked: Asked) -> None:
        self.opened, self.asked = opened, asked
        self.values = {
            heading: [row[place] for row in opened.sample]
            for place, heading in enumerate(opened.headings)
        }
        self.asked_roles = {role_of(name)[0] for name in asked.columns}
        self.found: dict[Role, Column] = {}
        self.total: Column | None = None
        self.notes: list[str] = []
        self.token_ms: float | None = None

    def format(self) -> Format:
        """Return the table's format. Raises UnclearError."""
        self._user_columns()
        problems: list[UnclearError] = []
        for role in ROLES:
            if role not in self.found and role not in self.asked_roles:
                try:
                    self._find(role)
                except UnclearError as problem:
                    if role in NEEDED:
                        problems.append(problem)
                    elif role not in TIMES:
                        self.notes.append(f"{role} is left out: {problem}")
        missing = self._missing()
        if problems:  # a word on times alone would not do where lengths are missing too
            is_of_times = any("time_unit" in cure for cure in problems[0].cures)
            alone = is_of_times and len(problems) == 1 and {*missing} - {"timestamp"}
            raise self._without([*alone]) if alone else problems[0]
        self._join_day()
        self._refuse_sums()
        self._combine()
        if missing := self._missing():
            raise self._without(missing)
        return self._made()

    def _made(self) -> Format:
        status = self.found.get("status")
        flag = status is not None and bool({"success", "ok"} & {*words_of(status.paths[0])})
        prompt_is_sum = self._prompt_is_sum()
        lengths = [
            f"{role} from {self.name(column)}"
            + (f", with {reader.thousands!r} between thousands" if reader.thousands else "")
            for role, column in self.found.items()
            if role.endswith("_length") and isinstance(reader := column.reader, Counts)
        ]
        added = ["cached prompt tokens are counted apart, and added to the others"]
        missing = ["prefixes"]
        missing += [] if {"status", "error"} & self.found.keys() else ["aborts", "errors"]
        missing += [] if "session_id" in self.found else ["sessions"]
        return replace(
            TABLE,
            columns={
                role: replace(column, title=self.name(column))
                for role, column in self.found.items()
            },
            missing=tuple(missing),
            status=lambda value: status_in(value, flag=flag),
            prompt_is_sum=prompt_is_sum,
            token_ms=self.token_ms,
            notes=(", ".join(lengths), *self.notes, *(added if prompt_is_sum else ())),
        )

    def name(self, column: Column) -> str:
        """Return what messages call a column."""
        return shown(self.opened, column.paths[0])

    # Columns by their headings.

    def _find(self, role: Role) -> None:
        """Take the best of the columns whose heading and values fit a role."""
        fitting: list[tuple[int, Column]] = []
        problems: list[tuple[int, UnclearError]] = []
        for heading in self.opened.headings:
            for meaning in meanings(heading):
                if meaning.role != role:
                    continue
                try:
                    column = self._read(role, heading, meaning.unit)
                except UnclearError as problem:
                    relative = problem.cures == FROM_SOME_START
                    problems.append((meaning.rank + RELATIVE * relative, problem))
                    continue
                if column is not None:
                    relative = isinstance(column.reader, Clock) and not column.reader.dated
                    same = role in TIMES and self._is_constant(heading)
                    rank = meaning.rank + RELATIVE * relative + SAYS_NOTHING * same
                    fitting += [(rank, column)] if role != "end" or not same else []
        if problems:
            least, first = min(problems, key=lambda one: one[0])
            if not any(rank <= least for rank, _ in fitting):
                raise first
        if fitting:
            best = min(rank for rank, _ in fitting)
            self._take(role, [column for rank, column in fitting if rank == best])

    def _take(self, role: Role, fitting: Sequence[Column]) -> None:
        """Take one of the columns that fit a role as well as each other."""
        whole = [one for one in fitting if role == "duration" and self._is_whole(one, fitting)]
        first, *others = whole or fitting
        for other in others:
            namesake = first.paths[0].lower() == other.paths[0].lower().partition("#")[0]
            matters = namesake or (role in COUNTS | TIMES | SPANS and role != "requests")
            if matters and not self._alike(first, other):
                names = [self.name(first), self.name(other)]
                raise UnclearError(
                    f"both {names[0]} and {names[1]} may be {role}",
                    *({"columns": {role: name}} for name in names),
                )
        self.found[role] = first

    def _known(self, heading: str) -> list[Any]:
        return [one for one in self.values[heading] if not is_empty(one)]

    def _read(self, role: Role, heading: str, unit: Unit | None) -> Column | None:
        """Return the column if its values fit the role. Raises UnclearError if they fit twice."""
        known = self._known(heading)
        if not known and role not in ("error", "finish_reason"):
            return None
        if role in TIMES or role == "day":
            return self._clock(role, heading, known, unit)
        if role in SPANS:
            return self._spans(role, heading, unit)
        reader: Counts | None = None
        fits = len(known)
        if role in COUNTS:
            counts = counts_of(known, self.asked.decimal)
            if isinstance(counts, str):
                raise UnclearError(f"{shown(self.opened, heading)}: {counts}", *DECIMALS)
            reader = counts
            fits = sum(isinstance(counts.cell(one), int) for one in known)
        elif role == "status":
            fits = sum(status_in(one, flag=True) is not None for one in known)
        elif (role == "cache_hit" and any(from_cache(one) is None for one in known)) or (
            role == "error" and all(error_in(one) == "ok" for one in known)
        ):
            return None
        return Column((heading,), reader) if fits >= USABLE * len(known) else None

    def _user_columns(self) -> None:
        """Take what the user names. Counts come first: they show the units of spans."""
        headings = self.opened.headings
        by_name = {heading.lower(): heading for heading in reversed(headings)}
        by_name |= {f"#{place}": heading for place, heading in enumerate(headings, 1)}
        for name, asked in sorted(self.asked.columns.items(), key=lambda one: one[0] in SPANS):
            if not asked:
                continue
            role, unit = role_of(name)
            heading = by_name.get(asked.lower())
            if role is None:
                raise UnclearError(
                    f"{name!r} is nothing that a column can be (times and spans also with their "
                    f"unit, as duration_ms): {', '.join(ROLES)}"
                )
            if heading is None:
                raise UnclearError(f"no column is headed {asked!r}")
            column = self._read(role, heading, unit or unit_of(heading))
            if column is None:
                raise UnclearError(f"{asked} cannot be {role} by its values")
            self.found[role] = column

    # Times.

    def _clock(
        self, role: Role, heading: str, known: list[Any], unit: Unit | None
    ) -> Column | None:
        texts = [str(one).strip() for one in known]
        marked = [text for text in texts if not text.strip("+-0123456789.,")]
        decimal = self.asked.decimal or decimal_of(marked)
        of_digits = all(len(text) in (14, 17, 20) and parse(text, "ymd") for text in texts)
        numbers = [found for one in known if (found := number(one, decimal[0])) is not None]
        of_digits |= all(
            isinstance(one, str) and _CUT_SHORT.fullmatch(one.strip()) for one in known
        )
        if len(numbers) <= USABLE * len(known) or of_digits:
            dates = self._clock_of_dates(heading, texts)
            is_day = dates is not None and dates.order != "time"
            return Column((heading,), dates) if dates and (is_day or role != "day") else None
        if role == "day":
            return None  # a number of a day or an hour
        name = shown(self.opened, heading)
        if len(decimal) > 1:
            first = next(text for text in texts if "," in text or "." in text)
            raise UnclearError(f"{name}: {two_readings(first)}", *DECIMALS)
        clock, why = self._clock_of_numbers(heading, numbers, unit)
        zoned = False if heading in self.opened.naive else clock.zoned
        return Column((heading,), replace(clock, decimal=decimal, zoned=zoned), why)

    def _clock_of_numbers(
        self, place: str, values: Sequence[float], heading: Unit | None
    ) -> tuple[Clock, str]:
        """Return how numbers count time, and why. ``heading`` is the unit that theirs names."""
        name, asked = shown(self.opened, place), self.asked.time_unit
        fits = {
            unit: [one for one in values if FROM_MS <= scaled(one, unit) < TO_MS]
            for unit in NANOSECONDS
        }
        unit = max(fits, key=lambda one: len(fits[one]))
        if asked in NANOSECONDS:
            return Clock(asked, dated=bool(fits[asked])), "as you say"
        if len(fits[unit]) >= MOSTLY * len(values):
            if heading is not None and heading != unit:
                what = f"times since 1970 in {NAMES[unit]}, and the heading says {NAMES[heading]}"
                raise UnclearError(f"{name}: {what}", {"time_unit": unit}, {"time_unit": heading})
            return Clock(unit), f"the first is {shown_date(scaled(fits[unit][0], unit))}"
        if any(fits.values()):
            rows = enumerate(self.values[place], 1)
            row = next(at for at, one in rows if number(one) not in fits[unit])
            raise UnclearError(
                f"{name}: times of several units stand in it, first in row {row}; of one unit, the "
                "others are dropped",
                {"time_unit": unit},
            )
        if heading is not None:
            return Clock(heading, dated=False), "by the heading"
        raise UnclearError(
            f"{name}: times from {min(values):g} to {max(values):g} count from some start, in "
            "seconds or in milliseconds (or are a spreadsheet's days: show them as dates there)",
            *FROM_SOME_START,
        )

    def _clock_of_dates(self, heading: str, texts: Sequence[str]) -> Clock | None:
        """Return how dates are written; None where they are none. Raises UnclearError."""
        read = {order: [parse(text, order) for text in texts] for order in FORMS}
        counts = {order: sum(one is not None for one in done) for order, done in read.items()}
        most = max(counts.values())
        if not most or most < len(texts) / 2:
            return None
        orders: list[Order] = [order for order in FORMS if counts[order] == most]
        if (asked := self.asked.time_unit) in FIRST:
            orders = [order for order in orders if order == asked]
        several = [order for order in FIRST if order in orders]
        if len(several) > 1:
            parts = " or the ".join(FIRST[order] for order in several)
            raise UnclearError(
                f"{shown(self.opened, heading)}: dates may have the {parts} first",
                *({"time_unit": order} for order in several),
            )
        if not orders:
            return None
        dates = [one for one in read[orders[0]] if one is not None]
        zoned = sum(zone for _, zone in dates) * 2 > len(dates)
        return Clock(None, orders[0], dated=orders[0] != "time", zoned=zoned)

    # Spans of time.

    def _spans(  # noqa: PLR0911 - one form of spans after another
        self, role: Role, heading: str, unit: Unit | None
    ) -> Column | None:
        """Return how spans are written; None where they are none. Raises UnclearError."""
        name, cells = shown(self.opened, heading), self.values[heading]
        known = [
            (one, n)
            for one, n in zip(cells, self._counts("output_length"), strict=True)
            if not is_empty(one)
        ]
        texts = [one.strip() for one, _ in known if isinstance(one, str)]
        if texts and sum(written_ms(text) is not None for text in texts) * 2 >= len(known):
            return Column((heading,), Spans(None), "with their units")
        decimal = self.asked.decimal or decimal_of(texts)
        pairs = [(found, n) for one, n in known if (found := number(one, decimal[0])) is not None]
        if not pairs or len(pairs) * 2 < len(known):
            return None
        if len(decimal) > 1:
            first = next(text for text in texts if "," in text or "." in text)
            raise UnclearError(f"{name}: {two_readings(first)}", *DECIMALS)
        if unit is not None:
            return Column((heading,), Spans(unit, decimal), "by the heading")
        if role == "duration":
            if not any(value for value, _ in pairs):
                return None
            unit, why = self._unit_by_tokens(name, pairs)
            return Column((heading,), Spans(unit, decimal), why)
        if min(value for value, _ in pairs) < FROM_MS / 1000:  # else it is a time
            lasted = self.found.get("duration")
            if lasted is not None and isinstance(lasted.reader, Spans) and lasted.reader.unit:
                return Column((heading,), Spans(lasted.reader.unit, decimal), "as the durations")
            self.notes.append(f"{name} is left out, it may be in seconds or in milliseconds")
        return None

    def _unit_by_tokens(self, name: str, pairs: Sequence[tuple[float, int]]) -> tuple[Unit, str]:
        """Return the unit that gives an output token a time that some server takes, and why."""
        each = sorted(value / n for value, n in pairs if value > 0 and n > 0)
        if not each:
            return "ms", "no tokens to tell the unit by"
        middle, (least, most) = each[len(each) // 2], TOKEN_MS
        fitting = [unit for unit in NANOSECONDS if least <= scaled(middle, unit) <= most]
        if len(fitting) != 1:
            units: Sequence[Unit] = fitting or ("s", "ms")
            what = " or ".join(NAMES[unit] for unit in units)
            cures = ({"columns": {f"duration_{unit}": name}} for unit in units)
            raise UnclearError(f"{name}: it may be in {what}", *cures)
        (unit,) = fitting
        self.token_ms = scaled(middle, unit)
        long_ones = [scaled(value, unit) / n for value, n in pairs if value > 0 and n >= 32]
        odd = [one for one in long_ones if not least / 4 <= one <= most * 4]
        if len(odd) > (1 - MOSTLY) * len(long_ones):
            what = f"{name}: durations of several units stand in it"
            raise UnclearError(what, {"columns": {"duration": ""}})
        return unit, f"an output token then takes {self.token_ms:.3g} ms"

    # What one column shows beside another.

    def _counts(self, role: Role) -> list[int]:
        """Return a column's counts in the first rows, 0 where there is none."""
        column = self.found.get(role)
        if column is None or column.reader is None:
            return [0] * len(self.opened.sample)
        read = map(column.reader.cell, self.values[column.paths[0]])
        return [int(one) if isinstance(one, int | float) else 0 for one in read]

    def _ms(self, column: Column) -> Floats:
        """Return times or spans in the first rows, NaN where there is none."""
        assert column.reader is not None
        read = map(column.reader.cell, self.values[column.paths[0]])
        return np.array([float(one) if isinstance(one, int | float) else np.nan for one in read])

    def _both(self, one: Column, other: Column) -> tuple[Floats, Floats]:
        """Return two columns of times or spans, in rows that have both."""
        a, b = self._ms(one), self._ms(other)
        known = ~(np.isnan(a) | np.isnan(b))
        return a[known], b[known]

    def _is_constant(self, heading: str) -> bool:
        known = self._known(heading)
        return len(known) >= SOME_ROWS and known.count(known[0]) == len(known)

    def _is_whole(self, span: Column, others: Sequence[Column]) -> bool:
        """Whether no other span is longer in any row: then it is the whole request's."""
        return all((a >= b).all() for other in others for a, b in [self._both(span, other)])

    def _alike(self, one: Column, other: Column) -> bool:
        """Whether two columns hold the same, up to a second of a time and a ms of a span."""
        if isinstance(one.reader, Clock | Spans) and isinstance(other.reader, Clock | Spans):
            a, b = self._both(one, other)
            is_span = isinstance(one.reader, Spans)
            is_known = is_span or len(a) == len(self.opened.sample)
            return bool(is_known and (np.abs(a - b) <= (1 if is_span else SAME_TIME_MS)).all())
        return self.values[one.paths[0]] == self.values[other.paths[0]]

    # What follows from all columns together.

    def _combine(self) -> None:
        """Find ends, and drop what another column says better."""
        self._begin_when_created()
        time, end = self.found.get("timestamp"), self.found.get("end")
        if time is not None and end is not None and time.paths == end.paths:
            self.found.pop("timestamp" if "duration" in self.found else "end")
        self._drop_other_clocks()
        self._end_where_logged()
        if {"timestamp", "end"} <= self.found.keys():
            self.found.pop("duration", None)
            self.token_ms = None
        if {"input_length", "output_length"} <= self.found.keys():
            self.total = self.found.pop("total_length", None)

    def _end_where_logged(self) -> None:
        """Take the time at which a row was logged for its end, where a duration stands beside it.

        Access logs, and events that are sent when a call is over, are stamped then. Times in no
        order whose ends are in order are arrivals all the same.
        """
        time, lasted = self.found.get("timestamp"), self.found.get("duration")
        if time is None or lasted is None or {"timestamp", "end"} & self.asked_roles:
            return
        words = {*words_of(time.paths[0].rpartition(".")[2])}
        if "end" in self.found or words & BEGINS or not self._is_logged_at_the_end():
            return
        at_ms, lasted_ms = self._both(time, lasted)
        in_order = [not (np.diff(one) < -1).any() for one in (at_ms, at_ms + lasted_ms)]
        if in_order != [False, True]:
            why = "logged when a request ends"
            self.found["end"] = replace(self.found.pop("timestamp"), why=why)

    def _is_logged_at_the_end(self) -> bool:
        leaves = {one.lower().rpartition(".")[2]: one for one in self.opened.headings}
        if "$ai_latency" in leaves:  # an event of PostHog
            return True
        if "receivetimestamp" in leaves:  # Google stamps when a request comes
            return False
        has_status = any("status" in leaf for leaf in leaves)
        requests = self._known(leaves["request"]) if "request" in leaves else []
        has_method = "method" in leaves or (
            bool(requests) and all(_METHOD.match(str(one)) for one in requests[:20])
        )
        if has_status and has_method and leaves.keys() & PATHS:
            return True
        messages = [
            str(one).lower()
            for leaf in ("msg", "message", "event")
            if leaf in leaves
            for one in self._known(leaves[leaf])[:20]
        ]
        is_over = bool(messages) and all(any(word in one for word in OVER) for one in messages)
        return bool(leaves.keys() & OF_LOGS) and (bool(leaves.keys() & OF_HTTP) or is_over)

    def _refuse_sums(self) -> None:
        """Raise where rows are sums over time, and no requests."""
        counts = [one for one in self._counts("requests") if one]
        if len(counts) >= SOME_ROWS and {*np.diff(counts).tolist()} == {1}:
            del self.found["requests"]  # which numbers the rows
        elif sum(one > 1 for one in counts) > USABLE * len(counts):
            name = self.name(self.found["requests"])
            raise UnclearError(f"{name} counts several requests a row: {SUMS}")
        elif counts:  # a row is a stretch of time that holds one request
            for role in (TIMES | SPANS) - {"timestamp"}:
                self.found.pop(role, None)
        time, end = self.found.get("timestamp"), self.found.get("end")
        if time is None or not isinstance(time.reader, Clock) or not time.reader.dated:
            return
        starts_ms = self._ms(time)
        starts_ms = np.unique(starts_ms[~np.isnan(starts_ms)])
        lasted_ms = np.array([]) if end is None else np.subtract(*self._both(end, time))
        is_even = len(lasted_ms) >= SOME_ROWS and np.ptp(lasted_ms) == 0 and lasted_ms[0] >= 60_000
        if len(starts_ms) >= SOME_ROWS and (is_even or not (starts_ms % 3_600_000).any()):
            what = "stretches of one length" if is_even else "whole hours or days"
            raise UnclearError(f"{self.name(time)}: the times are {what}: {SUMS}")

    def _prompt_is_sum(self) -> bool:
        """Whether cached prompt tokens are counted beside the others, as Anthropic and Bedrock do.

        More of them than the prompt shows it, or a total that is of all; else the headings: inputs
        with reads and writes of a cache, which are no details of the prompt.
        """
        cache = [one for role in CACHE if (one := self.found.get(role)) is not None]
        if "cached_tokens" not in self.found or "input_length" not in self.found:
            return False
        counted = np.array(
            [self._counts(role) for role in (*CACHE, "input_length", "output_length")]
        )
        cached, prompts = counted[:2].sum(0), counted[2]
        if ((cached > prompts) & (prompts > 0)).any():
            return True
        if self.total is not None:
            self.found["total_length"] = self.total
            total = np.array(self._counts("total_length"))
            del self.found["total_length"]
            told = (cached > 0) & (total > 0)
            if told.any() and (cached + prompts + counted[3] == total)[told].all():
                return True
        words = words_of(self.found["input_length"].paths[0].rpartition(".")[2])
        is_input = "input" in words and "prompt" not in words
        return (
            is_input
            and len(cache) == 2
            and not any("detail" in one.paths[0].lower() for one in cache)
        )

    def _drop_other_clocks(self) -> None:
        """Leave out times that count from another start than the arrivals, and a span that counts
        from one start."""
        time, span = self.found.get("timestamp"), self.found.get("duration")
        if time is None or not isinstance(time.reader, Clock):
            return
        for role in TIMES & self.found.keys():
            reader = self.found[role].reader
            if isinstance(reader, Clock) and reader.dated != time.reader.dated:
                del self.found[role]
        if span is not None and "duration" not in self.asked_roles:
            spans_ms, times_ms = self._both(span, time)
            grows = len(spans_ms) >= SOME_ROWS and np.ptp(spans_ms) >= RUNS_ON_MS
            if grows and np.ptp(times_ms - spans_ms) < SAME_TIME_MS:
                del self.found["duration"]

    def _begin_when_created(self) -> None:
        """Take when a row was created for the arrival where what it stands for began later."""
        started = self.found.get("timestamp")
        if started is None or "timestamp" in self.asked_roles:
            return
        for heading in self.opened.headings:
            for one in meanings(heading):
                if one.role != "timestamp" or one.rank != WRITTEN_RANK:
                    continue
                with suppress(UnclearError):
                    if (created := self._read("timestamp", heading, one.unit)) is None:
                        continue
                    starts_ms, created_ms = self._both(started, created)
                    waits_ms = starts_ms - created_ms
                    if len(waits_ms) and waits_ms.min() >= 0 and waits_ms.max() >= SAME_TIME_MS:
                        self.found["timestamp"] = created

    def _join_day(self) -> None:
        """Join a day with its time of day."""
        day, time = self.found.pop("day", None), self.found.get("timestamp")
        if day is None or time is None:
            return
        if time.paths == day.paths:
            known_ms = self._ms(day)
            is_midnight = not (known_ms[~np.isnan(known_ms)] % 86_400_000).any()
            times = (
                column
                for heading in self.opened.headings
                if is_midnight and any(one.role == "timestamp" for one in meanings(heading))
                if (column := self._read("timestamp", heading, None)) is not None
                if isinstance(column.reader, Clock) and column.reader.order == "time"
            )
            time = next(times, None)
        if time is None or not isinstance(time.reader, Clock) or time.reader.order != "time":
            return
        both = zip(*(self.values[one.paths[0]] for one in (day, time)), strict=True)
        joined = [f"{date} {at}" for date, at in both if not is_empty(date) and not is_empty(at)]
        clock = self._clock_of_dates(day.paths[0], joined)
        if clock is not None:
            self.found["day"], self.found["timestamp"] = day, Column(time.paths, clock)

    # What is missing.

    def _missing(self) -> list[Role]:
        found = self.found.keys()
        has_times = "timestamp" in found or {"end", "duration"} <= found
        lacking = [role for role in ("input_length", "output_length") if role not in found]
        has_lengths = not lacking or (len(lacking) == 1 and "total_length" in found)
        return [*([] if has_times else ["timestamp"]), *([] if has_lengths else lacking)]

    def _without(self, missing: Sequence[Role]) -> UnclearError:
        """Return what to say where roles have no column; a suggestion where only one would do."""
        free = {role: [self.name(one) for one in self._free(role)] for role in missing}
        what = f"no column for {', '.join(missing)}"
        for heading in self.opened.headings:
            if {one.role for one in meanings(heading)} & {*missing}:
                holds = "holds nothing that can be read so" if self._known(heading) else "is empty"
                what += f": {shown(self.opened, heading)} {holds}"
                break
        if not self.opened.sample:
            what += ": no rows"
        elif not any(free[role] for role in missing if role != "timestamp") and {*missing} - {
            "timestamp"
        }:
            what += "; no column can be counts of tokens"
        columns = {role: names[0] for role, names in free.items() if len(names) == 1}
        is_clear = len({*columns.values()}) == len(missing)
        return UnclearError(what, *([{"columns": columns}] if is_clear else ()))

    def _free(self, role: Role) -> Iterator[Column]:
        """Yield the columns without a role that could have this one, by words and by values."""
        taken = {column.paths[0] for column in self.found.values()}
        ours, other = (PROMPT, OUTPUT) if role == "input_length" else (OUTPUT, PROMPT)
        for heading in self.opened.headings:
            words = {*words_of(heading)}
            is_count = bool(words & (TOKENS | ours)) and not words & (NOT_A_COUNT | other)
            is_taken = heading in taken or bool(({"id", "ids"} | GAPS) & words)
            if is_taken or (role.endswith("_length") and not is_count):
                continue
            with suppress(UnclearError):
                column = self._read(role, heading, unit_of(heading))
                if column is not None:
                    yield column

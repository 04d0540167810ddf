"""A table that no format claims: which column is what, by headings and first rows; or a refusal.

The result is a ``Format`` like any other. What was decided is told with its reason, and nothing is
decided where two readings are possible: then the refusal has the command that settles it. Such a
command is tried before it is shown.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tuner.errors import TraceError, UsageError
from tuner.system.printable import printable
from tuner.trace.decode import Opened
from tuner.trace.formats import NAMES, TABLE, Column, Format
from tuner.trace.headings import (
    BEGIN,
    GAPS,
    MAIN,
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
    meanings,
    role_of,
    unit_of,
    words_of,
)
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
    error_in,
    from_cache,
    is_empty,
    number,
    parse,
    scaled,
    shown_date,
    status_in,
    two_readings,
    written_ms,
)

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

DAYS = (36_526, 73_051)
"""2000 to 2100, as spreadsheets number days."""

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

    def __init__(
        self,
        what: str,
        *,
        columns: Sequence[Mapping[str, str]] = (),
        time_forms: tuple[TimeUnit, ...] = (),
        decimals: bool = False,
    ) -> None:
        super().__init__(what)
        self.columns, self.time_forms, self.decimals = columns, time_forms, decimals
        """What would settle it: one of these columns, units or marks."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a table cannot be read as it is, and the options that would do."""

    what: str
    taken: Mapping[str, str]
    """Which heading was taken for what."""

    options: tuple[Asked, ...] = ()
    """Each of them lets the table be read; empty where nothing helps."""

    is_likely: bool = False
    """It is a table of requests all the same: two of the three main columns are there."""


def guessed(opened: Opened, asked: Asked) -> Format | Refusal:
    """Return how a table is read, by its columns or else with what their cells hold as JSON."""
    found = _guessed(opened, asked)
    if isinstance(found, Format):
        return found
    inner = opened.with_inside()
    if len(inner.headings) > len(opened.headings):
        within = _guessed(inner, asked)
        if isinstance(within, Format) or (within.is_likely and not found.is_likely):
            return within
    return found


def _guessed(opened: Opened, asked: Asked) -> Format | Refusal:
    guess = _Guess(opened, asked)
    try:
        return guess.format()
    except UnclearError as problem:
        return Refusal(
            str(problem), guess.taken(), tuple(_tried(opened, asked, problem)), guess.is_likely()
        )


def _tried(opened: Opened, asked: Asked, problem: UnclearError) -> Iterator[Asked]:
    """Yield the options that would let the table be read: each is tried."""
    options = [
        *(replace(asked, columns={**asked.columns, **columns}) for columns in problem.columns),
        *(replace(asked, time_unit=form) for form in problem.time_forms),
        *(replace(asked, decimal=mark) for mark in (",." if problem.decimals else "")),
    ]
    for option in options:
        try:
            _Guess(opened, option).format()
        except UnclearError:
            continue
        yield option


def refused(place: str, opened: Opened, refusal: Refusal, asked: Asked) -> TraceError:
    """Return the error: what was seen, what was taken for what, and the command that would do."""
    named = [shown(opened, heading) for heading in opened.headings]
    seen = ", ".join(named[:SHOWN]) + (", …" if len(named) > SHOWN else "")
    taken = ", ".join(f"{role}={heading}" for role, heading in refusal.taken.items())
    line = max(1, opened.first_line - 1)
    message = f"{place}:{line}: {refusal.what}; columns: {seen}" + (
        f"; taken: {taken}" if taken else ""
    )
    if any("\ufffd" in heading for heading in opened.headings):
        cure = "Convert it first, with the name of its encoding: iconv -f GB18030 -t UTF-8 FILE."
        return TraceError(f"{printable(message)}: headings are not UTF-8", hint=cure)
    if refusal.options:
        options = [_options(option) for option in refusal.options]
        command = ["tuner", "trace", "import", "-" if place == STDIN else place, *options[0]]
        cure = f"Add one of: {'; '.join(map(shlex.join, options))}"
        cure = shlex.join([*command, "-o", "trace.jsonl"]) if len(options) == 1 else cure
        return TraceError(printable(message), hint=printable(cure))
    cure = (
        "Export it as CSV or JSON lines with the time, the prompt's and the output's tokens; or "
        "name their columns: --columns timestamp=HEADING,input_length=…,output_length=…"
    )
    if asked.columns:
        cure = f"--columns ROLE=HEADING takes headings as they stand, or #1 to #{len(named)}."
    return TraceError(printable(message), hint=cure)


def _options(asked: Asked) -> list[str]:
    options: list[str] = []
    if asked.columns:
        options += ["--columns", ",".join(f"{role}={name}" for role, name in asked.columns.items())]
    for option, value in (
        ("--time-unit", asked.time_unit),
        ("--delimiter", asked.delimiter),
        ("--decimal", asked.decimal),
    ):
        options += [option, value] if value else []
    return [*options, *(["--allow-text"] if asked.allow_text else [])]


def shown(opened: Opened, heading: str) -> str:
    """Return a heading for a message: of text only one that is made of known words, for what looks
    like a heading may be a line of somebody's text."""
    place = f"#{opened.headings.index(heading) + 1}"
    if opened.is_text:
        return heading if in_words(heading) and "," not in heading else place
    return heading if shown_key(heading) == heading else place


class _Guess:
    """The roles that the columns of one table are given."""

    def __init__(self, opened: Opened, asked: Asked) -> None:
        self.opened, self.asked = opened, asked
        self.headings = opened.headings
        self.values = [[row[place] for row in opened.sample] for place in range(len(self.headings))]
        self.found: dict[Role, Column] = {}
        self.left_out: list[str] = []
        self.token_ms: float | None = None

    def format(self) -> Format:
        """Return the table's format. Raises UnclearError."""
        self._user_columns()
        problems: list[UnclearError] = []
        asked = {role_of(name)[0] for name in self.asked.columns}
        for role in ROLES:
            if role not in self.found and role not in asked:
                try:
                    self._find(role)
                except UnclearError as problem:
                    if role in NEEDED:
                        problems.append(problem)
                    elif role not in TIMES:
                        self.left_out.append(f"{role} is left out: {problem}")
        if problems:
            lengths = [role for role in self._missing() if role != "timestamp"]
            if problems[0].time_forms and lengths and len(problems) == 1:
                raise self._without(lengths)  # a word on times alone would not do
            raise problems[0]
        self._join_day()
        self._refuse_sums()
        self._combine()
        if missing := self._missing():
            raise self._without(missing)
        return self._made()

    def _made(self) -> Format:
        status = self.found.get("status")
        flag = status is not None and bool({"success", "ok"} & set(words_of(status.paths[0])))
        keys: dict[Role, Column] = {
            role: replace(column, title=self._name(column)) for role, column in self.found.items()
        }
        notes = list(self.left_out)
        prompt_is_sum = self._prompt_is_sum()
        if prompt_is_sum:
            notes.append("cached prompt tokens are counted apart, and added to the others")
        lengths = [
            f"{role} from {shown(self.opened, column.paths[0])}"
            + (f", with {reader.thousands!r} between thousands" if reader.thousands else "")
            for role, column in self.found.items()
            if role.endswith("_length") and isinstance(reader := column.reader, Counts)
        ]
        missing = ["prefixes"]
        missing += [] if {"status", "error"} & self.found.keys() else ["aborts", "errors"]
        missing += [] if "session_id" in self.found else ["sessions"]
        return replace(
            TABLE,
            columns=keys,
            missing=tuple(missing),
            status=lambda value: status_in(value, flag=flag),
            prompt_is_sum=prompt_is_sum,
            token_ms=self.token_ms,
            notes=(", ".join(lengths), *notes),
        )

    def is_likely(self) -> bool:
        named = {one.role for heading in self.headings for one in meanings(heading)}
        return len(MAIN & named) >= 2

    def taken(self) -> dict[str, str]:
        """Return the main columns that were found."""
        return {
            role: shown(self.opened, self.found[role].paths[0])
            for role in MAIN_COLUMNS
            if role in self.found
        }

    # Columns by their headings.

    def _find(self, role: Role) -> None:
        """Take the best of the columns whose heading and values fit a role."""
        fitting: list[tuple[int, Column]] = []
        problems: list[tuple[int, UnclearError]] = []
        for place, heading in enumerate(self.headings):
            for meaning in meanings(heading):
                if meaning.role != role:
                    continue
                try:
                    column = self._read(role, place, meaning.unit)
                except UnclearError as problem:
                    relative = set(problem.time_forms) == {"s", "ms"}
                    problems.append((meaning.rank + RELATIVE * relative, problem))
                    continue
                if column is not None:
                    reader = column.reader
                    relative = isinstance(reader, Clock) and not reader.dated
                    same = role in TIMES and self._is_constant(place)
                    fitting.append(
                        (meaning.rank + RELATIVE * relative + SAYS_NOTHING * same, column)
                    )
        if problems:
            least, first = min(problems, key=lambda one: one[0])
            if not any(rank <= least for rank, _ in fitting):
                raise first
        if role == "end":
            fitting = [(rank, column) for rank, column in fitting if rank < SAYS_NOTHING]
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
                one, two = self._name(first), self._name(other)
                raise UnclearError(
                    f"both {one} and {two} may be {role}", columns=[{role: one}, {role: two}]
                )
        self.found[role] = first

    def _name(self, column: Column) -> str:
        return shown(self.opened, column.paths[0])

    def _known(self, place: int) -> list[Any]:
        return [one for one in self.values[place] if not is_empty(one)]

    def _read(  # noqa: PLR0911 - one kind of role after another
        self, role: Role, place: int, unit: Unit | None
    ) -> Column | None:
        """Return the column if its values fit the role. Raises UnclearError if they fit twice."""
        heading, known = self.headings[place], self._known(place)
        if not known and role not in ("error", "finish_reason"):
            return None
        if role in TIMES or role == "day":
            return self._clock(role, place, known, unit)
        if role in SPANS:
            return self._spans(role, place, unit)
        if role in COUNTS:
            counts = counts_of(known, self.asked.decimal)
            if isinstance(counts, str):
                raise UnclearError(f"{shown(self.opened, heading)}: {counts}", decimals=True)
            usable = sum(isinstance(counts.cell(one), int) for one in known)
            return Column((heading,), counts) if usable >= USABLE * len(known) else None
        if role == "status":
            usable = sum(status_in(one, flag=True) is not None for one in known)
            return Column((heading,)) if usable >= USABLE * len(known) else None
        if role == "cache_hit" and any(from_cache(one) is None for one in known):
            return None
        if role == "error" and all(error_in(one) == "ok" for one in known):
            return None
        return Column((heading,))

    def _user_columns(self) -> None:
        """Take what the user names. Counts come first: they show the units of spans."""
        by_name = {
            heading.lower(): place for place, heading in reversed([*enumerate(self.headings)])
        }
        by_name |= {f"#{place}": place - 1 for place in range(1, len(self.headings) + 1)}
        for name, heading in sorted(self.asked.columns.items(), key=lambda one: one[0] in SPANS):
            if not heading:
                continue
            role, unit = role_of(name)
            if role is None:
                raise UnclearError(
                    f"{name!r} is nothing that a column can be (times and spans also with their "
                    f"unit, as duration_ms): {', '.join(ROLES)}"
                )
            place = by_name.get(heading.lower())
            if place is None:
                raise UnclearError(f"no column is headed {heading!r}")
            column = self._read(role, place, unit or unit_of(self.headings[place]))
            if column is None:
                raise UnclearError(f"{heading} cannot be {role} by its values")
            self.found[role] = column

    # Times.

    def _clock(self, role: Role, place: int, known: list[Any], unit: Unit | None) -> Column | None:
        heading = self.headings[place]
        decimal = self.asked.decimal or decimal_of(
            [one for one in known if isinstance(one, str) and one.strip("+-0123456789.,") == ""]
        )
        numbers = [found for one in known if (found := number(one, decimal[0])) is not None]
        texts = [str(one).strip() for one in known]
        of_digits = all(
            text.isdecimal() and len(text) in (14, 17, 20) and parse(text, "ymd") for text in texts
        )
        if len(numbers) > USABLE * len(known) and not of_digits:
            if role == "day":
                return None  # a number of a day or an hour
            self._refuse_odd_numbers(place, texts, decimal)
            clock, why = self._clock_of_numbers(place, numbers, unit)
            clock = replace(
                clock, decimal=decimal, zoned=False if heading in self.opened.naive else clock.zoned
            )
            return Column((heading,), clock, why)
        dates = self._clock_of_dates(place, texts)
        if dates is None or (role == "day" and dates.order == "time"):
            return None
        return Column((heading,), dates)

    def _refuse_odd_numbers(self, place: int, texts: Sequence[str], decimal: str) -> None:
        """Raise where a spreadsheet cut digits off, or a mark may mean either."""
        name = shown(self.opened, self.headings[place])
        if all(isinstance(one, str) for one in self._known(place)) and all(
            "e" in text.lower() and len(text) < 13 for text in texts
        ):
            raise UnclearError(
                f"{name}: times lost their last digits in a spreadsheet; show the column "
                "as whole numbers there, and export it again"
            )
        if len(decimal) > 1:
            first = next(text for text in texts if "," in text or "." in text)
            raise UnclearError(f"{name}: {two_readings(first)}", decimals=True)

    def _clock_of_numbers(
        self, place: int, values: Sequence[float], heading: Unit | None
    ) -> tuple[Clock, str]:
        """Return how numbers count time, and why. ``heading`` is the unit that theirs names."""
        name, asked = shown(self.opened, self.headings[place]), self.asked.time_unit
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
                raise UnclearError(f"{name}: {what}", time_forms=(unit, heading))
            return Clock(unit), f"the first is {shown_date(scaled(fits[unit][0], unit))}"
        if any(fits.values()):
            row = next(
                at for at, one in enumerate(self.values[place], 1) if number(one) not in fits[unit]
            )
            what = f"times of several units stand in it, first in row {row}"
            raise UnclearError(
                f"{name}: {what}; of one unit, the others are dropped", time_forms=(unit,)
            )
        if heading is not None:
            return Clock(heading, dated=False), "by the heading"
        least, most = min(values), max(values)
        what = (
            f"times from {least:g} to {most:g} count from some start, in seconds or in milliseconds"
        )
        if DAYS[0] <= least and most < DAYS[1] and any(value % 1 for value in values):
            what = (
                f"{least:.12g} may be a spreadsheet's number for a day: show the column as dates "
                "there, and export it again; or it counts from some start"
            )
        raise UnclearError(f"{name}: {what}", time_forms=("s", "ms"))

    def _clock_of_dates(self, place: int | None, texts: Sequence[str]) -> Clock | None:
        """Return how dates are written; None where they are none. Raises UnclearError."""
        asked = self.asked.time_unit
        read = {order: [parse(text, order) for text in texts] for order in FORMS}
        counts = {order: sum(one is not None for one in done) for order, done in read.items()}
        most = max(counts.values())
        if not most or most < len(texts) / 2:
            return None
        orders: list[Order] = [order for order in FORMS if counts[order] == most]
        if asked in ("ymd", "dmy", "mdy"):
            if asked not in orders:
                return None
            orders = [asked]
        several = [order for order in ("dmy", "mdy", "ymd") if order in orders]
        if len(several) > 1:
            name = "" if place is None else shown(self.opened, self.headings[place])
            parts = {"dmy": "day", "mdy": "month", "ymd": "year"}
            what = " or the ".join(parts[order] for order in several)
            raise UnclearError(
                f"{name}: dates may have the {what} first", time_forms=tuple(several)
            )
        order = orders[0]
        dates = [one for one in read[order] if one is not None]
        zoned = sum(zone for _, zone in dates) * 2 > len(dates)
        return Clock(None, order, dated=order != "time", zoned=zoned)

    # Spans of time.

    def _spans(self, role: Role, place: int, heading: Unit | None) -> Column | None:
        """Return how spans are written; None where they are none. Raises UnclearError."""
        name, title = self.headings[place], shown(self.opened, self.headings[place])
        tokens = self._counts("output_length")
        known = [
            (one, n) for one, n in zip(self.values[place], tokens, strict=True) if not is_empty(one)
        ]
        texts = [one.strip() for one, _ in known if isinstance(one, str)]
        if texts and sum(written_ms(text) is not None for text in texts) * 2 >= len(known):
            return Column((name,), Spans(None), "with their units")
        decimal = self.asked.decimal or decimal_of(texts)
        pairs = [(found, n) for one, n in known if (found := number(one, decimal[0])) is not None]
        if not pairs or len(pairs) * 2 < len(known):
            return None
        if len(decimal) > 1:
            first = next(text for text in texts if "," in text or "." in text)
            raise UnclearError(f"{title}: {two_readings(first)}", decimals=True)
        if heading is not None:
            return Column((name,), Spans(heading, decimal), "by the heading")
        if role == "duration":
            return self._spans_by_tokens(place, pairs, decimal)
        if min(value for value, _ in pairs) < FROM_MS / 1000:  # else it is a time
            lasted = self.found.get("duration")
            if lasted is not None and isinstance(lasted.reader, Spans) and lasted.reader.unit:
                return Column((name,), Spans(lasted.reader.unit, decimal), "as the durations")
            self.left_out.append(f"{title} is left out, it may be in seconds or in milliseconds")
        return None

    def _spans_by_tokens(
        self, place: int, pairs: Sequence[tuple[float, int]], decimal: str
    ) -> Column:
        """Return the durations whose unit gives an output token a time that some server takes."""
        name = shown(self.opened, self.headings[place])
        each = sorted(value / n for value, n in pairs if value > 0 and n > 0)
        if not each:
            return Column((self.headings[place],), Spans("ms", decimal), "all zero")
        middle = each[len(each) // 2]
        least, most = TOKEN_MS
        fitting = [unit for unit in NANOSECONDS if least <= scaled(middle, unit) <= most]
        if len(fitting) != 1:
            what = " or ".join(NAMES[unit] for unit in fitting or ("s", "ms"))
            raise UnclearError(
                f"{name}: it may be in {what}",
                columns=[{f"duration_{unit}": name} for unit in fitting or ("s", "ms")],
            )
        (unit,) = fitting
        self.token_ms = scaled(middle, unit)
        long_ones = [scaled(value, unit) / n for value, n in pairs if value > 0 and n >= 32]
        odd = [one for one in long_ones if not least / 4 <= one <= most * 4]
        if len(odd) > (1 - MOSTLY) * len(long_ones):
            raise UnclearError(
                f"{name}: durations of several units stand in it", columns=[{"duration": ""}]
            )
        why = f"an output token then takes {self.token_ms:.3g} ms"
        return Column((self.headings[place],), Spans(unit, decimal), why)

    # What one column shows beside another.

    def _place(self, role: Role) -> int | None:
        column = self.found.get(role)
        return None if column is None else self.headings.index(column.paths[0])

    def _counts(self, role: Role) -> list[int]:
        """Return a column's counts in the first rows, 0 where there is none."""
        place = self._place(role)
        if place is None:
            return [0] * len(self.opened.sample)
        reader = self.found[role].reader
        assert isinstance(reader, Counts)
        read = [reader.cell(one) for one in self.values[place]]
        return [one if isinstance(one, int) else 0 for one in read]

    def _ms(self, column: Column) -> list[float]:
        """Return times or spans in the first rows, NaN where there is none."""
        assert isinstance(column.reader, Clock | Spans)
        read = [
            column.reader.cell(one) for one in self.values[self.headings.index(column.paths[0])]
        ]
        return [float(one) if isinstance(one, int | float) else np.nan for one in read]

    def _both(self, one: Column, other: Column) -> tuple[Any, Any]:
        """Return two columns of times or spans, in rows that have both."""
        a, b = np.array(self._ms(one)), np.array(self._ms(other))
        known = ~(np.isnan(a) | np.isnan(b))
        return a[known], b[known]

    def _is_constant(self, place: int) -> bool:
        known = self._known(place)
        return len(known) >= SOME_ROWS and known.count(known[0]) == len(known)

    def _is_whole(self, span: Column, others: Sequence[Column]) -> bool:
        """Whether no other span is longer in any row: then it is the whole request's."""
        return all((a >= b).all() for other in others for a, b in [self._both(span, other)])

    def _alike(self, one: Column, other: Column) -> bool:
        """Whether two columns hold the same, up to a second of a time and a ms of a span."""
        if isinstance(one.reader, Clock | Spans) and isinstance(other.reader, Clock | Spans):
            a, b = self._both(one, other)
            most_ms = 1 if isinstance(one.reader, Spans) else SAME_TIME_MS
            is_known = isinstance(one.reader, Spans) or len(a) == len(self.opened.sample)
            return bool(is_known and (np.abs(a - b) <= most_ms).all())
        places = [self.headings.index(each.paths[0]) for each in (one, other)]
        return self.values[places[0]] == self.values[places[1]]

    # What follows from all columns together.

    def _combine(self) -> None:
        """Find ends, and drop what another column says better."""
        self._begin_when_created()
        if self._place("timestamp") is not None and self._place("timestamp") == self._place("end"):
            self.found.pop("timestamp" if "duration" in self.found else "end", None)
        self._drop_other_clocks()
        self._end_where_logged()
        if {"timestamp", "end"} <= self.found.keys():
            self.found.pop("duration", None)
            self.token_ms = None
        if {"input_length", "output_length", "total_length"} <= self.found.keys():
            self._note_total()
            del self.found["total_length"]

    def _end_where_logged(self) -> None:
        """Take the time at which a row was logged for its end, where a duration stands beside it.

        Access logs, and events that are sent when a call is over, are stamped then. Times in no
        order whose ends are in order are arrivals all the same.
        """
        time, lasted = self.found.get("timestamp"), self.found.get("duration")
        if time is None or lasted is None or self._is_asked("timestamp") or "end" in self.found:
            return
        words = set(words_of(time.paths[0].rpartition(".")[2]))
        if words & (BEGIN | {"created", "create", "creation"}) or not self._is_logged_at_the_end():
            return
        at_ms, lasted_ms = self._both(time, lasted)
        ends_ms = at_ms + lasted_ms
        if (np.diff(at_ms) < -1).any() and not (np.diff(ends_ms) < -1).any():
            return
        why = "logged when a request ends"
        self.found["end"] = replace(self.found.pop("timestamp"), why=why)

    def _is_logged_at_the_end(self) -> bool:
        names = {heading.lower() for heading in self.headings}
        leaves = {heading.lower().rpartition(".")[2] for heading in self.headings}
        if any(name.endswith("$ai_latency") for name in names):  # an event of PostHog
            return True
        is_log = bool(leaves & {"level", "severity", "levelname", "lvl", "logger", "log_type"})
        of_http = leaves & {
            "method",
            "uri",
            "path",
            "status",
            "request",
            "url",
            "request_uri",
            "proto",
        }
        messages = [
            str(one).lower()
            for place, heading in enumerate(self.headings)
            if heading.lower().rpartition(".")[2] in ("msg", "message", "event")
            for one in self._known(place)[:20]
        ]
        over = ("complet", "finish", "served", "handled", "access", "respon", "end")
        is_over = bool(messages) and all(any(word in one for word in over) for one in messages)
        return is_log and (bool(of_http) or is_over)

    def _refuse_sums(self) -> None:
        """Raise where rows are sums over time, and no requests."""
        counts = [one for one in self._counts("requests") if one]
        if len(counts) >= SOME_ROWS and {*np.diff(counts).tolist()} == {1}:
            del self.found["requests"]  # which numbers the rows
        elif sum(one > 1 for one in counts) > USABLE * len(counts):
            name = self._name(self.found["requests"])
            raise UnclearError(
                f"{name} counts several requests a row: sums over time are no requests"
            )
        elif counts:  # a row is a stretch of time that holds one request
            for role in (TIMES | SPANS) - {"timestamp"}:
                self.found.pop(role, None)
        time, end = self.found.get("timestamp"), self.found.get("end")
        if time is None or not isinstance(time.reader, Clock) or not time.reader.dated:
            return
        starts_ms = np.unique([ms for ms in self._ms(time) if not np.isnan(ms)])
        lasted_ms = np.array([]) if end is None else np.subtract(*self._both(end, time))
        is_even = len(lasted_ms) >= SOME_ROWS and np.ptp(lasted_ms) == 0 and lasted_ms[0] >= 60_000
        if len(starts_ms) >= SOME_ROWS and (is_even or not (starts_ms % 3_600_000).any()):
            what = "stretches of one length" if is_even else "whole hours or days"
            raise UnclearError(
                f"{self._name(time)}: the times are {what}: sums over time are no requests"
            )

    def _note_total(self) -> None:
        """Say where the total is more than both lengths."""
        roles: tuple[Role, ...] = ("total_length", "input_length", "output_length")
        rows = [one for one in zip(*map(self._counts, roles), strict=True) if all(one)]
        more = sum(total > prompt + output for total, prompt, output in rows)
        if more > USABLE * len(rows) and not self._prompt_is_sum():
            name = self._name(self.found["total_length"])
            self.left_out.append(
                f"{name} is more than both lengths, so something such as reasoning is left out: "
                "--columns 'output_length=' takes all of it but the prompt"
            )

    def _prompt_is_sum(self) -> bool:
        """Whether cached prompt tokens are counted beside the others, as Anthropic and Bedrock do.

        More of them than the prompt shows it, or a total that is of all; else the headings: inputs
        with reads and writes of a cache, which are no details of the prompt.
        """
        if not {"input_length", "cached_tokens"} <= self.found.keys():
            return False
        cached = [
            read + written
            for read, written in zip(
                self._counts("cached_tokens"), self._counts("cache_creation_tokens"), strict=True
            )
        ]
        prompts, outputs = self._counts("input_length"), self._counts("output_length")
        rows = [*zip(prompts, outputs, cached, self._counts("total_length"), strict=True)]
        if any(more > prompt > 0 for prompt, _, more, _ in rows):
            return True
        told = [row for row in rows if row[2] and row[3]]
        if told:
            return all(prompt + output + more == total for prompt, output, more, total in told)
        heading = self.found["input_length"].paths[0].rpartition(".")[2]
        is_input = "input" in words_of(heading) and "prompt" not in words_of(heading)
        cache = [
            self.found[role].paths[0]
            for role in ("cached_tokens", "cache_creation_tokens")
            if role in self.found
        ]
        return is_input and len(cache) == 2 and not any("detail" in path.lower() for path in cache)

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
        if span is not None and not self._is_asked("duration"):
            spans_ms, times_ms = self._both(span, time)
            if (
                len(spans_ms) >= SOME_ROWS
                and np.ptp(spans_ms) >= RUNS_ON_MS
                and np.ptp(times_ms - spans_ms) < SAME_TIME_MS
            ):
                del self.found["duration"]

    def _begin_when_created(self) -> None:
        """Take when a row was created for the arrival where what it stands for began later."""
        started = self.found.get("timestamp")
        if started is None or self._is_asked("timestamp"):
            return
        for place, heading in enumerate(self.headings):
            for one in meanings(heading):
                if one.role == "timestamp" and one.rank == WRITTEN_RANK:
                    with suppress(UnclearError):
                        created = self._read("timestamp", place, one.unit)
                        if created is None:
                            continue
                        before_ms, after_ms = self._both(created, started)
                        waits_ms = after_ms - before_ms
                        if len(waits_ms) and waits_ms.min() >= 0 and waits_ms.max() >= SAME_TIME_MS:
                            self.found["timestamp"] = created

    def _is_asked(self, role: Role) -> bool:
        return any(role_of(name)[0] == role for name in self.asked.columns)

    def _join_day(self) -> None:
        day, time = self.found.pop("day", None), self.found.get("timestamp")
        if day is None or time is None:
            return
        if time.paths == day.paths:
            times = (
                Column((heading,), clock)
                for place, heading in enumerate(self.headings)
                if heading != day.paths[0]
                and any(one.role == "timestamp" for one in meanings(heading))
                for clock in [
                    self._clock_of_dates(place, [str(one).strip() for one in self._known(place)])
                ]
                if clock is not None and clock.order == "time"
            )
            is_midnight = all(ms % 86_400_000 == 0 for ms in self._ms(day) if not np.isnan(ms))
            time = next(times, None) if is_midnight else None
        if time is None or not isinstance(time.reader, Clock) or time.reader.order != "time":
            return
        days, clocks = (self.values[self.headings.index(one.paths[0])] for one in (day, time))
        joined = [
            f"{date} {at}"
            for date, at in zip(days, clocks, strict=True)
            if not is_empty(date) and not is_empty(at)
        ]
        clock = self._clock_of_dates(None, joined)
        if clock is not None:
            self.found["day"], self.found["timestamp"] = day, Column(time.paths, clock)

    # What is missing.

    def _missing(self) -> list[Role]:
        found = self.found.keys()
        missing: list[Role] = []
        if "timestamp" not in found and not {"end", "duration"} <= found:
            missing.append("timestamp")
        lengths: tuple[Role, ...] = ("input_length", "output_length")
        lacking = [role for role in lengths if role not in found]
        if len(lacking) == 2 or (lacking and "total_length" not in found):
            missing += lacking
        return missing

    def _without(self, missing: Sequence[Role]) -> UnclearError:
        """Return what to say where roles have no column; a suggestion where only one would do."""
        free = {role: [self._name(one) for one in self._free(role)] for role in missing}
        what = f"no column for {', '.join(missing)}{self._why_unread(missing)}"
        if not self.opened.sample:
            what += ": no rows"
        elif {"input_length", "output_length"} & {*missing} and not any(
            free[role] for role in missing if role != "timestamp"
        ):
            what += "; no column can be counts of tokens"
        is_clear = all(len(names) == 1 for names in free.values())
        columns = {role: names[0] for role, names in free.items()} if is_clear else {}
        is_clear &= len({*columns.values()}) == len(columns)
        return UnclearError(what, columns=[columns] if is_clear else [])

    def _free(self, role: Role) -> Iterator[Column]:
        """Yield the columns without a role that could have this one, by words and by values."""
        taken = {column.paths[0] for column in self.found.values()}
        ours, other = (PROMPT, OUTPUT) if role == "input_length" else (OUTPUT, PROMPT)
        for place, heading in enumerate(self.headings):
            words = {*words_of(heading)}
            is_count = bool(words & (TOKENS | ours)) and not words & (NOT_A_COUNT | other)
            is_taken = heading in taken or bool(({"id", "ids"} | GAPS) & words)
            if is_taken or (role.endswith("_length") and not is_count):
                continue
            with suppress(UnclearError):
                column = self._read(role, place, unit_of(heading))
                if column is not None:
                    yield column

    def _why_unread(self, missing: Sequence[Role]) -> str:
        """Say what stands below a heading that means what is missing, without showing it."""
        for place, heading in enumerate(self.headings):
            if {one.role for one in meanings(heading)} & {*missing}:
                holds = "holds nothing that can be read so" if self._known(place) else "is empty"
                return f": {shown(self.opened, heading)} {holds}"
        return ""

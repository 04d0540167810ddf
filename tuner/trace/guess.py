"""A table that no format claims: which column is what, by headings and first rows; or a refusal.

The result is a ``Format`` like any other. Where two readings are possible none is taken: the
refusal has the command that decides, which is tried before it is shown.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.errors import TraceError, UsageError
from tuner.system.printable import printable
from tuner.trace.formats import TABLE, Column, Format
from tuner.trace.headings import (
    BEGIN,
    ROLES,
    SPANS,
    TIMES,
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
    ABSENT,
    FROM_MS,
    NAMES,
    ORDERS,
    TO_MS,
    UNIT_MS,
    Clock,
    Counts,
    Floats,
    Marks,
    Spans,
    Unit,
    as_array,
    in_ms,
    is_empty,
    marks_of,
    numbers,
    parse,
    shown_date,
    words,
    written_ms,
)
from tuner.trace.words import error_in, from_cache, status_in

STDIN = "stdin"
"""The name of standard input in messages."""

COUNTS = words(
    "input_length output_length total_length cached_tokens requests cache_creation_tokens "
    "max_tokens num_images"
)
NEEDED = words(
    "timestamp input_length output_length total_length duration requests status error cache_hit "
    "kind"
)
"""Roles that decide over rows: a table in which one is unclear is refused. Other columns that are
unclear are left out."""

LENGTHS = words("input_length output_length total_length")
WHOLE_DAYS = "whole days (if the time of day has a column of its own, export both in one)"
CACHE = ("cached_tokens", "cache_creation_tokens")
USABLE = 0.5
"""Share of a column's values that must be of its kind; rows with others are judged one by one."""

MOSTLY = 0.8
"""Share of a column's times that must be of one unit; the others are dropped one by one."""

RELATIVE, CONSTANT = 3, 10
"""Ranks that a time loses which is no date, or the same in all rows."""

SOME_ROWS = 3
"""Fewer rows are alike by chance."""

ALIKE: dict[type, float] = {Clock: 1000.0, Spans: 1.0, Counts: 0.0}
"""Two columns of one time differ by less: one of them may be of whole seconds."""

RUNS_ON_MS = 10_000.0
"""Growth in a few rows from which on a span counts from some start."""

MAX_RELATIVE_MS = 1.0e11
"""Three years: larger numbers count from no start of a trace."""

TOKEN_MS = (0.3, 1000.0)
"""Range of an output token's time on any server: it shows the unit of durations, for it is a little
wider than a thousandfold, so that one unit fits, or two do and none is taken."""

FAR_OFF, MANY_TOKENS = 200.0, 32
"""Of so many tokens, a time a token so many times from the usual one is of another unit."""

FROM_SOME_START = ({"time_unit": "s"}, {"time_unit": "ms"})
DECIMALS = ({"decimal": ","}, {"decimal": "."})
BEGINS = BEGIN | words("created create creation")
OF_LOGS = words("level severity levelname lvl logger log_type")
PATHS = words("uri path request url request_uri")
OVER = words("complet finish served handled access respon end")
"""Keys of logs, and of paths that a web server logs; parts of messages that a request is over."""

SUMS = "sums over time are no requests"
_METHOD = re.compile(r"(?:GET|POST|PUT|HEAD|DELETE)(?: |$)")
_CUT_SHORT = re.compile(r"\d([.,]\d{1,8})?[eE]")
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
        options = {
            "--columns": ",".join(f"{role}={name}" for role, name in self.columns.items()),
            "--time-unit": self.time_unit,
            "--delimiter": self.delimiter,
            "--decimal": self.decimal,
        }
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
    """A column that may mean two things, or a table that lacks one; and what would decide."""

    def __init__(self, what: str, *cures: Mapping[str, Any]) -> None:
        super().__init__(what)
        self.cures = cures
        """Changes of what the user says, each of which may do."""

        self.taken = ""
        """Which heading was taken for what."""

        self.options: list[Asked] = []
        """What the user may say instead: each was tried. Empty where nothing helps."""

        self.is_likely = False
        """It is a table of requests all the same: two of the three main columns are there."""


def guessed(opened: Opened, asked: Asked) -> Format:
    """Return how a table is read, by its columns and by what their cells hold as JSON.

    Raises UnclearError.
    """
    opened = opened.with_inside()
    guess = _Guess(opened, asked)
    try:
        return guess.format()
    except UnclearError as problem:
        taken = (role for role in ROLES if role in guess.found and role in NEEDED | TIMES)
        problem.taken = ", ".join(f"{role}={guess.name(role)}" for role in taken)
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
    taken = f"; taken: {problem.taken}" if problem.taken else ""
    message = f"{place}:{max(1, opened.first_line - 1)}: {problem}; columns: {seen}{more}{taken}"
    options = [shlex.join(option.words()) for option in problem.options]
    count = len(opened.headings)
    cure = (
        "Export it as CSV or JSON lines with the time, the prompt's and the output's tokens; or "
        "name their columns: --columns timestamp=HEADING,input_length=…,output_length=…"
    )
    if any("\ufffd" in heading for heading in opened.headings):
        message += ": headings are not UTF-8"
        cure = "Convert it first, with the name of its encoding: iconv -f GB18030 -t UTF-8 FILE."
    elif len(options) == 1:
        file = shlex.quote("-" if place == STDIN else place)
        cure = f"tuner trace import {file} {options[0]} -o trace.jsonl"
    elif options:
        cure = f"Add one of: {'; '.join(options)}"
    elif asked.columns:
        cure = f"--columns ROLE=HEADING takes headings as they stand, or #1 to #{count}."
    return TraceError(printable(message), hint=printable(cure))


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
                    problems += [problem] if role in NEEDED else []
        missing = self._missing()
        lacking = [role for role in missing if role != "timestamp"]
        if problems and not (lacking and any("time_unit" in cure for cure in problems[0].cures)):
            raise problems[0]  # to say how times are read would not do without lengths
        if lacking:
            raise self._without(lacking)
        self._refuse_sums()
        self._combine()
        if missing := self._missing():
            raise self._without(missing)
        return self._made()

    def _made(self) -> Format:
        status = self.found.get("status")
        flag = status is not None and bool({"success", "ok"} & {*words_of(status.paths[0])})
        prompt_is_sum = self._prompt_is_sum()
        if {"input_length", "output_length"} <= self.found.keys():
            self.found.pop("total_length", None)
        lengths = [f"{role} from {self.name(role)}" for role in self.found if role in LENGTHS]
        marks = {one.reader.marks for one in self.found.values() if isinstance(one.reader, Counts)}
        missing = ["prefixes"]
        missing += [] if {"status", "error"} & self.found.keys() else ["aborts", "errors"]
        missing += [] if "session_id" in self.found else ["sessions"]
        notes = [", ".join(lengths)]
        notes += [
            f"{one.thousands!r} stands between thousands"
            for one in marks
            if one and one.thousands not in ("", "?")
        ]
        if prompt_is_sum:
            notes.append("cached prompt tokens are counted apart, and added to the others")
        return replace(
            TABLE,
            columns={
                role: replace(column, title=self.name(role)) for role, column in self.found.items()
            },
            missing=tuple(missing),
            status=lambda value: status_in(value, flag=flag),
            prompt_is_sum=prompt_is_sum,
            token_ms=self.token_ms if "duration" in self.found else None,
            notes=tuple(notes),
        )

    def name(self, role: Role) -> str:
        """Return what messages call the column of a role."""
        return shown(self.opened, self.found[role].paths[0])

    # Columns by their headings.

    def _find(self, role: Role) -> None:
        """Take the best of the columns whose heading and values fit a role."""
        fitting: list[tuple[int, Column]] = []
        problems: list[tuple[int, UnclearError]] = []
        for heading in self.opened.headings:
            own = [one for one in meanings(heading) if one.role == role]
            if not own:
                continue
            meaning = min(own, key=lambda one: one.rank)
            try:
                column = self._read(role, heading, meaning.unit)
            except UnclearError as problem:
                is_relative = problem.cures == FROM_SOME_START
                problems.append((meaning.rank + RELATIVE * is_relative, problem))
                continue
            loses = 0 if column is None or role not in TIMES else self._loses(column)
            if column is not None and (role != "end" or loses < CONSTANT):
                fitting.append((meaning.rank + loses, column))
        best = min((rank for rank, _ in fitting), default=99)
        if problems:
            least, first = min(problems, key=lambda one: one[0])
            if least < best:
                raise first
        if fitting:
            self._take(role, [column for rank, column in fitting if rank == best])

    def _loses(self, column: Column) -> int:
        """Return the ranks that a time loses which is no date, or the same in all rows."""
        known = self._known(column.paths[0])
        is_constant = len(known) >= SOME_ROWS and known.count(known[0]) == len(known)
        is_relative = isinstance(column.reader, Clock) and not column.reader.dated
        return RELATIVE * is_relative + CONSTANT * is_constant

    def _take(self, role: Role, fitting: Sequence[Column]) -> None:
        """Take one of the columns that fit a role as well as each other; of spans the longest."""
        if role == "duration":
            apart_ms = [[np.subtract(*self._both(a, b)) for b in fitting] for a in fitting]
            is_longest = [all((each >= 0).all() for each in one) for one in apart_ms]
            fitting = [fitting[is_longest.index(True)]] if any(is_longest) else fitting
        first, *others = fitting
        for other in others:
            namesake = first.paths[0].lower() == other.paths[0].lower().partition("#")[0]
            decides = role in COUNTS | TIMES | SPANS and role != "requests"
            if (namesake or decides) and not self._alike(first, other):
                names = [shown(self.opened, one.paths[0]) for one in (first, other)]
                raise UnclearError(
                    f"both {names[0]} and {names[1]} may be {role}",
                    *({"columns": {role: name}} for name in names),
                )
        self.found[role] = first

    def _alike(self, one: Column, other: Column) -> bool:
        """Return whether two columns hold the same, up to a second of a time and a ms of a span."""
        if one.reader is None or other.reader is None:
            return self.values[one.paths[0]] == self.values[other.paths[0]]
        a, b = self._numbers(one), self._numbers(other)
        is_known = isinstance(one.reader, Spans) or (np.isnan(a) == np.isnan(b)).all()
        return bool(is_known and not (np.abs(a - b) > ALIKE[type(one.reader)]).any())

    def _known(self, heading: str) -> list[Any]:
        return [one for one in self.values[heading] if not is_empty(one)]

    def _read(self, role: Role, heading: str, unit: Unit | None) -> Column | None:
        """Return the column if its values fit the role. Raises UnclearError if they fit twice."""
        known = self._known(heading)
        if not known and role not in ("error", "finish_reason"):
            return None
        if role in TIMES:
            return self._clock(heading, known, unit)
        if role in SPANS:
            return self._spans(role, heading, unit)
        reader = Counts(self._marks(heading, whole=True)) if role in COUNTS else None
        if reader is not None:
            fits = (reader.read(known)[1] == 0).mean() >= USABLE
        elif role == "status":
            fits = sum(status_in(one, flag=True) is not None for one in known) * 2 >= len(known)
        elif role == "cache_hit":
            fits = all(from_cache(one) is not None for one in known)
        else:
            fits = role != "error" or not known or any(error_in(one) != "ok" for one in known)
        return Column((heading,), reader) if fits else None

    def _marks(self, heading: str, *, whole: bool = False) -> Marks:
        marks = marks_of(self._known(heading), self.asked.decimal, whole=whole)
        if isinstance(marks, Marks):
            return marks
        mark = "," if "," in marks else "."
        two = f"{marks} may be {marks.replace(mark, '')} or {marks.replace(mark, '.')}"
        raise UnclearError(f"{shown(self.opened, heading)}: {two}", *DECIMALS)

    def _user_columns(self) -> None:
        """Take what the user names. Counts come first: they show the units of spans."""
        headings = self.opened.headings
        by_name = {heading.lower(): heading for heading in reversed(headings)}
        by_name |= {f"#{place}": heading for place, heading in enumerate(headings, 1)}
        for name, asked in sorted(self.asked.columns.items(), key=lambda one: one[0] in SPANS):
            role, unit = role_of(name)
            heading = by_name.get(asked.lower())
            if role is None:
                raise UnclearError(
                    f"{name!r} is nothing that a column can be (times and spans also with their "
                    f"unit, as duration_ms): {', '.join(ROLES)}"
                )
            if asked and heading is None:
                raise UnclearError(f"no column is headed {asked!r}")
            if heading is not None:
                column = self._read(role, heading, unit or unit_of(heading))
                if column is None:
                    raise UnclearError(f"{asked} cannot be {role} by its values")
                self.found[role] = column

    # Times and spans.

    def _clock(self, heading: str, known: list[Any], unit: Unit | None) -> Column | None:
        is_cut_short = all(isinstance(one, str) and _CUT_SHORT.match(one) for one in known)
        odd = numbers(known)[1]
        if odd.sum() * 2 >= len(known):
            with suppress(UnclearError):
                odd = numbers(known, self._marks(heading))[1]
        if odd.sum() * 2 >= len(known) or is_cut_short:
            dates = self._dates(heading, [str(one) for one in known])
            return None if dates is None else Column((heading,), dates)
        marks = self._marks(heading)
        clock, why = self._clock_of_numbers(heading, numbers(known, marks)[0], unit)
        zoned = False if heading in self.opened.naive else clock.zoned
        return Column((heading,), replace(clock, marks=marks, zoned=zoned), why)

    def _clock_of_numbers(
        self, place: str, values: Floats, heading: Unit | None
    ) -> tuple[Clock, str]:
        """Return how numbers count time, and why. ``heading`` is the unit that theirs names."""
        name, asked = shown(self.opened, place), self.asked.time_unit
        values = values[~np.isnan(values)]
        fits = {
            unit: (in_ms(values, unit) >= FROM_MS) & (in_ms(values, unit) < TO_MS)
            for unit in UNIT_MS
        }
        unit = max(fits, key=lambda one: fits[one].sum())
        if asked in UNIT_MS:
            return Clock(asked, dated=bool(fits[asked].any())), "as you say"
        if fits[unit].mean() >= MOSTLY:
            if heading not in (None, unit):
                what = f"times since 1970 in {NAMES[unit]}, and the heading says {heading}"
                raise UnclearError(f"{name}: {what}", {"time_unit": unit}, {"time_unit": heading})
            return Clock(unit), f"the first is {shown_date(in_ms(values[fits[unit]][0], unit))}"
        if fits[unit].any():
            what = "times of several units stand in it; of one unit, the others are dropped"
            raise UnclearError(f"{name}: {what}", {"time_unit": unit})
        if heading is not None:
            return Clock(heading, dated=False), "by the heading"
        if values.max() > MAX_RELATIVE_MS:
            raise UnclearError(f"{name}: the times are no numbers of seconds: show them as dates")
        raise UnclearError(
            f"{name}: times from {values.min():g} to {values.max():g} count from some start, in "
            "seconds or in milliseconds (or are a spreadsheet's days: show them as dates there)",
            *FROM_SOME_START,
        )

    def _dates(self, heading: str, texts: Sequence[str]) -> Clock | None:
        """Return how dates are written; None where they are none. Raises UnclearError."""
        read = {order: [parse(text, order) for text in texts] for order in ORDERS}
        counts = {order: sum(one is not None for one in done) for order, done in read.items()}
        most = max(counts.values())
        asked = self.asked.time_unit
        orders = [order for order in ORDERS if counts[order] == most]
        orders = [order for order in orders if asked not in ORDERS or order == asked]
        if most * 2 < len(texts) or not orders:
            return None
        if len(orders) > 1 and read[orders[0]] != read[orders[1]]:
            parts = " or the ".join(ORDERS[order] for order in orders)
            raise UnclearError(
                f"{shown(self.opened, heading)}: dates may have the {parts} first",
                *({"time_unit": order} for order in orders),
            )
        zoned = sum(one[1] for one in read[orders[0]] if one is not None) * 2 > most
        return Clock(order=orders[0], zoned=zoned)

    def _spans(self, role: Role, heading: str, unit: Unit | None) -> Column | None:
        """Return how spans are written; None where they are none. Raises UnclearError."""
        known = self._known(heading)
        if sum(isinstance(one, str) and written_ms(one) is not None for one in known) * 2 >= len(
            known
        ):
            return Column((heading,), Spans(None), "with their units")
        marks = self._marks(heading)
        values, odd = numbers(as_array(self.values[heading]), marks)
        is_time = unit is None and np.nanmin(values, initial=np.inf) >= FROM_MS / 1000
        if odd.sum() * 2 > len(known) or not (values >= 0).any() or is_time:
            return None
        why, lasted = "by the heading", self.found.get("duration")
        if unit is None and role == "duration":
            unit, why = self._unit_by_tokens(shown(self.opened, heading), values)
        elif unit is None and lasted is not None and isinstance(lasted.reader, Spans):
            unit, why = lasted.reader.unit, "as the durations"
        return None if unit is None else Column((heading,), Spans(unit, marks), why)

    def _unit_by_tokens(self, name: str, values: Floats) -> tuple[Unit, str]:
        """Return the unit that gives an output token a time that some server takes, and why."""
        tokens = self._column("output_length")
        each = (values / tokens)[(values > 0) & (tokens > 0)]
        if not len(each):
            return "ms", "no tokens to tell the unit by"
        middle = float(np.median(each))
        fitting = [unit for unit in UNIT_MS if TOKEN_MS[0] <= in_ms(middle, unit) <= TOKEN_MS[1]]
        if len(fitting) != 1:
            units: Sequence[Unit] = fitting or ("s", "ms")
            what = " or ".join(NAMES[unit] for unit in units)
            cures = ({"columns": {f"duration_{unit}": name}} for unit in units)
            raise UnclearError(f"{name}: it may be in {what}", *cures)
        unit, self.token_ms = fitting[0], in_ms(middle, fitting[0])
        if is_far_off(in_ms(values, unit), tokens, self.token_ms).mean() > 1 - MOSTLY:
            what = f"{name}: durations of several units stand in it"
            raise UnclearError(what, {"columns": {"duration": ""}})
        return unit, f"an output token then takes {self.token_ms:.3g} ms"

    # What one column shows beside another.

    def _column(self, role: Role) -> Floats:
        """Return a role's numbers in the first rows, NaN where there is none."""
        nothing = np.full(len(self.opened.sample), np.nan)
        return self._numbers(self.found[role]) if role in self.found else nothing

    def _numbers(self, column: Column) -> Floats:
        assert column.reader is not None
        values, reasons = column.reader.read(self.values[column.paths[0]])
        return np.where((reasons != 0) | (values == ABSENT), np.nan, values)

    def _both(self, one: Column, other: Column) -> tuple[Floats, Floats]:
        """Return two columns of times or spans, in rows that have both."""
        a, b = self._numbers(one), self._numbers(other)
        known = ~np.isnan(a + b)
        return a[known], b[known]

    def _combine(self) -> None:
        """Find ends, and drop what another column says better."""
        found = self.found
        if "timestamp" in found and "timestamp" not in self.asked_roles:
            self._begin_when_created()
        if {"timestamp", "end"} <= found.keys() and found["timestamp"].paths == found["end"].paths:
            del found["timestamp" if "duration" in found else "end"]
        time = found.get("timestamp")
        if time is None or not isinstance(time.reader, Clock):
            return
        for role in ("end", "first_token"):  # which count from another start
            reader = found[role].reader if role in found else None
            if isinstance(reader, Clock) and reader.dated != time.reader.dated:
                del found[role]
        if "duration" not in found:
            return
        spans_ms, times_ms = self._both(found["duration"], time)
        if "end" not in found and not {"timestamp", "end"} & self.asked_roles:
            self._end_where_logged(times_ms, spans_ms)
        grows = len(spans_ms) >= SOME_ROWS and np.ptp(spans_ms) >= RUNS_ON_MS
        from_start = grows and np.ptp(times_ms - spans_ms) < ALIKE[Clock]
        if (
            "timestamp" in found
            and ("end" in found or from_start)
            and "duration" not in self.asked_roles
        ):
            del found["duration"]

    def _begin_when_created(self) -> None:
        """Take when a row was created for the arrival where what it stands for began later."""
        for heading in self.opened.headings:
            for one in meanings(heading):
                if one.role == "timestamp" and one.rank == WRITTEN_RANK:
                    with suppress(UnclearError):
                        created = (
                            self._read("timestamp", heading, one.unit) or self.found["timestamp"]
                        )
                        waits_ms = np.subtract(*self._both(self.found["timestamp"], created))
                        if waits_ms.min(initial=0) >= 0 and waits_ms.max(initial=0) >= ALIKE[Clock]:
                            self.found["timestamp"] = created

    def _end_where_logged(self, times_ms: Floats, spans_ms: Floats) -> None:
        """Take the time at which a row was logged for its end, where a duration stands beside it.

        Access logs, and events that are sent when a call is over, are stamped then. Times in no
        order whose ends are in order are arrivals all the same.
        """
        leaves = {one.lower().rpartition(".")[2]: one for one in self.opened.headings}
        first = {leaf: str(([*self._known(one), ""])[0]) for leaf, one in leaves.items()}
        is_http = any(map(_METHOD.match, first.values())) and bool(leaves.keys() & PATHS)
        is_log = bool(leaves.keys() & OF_LOGS)
        message = next(
            (first[key].lower() for key in ("msg", "message", "event") if key in first), ""
        )
        is_over = is_log and any(word in message for word in OVER)
        has_status = any("status" in leaf for leaf in leaves)
        own = {*words_of(self.found["timestamp"].paths[0].rpartition(".")[2])}
        if own & BEGINS or "receivetimestamp" in leaves:  # Google stamps when a request comes
            return
        if (
            "$ai_latency" in leaves
            or is_over
            or (is_http and (has_status or is_log))
            or (is_log and has_status)
        ):
            in_order = [not (np.diff(one) < -1).any() for one in (times_ms, times_ms + spans_ms)]
            if in_order != [False, True]:
                why = "logged when a request ends"
                self.found["end"] = replace(self.found.pop("timestamp"), why=why)

    def _refuse_sums(self) -> None:
        """Raise where rows are sums over time, and no requests."""
        counts = self._column("requests")
        counts = counts[counts > 0]
        if len(counts) >= SOME_ROWS and {*np.diff(counts).tolist()} == {1}:
            del self.found["requests"]  # which numbers the rows
        elif len(counts) and (counts > 1).mean() > USABLE:
            raise UnclearError(f"{self.name('requests')} counts several requests a row: {SUMS}")
        elif len(counts):  # a row is a stretch of time that holds one request
            for role in (TIMES | SPANS) - {"timestamp"}:
                self.found.pop(role, None)
        time, end = self.found.get("timestamp"), self.found.get("end")
        if time is None or not isinstance(time.reader, Clock) or not time.reader.dated:
            return
        starts_ms = np.unique(self._column("timestamp"))
        starts_ms = starts_ms[~np.isnan(starts_ms)]
        lasted_ms = np.zeros(0) if end is None else np.subtract(*self._both(end, time))
        is_even = len(lasted_ms) >= SOME_ROWS and np.ptp(lasted_ms) == 0 and lasted_ms[0] >= 60_000
        for is_sum, what in (
            (
                len(self.opened.sample) >= SOME_ROWS and not (starts_ms % 86_400_000).any(),
                WHOLE_DAYS,
            ),
            (len(starts_ms) >= SOME_ROWS and is_even, "stretches of one length"),
            (len(starts_ms) >= SOME_ROWS and not (starts_ms % 3_600_000).any(), "whole hours"),
        ):
            if is_sum:
                raise UnclearError(f"{self.name('timestamp')}: the times are {what}: {SUMS}")

    def _prompt_is_sum(self) -> bool:
        """Return whether cached prompt tokens are counted beside the others, as Anthropic and
        Bedrock do.

        More of them than the prompt shows it; else the headings: inputs with reads and writes of a
        cache, which are no details of the prompt.
        """
        if not {"cached_tokens", "input_length"} <= self.found.keys():
            return False
        cached, prompt = (self._column(role) for role in ("cached_tokens", "input_length"))
        if ((cached > prompt) & (prompt > 0)).any():
            return True
        leaf = words_of(self.found["input_length"].paths[0].rpartition(".")[2])
        paths = [self.found[role].paths[0].lower() for role in CACHE if role in self.found]
        is_apart = len(paths) == 2 and not any("detail" in path for path in paths)
        return is_apart and "input" in leaf and "prompt" not in leaf

    # What is missing.

    def _missing(self) -> list[Role]:
        found = self.found.keys()
        has_times = "timestamp" in found or {"end", "duration"} <= found
        lacking = [role for role in ("input_length", "output_length") if role not in found]
        has_lengths = len(lacking) + ("total_length" not in found) < 2 or not lacking
        return [*([] if has_times else ["timestamp"]), *([] if has_lengths else lacking)]

    def _without(self, missing: Sequence[Role]) -> UnclearError:
        """Return what to say where roles have no column."""
        what = f"no column for {', '.join(missing)}"
        for heading in self.opened.headings:
            if {one.role for one in meanings(heading)} & {*missing}:
                holds = "holds nothing that can be read so" if self._known(heading) else "is empty"
                return UnclearError(f"{what}: {shown(self.opened, heading)} {holds}")
        return UnclearError(what if self.opened.sample else f"{what}: no rows")


def is_far_off(ms: Floats, tokens: Any, token_ms: float) -> NDArray[np.bool_]:  # noqa: ANN401
    """Return where durations of many tokens are of another unit than those of ``token_ms``."""
    each, (least, most) = ms / np.maximum(tokens, 1), TOKEN_MS
    is_long = (each > max(most, token_ms * FAR_OFF)) & (each <= 1000 * most)
    is_short = (each < min(least, token_ms / FAR_OFF)) & (each * 1000 >= least)
    found: NDArray[np.bool_] = (tokens >= MANY_TOKENS) & (is_long | is_short)
    return found

"""Gives the columns of a table their roles, by headings and values, or refuses with the command.

The rules are in ``headings``, ``clocks`` and ``cells``. What was decided is said, and nothing is
decided where two readings are possible. Pure.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tuner.system.printable import printable
from tuner.trace.formats.reading.header import TimeUnit
from tuner.trace.formats.reading.json_rows import TEXT_KEYS
from tuner.trace.formats.reading.trace_file import TableOptions
from tuner.trace.tables.cells import (
    Counts,
    Spans,
    counts_of,
    error_in,
    from_cache,
    is_empty,
    spans_of,
    status_in,
)
from tuner.trace.tables.clocks import (
    COMPACT,
    CUT_SHORT,
    FROM_SOME_START,
    NAIVE,
    NUMERIC,
    ColumnClock,
    TwoReadings,
    as_number,
    clock_of_dates,
    clock_of_numbers,
)
from tuner.trace.tables.headings import (
    GAPS,
    MAIN,
    ROLES,
    SPANS,
    TIMES,
    WRITTEN_RANK,
    Role,
    Unit,
    meanings,
    role_of,
    unit_of,
    words_of,
)
from tuner.trace.tables.marks import decimal_marks, two_readings
from tuner.trace.tables.plan import Column, Refusal, TablePlan
from tuner.trace.tables.sample import FirstRows

COUNTS = frozenset[Role](
    {
        *("input_length", "output_length", "total_length", "cached_tokens", "requests"),
        *("cache_creation_tokens", "max_tokens", "num_images"),
    }
)
NEEDED = frozenset[Role](
    {
        *("timestamp", "day", "input_length", "output_length", "total_length", "duration"),
        *("requests", "status", "error", "cache_hit", "kind"),
    }
)
"""Roles of which nothing may be unclear, for they decide over rows: else the table is refused. Of
other roles the column is left out."""

USABLE = 0.5
"""Share of a column's values that must be of its kind; rows with others are judged one by one."""

RELATIVE = 3
"""Rank that a time which counts from some start loses against a date."""

SAYS_NOTHING = 10
"""Rank that a time loses which is the same in all rows: it is when a report begins or ends."""

TOLD: tuple[Role, ...] = ("timestamp", "input_length", "output_length", "end", "duration")
CREATED: tuple[Role, int] = ("timestamp", WRITTEN_RANK)


class _RefusedError(Exception):
    def __init__(
        self,
        what: str,
        *,
        columns: Mapping[str, str] | None = None,
        time_forms: tuple[TimeUnit, ...] = (),
    ) -> None:
        super().__init__(what)
        self.columns, self.time_forms = columns or {}, time_forms


def plan_of(
    headings: Sequence[str],
    rows: Sequence[Sequence[Any]],
    asked: TableOptions,
    *,
    naive: Collection[int] = (),
) -> TablePlan | Refusal:
    """Return how a table with these headings and first rows is read; ``None`` is an empty cell.

    ``naive`` are places of columns that hold times without a zone, whatever they look like.
    """
    return _Planner(headings, rows, asked, naive).plan()


class _Planner:
    def __init__(
        self,
        headings: Sequence[str],
        rows: Sequence[Sequence[Any]],
        asked: TableOptions,
        naive: Collection[int],
    ) -> None:
        self.headings, self.asked, self.naive = headings, asked, naive
        self.sample = FirstRows(headings, rows)
        self.values = self.sample.values
        self.found: dict[Role, Column] = {}
        self.said: list[str] = []

    def plan(self) -> TablePlan | Refusal:
        problems: list[_RefusedError] = []
        try:
            self._user_columns()
        except _RefusedError as problem:
            problems.append(problem)
        for role in ROLES:
            if role not in self.found and role not in self.asked.columns:
                try:
                    self._find(role)
                except _RefusedError as problem:
                    if role in NEEDED:
                        problems.append(problem)
                    elif role not in TIMES:
                        self.said.append(f"{role} is left out: {problem}")
        if problems:
            first, *others = problems
            lengths = [role for role in self._missing() if role != "timestamp"]
            if first.time_forms and lengths and not others:
                return self._without(lengths)  # what is said of times would not do alone
            return Refusal(
                str(first), first.columns, self._taken(), first.time_forms, self._is_likely()
            )
        self._combine()
        missing = self._missing()
        if missing:
            return self._without(missing)
        status = self.found.get("status")
        return TablePlan(
            columns=dict(self.found),
            text=tuple(self._text_columns()),
            prompt_is_sum=self._prompt_is_sum(),
            flag=status is not None and bool({"success", "ok"} & set(words_of(status.heading))),
            said=tuple(map(printable, self._sentences())),
        )

    def _find(self, role: Role) -> None:
        """Take the best of the columns whose heading and values fit a role."""
        fitting: list[tuple[int, Column]] = []
        problems: list[tuple[int, _RefusedError]] = []
        for place, heading in enumerate(self.headings):
            for meaning in meanings(heading):
                if meaning.role != role:
                    continue
                try:
                    column = self._read(role, place, meaning.unit)
                except _RefusedError as problem:
                    relative = problem.time_forms == FROM_SOME_START
                    problems.append((meaning.rank + RELATIVE * relative, problem))
                    continue
                if column is not None:
                    reader = column.reader
                    relative = isinstance(reader, ColumnClock) and not reader.dated
                    odd = RELATIVE * relative + SAYS_NOTHING * self._says_nothing(role, place)
                    fitting.append((meaning.rank + odd, column))
        if problems:
            least, first = min(problems, key=lambda one: one[0])
            if not any(rank <= least for rank, _ in fitting):
                raise first
        if role == "end":
            fitting = [(rank, column) for rank, column in fitting if rank < SAYS_NOTHING]
        if fitting:
            best = min(rank for rank, _ in fitting)
            self._take(role, [column for rank, column in fitting if rank == best])

    def _says_nothing(self, role: Role, place: int) -> bool:
        return role in TIMES and self.sample.is_constant(place)

    def _take(self, role: Role, fitting: Sequence[Column]) -> None:
        """Take one of the columns that fit a role as well as each other."""
        whole = [
            one for one in fitting if role == "duration" and self.sample.is_whole(one, fitting)
        ]
        first, *others = whole or fitting
        for other in others:
            namesake = first.heading.lower() == other.heading.lower()
            matters = namesake or role in COUNTS | TIMES | SPANS
            if matters and not self.sample.alike(first, other):
                one, two = (
                    _named(each) + (f" (#{each.place + 1})" if namesake and each.heading else "")
                    for each in (first, other)
                )
                raise _RefusedError(
                    f"both {one} and {two} may be {role}",
                    columns={role: self.sample.unique(first.place)},
                )
        self.found[role] = first

    def _read(  # noqa: PLR0911 - one kind of role after another
        self, role: Role, place: int, unit: Unit | None
    ) -> Column | None:
        """Return the column if its values fit the role; raise where they fit in two ways."""
        values = self.values[place]
        known = [one for one in values if not is_empty(one)]
        if not known and role not in ("error", "finish_reason"):
            return None
        heading = self.headings[place]
        if role in TIMES or role == "day":
            clock = self._clock(role, place, known, unit)
            return None if clock is None else Column(heading, place, clock)
        if role in SPANS:
            spans = self._spans(role, place, unit)
            return None if spans is None else Column(heading, place, spans)
        if role in COUNTS:
            counts = counts_of(known)
            if isinstance(counts, str):
                raise _RefusedError(f"{heading}: {counts}; write it without them")
            usable = sum(isinstance(counts.read(one), int) for one in known)
            return Column(heading, place, counts) if usable >= USABLE * len(known) else None
        if role == "status":
            usable = sum(status_in(one, flag=True) is not None for one in known)
            return Column(heading, place) if usable >= USABLE * len(known) else None
        if role == "cache_hit" and any(from_cache(one) is None for one in known):
            return None
        if role == "error" and all(error_in(one) == "ok" for one in values):
            return None
        return Column(heading, place)

    def _clock(
        self, role: Role, place: int, known: Sequence[Any], unit: Unit | None
    ) -> ColumnClock | None:
        asked, values = self.asked.time_unit, self.values[place]
        texts = [str(one).strip() for one in known]
        decimal = decimal_marks([text for text in texts if NUMERIC.fullmatch(text)])
        numbers = [n for one in known if (n := as_number(one, decimal[0])) is not None]
        found: ColumnClock | TwoReadings | None
        if len(numbers) > USABLE * len(known) and not all(map(COMPACT.fullmatch, texts)):
            if role == "day":
                return None  # a number of a day or an hour
            self._refuse_odd_numbers(place, known, decimal)
            found = clock_of_numbers(numbers, heading=unit, asked=asked)
            if isinstance(found, ColumnClock):
                found = replace(found, decimal=decimal)
                if place in self.naive:
                    found = replace(found, zoned=False, why=NAIVE)
        else:
            found = clock_of_dates(texts, asked=asked)
        if isinstance(found, TwoReadings):
            what = f"{self.headings[place]}: {found.what}"
            if found.odd is not None:
                row = next(
                    n for n, one in enumerate(values) if as_number(one, decimal) == found.odd
                )
                what += f" (row {row + 1}); of one unit, the others are dropped and counted"
            raise _RefusedError(what, time_forms=found.choices)
        is_day = found is not None and found.unit is None and found.order != "time"
        return found if role != "day" or is_day else None

    def _refuse_odd_numbers(self, place: int, known: Sequence[Any], decimal: str) -> None:
        """Raise where a spreadsheet cut digits off, or a mark may part either."""
        heading, first = self.headings[place], str(known[0]).strip()
        if all(isinstance(one, str) and CUT_SHORT.fullmatch(one.strip()) for one in known):
            raise _RefusedError(
                f"{heading}: {first} lost its last digits: a spreadsheet wrote it so; show the "
                f"column as whole numbers there, and export it again"
            )
        if len(decimal) > 1:
            first = next(text for text in map(str, known) if "," in text or "." in text).strip()
            raise _RefusedError(f"{heading}: {two_readings(first)}")

    def _spans(self, role: Role, place: int, unit: Unit | None) -> Spans | None:
        heading, values = self.headings[place], self.values[place]
        found = spans_of(values, self._lengths(), heading=unit, of_a_token=role == "duration")
        if isinstance(found, str) and role == "duration":
            cure = {"duration_ms": self.sample.unique(place)} if unit is None else {"duration": ""}
            raise _RefusedError(f"{heading}: {found}", columns=cure)
        if isinstance(found, str):
            option = f": --columns '{role}_ms={heading}'" if unit is None else ""
            self.said.append(f"{heading} is left out, {found}{option}")
            return None
        return found

    def _lengths(self) -> list[int]:
        """Return the output tokens of each row, 0 where unknown."""
        column = self.found.get("output_length")
        return [0] * len(self.values[0]) if column is None else self.sample.counts(column)

    def _user_columns(self) -> None:
        """Take what the user names. Counts come first: they tell the units of spans."""
        for name, heading in sorted(self.asked.columns.items(), key=lambda one: one[0] in SPANS):
            if not heading:
                continue
            role, unit = role_of(name)
            if role is None:
                raise _RefusedError(
                    f"{name!r} is nothing that a column can be (times and spans also with their "
                    f"unit, as duration_ms): {', '.join(ROLES)}"
                )
            places = [
                place
                for place, known in enumerate(self.headings)
                if known == heading or f"#{place + 1}" == heading
            ] or [
                place
                for place, known in enumerate(self.headings)
                if known.lower() == heading.lower()
            ]
            if len(places) != 1:
                what = f"{len(places)} columns are headed" if places else "no column is headed"
                raise _RefusedError(f"{what} {heading!r}")
            column = self._read(role, places[0], unit or unit_of(self.headings[places[0]]))
            if column is None:
                shown = next((one for one in self.values[places[0]] if not is_empty(one)), "")
                raise _RefusedError(f"{heading} cannot be {role}: it holds {str(shown)[:40]!r}")
            self.found[role] = column

    def _combine(self) -> None:
        """Join a day with its time of day, and drop what another column says better."""
        self._join_day()
        self._begin_when_created()
        if self._place("timestamp") == self._place("end"):
            self.found.pop("timestamp" if "duration" in self.found else "end", None)
        self._drop_other_clocks()
        if "requests" in self.found:  # then a row is a stretch of time, and not a request
            for role in (TIMES | SPANS) - {"timestamp"}:
                self.found.pop(role, None)
        if "timestamp" in self.found and "end" in self.found:
            self.found.pop("duration", None)
        if self.found.keys() >= {"input_length", "output_length"}:
            self._drop_total()

    def _drop_total(self) -> None:
        """Leave out the total of both lengths, and say where it is more than they are."""
        total = self.found.pop("total_length", None)
        if total is None or self._prompt_is_sum():
            return
        lengths: tuple[Role, Role] = ("input_length", "output_length")
        columns = [total, *(self.found[role] for role in lengths)]
        rows = [
            (whole, prompt + output)
            for whole, prompt, output in zip(*map(self.sample.counts, columns), strict=True)
            if whole and prompt and output
        ]
        more = sum(whole > both for whole, both in rows)
        if more > USABLE * len(rows):
            self.said.append(
                f"{_named(total)} is more than both lengths, so something such as reasoning is "
                "left out: --columns 'output_length=' takes all of it but the prompt"
            )

    def _drop_other_clocks(self) -> None:
        """Leave out times that count from another start than the arrivals, and a span that counts
        from one start."""
        time, span = self.found.get("timestamp"), self.found.get("duration")
        if time is None or not isinstance(time.reader, ColumnClock):
            return
        for role in TIMES & self.found.keys():
            reader = self.found[role].reader
            if isinstance(reader, ColumnClock) and reader.dated != time.reader.dated:
                del self.found[role]
        if span is not None and not self._is_asked("duration") and self.sample.runs_on(span, time):
            del self.found["duration"]

    def _begin_when_created(self) -> None:
        """Take when a row was created for the arrival where what it stands for began later."""
        started = self.found.get("timestamp")
        if started is None or self._is_asked("timestamp"):
            return
        for place, heading in enumerate(self.headings):
            for one in meanings(heading):
                if (one.role, one.rank) == CREATED:
                    with suppress(_RefusedError):
                        created = self._read("timestamp", place, one.unit)
                        if created and self.sample.waited(created, started):
                            self.found["timestamp"] = created

    def _is_asked(self, role: Role) -> bool:
        return any(role_of(name)[0] == role for name in self.asked.columns)

    def _place(self, role: Role) -> int | None:
        return self.found[role].place if role in self.found else None

    def _join_day(self) -> None:
        day, time = self.found.pop("day", None), self.found.get("timestamp")
        if day is None or time is None:
            return
        if time.place == day.place:
            times = (
                Column(heading, place, clock)
                for place, heading in enumerate(self.headings)
                if place != day.place and any(one.role == "timestamp" for one in meanings(heading))
                for clock in [clock_of_dates(self.sample.texts(place), asked=None)]
                if isinstance(clock, ColumnClock) and clock.order == "time"
            )
            time = next(times, None) if self.sample.is_midnight(day) else None
        if time is None or not isinstance(time.reader, ColumnClock) or time.reader.order != "time":
            return
        joined = [
            f"{date} {at}"
            for date, at in zip(self.values[day.place], self.values[time.place], strict=True)
            if not is_empty(date) and not is_empty(at)
        ]
        clock = clock_of_dates(joined, asked=self.asked.time_unit)
        if isinstance(clock, ColumnClock):
            self.found["day"] = day
            self.found["timestamp"] = Column(time.heading, time.place, clock)

    def _missing(self) -> list[Role]:
        found = self.found.keys()
        missing: list[Role] = []
        if "timestamp" not in found and not found >= {"end", "duration"}:
            missing.append("timestamp")
        lengths: tuple[Role, Role] = ("input_length", "output_length")
        lacking: list[Role] = [role for role in lengths if role not in found]
        if len(lacking) == 2 or (lacking and "total_length" not in found):
            missing += lacking
        return missing

    def _without(self, missing: Sequence[Role]) -> Refusal:
        guessed: dict[str, str] = {}
        for role in missing:
            if guess := self._guess(role, but={*guessed.values()}):
                guessed[role] = guess
        columns = self._taken() | guessed if len(guessed) == len(missing) else {}
        return Refusal(
            f"no column for {', '.join(missing)}{self.sample.why_unread(missing)}",
            columns,
            self._taken(),
            likely=self._is_likely(),
        )

    def _is_likely(self) -> bool:
        named = {one.role for heading in self.headings for one in meanings(heading)}
        return len(MAIN & named) >= 2

    def _taken(self) -> dict[str, str]:
        return {role: one.heading for role, one in self.found.items() if role in TOLD}

    def _guess(self, role: Role, *, but: set[str]) -> str:
        """Return the heading of the first free column that could have a role by its values."""
        taken = {column.place for column in self.found.values()}
        free = [place for place in range(len(self.headings)) if place not in taken]
        for place in free:
            known = [one for one in self.values[place] if not is_empty(one)]
            if ({"id", "ids"} | GAPS) & {*words_of(self.headings[place])}:
                continue
            try:
                unit = unit_of(self.headings[place])
                column = self._read(role, place, unit) if known else None
            except _RefusedError:
                column = None
            if column is not None and (name := self.sample.unique(place)) not in but:
                return name
        return ""

    def _text_columns(self) -> list[int]:
        taken = {column.place for column in self.found.values()}
        return [
            place
            for place, heading in enumerate(self.headings)
            if place not in taken and heading.rpartition(".")[2].strip().lower() in TEXT_KEYS
        ]

    def _prompt_is_sum(self) -> bool:
        """Whether this is Anthropic's usage, which counts what is written to the cache apart."""
        if not self.found.keys() >= {"input_length", "cached_tokens", "cache_creation_tokens"}:
            return False
        heading = self.found["input_length"].heading.rpartition(".")[2]
        return words_of(heading) == ["input", "tokens"]

    def _sentences(self) -> list[str]:
        for role, column in self.found.items():
            reader = column.reader
            why = reader.why if isinstance(reader, ColumnClock | Spans) else ""
            if isinstance(reader, Counts) and reader.thousands:
                why = f"with {reader.thousands!r} between thousands"
            if why or role in TOLD or column.heading.lower() != role:
                self.said.append(f"{role} from {_named(column)}" + (f", {why}" if why else ""))
        if self._prompt_is_sum():
            self.said.append(
                "cached prompt tokens are added to the others, as Anthropic counts them"
            )
        return self.said


def _named(column: Column) -> str:
    return repr(column.heading) if column.heading else f"column #{column.place + 1}"

"""A table that no format claims: which column is what, by headings and first rows; or a refusal.

The result is a ``Format`` like any other. Where two readings are possible none is taken: the
refusal has the option that decides.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tuner.errors import TraceError, UsageError
from tuner.system.printable import printable
from tuner.trace.files import TraceFile
from tuner.trace.formats import TABLE, Column, Format
from tuner.trace.headings import (
    COUNTS,
    ROLES,
    SPANS,
    TIMES,
    Role,
    in_words,
    meanings,
    role_of,
    unit_of,
    word_set,
    words_of,
)
from tuner.trace.rows import Opened
from tuner.trace.text import shown_key
from tuner.trace.values import (
    FROM_MS,
    PER_S,
    Clock,
    Floats,
    Mask,
    Spans,
    TimeUnit,
    counts,
    error_in,
    from_cache,
    in_ms,
    is_empty,
    numbers,
    status_in,
    words,
)

NEEDED = words("timestamp input_length output_length duration requests status error cache_hit kind")
"""Roles that decide over rows: a table in which one is unclear is refused. Other columns that are
unclear are left out."""

LENGTHS = ("input_length", "output_length")
MOSTLY = 0.8
"""Share of a column's times that must be of one unit; rows with others are dropped."""

SOME_ROWS = 3
"""Fewer rows are alike by chance."""

ALIKE_MS = 1000.0
"""Two columns of one time differ by less: one of them may be of whole seconds."""

RUNS_ON_MS = 10_000.0
"""Growth in a few rows from which on a span counts from some start."""

TOKEN_MS = (0.3, 1000.0)
"""Range of an output token's time on any server: it shows the unit of durations, for it is a little
wider than a thousandfold, so that one unit fits, or two do and none is taken."""

FAR_OFF, MANY_TOKENS = 200.0, 32
"""Of so many tokens, a time a token so many times from the usual one is of another unit."""

CLOCKS = (*map(Clock, PER_S), Clock(zoned=True), Clock(zoned=False))
LOGS = words("level severity levelname lvl logger log_type")
OVER = words("complet finish served handled access respon end")
"""Keys of logs, and parts of messages that a request is over."""

_MARKED = re.compile(r"[+-]?\d+(?:[,'\u2019 \u00a0\u202f_]\d+)+(?:\.\d+)?|[+-]?\d+(?:\.\d{3}){2,}")
"""A number with a decimal comma, or with marks between thousands."""

_IN_THREES = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")
"""1.234, which may be a thousand."""

_CUT_SHORT = re.compile(r"\d([.,]\d{1,8})?[eE]")
"""Of a time since 1970 that a spreadsheet cut to ``1.79E+12``."""

_OTHER_DATE = re.compile(r"\d{1,2}[./-](?:\d{1,2}|[A-Za-z]{3})[./-]\d{2}|[A-Z][a-z]{2,8},? .*\d{4}")
"""A date whose day and month may change places, or in words."""

SHOWN = 12
"""Headings that a refusal lists."""

HINT = (
    "Export the time (2026-11-21 10:00:00.125) and the tokens of prompt and output (1234) as CSV "
    "or JSON lines; or name: --columns timestamp=HEADING,input_length=…,output_length=…"
)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What the user says of a file; empty where nothing was said."""

    format_name: str | None = None
    time_unit: TimeUnit | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    """Role, or role and unit (``duration_ms``) → heading, dotted path, or ``#`` and number."""
    allow_text: bool = False


def parse_columns(text: str) -> dict[str, str]:
    """Read ``--columns timestamp=ts,input_length=prompt_tok``. Raises UsageError."""
    result: dict[str, str] = {}
    for part in text.replace("\\,", "\0").split(","):
        role, equals, heading = part.replace("\0", ",").partition("=")
        if not equals or not role.strip():
            raise UsageError(
                f"--columns: cannot read {part!r}",
                hint="Write it as timestamp=ts,input_length=prompt_tok,output_length=gen_tok.",
            )
        result[role.strip()] = heading.strip()
    return result


class UnclearError(Exception):
    """A column that may mean two things, or a table that lacks one; and what would decide."""

    def __init__(self, what: str, hint: str = HINT) -> None:
        super().__init__(what)
        self.hint = hint


def guessed(opened: Opened, options: ReadOptions, file: TraceFile) -> Format:
    """Return how a table is read, by its columns and by what their cells hold as JSON.

    Raises TraceError with what was seen and the option that would do.
    """
    try:
        return _Guess(opened, options).format()
    except UnclearError as problem:
        seen = ", ".join(shown(opened, heading) for heading in opened.headings[:SHOWN])
        more = ", …" if len(opened.headings) > SHOWN else ""
        where = f"{file.path}:{max(1, opened.first_line - 1)}"
        message = printable(f"{where}: {problem}; columns: {seen}{more}")
        raise TraceError(message, hint=printable(problem.hint)) from None


def shown(opened: Opened, heading: str) -> str:
    """Return a heading for a message: of text only one that is made of known words, for what looks
    like a heading may be a line of somebody's text."""
    is_safe = in_words(heading) if opened.is_text else shown_key(heading) == heading
    return heading if is_safe else f"#{opened.headings.index(heading) + 1}"


class _Guess:
    """The roles that the columns of one table are given."""

    def __init__(self, opened: Opened, options: ReadOptions) -> None:
        self.opened, self.options = opened, options
        self.values = {name: [row.get(name) for row in opened.sample] for name in opened.headings}
        self.wanted = self._wanted()
        self.roles: dict[Role, Column] = {}
        self.token_ms: float | None = None
        self.uncounted: UnclearError | None = None
        """What to say of times that count from some start in a unit that nothing names."""

    def format(self) -> Format:
        """Return the table's format. Raises UnclearError."""
        problems: dict[Role, UnclearError] = {}
        for role in ROLES:
            try:
                self._find(role)
            except UnclearError as problem:
                if role in NEEDED or role in self.wanted:
                    problems[role] = problem
        missing = self._missing()
        for role in (*missing, *problems):
            raise problems.get(role) or self._without(missing)
        self._refuse_sums()
        self._combine()
        if missing := self._missing():
            raise self._without(missing)
        return self._made()

    def _wanted(self) -> dict[Role, tuple[str, TimeUnit | None]]:
        """Return the headings that the user names, with their units. Raises UnclearError."""
        headings = self.opened.headings
        by_name = {heading.lower(): heading for heading in reversed(headings)} | {"": ""}
        by_name |= {f"#{place}": heading for place, heading in enumerate(headings, 1)}
        result: dict[Role, tuple[str, TimeUnit | None]] = {}
        for name, wanted in self.options.columns.items():
            role, unit = role_of(name)
            heading = by_name.get(wanted.lower())
            if role is None:
                what = "nothing that a column can be (times and spans also with their unit, as "
                raise UnclearError(f"{name!r} is {what}duration_ms): {', '.join(ROLES)}")
            if heading is None:
                raise UnclearError(f"no column is headed {wanted!r}")
            result[role] = heading, unit or unit_of(heading)
        return result

    def _made(self) -> Format:
        result, status = self.roles, self.roles.get("status")
        prompt_is_sum = self._prompt_is_sum()
        missing = ["prefixes", *([] if "session_id" in result else ["sessions"])]
        missing += [] if {"status", "error"} & result.keys() else ["aborts", "errors"]
        notes = [", ".join(f"{role} from {self.roles[role].title}" for role in LENGTHS)]
        if prompt_is_sum:
            notes.append("cached prompt tokens are counted apart, and added to the others")
        return replace(
            TABLE,
            columns=result,
            missing=missing,
            flag=status is not None and bool({"success", "ok"} & {*words_of(status.paths[0])}),
            prompt_is_sum=prompt_is_sum,
            token_ms=self.token_ms if "duration" in result else None,
            notes=notes,
        )

    def _made_of(self, heading: str, reader: Clock | Spans | None = None) -> Column:
        return Column((heading,), reader, shown(self.opened, heading))

    # Columns by their headings.

    def _find(self, role: Role) -> None:
        """Take the best of the columns whose heading and values fit a role."""
        own = [(meaning.rank, name, meaning.unit) for name in self.opened.headings
               for meaning in meanings(name) if meaning.role == role]  # fmt: skip
        wanted, unit = self.wanted.get(role, ("", None))
        if role in self.wanted:
            own = [(0, wanted, unit)] if wanted else []
        fitting: list[Column] = []
        least = 0
        for rank, heading, unit in sorted(own, key=lambda item: item[0]):
            if fitting and rank > least:
                break
            if (column := self._read(role, heading, unit)) is not None:
                fitting, least = [*fitting, column], rank
        if fitting:
            dated = [column for column in fitting if is_dated(column)]
            self.roles[role] = self._one_of(role, dated or fitting)
        elif wanted and self.uncounted is None:
            raise UnclearError(f"{wanted} cannot be {role} by its values")

    def _one_of(self, role: Role, fitting: list[Column]) -> Column:
        """Return one of the columns that fit a role as well as each other; of spans the longest."""
        if role == "duration":
            fitting.sort(key=lambda item: -np.nan_to_num(self._numbers(item)).mean())
        first, *rest = fitting
        for second in rest:
            is_namesake = first.paths[0] == second.paths[0].partition("#")[0]
            decides = role in TIMES | COUNTS - {"requests"}
            if (decides or is_namesake) and not self._are_alike(role, first, second):
                names = first.title, second.title
                cure = f"Name one: --columns {role}={names[0]} or --columns {role}={names[1]}"
                raise UnclearError(f"both {names[0]} and {names[1]} may be {role}", cure)
        return first

    def _are_alike(self, role: Role, first: Column, second: Column) -> bool:
        """Return whether two columns hold the same, times up to a second."""
        if role not in TIMES | SPANS | COUNTS:
            return self.values[first.paths[0]] == self.values[second.paths[0]]
        apart = np.abs(self._numbers(first) - self._numbers(second))
        return not (apart > (ALIKE_MS if role in TIMES else 0)).any()

    def _known(self, heading: str) -> list[Any]:
        return [cell for cell in self.values[heading] if not is_empty(cell)]

    def _read(self, role: Role, heading: str, unit: TimeUnit | None) -> Column | None:
        """Return the column if its values fit the role. Raises UnclearError if they fit twice."""
        known = self._known(heading)
        if not known and role not in ("error", "finish_reason"):
            return None
        if role in TIMES | SPANS | COUNTS:
            self._refuse_marks(heading, known, integers=role in COUNTS)
        if role in TIMES:
            return self._clock(heading, known, unit)
        if role in SPANS:
            return self._spans(role, heading, unit)
        if role in COUNTS - {"replica"}:
            fits = (counts(known)[1] == 0).mean() >= 0.5
        elif role == "status":
            fits = sum(status_in(cell, flag=True) is not None for cell in known) * 2 >= len(known)
        elif role == "cache_hit":
            fits = all(from_cache(cell) is not None for cell in known)
        else:
            fits = role != "error" or not known or any(error_in(cell) != "ok" for cell in known)
        return self._made_of(heading) if fits else None

    def _refuse_marks(self, heading: str, known: Sequence[Any], *, integers: bool) -> None:
        """Raise where numbers are not as programs write them: 1.234 may be a thousand then."""
        texts = [cell.strip() for cell in known if isinstance(cell, str)]
        in_threes = [_IN_THREES.fullmatch(text) for text in texts if "." in text]
        longest = max((len(text) for text in texts if "." not in text), default=0)
        may_be_thousands = any(in_threes) and (integers or (all(in_threes) and 0 < longest < 4))
        if may_be_thousands or any(map(_MARKED.fullmatch, texts)):
            what = "numbers with decimal commas or marks between thousands"
            raise UnclearError(f"{shown(self.opened, heading)}: {what}")

    # Times and spans.

    def _clock(self, heading: str, known: list[Any], unit: TimeUnit | None) -> Column | None:
        """Return how times are written; None where they are none, or nothing says their unit.

        Raises UnclearError.
        """
        shares = {clock: (clock.read(known)[1] == 0).mean() for clock in CLOCKS}
        best, name = max(shares, key=lambda item: shares[item]), shown(self.opened, heading)
        if best.unit is None and shares[best] >= 0.5:
            return self._made_of(heading, best)
        values, odd = numbers(known)
        is_cut_short = all(isinstance(cell, str) and _CUT_SHORT.match(cell) for cell in known)
        if odd.mean() >= 0.5 or is_cut_short:
            if np.mean([_OTHER_DATE.match(str(cell)) is not None for cell in known]) < 0.5:
                return None
            raise UnclearError(f"{name}: dates that are not ISO 8601")
        if (wanted := self.options.time_unit) is not None:
            return self._made_of(heading, Clock(wanted, shares[Clock(wanted)] > 0))
        if shares[best] >= MOSTLY and unit in (None, best.unit):
            return self._made_of(heading, best)
        if shares[best] > 0:
            what = f"times since 1970, not all of them in {unit or 'one unit'}"
            cure = f"Read those in one unit and drop the others: --time-unit {best.unit}"
            raise UnclearError(f"{name}: {what}", cure)
        if unit is not None:
            return self._made_of(heading, Clock(unit, dated=False))
        self.uncounted = UnclearError(
            f"{name}: times from {np.nanmin(values):g} to {np.nanmax(values):g} count from some "
            "start, in s or in ms (or are a spreadsheet's days: show them as dates there)",
            "Say which: --time-unit s or --time-unit ms",
        )
        return None

    def _spans(self, role: Role, heading: str, unit: TimeUnit | None) -> Column | None:
        """Return how spans are written; None where they are none. Raises UnclearError."""
        known = self._known(heading)
        if (Spans(None).read(known)[1] == 0).mean() >= 0.5:
            return self._made_of(heading, Spans(None))
        values, codes = Spans("ms").read(self.values[heading])
        is_time = unit is None and np.nanmin(values, initial=np.inf) >= FROM_MS / 1000
        if (codes != 0).sum() * 2 > len(known) or np.isnan(values).all() or is_time:
            return None
        lasted = self.roles.get("duration")
        if unit is None and role == "duration":
            unit = self._unit_by_tokens(shown(self.opened, heading), values)
        elif unit is None and lasted is not None and isinstance(lasted.reader, Spans):
            unit = lasted.reader.unit
        return None if unit is None else self._made_of(heading, Spans(unit))

    def _unit_by_tokens(self, name: str, values: Floats) -> TimeUnit:
        """Return the unit that gives an output token a time that some server takes."""
        tokens = self._column("output_length")
        known = (values > 0) & (tokens > 0)
        if not known.any():
            return "ms"
        each = values[known] / tokens[known]
        middle = float(np.median(each))
        fitting = [unit for unit in PER_S if TOKEN_MS[0] <= in_ms(middle, unit) <= TOKEN_MS[1]]
        if len(fitting) != 1:
            cures = (f"--columns duration_{unit}={name}" for unit in fitting or ("s", "ms"))
            what = f"{name}: it may be in {' or in '.join(fitting or PER_S)}"
            raise UnclearError(what, f"Say which: {' or '.join(cures)}")
        unit, self.token_ms = fitting[0], in_ms(middle, fitting[0])
        if is_far_off(in_ms(values, unit), tokens, self.token_ms).mean() > 1 - MOSTLY:
            what = f"{name}: durations of several units stand in it"
            raise UnclearError(what, "Leave them out: --columns duration=")
        return unit

    # What one column shows beside another.

    def _column(self, role: Role) -> Floats:
        """Return a role's numbers in the first rows, NaN where there is none."""
        nothing = np.full(len(self.opened.sample), np.nan)
        return self._numbers(self.roles[role]) if role in self.roles else nothing

    def _numbers(self, column: Column) -> Floats:
        return column.read(self.values[column.paths[0]])[0]

    def _combine(self) -> None:
        """Find ends, and drop what another column says better."""
        result, wanted = self.roles, self.wanted.keys()
        time, end = result.get("timestamp"), result.get("end")
        if time and end and time.paths == end.paths:
            del result["timestamp" if "duration" in result else "end"]
        time = result.get("timestamp")
        if time is None:
            return
        for role in ("end", "first_token"):  # which count from another start
            if role in result and is_dated(result[role]) != is_dated(time):
                del result[role]
        if "duration" not in result:
            return
        times_ms, spans_ms = self._column("timestamp"), self._column("duration")
        both = ~np.isnan(times_ms + spans_ms)
        times_ms, spans_ms = times_ms[both], spans_ms[both]
        if "end" not in result and not {"timestamp", "end"} & wanted and self._is_log():
            is_in_order = [not (np.diff(a) < -1).any() for a in (times_ms, times_ms + spans_ms)]
            if is_in_order != [False, True]:  # else rows that are written at the end say the begin
                result["end"] = replace(result.pop("timestamp"))
                return
        grows = len(spans_ms) >= SOME_ROWS and np.ptp(spans_ms) >= RUNS_ON_MS
        from_start = grows and np.ptp(times_ms - spans_ms) < ALIKE_MS
        if ("end" in result or from_start) and "duration" not in wanted:
            del result["duration"]

    def _is_log(self) -> bool:
        """Whether rows are those of an access log, or events that are sent when a call is over,
        whose time is no begin by its heading."""
        first = {
            heading.lower().rpartition(".")[2]: str([*self._known(heading), ""][0]).lower()
            for heading in self.opened.headings
        }
        is_begin = {*words_of(self.roles["timestamp"].title.rpartition(".")[2])} & word_set(
            "@starts"
        )
        if is_begin or "receivetimestamp" in first:
            return False
        is_http = any(re.match(r"(?:get|post|put)(?: |$)", cell) for cell in first.values())
        message = " ".join(first.get(key, "") for key in ("msg", "message", "event"))
        is_over = any("status" in leaf for leaf in first) or any(each in message for each in OVER)
        return "$ai_latency" in first or bool(first.keys() & LOGS) + is_http + is_over >= 2

    def _refuse_sums(self) -> None:
        """Raise where rows are sums over time, and no requests."""
        many = self._column("requests")
        if (many > 1).sum() * 2 > (many > 0).sum():
            raise UnclearError(
                f"{self.roles['requests'].title} counts several requests a row: {SUMS}"
            )
        time, times_ms = self.roles.get("timestamp"), self._column("timestamp")
        starts_ms = np.unique(times_ms[~np.isnan(times_ms)])
        if time is None or not is_dated(time) or not len(starts_ms):
            return
        lasted_ms = self._column("end") - times_ms
        is_even = np.ptp(lasted_ms) == 0 and lasted_ms[0] >= 60_000
        is_sum = len(starts_ms) >= SOME_ROWS and (is_even or not (starts_ms % 3_600_000).any())
        if is_sum or (len(times_ms) >= SOME_ROWS and not (starts_ms % 86_400_000).any()):
            what = f"{self.roles['timestamp'].title}: whole hours, days or stretches of one length"
            raise UnclearError(f"{what}: {SUMS}; or join the date and the time of day")

    def _prompt_is_sum(self) -> bool:
        """Return whether cached prompt tokens are counted beside the others, as Anthropic and
        Bedrock do.

        More of them than the prompt shows it; else the headings: inputs with reads and writes of a
        cache, which are no details of the prompt.
        """
        if not {"cached_tokens", "input_length"} <= self.roles.keys():
            return False
        cached, prompt = self._column("cached_tokens"), self._column("input_length")
        if ((cached > prompt) & (prompt > 0)).any():
            return True
        leaf = words_of(self.roles["input_length"].paths[0].rpartition(".")[2])
        has_writes = "cache_creation_tokens" in self.roles
        is_detail = "detail" in self.roles["cached_tokens"].paths[0].lower()
        return has_writes and not is_detail and "input" in leaf and "prompt" not in leaf

    # What is missing.

    def _missing(self) -> list[Role]:
        result = self.roles.keys()
        has_times = "timestamp" in result or {"end", "duration"} <= result
        return [*({*LENGTHS} - result), *([] if has_times else ["timestamp"])]

    def _without(self, missing: Sequence[Role]) -> UnclearError:
        """Return what to say where roles have no column."""
        if self.uncounted is not None and [*missing] == ["timestamp"]:
            return self.uncounted
        what = f"no column for {', '.join(sorted(missing))}"
        for heading in self.opened.headings:
            if {meaning.role for meaning in meanings(heading)} & {*missing}:
                holds = "holds nothing that can be read so" if self._known(heading) else "is empty"
                return UnclearError(f"{what}: {shown(self.opened, heading)} {holds}")
        return UnclearError(what if self.opened.sample else f"{what}: no rows")


SUMS = "sums over time are no requests"


def is_dated(column: Column) -> bool:
    """Return whether it is no time that counts from an unknown start."""
    return not isinstance(column.reader, Clock) or column.reader.dated


def is_far_off(ms: Floats, tokens: Floats, token_ms: float) -> Mask:
    """Return where durations of many tokens are of another unit than those of ``token_ms``."""
    each, (least, most) = ms / np.maximum(tokens, 1), TOKEN_MS
    is_long = (each > max(most, token_ms * FAR_OFF)) & (each <= 1000 * most)
    is_short = (each < min(least, token_ms / FAR_OFF)) & (each * 1000 >= least)
    mask: Mask = (tokens >= MANY_TOKENS) & (is_long | is_short)
    return mask

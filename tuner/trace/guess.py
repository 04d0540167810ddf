"""A table that no format claims: which column is what, by headings and first rows; or a refusal.

The result is a ``Format`` like any other. Where two readings are possible none is taken: the
refusal has the option that decides.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
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
    word_set,
    words_of,
)
from tuner.trace.record import ReadOptions, TimeUnit
from tuner.trace.rows import Opened
from tuner.trace.text import shown_key
from tuner.trace.values import (
    FROM_MS,
    PER_S,
    UNITS,
    Clock,
    Floats,
    Mask,
    Spans,
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
OVER = re.compile("(?i)complet|finish|served|handled|access|respon")
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


def guessed(opened: Opened, options: ReadOptions, file: TraceFile) -> Format:
    """Return how a table is read, by its columns and by what their cells hold as JSON.

    Raises TraceError with what was seen and the option that would do.
    """
    try:
        return _Guess(opened, options).format()
    except TraceError as problem:
        seen = [shown(opened, heading) for heading in opened.headings[:SHOWN]]
        more = ["…"] * (len(opened.headings) > SHOWN)
        where = f"{file.path}:{max(1, opened.first_line - 1)}"
        message = f"{where}: {problem}; columns: {', '.join(seen + more)}"
        raise TraceError(printable(message), hint=printable(problem.hint)) from None


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
        self.roles: dict[Role, Column] = {}
        self.token_ms: float | None = None
        self.uncounted: TraceError | None = None
        """What to say of times that count from some start in a unit that nothing names."""

    def format(self) -> Format:
        """Return the table's format. Raises TraceError."""
        wanted, result = self._wanted(), self.roles
        for role in ROLES:
            try:
                self._find(role, wanted.get(role))
            except TraceError:
                if role in NEEDED or role in wanted:
                    raise
        self._refuse_sums()
        self._combine({*wanted})
        has_times = "timestamp" in result or {"end", "duration"} <= result.keys()
        missing = {*LENGTHS, *([] if has_times else ["timestamp"])} - result.keys()
        if missing:
            raise self._without(missing)
        status, prompt_is_sum = result.get("status"), self._prompt_is_sum()
        lacks = ["prefixes", *({"sessions"} if "session_id" not in result else ())]
        lacks += [] if {"status", "error"} & result.keys() else ["aborts", "errors"]
        notes = [", ".join(f"{role} from {result[role].title}" for role in LENGTHS)]
        if prompt_is_sum:
            notes.append("cached prompt tokens are counted apart, and added to the others")
        return replace(
            TABLE,
            columns=result,
            missing=lacks,
            flag=status is not None and bool({"success", "ok"} & {*words_of(status.paths[0])}),
            prompt_is_sum=prompt_is_sum,
            token_ms=self.token_ms if "duration" in result else None,
            notes=notes,
        )

    def _wanted(self) -> dict[Role, tuple[str, TimeUnit | None]]:
        """Return the headings of ``--columns timestamp=ts,duration_ms=#7``, with their units.

        Raises UsageError, TraceError for a heading that is not there.
        """
        headings = self.opened.headings
        by_name = {heading.lower(): heading for heading in reversed(headings)} | {"": ""}
        by_name |= {f"#{place}": heading for place, heading in enumerate(headings, 1)}
        result: dict[Role, tuple[str, TimeUnit | None]] = {}
        for part in self.options.columns.split(",") if self.options.columns else ():
            name, equals, wanted = map(str.strip, part.partition("="))
            role, unit = role_of(name)
            if role is None or not equals:
                raise UsageError(
                    f"--columns: cannot read {part!r}; a column can be {', '.join(ROLES)}",
                    hint="Write it as timestamp=ts,input_length=prompt_tok,output_length=gen_tok; "
                    "times and spans also with their unit: duration_ms.",
                )
            if wanted.lower() not in by_name:
                raise TraceError(f"no column is headed {wanted!r}", hint=HINT)
            heading = by_name[wanted.lower()]
            named = [UNITS[word] for word in words_of(heading)[1:] if word in UNITS]
            result[role] = heading, unit or (named[-1] if named else None)
        return result

    def _made_of(self, heading: str, reader: Clock | Spans | None = None) -> Column:
        return Column((heading,), reader, shown(self.opened, heading))

    # Columns by their headings.

    def _find(self, role: Role, wanted: tuple[str, TimeUnit | None] | None) -> None:
        """Take the best of the columns whose heading and values fit a role. Raises TraceError."""
        own = [(rank, name, unit) for name in self.opened.headings
               for meant, rank, unit in meanings(name) if meant == role]  # fmt: skip
        if wanted is not None:
            own = [(0, *wanted)] if wanted[0] else []
        fitting: list[Column] = []
        least = 0
        for rank, heading, unit in sorted(own, key=lambda item: item[0]):
            if fitting and rank > least:
                break
            if (column := self._read(role, heading, unit)) is not None:
                fitting, least = [*fitting, column], rank
        if fitting:
            self.roles[role] = self._one_of(role, [*filter(is_dated, fitting)] or fitting)
        elif own and wanted is not None and self.uncounted is None:
            raise TraceError(f"{wanted[0]} cannot be {role} by its values", hint=HINT)

    def _one_of(self, role: Role, fitting: list[Column]) -> Column:
        """Return one of the columns that fit a role as well as each other; of spans the longest.

        Raises TraceError where they differ, times by more than a second.
        """
        if role == "duration":
            fitting.sort(key=lambda item: -np.nan_to_num(self._numbers(item)).mean())
        first, *rest = fitting
        for second in rest:
            is_namesake = first.paths[0] == second.paths[0].partition("#")[0]
            if not (role in TIMES | COUNTS - {"requests"} or is_namesake):
                continue
            if role in TIMES | SPANS | COUNTS:
                apart = np.abs(self._numbers(first) - self._numbers(second))
                are_alike = not (apart > (ALIKE_MS if role in TIMES else 0)).any()
            else:
                are_alike = self.values[first.paths[0]] == self.values[second.paths[0]]
            if not are_alike:
                names = first.title, second.title
                cure = f"Name one: --columns {role}={names[0]} or --columns {role}={names[1]}"
                raise TraceError(f"both {names[0]} and {names[1]} may be {role}", hint=cure)
        return first

    def _known(self, heading: str) -> list[Any]:
        return [cell for cell in self.values[heading] if not is_empty(cell)]

    def _read(self, role: Role, heading: str, unit: TimeUnit | None) -> Column | None:
        """Return the column if its values fit the role. Raises TraceError if they fit twice."""
        known = self._known(heading)
        if not known and role != "error":
            return None
        if role in TIMES | SPANS | COUNTS:
            self._refuse_marks(heading, known, integers=role in COUNTS)
        if role in TIMES:
            return self._clock(heading, known, unit)
        if role in SPANS:
            return self._spans(role, heading, unit)
        fits = True
        if role in COUNTS:
            fits = (counts(known)[1] == 0).mean() >= 0.5
        elif role == "status":
            fits = sum(status_in(cell, flag=True) is not None for cell in known) * 2 >= len(known)
        elif role == "cache_hit":
            fits = all(from_cache(cell) is not None for cell in known)
        elif role == "error":
            fits = not known or any(error_in(cell) != "ok" for cell in known)
        return self._made_of(heading) if fits else None

    def _refuse_marks(self, heading: str, known: Sequence[Any], *, integers: bool) -> None:
        """Raise where numbers are not as programs write them: 1.234 may be a thousand then."""
        texts = [cell.strip() for cell in known if isinstance(cell, str)]
        in_threes = [_IN_THREES.fullmatch(text) for text in texts if "." in text]
        longest = max((len(text) for text in texts if "." not in text), default=0)
        may_be_thousands = any(in_threes) and (integers or (all(in_threes) and 0 < longest < 4))
        if may_be_thousands or any(map(_MARKED.fullmatch, texts)):
            what = "numbers with decimal commas or marks between thousands"
            raise TraceError(f"{shown(self.opened, heading)}: {what}", hint=HINT)

    # Times and spans.

    def _clock(self, heading: str, known: list[Any], unit: TimeUnit | None) -> Column | None:
        """Return how times are written; None where they are none, or nothing says their unit.

        Raises TraceError.
        """
        shares = {clock: (clock.read(known)[1] == 0).mean() for clock in CLOCKS}
        best, name = max(shares, key=lambda item: shares[item]), shown(self.opened, heading)
        if best.unit is None and shares[best] >= 0.5:
            return self._made_of(heading, best)
        values, odd = numbers(known)
        is_cut_short = all(isinstance(cell, str) and _CUT_SHORT.match(cell) for cell in known)
        if odd.mean() >= 0.5 or is_cut_short:
            if not any(_OTHER_DATE.match(str(cell)) for cell in known):
                return None
            raise TraceError(f"{name}: dates that are not ISO 8601", hint=HINT)
        if (wanted := self.options.time_unit) is not None:
            return self._made_of(heading, Clock(wanted, shares[Clock(wanted)] > 0))
        if shares[best] >= MOSTLY and unit in (None, best.unit):
            return self._made_of(heading, best)
        if shares[best] > 0:
            what = f"{name}: times since 1970, not all of them in {unit or 'one unit'}"
            cure = f"Read those in one unit and drop the others: --time-unit {best.unit}"
            raise TraceError(what, hint=cure)
        if unit is not None:
            return self._made_of(heading, Clock(unit, dated=False))
        self.uncounted = TraceError(
            f"{name}: times from {np.nanmin(values):g} to {np.nanmax(values):g} count from some "
            "start, in s or in ms (or are a spreadsheet's days: show them as dates there)",
            hint="Say which: --time-unit s or --time-unit ms",
        )
        return None

    def _spans(self, role: Role, heading: str, unit: TimeUnit | None) -> Column | None:
        """Return how spans are written; None where they are none. Raises TraceError."""
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
        middle = float(np.median(values[known] / tokens[known]))
        fitting = [unit for unit in PER_S if TOKEN_MS[0] <= in_ms(middle, unit) <= TOKEN_MS[1]]
        if len(fitting) != 1:
            cures = (f"--columns duration_{unit}={name}" for unit in fitting or ("s", "ms"))
            what = f"{name}: it may be in {' or in '.join(fitting or PER_S)}"
            raise TraceError(what, hint=f"Say which: {' or '.join(cures)}")
        self.token_ms = in_ms(middle, fitting[0])
        if is_far_off(in_ms(values, fitting[0]), tokens, self.token_ms).mean() > 1 - MOSTLY:
            what = f"{name}: durations of several units stand in it"
            raise TraceError(what, hint="Leave them out: --columns duration=")
        return fitting[0]

    # What one column shows beside another.

    def _column(self, role: Role) -> Floats:
        """Return a role's numbers in the first rows, NaN where there is none."""
        nothing = np.full(len(self.opened.sample), np.nan)
        return self._numbers(self.roles[role]) if role in self.roles else nothing

    def _numbers(self, column: Column) -> Floats:
        return column.read(self.values[column.paths[0]])[0]

    def _combine(self, wanted: set[Role]) -> None:
        """Find ends, and drop what another column says better."""
        result = self.roles
        time, end = result.get("timestamp"), result.get("end")
        if time and end and time.paths == end.paths:
            del result["timestamp" if "duration" in result else "end"]
        time = result.get("timestamp")
        if time is None:
            return
        if end and is_dated(end) != is_dated(time):  # it counts from another start
            del result["end"]
        if "duration" not in result:
            return
        times_ms, spans_ms = self._column("timestamp"), self._column("duration")
        both = ~np.isnan(times_ms + spans_ms)
        times_ms, spans_ms = times_ms[both], spans_ms[both]
        if "end" not in result and not {"timestamp", "end"} & wanted and self._is_log():
            is_in_order = [not (np.diff(a) < -1).any() for a in (times_ms, times_ms + spans_ms)]
            if is_in_order != [False, True]:  # else rows that are written at the end say the begin
                result["end"] = result.pop("timestamp")
                return
        grows = len(spans_ms) >= SOME_ROWS and np.ptp(spans_ms) >= RUNS_ON_MS
        from_start = grows and np.ptp(times_ms - spans_ms) < ALIKE_MS
        if ("end" in result or from_start) and "duration" not in wanted:
            del result["duration"]

    def _is_log(self) -> bool:
        """Whether rows are those of an access log, or events that are sent when a call is over,
        whose time is no begin by its heading."""
        leaves = {heading.lower().rpartition(".")[2] for heading in self.opened.headings}
        words_ = {*words_of(self.roles["timestamp"].title.rpartition(".")[2])}
        if words_ & word_set("@starts") or "receivetimestamp" in leaves:
            return False
        texts = [str(cell) for cells in self.values.values() for cell in cells[:1]]
        is_http = any(re.match(r"(?:GET|POST|PUT)(?: |$)", text) for text in texts)
        is_over = any("status" in leaf for leaf in leaves) or any(map(OVER.search, texts))
        return "$ai_latency" in leaves or bool(leaves & LOGS) + is_http + is_over >= 2

    def _refuse_sums(self) -> None:
        """Raise where rows are sums over time, and no requests."""
        many = self._column("requests")
        if (many > 1).sum() * 2 > (many > 0).sum():
            what = f"{self.roles['requests'].title} counts several requests a row: {SUMS}"
            raise TraceError(what, hint=HINT)
        time, times_ms = self.roles.get("timestamp"), self._column("timestamp")
        starts_ms = np.unique(times_ms[~np.isnan(times_ms)])
        if time is None or not is_dated(time) or not len(starts_ms):
            return
        lasted_ms = self._column("end") - times_ms
        is_even = np.ptp(lasted_ms) == 0 and lasted_ms[0] >= 60_000
        is_sum = len(starts_ms) >= SOME_ROWS and (is_even or not (starts_ms % 3_600_000).any())
        if is_sum or (len(times_ms) >= SOME_ROWS and not (starts_ms % 86_400_000).any()):
            what = f"{time.title}: whole hours, days or stretches of one length: {SUMS}"
            raise TraceError(f"{what}; or join the date and the time of day", hint=HINT)

    def _prompt_is_sum(self) -> bool:
        """Return whether cached prompt tokens are counted beside the others, as Anthropic and
        Bedrock do.

        More of them than the prompt shows it; else the headings: inputs with reads and writes of a
        cache, which are no details of the prompt.
        """
        if "cached_tokens" not in self.roles:
            return False
        cached, prompt = self._column("cached_tokens"), self._column("input_length")
        if ((cached > prompt) & (prompt > 0)).any():
            return True
        leaf = words_of(self.roles["input_length"].paths[0].rpartition(".")[2])
        is_detail = "detail" in self.roles["cached_tokens"].paths[0].lower()
        is_input = "input" in leaf and "prompt" not in leaf
        return "cache_creation_tokens" in self.roles and is_input and not is_detail

    def _without(self, missing: set[Role]) -> TraceError:
        """Return what to say where roles have no column."""
        if self.uncounted is not None and missing == {"timestamp"}:
            return self.uncounted
        what = f"no column for {', '.join(sorted(missing))}"
        for heading in self.opened.headings:
            if {role for role, *_ in meanings(heading)} & missing:
                holds = "holds nothing that can be read so" if self._known(heading) else "is empty"
                what += f": {shown(self.opened, heading)} {holds}"
                break
        return TraceError(what if self.opened.sample else f"{what}: no rows", hint=HINT)


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

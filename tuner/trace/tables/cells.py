"""Reads the cells of a table: counts of tokens, spans of time, statuses. Pure.

A fraction of a token does not exist, so ``1.234`` among counts is 1,234; where a mark and three
zeros could be either, none is chosen.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.trace.formats.reading.record import MAX_MS, MAX_TOKENS, Reason, Status
from tuner.trace.formats.reading.scalars import is_absent, status_of
from tuner.trace.tables.clocks import FROM_S, MOSTLY, NAMES, NANOSECONDS, bounded, number, scaled
from tuner.trace.tables.headings import UNITS, Unit
from tuner.trace.tables.marks import (
    GROUPED,
    are_pointed,
    decimal_marks,
    is_large,
    may_be_thousands,
    plain_number,
    two_readings,
)

NULL = frozenset({r"\n", "nan", "nat", "<na>", "na", "n/a", "#n/a", "none", "null", "nil"})
"""Words with which databases, pandas and spreadsheets say that there is nothing."""

_DECIMAL = re.compile(r"[+-]?\d+[.,]0*")
_SPAN = re.compile(r"(?:(\d+) days?,? ?)?(\d{1,4}):(\d{2}):(\d{2})(?:[.,](\d{1,9}))?")
_UNIT_SPAN = re.compile(r"(?:\d+(?:\.\d+)?\s*[a-zµμ]+[\s,]*)+")
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zµμ]+)")
_ISO_SPAN = re.compile(r"p(?:(\d+)d)?(?:t(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?)?")
"""Java's and .NET's: ``PT1M2.5S``."""

_ISO_PARTS_MS = (86_400_000.0, 3_600_000.0, 60_000.0, 1000.0)
LONGEST_SPAN = 60

_WITH_UNIT_MS: dict[str, float] = {
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3_600_000.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000.0),
    **{word: NANOSECONDS[unit] / 10**6 for word, unit in UNITS.items()},
    "μs": 1e-3,
}

TOKEN_MS = (0.3, 1000.0)
"""Range of an output token's time on any server, in ms: a span of time that gives another figure is
of another unit. The range is somewhat wider than a thousandfold, so that one unit fits, or two do
and none is chosen."""

MANY_TOKENS, FAR_OFF = 32, 200.0
"""Output tokens from which on a span is of another unit, where it is so many times from the
middle."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The spelling of the counts in one column."""

    thousands: str = ""
    decimal: str = "."
    """Of counts that a program took for fractions: ``128.0``."""

    unmarked: bool = False
    """No count was large or had a mark so far: three zeros behind a point may be thousands."""

    def read(self, value: object) -> int | Reason | None:
        """Return the count; None where there is none, why not where it is no count."""
        if isinstance(value, bool):
            return "not_integer"
        if isinstance(value, float):
            if value != value:  # noqa: PLR0124 - not a number
                return "not_finite"
            if not value.is_integer():
                return "not_finite" if value in (float("inf"), -float("inf")) else "not_integer"
            value = int(value)
        found = self._read_text(value.strip()) if isinstance(value, str) else value
        if isinstance(found, int):
            return "negative" if found < 0 else found if found <= MAX_TOKENS else "out_of_range"
        if isinstance(value, str):
            return found  # type: ignore[return-value] # None, or the reason
        return None if value is None else "not_integer"

    def _read_text(self, text: str) -> int | Reason | None:
        if text.isdecimal() and text.isascii():
            return int(text) if len(text) < 12 else "out_of_range"
        if is_absent(text) or text.lower() in NULL - {"nan"}:
            return None
        if re.fullmatch(r"[+-]?(?:nan|inf(?:inity)?)", text, re.IGNORECASE):
            return "not_finite"
        if self.thousands and GROUPED.fullmatch(text):
            text = text.replace(self.thousands, "")
        whole, mark, zeros = text.partition(self.decimal)
        may_be_either = self.unmarked and may_be_thousands([text], self.decimal)
        if mark and (may_be_either or zeros.strip("0") or not whole.lstrip("+-").isdecimal()):
            return "not_integer"
        sign, digits = (whole[0], whole[1:]) if whole[:1] in ("+", "-") else ("", whole)
        if not (digits.isdecimal() and digits.isascii()) or len(digits) > 400:
            return "not_integer"
        return "out_of_range" if len(digits) > 12 else int(sign + digits)


def counts_of(cells: Sequence[object]) -> Counts | str:
    """Return how these counts are written; what is not clear, where two readings are possible."""
    texts = [one.strip() for one in cells if isinstance(one, str) and one.strip()]
    for mark in ("'", "\u2019", "\u00a0", "\u202f", " ", "_"):
        if any(mark in text for text in texts) and _all_grouped(texts, mark):
            return Counts(thousands=mark)
    for mark, other in (".", ","), (",", "."):
        marked = [text for text in texts if mark in text]
        if not marked:
            continue
        if all(_DECIMAL.fullmatch(text) for text in marked):
            if may_be_thousands(texts, mark):
                return f"{marked[0]} may be {marked[0][:-4]} or {marked[0].replace(mark, '')}"
            return Counts(decimal=mark)
        if all(GROUPED.fullmatch(text) for text in marked) and _all_grouped(marked, mark):
            return Counts(thousands=mark, decimal=other)
    return Counts(unmarked=not any(map(is_large, texts)))


def _all_grouped(texts: Iterable[str], mark: str) -> bool:
    grouped = [GROUPED.fullmatch(text) for text in texts if mark in text]
    return all(hit is not None and hit[1] == mark for hit in grouped)


@dataclass(frozen=True, slots=True)
class Spans:
    """The spelling of the spans of time in one column."""

    unit: Unit | None
    """Of numbers; None where each cell says its own."""

    decimal: str = "."
    why: str = ""
    token_ms: float | None = None
    """What an output token takes in the middle of the first rows, where that told the unit."""

    def are_of_another_unit(self, ms: Any, tokens: Any) -> Any:  # noqa: ANN401 - of one row, or arrays
        """Return whether spans of so many output tokens are in seconds among ms, or in ms among
        seconds: a bool, or an array of them.

        Such a span is out of an output token's range, and a thousandfold or a thousandth of it is
        not. Neither is enough by itself: of a few tokens the prompt may take most, and on an
        overloaded server the queue. So there must be MANY_TOKENS, and the span FAR_OFF.
        """
        if self.token_ms is None:
            return False
        least, most = TOKEN_MS
        short_ms = min(least, self.token_ms / FAR_OFF) * tokens
        long_ms = max(most, self.token_ms * FAR_OFF) * tokens
        too_short = (ms < short_ms) & (ms * 1000 >= least * tokens)
        too_long = (ms > long_ms) & (ms <= 1000 * most * tokens)
        return (tokens >= MANY_TOKENS) & (too_short | too_long)

    def ms(self, value: object) -> float | Reason | None:
        """Return the span in ms; None where there is none, why not where it is no span."""
        if isinstance(value, str):
            text = value.strip()
            if is_absent(text) or text.lower() in NULL:
                return None
            value = written_ms(text) if self.unit is None else self._number(text)
        elif value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # noqa: PLR0124
            return "bad_field"
        ms = value if self.unit is None else scaled(value, self.unit)
        if ms < 0:
            return "negative_time"
        return ms if ms <= MAX_MS else "out_of_range"

    def _number(self, text: str) -> float | None:
        return number(plain_number(text, self.decimal))


def written_ms(text: str) -> float | None:
    """Return ms of a span that says its unit: ``1m2.5s``, ``00:00:01.53``, ``0 days 00:00:01``.

    >>> written_ms("1 min 2.5 s"), written_ms("PT1M2.5S"), written_ms("875 tokens")
    (62500.0, 62500.0, None)
    """
    if hit := _SPAN.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in hit.groups()[:4])
        whole_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
        return whole_s * 1000 + float(f"0.{hit[5] or 0}") * 1000
    if len(text) > LONGEST_SPAN:
        return None
    text = text.lower()
    if _UNIT_SPAN.fullmatch(text):
        parts = [(float(value), _WITH_UNIT_MS.get(unit)) for value, unit in _PART.findall(text)]
        known = [value * each_ms for value, each_ms in parts if each_ms is not None]
        return sum(known) if len(known) == len(parts) else None
    if (hit := _ISO_SPAN.fullmatch(text)) and any(hit.groups()):
        return sum(
            float(value) * each_ms
            for value, each_ms in zip(hit.groups(), _ISO_PARTS_MS, strict=True)
            if value
        )
    return None


def spans_of(
    cells: Sequence[object], tokens: Sequence[int], *, heading: Unit | None, of_a_token: bool
) -> Spans | str | None:
    """Return how these spans are written; what is not clear, or None where they are none.

    ``tokens`` are the output tokens of the same rows. ``of_a_token``: the span is of the whole
    request, so that it divided by the tokens tells its unit.
    """
    known = [(one, n) for one, n in zip(cells, tokens, strict=True) if not is_empty(one)]
    texts = [one.strip() for one, _ in known if isinstance(one, str)]
    if texts and sum(written_ms(text) is not None for text in texts) * 2 >= len(known):
        return Spans(None, why="with their units")
    found = _marked_spans(known, texts, heading, of_a_token=of_a_token)
    if isinstance(found, Spans) and found.decimal == "," and not any("," in one for one in texts):
        return replace(found, why=f"{found.why}, with '.' between thousands")
    return found


def _marked_spans(
    known: Sequence[tuple[object, int]],
    texts: Sequence[str],
    heading: Unit | None,
    *,
    of_a_token: bool,
) -> Spans | str | None:
    """Return spans by their marks; where these tell nothing, by the time of an output token."""
    marks = decimal_marks(texts)
    are_all_pointed = are_pointed(texts) and all("." in text for text in texts)
    may_be_either = of_a_token and marks == "." and are_all_pointed
    if len(marks) == 1 and not may_be_either:
        return _spans(known, marks, heading, of_a_token=of_a_token)
    first = next(text for text in texts if "," in text or "." in text)
    mark, order = (",", ".,") if "," in first else (".", ",.")
    read = {one: _spans(known, one, heading, of_a_token=of_a_token) for one in order}
    likely = {
        one.ms(first): one
        for one in read.values()
        if isinstance(one, Spans) and of_a_token and _is_likely(one, known, mark)
    }
    if len(likely) == 1:
        return next(iter(likely.values()))
    if may_be_either:
        return read["."]  # as programs write seconds, to the ms
    return two_readings(first)


def _is_likely(spans: Spans, known: Sequence[tuple[object, int]], mark: str) -> bool:
    """Whether the spans that have this mark, and the others, give an output token a time that some
    server takes."""
    marked, others = list[float](), list[float]()
    for one, n in known:
        ms = spans.ms(one)
        if n > 0 and isinstance(ms, float | int):
            (marked if mark in str(one) else others).append(ms / n)
    return bool(marked) and all(
        TOKEN_MS[0] <= sorted(each)[len(each) // 2] <= TOKEN_MS[1]
        for each in (marked, others)
        if each
    )


def _spans(
    known: Sequence[tuple[object, int]], decimal: str, heading: Unit | None, *, of_a_token: bool
) -> Spans | str | None:
    numbers = [
        (number(plain_number(one.strip(), decimal)) if isinstance(one, str) else one, n)
        for one, n in known
    ]
    values = [
        (bounded(v), n)
        for v, n in numbers
        if isinstance(v, int | float) and not isinstance(v, bool)
    ]
    if not values or len(values) * 2 < len(numbers):
        return None
    if heading is not None:
        return Spans(heading, decimal, f"in {NAMES[heading]}, because the heading says so")
    if not of_a_token:
        is_time = min(value for value, _ in values) >= FROM_S
        return None if is_time else "it may be in seconds or in milliseconds"
    return _told_by_tokens(values, decimal)


def _told_by_tokens(values: Sequence[tuple[float, int]], decimal: str) -> Spans | str:
    """Return how spans of these output tokens are written; what is not clear."""
    each = sorted(value / n for value, n in values if value > 0 and n > 0)
    if not each:
        return Spans("ms", decimal, "all zero")
    middle = each[len(each) // 2]
    fitting = [u for u in NANOSECONDS if TOKEN_MS[0] <= scaled(middle, u) <= TOKEN_MS[1]]
    if len(fitting) != 1:
        return "it may be in " + " or ".join(NAMES[unit] for unit in fitting or ("s", "ms"))
    (unit,) = fitting
    token_ms = scaled(middle, unit)
    why = f"in {NAMES[unit]}, because an output token then takes {token_ms:.3g} ms"
    spans = Spans(unit, decimal, why, token_ms)
    telling = [(value, n) for value, n in values if value > 0 and n >= MANY_TOKENS]
    odd = [v for v, n in telling if spans.are_of_another_unit(scaled(v, unit), n)]
    if len(odd) > (1 - MOSTLY) * len(telling):
        usual = next(v for v, _ in telling if v not in odd)
        return f"durations of several units stand in it, {usual:.17g} and {odd[0]:.17g}"
    return spans


def is_empty(value: object) -> bool:
    if isinstance(value, str):
        return is_absent(value) or value.strip().lower() in NULL
    return value is None or value != value  # noqa: PLR0124 - not a number


WORDS: dict[str, Status] = {
    **dict.fromkeys(
        ("ok", "success", "succeeded", "successful", "true", "completed", "complete", "done",
         "finished", "stop", "length", "passed", "end_turn", "eos", "yes", "status_code_ok",
         "status_code_unset", "unset", "max_tokens", "stop_sequence", "tool_calls", "tool_use",
         "incomplete"), "ok",
    ),
    **dict.fromkeys(
        ("aborted", "abort", "cancelled", "canceled", "client_closed", "disconnected",
         "client_disconnected", "client_closed_request"), "aborted",
    ),
    **dict.fromkeys(
        ("rejected", "throttled", "rate_limited", "ratelimited", "overloaded",
         "too_many_requests", "service_unavailable", "unavailable", "resource_exhausted"),
        "rejected",
    ),
    **dict.fromkeys(
        ("error", "failed", "fail", "failure", "false", "timeout", "timed_out", "exception",
         "internal_error", "internal_server_error", "no", "status_code_error", "bad_request",
         "internal", "deadline_exceeded", "invalid_argument", "permission_denied", "not_found",
         "unauthenticated"),
        "error",
    ),
}  # fmt: skip


_CODE = re.compile(r"(?:http(?:/\d(?:\.\d)?)?[\s:]*)?([1-5]\d\d)(?:[\s:-].*)?")
"""A code of HTTP with words around it: ``HTTP/1.1 429 Too Many Requests``."""


def status_in(value: object, *, flag: bool) -> Status | None:
    """Return what a status says: a code of HTTP, a word, or a flag; None where it is not known.

    ``flag``: the column says whether it went well, so that 0 means that it did not.
    """
    if isinstance(value, bool):
        return "ok" if value else "error"
    text = str(value).strip().lower().removesuffix(".0")
    if value is None or is_absent(text) or text in NULL:
        return "ok"
    if text in ("0", "1") and (flag or text == "0"):
        return "ok" if flag == (text == "1") else "error"
    if text.isdecimal() and len(text) == 3:
        return status_of(int(text))
    if code := _CODE.fullmatch(text):
        return status_of(int(code[1]))
    return WORDS.get(re.sub(r"[\s-]+", "_", text.rpartition(".")[2]))


def error_in(value: object) -> Status:
    """Return what a column of errors says: nothing, or that there was one."""
    text = str(value).strip().lower()
    nothing = value is None or is_absent(text) or text in NULL | {"false", "0", "0.0", "{}", "[]"}
    return "ok" if nothing or text in ("no", "ok", "no error") else "error"


def from_cache(value: object) -> bool | None:
    """Return whether a gateway answered from its cache; None where the cell does not say.

    >>> from_cache("SEMANTIC HIT"), from_cache("miss"), from_cache(True), from_cache(64)
    (True, False, True, None)
    """
    text = str(value).strip().lower()
    if text in ("true", "yes", "1", "hit") or text.endswith((" hit", "_hit")):
        return True
    no = ("false", "no", "0", "miss", "disabled", "bypass", "refresh", "dynamic", "expired")
    return False if text in no or text.endswith((" miss", "_miss")) or is_empty(value) else None


LINKS = frozenset(
    {
        *("chain", "agent", "tool", "retriever", "retrieval", "workflow", "task", "parser"),
        *("prompt", "guardrail", "reranker", "embedding", "evaluator"),
    }
)
"""Kinds of calls that stand above or beside a model's where each call is a row."""


def is_link(kind: object) -> bool:
    """Whether a row of a trace of calls is none of a model, though it may sum up their tokens.

    >>> is_link("chain"), is_link("SpanKind.AGENT"), is_link("llm"), is_link(None)
    (True, True, False, False)
    """
    return str(kind).rpartition(".")[2].strip().lower() in LINKS

"""Requirements of a choice beyond the SLO of one request: ``--require``. Pure.

A requirement is a bound on one number of all requests, today or at the headroom load:

    [p50|p90|p95|p99|mean|peak] NAME OP VALUE [at headroom]

``p99 ttft <= 500ms``, ``attainment >= 99% at headroom``, ``preemptions == 0``. One parser for every
command that takes them. What breaks one is no candidate, however much it serves.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from tuner.errors import UsageError

TIMES = ("ttft", "tpot", "itl", "e2el", "queue")
KV = "kv_cache_usage"
NAMES = (*TIMES, "attainment", "goodput", "preemptions", KV)
OF_TIMES = ("mean", "p50", "p90", "p95", "p99")
OF_KV = ("mean", "p99", "peak")
STATISTICS = (*OF_TIMES, "peak")
AT_MOST, AT_LEAST = ("<=", "<"), (">=", ">")
SECONDS = {"ms": 1e-3, "s": 1.0}

BAD_SIDE = 0.95
"""Of the draws that must meet a requirement: its bound is their quantile on the bad side."""

FORM = "[p50|p90|p95|p99|mean|peak] NAME OP VALUE [at headroom]"
EXAMPLES = "'p99 ttft <= 500ms', 'attainment >= 99% at headroom', 'preemptions == 0'"

_TOKEN = re.compile(r"\d[\d.]*(?:[eE][+-]?\d+)?|[A-Za-z_][\w/]*|<=|>=|==|\S")


@dataclass(frozen=True, slots=True)
class Requirement:
    """A bound on one number. The limit is in seconds, a share, a count, or requests/s."""

    text: str
    """As it was written."""

    name: str
    statistic: str
    """Empty for a number that has none."""

    operator: str
    limit: float
    at_headroom: bool

    def is_met_by(self, value: float) -> bool:
        """Whether a number keeps it; one that is not known (NaN) does not."""
        return {
            "<=": value <= self.limit,
            "<": value < self.limit,
            ">=": value >= self.limit,
            ">": value > self.limit,
            "==": value == self.limit,
        }[self.operator]

    def bound_of(self, drawn: Sequence[float]) -> float:
        """Return the number that 95 % of the draws stay on the good side of. A draw in which
        nothing came to that (NaN) has broken it."""
        share = 1 - BAD_SIDE if self.operator in AT_LEAST else BAD_SIDE
        return float(np.quantile(drawn, share, method="weibull")) if len(drawn) else math.nan

    def miss(self, value: float) -> float:
        """Return by how much of the limit it is missed; 0 where it is met.

        >>> one = parse_requirement("p99 ttft <= 500ms")
        >>> one.miss(0.6), one.miss(0.4)
        (0.2, 0.0)
        """
        if self.is_met_by(value):
            return 0.0
        if math.isnan(value):
            return math.inf
        return round(abs(value - self.limit) / (self.limit or 1.0), 9)

    def value_in(self, one: object) -> float | None:
        """Return the number as a measurement has it (``replay.measure``); None where it does not
        tell."""
        if self.name in TIMES:
            spread = getattr(one, f"{self.name}_s", None)
            return None if spread is None else float(getattr(spread, self.statistic))
        if self.name == "goodput":
            return float(getattr(one, "goodput_rps"))  # noqa: B009 - of any measurement
        value = getattr(one, self.name)
        if self.name == KV:
            return None if value is None else float(getattr(value, self.statistic))
        if self.name == "preemptions" and getattr(one, KV) is None:  # only clients tell of it
            return None
        return float(value)

    def shown(self, value: float) -> str:
        """Return such a number for people.

        >>> parse_requirement("p99 ttft <= 500ms").shown(0.6123)
        '612 ms'
        """
        if math.isnan(value):
            return "nothing"
        if self.name in TIMES:
            return f"{value * 1e3:,.3g} ms" if value < 1 else f"{value:,.3g} s"
        if self.name in {"attainment", KV}:
            return f"{100 * value:.4g} %"
        return f"{value:,.3g} req/s" if self.name == "goodput" else f"{value:,.0f}"

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class RequirementCheck:
    """One requirement, and what is known of it at the choice."""

    requirement: Requirement
    bound: float | None
    """By the twin; None where the windows decide."""

    measured: float | None = None
    """In the confirming replay at its load, or in the windows that decide; None where none was
    made, or it was cut."""

    @property
    def is_kept(self) -> bool:
        """Whether all that is known of it keeps it; what nobody knows is not kept."""
        known = [one for one in (self.bound, self.measured) if one is not None]
        return bool(known) and all(map(self.requirement.is_met_by, known))

    def __str__(self) -> str:
        known = [
            f"{said} {self.requirement.shown(one)}"
            for said, one in (("at worst", self.bound), ("measured", self.measured))
            if one is not None
        ]
        return f"{self.requirement} ({', '.join(known) or 'not known'})"


def parse_requirements(texts: Sequence[str], *, headroom: float) -> tuple[Requirement, ...]:
    """Read all that is required, of a choice for so many times the load besides.

    Raises UsageError for what cannot be read, twice the same, and a load that is not asked about.
    """
    found: list[Requirement] = []
    for text in texts:
        one = parse_requirement(text)
        if one.at_headroom and headroom <= 1:
            raise UsageError(
                f"--require: {one.text!r} is of a load that is not asked about",
                hint="Leave out 'at headroom', or ask for more load: --headroom 1.25.",
            )
        if one in found:
            raise UsageError(f"--require: {one.text!r} is given twice", hint="Give each once.")
        found.append(one)
    return tuple(found)


def parse_requirement(text: str) -> Requirement:
    """Read one. Raises UsageError with the place, and what may stand there."""
    words = _Words(text)
    statistic = words.take(STATISTICS) or ""
    name = words.take(NAMES) or words.refuse((*NAMES, *(() if statistic else STATISTICS)))
    _check_statistic(words, statistic, name)
    operator = words.take(_operators(name)) or words.refuse(_operators(name))
    limit = _limit(words, name)
    at_headroom = words.take(("at",)) is not None
    if at_headroom and words.take(("headroom",)) is None:
        words.refuse(("headroom",))
    if not words.at_end:
        words.refuse(("the end",) if at_headroom else ("at headroom", "the end"))
    if operator == "==" and limit != 0:
        raise UsageError(
            f"--require: {words.text!r}: == is for {name} == 0 alone", hint="Write <= instead."
        )
    return Requirement(words.text, name, statistic, operator, limit, at_headroom)


def _operators(name: str) -> tuple[str, ...]:
    if name in {"attainment", "goodput"}:
        return AT_LEAST
    return (*AT_MOST, "==") if name == "preemptions" else AT_MOST


def _check_statistic(words: "_Words", statistic: str, name: str) -> None:
    """Refuse a statistic that this number does not have."""
    may = OF_TIMES if name in TIMES else OF_KV if name == KV else ("",)
    if statistic not in may:
        why = f"takes {', '.join(may)}" if any(may) else f"takes no {statistic}"
        raise UsageError(f"--require: {words.text!r}: {name} {why}", hint=f"Such as {EXAMPLES}.")


def _limit(words: "_Words", name: str) -> float:
    number = words.number()
    if name in TIMES:
        unit = words.take(tuple(SECONDS)) or words.refuse(tuple(SECONDS))
        number *= SECONDS[unit]
    elif name in {"attainment", KV}:
        if words.take(("%",)) is not None:
            number /= 100
        if number > 1:
            words.refuse_value("a share from 0 to 1, or up to 100 %")
    elif name == "goodput":
        words.take(("req/s", "rps"))
    if name in TIMES and number <= 0:
        words.refuse_value("a time above 0")
    return number


class _Words:
    """The words of a requirement, read one after the other."""

    def __init__(self, text: str) -> None:
        self.text = " ".join(text.split())
        self._found = list(_TOKEN.finditer(self.text))
        self._place = 0

    @property
    def at_end(self) -> bool:
        return self._place == len(self._found)

    def take(self, known: Sequence[str]) -> str | None:
        """Return the next word and go on, if it is one of these."""
        if self.at_end:
            return None
        word = self._found[self._place].group().lower()
        found = next((one for one in known if one == word), None)
        self._place += found is not None
        return found

    def number(self) -> float:
        try:
            value = float(self._found[self._place].group())
        except (IndexError, ValueError):
            self.refuse(("a number",))
        if not math.isfinite(value):
            self.refuse(("a number",))
        self._place += 1
        return value

    def refuse(self, known: Sequence[str]) -> NoReturn:
        """Raise UsageError: at this place one of these is due."""
        if self.at_end:
            place, what = len(self.text) + 1, "the end"
        else:
            word = self._found[self._place]
            place, what = word.start() + 1, repr(word.group())
        raise UsageError(
            f"--require: {self.text!r}, character {place}: {what} is none of {', '.join(known)}",
            hint=f"Write {FORM}, such as {EXAMPLES}.",
        )

    def refuse_value(self, due: str) -> NoReturn:
        raise UsageError(f"--require: {self.text!r}: is not {due}", hint=f"Such as {EXAMPLES}.")

"""Requirements of a choice beyond the SLO of one request: ``--require``. Pure.

A requirement is a bound on one number of all requests, today or at the headroom load:

    [p50|p90|p95|p99|mean|peak] NAME OP VALUE [at headroom]

``p99 ttft <= 500ms``, ``attainment >= 99% at headroom``, ``preemptions == 0``. One parser for every
command that takes them. What breaks one is no candidate, however much it serves.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from tuner.errors import UsageError

TIMES = ("ttft", "tpot", "e2el", "queue", "itl")
KV = "kv_cache_usage"
NAMES = (*TIMES, "attainment", "goodput", "preemptions", KV)
OF_TIMES = ("mean", "p50", "p90", "p95", "p99")
OF_KV = ("mean", "p99", "peak")
STATISTICS = (*OF_TIMES, "peak")
AT_MOST, AT_LEAST = ("<=", "<"), (">=", ">")
SECONDS = {"ms": 1e-3, "s": 1.0}

FORM = "[p50|p90|p95|p99|mean|peak] NAME OP VALUE [at headroom]"
EXAMPLES = "'p99 ttft <= 500ms', 'attainment >= 99% at headroom', 'preemptions == 0'"

UNITS = {"attainment": ("", "%"), KV: ("", "%"), "goodput": ("", "req/s", "rps")}

_REQUIREMENT = re.compile(
    rf"(?:(?P<statistic>{'|'.join(STATISTICS)})\s+)?(?P<name>{'|'.join(NAMES)})\s*"
    r"(?P<operator><=|>=|==|<|>)\s*(?P<number>\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*"
    r"(?P<unit>ms|s|%|req/s|rps)?(?P<headroom>\s+at\s+headroom)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Requirement:
    """A bound on one number. The limit is in seconds, a share, a count, or requests/s."""

    text: str = field(compare=False)
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

    @property
    def is_at_most(self) -> bool:
        return self.operator not in AT_LEAST

    @property
    def number(self) -> str:
        """The number's name in ``twin.samples``."""
        if self.name in TIMES:
            return f"{self.name}_{self.statistic}_s"
        return {"goodput": "goodput_rps", KV: f"{KV}_{self.statistic}"}.get(self.name, self.name)

    @property
    def needs_log(self) -> bool:
        """Whether only a replay with a log tells the number."""
        return self.name == "itl" or (self.name == KV and self.statistic == "p99")

    def miss(self, value: float) -> float:
        """Return by how much of the limit it is missed; 0 where it is met.

        >>> item = parse_requirement("p99 ttft <= 500ms")
        >>> item.miss(0.6), item.miss(0.4)
        (0.2, 0.0)
        """
        if self.is_met_by(value):
            return 0.0
        if math.isnan(value):
            return math.inf
        return round(abs(value - self.limit) / (self.limit or 1.0), 9)

    def value_in(self, item: object) -> float | None:
        """Return the number as a measurement has it (``replay.numbers``); None where it does not
        tell."""
        if self.name in TIMES:
            spread = getattr(item, f"{self.name}_s", None)
            return None if spread is None else float(getattr(spread, self.statistic))
        if self.name == "goodput":
            return float(getattr(item, "goodput_rps"))  # noqa: B009 - of any measurement
        value = getattr(item, self.name)
        if self.name == KV:
            return None if value is None else float(getattr(value, self.statistic))
        if self.name == "preemptions" and getattr(item, KV) is None:  # only clients tell of it
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
        known = [each for each in (self.bound, self.measured) if each is not None]
        return bool(known) and all(map(self.requirement.is_met_by, known))

    def __str__(self) -> str:
        known = [
            f"{label} {self.requirement.shown(each)}"
            for label, each in (("at worst", self.bound), ("measured", self.measured))
            if each is not None
        ]
        return f"{self.requirement} ({', '.join(known) or 'not known'})"


def parse_requirements(texts: Sequence[str], *, headroom: float) -> tuple[Requirement, ...]:
    """Read all that is required, of a choice for so many times the load besides.

    Raises UsageError for what cannot be read, twice the same, and a load that is not asked about.
    """
    result: list[Requirement] = []
    for text in texts:
        item = parse_requirement(text)
        if item.at_headroom and headroom <= 1:
            raise UsageError(
                f"--require: {item.text!r} is of a load that is not asked about",
                hint="Leave out 'at headroom', or ask for more load: --headroom 1.25.",
            )
        if item in result:
            raise UsageError(f"--require: {item.text!r} is given twice", hint="Give each once.")
        result.append(item)
    return tuple(result)


def parse_requirement(text: str) -> Requirement:
    """Read one. Raises UsageError with what is wrong, and what may stand there."""
    text = " ".join(text.split())
    match = _REQUIREMENT.fullmatch(text)
    if match is None:
        raise _refused(text, f"is not {FORM}")
    statistic, name = (match["statistic"] or "").lower(), match["name"].lower()
    operator, unit = match["operator"], (match["unit"] or "").lower()
    may = OF_TIMES if name in TIMES else OF_KV if name == KV else ("",)
    if statistic not in may:
        takes = f"takes {', '.join(may)}" if any(may) else f"takes no {statistic}"
        raise _refused(text, f"{name} {takes}")
    operators = AT_LEAST if name in {"attainment", "goodput"} else AT_MOST
    if operator not in (*operators, *(("==",) if name == "preemptions" else ())):
        raise _refused(text, f"{name} takes {' or '.join(operators)}")
    units = tuple(SECONDS) if name in TIMES else UNITS.get(name, ("",))
    if unit not in units:
        raise _refused(text, f"{name} is in {' or '.join(filter(None, units)) or 'no unit'}")
    limit = float(match["number"]) * SECONDS.get(unit, 0.01 if unit == "%" else 1.0)
    if name in {"attainment", KV} and limit > 1:
        raise _refused(text, "is not a share from 0 to 1, or up to 100 %")
    if not math.isfinite(limit) or (name in TIMES and limit <= 0):
        raise _refused(text, "is not a number above 0")
    if operator == "==" and limit != 0:
        raise _refused(text, f"== is for {name} == 0 alone")
    return Requirement(text, name, statistic, operator, limit, match["headroom"] is not None)


def _refused(text: str, why: str) -> UsageError:
    return UsageError(f"--require: {text!r}: {why}", hint=f"Such as {EXAMPLES}.")

"""Requirements of a choice beyond the SLO of one request: ``--require``. Pure.

    p99 ttft <= 500ms    attainment >= 99% at headroom    preemptions == 0

A bound on one number of all requests. A cap that breaks one is not chosen, however much it serves.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from tuner.errors import UsageError

TIMES = ("ttft", "tpot", "e2el", "queue")
KV = "kv_cache_usage"

_FORMS = {
    **dict.fromkeys(TIMES, "(mean|p50|p90|p95|p99) <= (ms|s)"),
    "attainment": " >= %?",
    "goodput": " >= (req/s)?",
    "preemptions": " (<=|==) ",
    KV: "(mean|peak) <= %?",
}
"""Name → the statistic, operator and unit that go with it."""

_UNITS = {"": 1, "ms": 1000, "s": 1, "%": 100, "req/s": 1}
"""Unit → how many make one of what a limit is in."""
_REQUIREMENT = re.compile(
    rf"(?:(?P<statistic>mean|p50|p90|p95|p99|peak) )?(?P<name>{'|'.join(_FORMS)}) ?"
    r"(?P<operator>[<>=]=) ?(?P<number>\d{1,12}(?:\.\d*)?) ?"
    r"(?P<unit>ms|s|%|req/s|)(?P<headroom> at headroom)?"
)
_HINT = (
    "Write 'p99 ttft <= 500ms' (mean, p50, p90, p95 or p99 of ttft, tpot, e2el or queue), "
    "'attainment >= 99%', 'goodput >= 4 req/s', 'preemptions == 0' or "
    "'peak kv_cache_usage <= 90%', each with 'at headroom' if so."
)


@dataclass(frozen=True, slots=True)
class Requirement:
    """A bound on one number. The limit is in seconds, a share, a count, or requests/s."""

    text: str = field(compare=False)
    """As it was written."""

    name: str
    statistic: str
    """Empty for a number that has none."""

    is_at_most: bool
    limit: float
    at_headroom: bool

    def is_met_by(self, value: float) -> bool:
        """Whether a number keeps it; one that is not known (NaN) does not."""
        return self.miss(value) == 0.0

    @property
    def number(self) -> str:
        """The number's name in ``twin.samples``."""
        if self.name in TIMES:
            return f"{self.name}_{self.statistic}_s"
        return {"goodput": "goodput_rps", KV: f"{KV}_{self.statistic}"}.get(self.name, self.name)

    def miss(self, value: float) -> float:
        """Return by how much of the limit it is missed; 0 where it is met.

        >>> item = parse_requirement("p99 ttft <= 500ms")
        >>> item.miss(0.75), item.miss(0.4)
        (0.5, 0.0)
        """
        over = value - self.limit if self.is_at_most else self.limit - value
        return math.inf if math.isnan(value) else max(0.0, over) / (self.limit or 1.0)

    def value_in(self, item: object) -> float | None:
        """Return the number of a ``Measurement``; None where it does not have it."""
        if self.name == "preemptions" and getattr(item, KV) is None:  # only clients report it
            return None
        if not self.statistic:
            return float(getattr(item, self.number))
        spread = getattr(item, self.number.replace(f"_{self.statistic}", ""))
        return None if spread is None else float(getattr(spread, self.statistic))

    def shown(self, value: float) -> str:
        """Return such a number for people.

        >>> parse_requirement("p99 ttft <= 500ms").shown(0.6123)
        '612 ms'
        """
        if math.isnan(value):
            return "nothing"
        if self.name in TIMES:
            return f"{value * 1e3:,.3g} ms" if value < 1 else f"{value:,.3g} s"
        if "%" in _FORMS[self.name]:
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
    """In the confirming replay at its load, or in the windows that decide; None without one."""

    @property
    def is_kept(self) -> bool:
        """Whether all that is known of it keeps it; what nobody knows is not kept."""
        known = [each for each in (self.bound, self.measured) if each is not None]
        return bool(known) and all(map(self.requirement.is_met_by, known))

    def __str__(self) -> str:
        values = {"at worst": self.bound, "measured": self.measured}
        shown = self.requirement.shown
        known = [f"{label} {shown(each)}" for label, each in values.items() if each is not None]
        return f"{self.requirement} ({', '.join(known) or 'not known'})"


def parse_requirements(texts: Sequence[str], *, headroom: float) -> tuple[Requirement, ...]:
    """Read all that is required, of a choice for so many times the load besides. Raises UsageError
    for what cannot be read, for duplicates, and for a load that is not asked about."""
    result: list[Requirement] = []
    for item in map(parse_requirement, texts):
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
    """Read one. Raises UsageError."""
    text = " ".join(text.split())
    match = _REQUIREMENT.fullmatch(text.lower())
    if match is not None:
        name, statistic, operator = match["name"], match["statistic"] or "", match["operator"]
        form, limit = _FORMS[name], float(match["number"]) / _UNITS[match["unit"]]
        most = 0.0 if operator == "==" else 1.0 if "%" in form else math.inf
        if re.fullmatch(form, f"{statistic} {operator} {match['unit']}") and limit <= most:
            is_at_headroom = match["headroom"] is not None
            return Requirement(text, name, statistic, operator != ">=", limit, is_at_headroom)
    raise UsageError(f"--require: cannot read {text!r}", hint=_HINT)

"""Requirements of a choice beyond the SLO of one request: ``--require``. Pure.

    p99 ttft <= 500ms    attainment >= 99% at headroom    preemptions == 0

A bound on one number of all requests. A cap that breaks one is not chosen, however much it serves.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from tuner.errors import UsageError

TIMES = ("ttft", "tpot", "e2el", "queue")
KV = "kv_cache_usage"

_FORMS = {
    **dict.fromkeys(TIMES, "(mean|p50|p90|p95|p99) <= (ms|s)"),
    "attainment": " >= %?",
    "goodput": " >= (req/s|rps)?",
    "preemptions": " (<=|==) ",
    KV: "(mean|peak) <= %?",
}
"""Name → the statistic, operator and unit that go with it."""

_UNITS = {"": 1, "ms": 1000, "s": 1, "%": 100, "req/s": 1, "rps": 1}
"""Unit → how many make one of what a limit is in."""
_REQUIREMENT = re.compile(
    rf"(?:(?P<statistic>mean|p50|p90|p95|p99|peak) )?(?P<name>{'|'.join(_FORMS)}) ?"
    r"(?P<operator>[<>=]=) ?(?P<number>\d{1,12}(?:\.\d*)?) ?"
    r"(?P<unit>ms|s|%|req/s|rps|)(?P<headroom> at headroom)?"
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


class RequirementCheck(Struct, frozen=True, forbid_unknown_fields=True):
    """One requirement in the words of ``--require``, and what is known of it at the choice. Times
    are in seconds."""

    text: str
    at_worst: float | None
    """What 95 % of the twin's draws stay on the good side of; None where it did not decide."""

    measured: float | None
    """In the confirming replay at its load, or in the windows that decide; None without one."""

    kept: bool
    """Whether all that is known of it keeps it; what nobody knows is not kept."""

    @staticmethod
    def of(
        requirement: Requirement, at_worst: float | None = None, measured: float | None = None
    ) -> "RequirementCheck":
        known = [each for each in (at_worst, measured) if each is not None]
        kept = bool(known) and all(map(requirement.is_met_by, known))
        at_worst, measured = (
            None if each is None or math.isnan(each) else each for each in (at_worst, measured)
        )
        return RequirementCheck(requirement.text, at_worst, measured, kept)

    @property
    def requirement(self) -> Requirement:
        return parse_requirement(self.text)

    def __str__(self) -> str:
        values = {"at worst": self.at_worst, "measured": self.measured}
        shown = self.requirement.shown
        known = [f"{label} {shown(each)}" for label, each in values.items() if each is not None]
        return f"{self.text} ({', '.join(known) or 'not known'})"


def parse_requirements(texts: Sequence[str], *, headroom: float) -> tuple[Requirement, ...]:
    """Read all that is required, of a choice for so many times the load besides. Raises UsageError
    for what cannot be read, and for a load that is not asked about."""
    result = tuple(dict.fromkeys(map(parse_requirement, texts)))
    for item in result:
        if item.at_headroom and headroom <= 1:
            raise UsageError(
                f"--require: {item.text!r} is of a load that is not asked about",
                hint="Leave out 'at headroom', or ask for more load: --headroom 1.25.",
            )
    return result


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

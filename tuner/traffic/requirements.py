"""Requirements of a choice beyond the SLO of one request: ``--require``. Pure.

    [p50|p90|p95|p99|mean|peak] NAME OP VALUE [at headroom]

``p99 ttft <= 500ms``, ``attainment >= 99% at headroom``, ``preemptions == 0``: a bound on one
number of all requests. A cap that breaks one is not chosen, however much it serves.
"""

import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tuner.errors import UsageError

TIMES = ("ttft", "tpot", "e2el", "queue")
KV = "kv_cache_usage"
EXAMPLES = "'p99 ttft <= 500ms', 'attainment >= 99% at headroom', 'preemptions == 0'"


class _Kind(NamedTuple):
    """What may be said of a number."""

    statistics: tuple[str, ...]
    units: dict[str, float]
    operators: tuple[str, ...]


_TIME = _Kind(("mean", "p50", "p90", "p95", "p99"), {"ms": 1e-3, "s": 1.0}, ("<=", "<"))
_KINDS = {
    **dict.fromkeys(TIMES, _TIME),
    "attainment": _Kind(("",), {"": 1.0, "%": 0.01}, (">=", ">")),
    "goodput": _Kind(("",), {"": 1.0, "req/s": 1.0, "rps": 1.0}, (">=", ">")),
    "preemptions": _Kind(("",), {"": 1.0}, ("<=", "<", "==")),
    KV: _Kind(("mean", "peak"), {"": 1.0, "%": 0.01}, ("<=", "<")),
}
_OPERATORS = {
    "<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt, "==": operator.eq,
}  # fmt: skip
_REQUIREMENT = re.compile(
    rf"(?:(?P<statistic>mean|p50|p90|p95|p99|peak)\s+)?(?P<name>{'|'.join(_KINDS)})\s*"
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
        return bool(_OPERATORS[self.operator](value, self.limit))

    @property
    def is_at_most(self) -> bool:
        return not self.operator.startswith(">")

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
        if self.is_met_by(value):
            return 0.0
        return math.inf if math.isnan(value) else abs(value - self.limit) / (self.limit or 1.0)

    def value_in(self, item: object) -> float | None:
        """Return the number of a ``Measurement``; None where it does not have it."""
        name = f"{self.name}_s" if self.name in TIMES else self.name
        value = getattr(item, "goodput_rps" if name == "goodput" else name)
        if name == "preemptions" and getattr(item, KV) is None:  # only clients report it
            return None
        if self.statistic and value is not None:
            value = getattr(value, self.statistic)
        return None if value is None else float(value)

    def shown(self, value: float) -> str:
        """Return such a number for people.

        >>> parse_requirement("p99 ttft <= 500ms").shown(0.6123)
        '612 ms'
        """
        if math.isnan(value):
            return "nothing"
        if self.name in TIMES:
            return f"{value * 1e3:,.3g} ms" if value < 1 else f"{value:,.3g} s"
        if "%" in _KINDS[self.name].units:
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
    def _known(self) -> dict[str, float]:
        values = {"at worst": self.bound, "measured": self.measured}
        return {label: each for label, each in values.items() if each is not None}

    @property
    def is_kept(self) -> bool:
        """Whether all that is known of it keeps it; what nobody knows is not kept."""
        return bool(self._known) and all(map(self.requirement.is_met_by, self._known.values()))

    def __str__(self) -> str:
        known = [f"{label} {self.requirement.shown(x)}" for label, x in self._known.items()]
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
    """Read one. Raises UsageError with what is wrong, and what may stand there."""
    text = " ".join(text.split())

    def refused(why: str) -> UsageError:
        return UsageError(f"--require: {text!r}: {why}", hint=f"Such as {EXAMPLES}.")

    match = _REQUIREMENT.fullmatch(text)
    if match is None:
        raise refused("is not [p50|p90|p95|p99|mean|peak] NAME OP VALUE [at headroom]")
    statistic, name = (match["statistic"] or "").lower(), match["name"].lower()
    comparison, unit, kind = match["operator"], (match["unit"] or "").lower(), _KINDS[name]
    if statistic not in kind.statistics:
        takes = ", ".join(kind.statistics)
        raise refused(f"{name} takes {takes or f'no {statistic}'}")
    if comparison not in kind.operators:
        raise refused(f"{name} takes {' or '.join(kind.operators)}")
    if unit not in kind.units:
        raise refused(f"{name} is in {' or '.join(filter(None, kind.units)) or 'no unit'}")
    limit = float(match["number"]) * kind.units[unit]
    if "%" in kind.units and limit > 1:
        raise refused("is not a share from 0 to 1, or up to 100 %")
    if not math.isfinite(limit) or (kind is _TIME and limit <= 0):
        raise refused("is not a number above 0")
    if comparison == "==" and limit != 0:
        raise refused(f"== is for {name} == 0 alone")
    return Requirement(text, name, statistic, comparison, limit, match["headroom"] is not None)

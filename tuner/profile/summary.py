"""The summary of a profile in words, the answer first. Pure."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.engines.vllm import supported
from tuner.profile.profile import (
    Baseline,
    CapNumbers,
    CheckSection,
    CurveStep,
    Predicted,
    RequirementSection,
    ServingProfile,
    SpreadSection,
)
from tuner.traffic.requirements import RequirementCheck, parse_requirement
from tuner.traffic.slo import holds

LOW = 0.90
"""Attainment below which that is the answer, and not the cap."""

SAME = 0.02
"""A time or a share of the KV cache that differs by less is the same to whoever decides."""

WIDTH, NAMES, MOST_LINES = 80, 11, 2
"""Columns of a line, of a row's name with the space on both sides, and lines of a row."""

KINDS = {
    "knee": "knee",
    "plateau": "plateau",
    "kv_bound": "KV cache binds",
    "not_reached": "still rising",
    "overloaded": "overloaded",
    "inconclusive": "inconclusive",
}
"""Verdict → the same in words."""

_HEADLINE = re.compile(
    r"^(?:[^:(]*\(95 %: [^)]*\): |overloaded: )(?:the fewest slots that [^;]*; )?"
)
"""Words of a reason that the title and its aside say already, and the objective, which is the same
for every knee."""

_BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|(?:ms|s|min|h)\b)")
_TOGETHER = "\N{NO-BREAK SPACE}"
"""Between a number and its unit while lines are filled: they stay together."""


@dataclass(frozen=True, slots=True)
class VerdictBlock:
    """A verdict: what to set, then what that gives, costs and rests on."""

    title: str
    aside: str
    """What sort of answer it is, and how sure: at the right of the title."""

    rows: Sequence[tuple[str, str]]
    """Name and sentence of each, the most important first."""

    def lines(self) -> list[str]:
        """Return the title and MOST_LINES lines a row, of at most WIDTH columns."""
        space = WIDTH - len(self.title) - len(self.aside)
        head = [f"{self.title}{' ' * space * bool(self.aside)}{self.aside}"]
        rows = list(self.rows)
        if self.aside and space < 2:
            head = textwrap.wrap(self.title, WIDTH, max_lines=2, placeholder=" …")
            rows = [("verdict", self.aside), *rows]
        for name, text in rows:
            for number, line in enumerate(wrapped(text, most=MOST_LINES)):
                head.append(f"  {'' if number else name:<{NAMES - 2}}{line}")
        return head


def wrapped(text: str, *, most: int | None = None) -> list[str]:
    """Return the sentence of a row in lines, ``most`` of them at most. Of one that is too long the
    first clauses that fit are kept.

    >>> wrapped("16 serves all; " + "8 serves less " * 5, most=1)
    ['16 serves all']
    """
    ends = [result.start() for result in re.finditer("; ", text)] if most else []
    for end in (len(text), *reversed(ends)):
        lines = _filled(text[:end])
        if most is None or len(lines) <= most:
            return lines
    return _filled(text, most=most)


def _filled(text: str, *, most: int | None = None) -> list[str]:
    together = _BEFORE_UNIT.sub(_TOGETHER, text)
    lines = textwrap.wrap(
        together, WIDTH - NAMES, max_lines=most, placeholder=" …", break_on_hyphens=False
    )
    return [line.replace(_TOGETHER, " ") for line in lines] or [""]


# Words for numbers


def with_share(share: float, title: str) -> str:
    """Return the title of an answer, after the share that meets the SLO where that is too low.

    >>> with_share(0.71, "max_num_seqs 16 breaks its promise"), with_share(0.99, "max_num_seqs 16")
    ('only 71.0% meet the SLO: max_num_seqs 16 breaks its promise', 'max_num_seqs 16')
    """
    return f"only {percent(share)} meet the SLO: {title}" if share < LOW else title


def percent(share: float) -> str:
    """Return a share for people.

    >>> percent(0.9914), percent(1.0), percent(0.99999)
    ('99.1%', '100%', '99.99%')
    """
    if share == 1.0:
        return "100%"
    text = f"{100 * share:.1f}"
    return f"{text if text != '100.0' else '99.99'}%"


def milliseconds(value_ms: float) -> str:
    """Return a time for people, with its unit.

    >>> milliseconds(8.42), milliseconds(252.4), milliseconds(1609.0), milliseconds(408_000.0)
    ('8.42 ms', '252 ms', '1.61 s', '408 s')
    """
    if value_ms < 1000:
        return f"{value_ms:#.3g} ms" if value_ms < 100 else f"{value_ms:.0f} ms"
    return f"{value_ms / 1e3:.2f} s" if value_ms < 100_000 else f"{value_ms / 1e3:,.0f} s"


def minutes(seconds: float) -> str:
    """Return how long something took.

    >>> minutes(42.0), minutes(252.0), minutes(7260.0), minutes(900.0)
    ('42 s', '4 min 12 s', '2 h 1 min', '15 min')
    """
    minute, second = divmod(round(seconds), 60)
    if not minute:
        return f"{second} s"
    if minute < 60:
        return f"{minute} min {second} s".removesuffix(" 0 s")
    return f"{minute // 60} h {minute % 60} min".removesuffix(" 0 min")


def engine_time(spent_s: float, *, simulated: bool) -> str:
    """Return the time of an engine that an answer cost, and whether the engine was a real one.

    >>> engine_time(252.0, simulated=False), engine_time(252.0, simulated=True)
    ('4 min 12 s of engine time', '4 min 12 s of simulated time')
    """
    return f"{minutes(spent_s)} of {'simulated' if simulated else 'engine'} time"


# What a profile says


def is_simulated(profile: ServingProfile) -> bool:
    return profile.provenance.engine == "sim"


def promised(profile: ServingProfile) -> CapNumbers:
    """Return what the choice gives at the recorded load: the twin's numbers of all the traffic.

    Where the twin's prediction failed, or the windows decided, the confirming replay's; where
    nothing confirmed, the ladder's.
    """
    promise, record = profile.promise, profile.promise.record
    twin = next((numbers for numbers in promise.predicted if numbers.load == 1.0), None)
    if twin is not None and not (record is not None and "predicted" in record.failed):
        return twin
    confirmed = twin is not None or promise.source == "confirming run"
    return promise if confirmed else chosen_step(profile) or promise


def chosen_step(profile: ServingProfile) -> CurveStep | None:
    """Return the step of the curve that was chosen; None where the choice is not on it."""
    cap = profile.decision.max_num_seqs
    return next((step for step in profile.curve if step.max_num_seqs == cap), None)


def _is_predicted(now: Baseline, curve: Sequence[CurveStep]) -> bool:
    """Whether the numbers of the cap that is set now are not those of a replay."""
    for step in curve:
        if step.max_num_seqs == now.max_num_seqs:
            return step.measured is None or (step.measured.cut and step.source == "both")
    top = curve[-1]
    is_as_top = top.measured is not None and top.running_peak < top.max_num_seqs
    return now.numbers_at == now.max_num_seqs > top.max_num_seqs and not is_as_top


def block_of(profile: ServingProfile) -> VerdictBlock:
    """Return the verdict block of a profile."""
    decision, given = profile.decision, promised(profile)
    aside = KINDS[decision.verdict]
    if decision.confidence and decision.verdict not in {"overloaded", "not_reached"}:
        aside += f", confidence {decision.confidence:.2f}"
    aside += ", simulated" * is_simulated(profile)
    aside += ", measured on a busy machine" * (decision.busy is not None)
    rows = {
        "cost": _cost(profile, given),
        "load": _load(profile),
        "why": _HEADLINE.sub("", decision.reason),
        "checked": _checked(profile),
    }
    title = _answer(profile, given)
    return VerdictBlock(title, aside, [(name, text) for name, text in rows.items() if text])


def facts_of(profile: ServingProfile) -> list[str]:
    """Return for whom a profile is, a line each: model and machine, SLO, traffic, origin."""
    origin, validity = profile.provenance, profile.validity
    vllm = supported.version_in(origin.versions)
    device = origin.device.get("name") or "a machine without a name"
    in_flight, running = validity.peak_concurrency, promised(profile).running_peak
    at_once = f"{running} running"
    if in_flight is not None:
        at_once = f"{in_flight} in flight (between arrival and last token), {running} running"
    rows = {
        "model": f"{profile.model} on {device}{f', vLLM {vllm}' if vllm else ''}",
        "SLO": str(profile.decision.slo.slo),
        "traffic": f"{validity.arrival_rate_rps:.2f} req/s, {validity.window}",
        "at once": f"at most {at_once}",
        "made": f"{origin.created[:10]} by tuner {origin.tuner}, {profile.digest[:19]}",
    }
    return [f"  {name:<{NAMES - 2}}{text}" for name, text in rows.items()]


def required(section: RequirementSection) -> str:
    """Return what was required and what it comes to, as 'p99 ttft <= 500ms (at worst 612 ms)'."""
    requirement = parse_requirement(section.text)
    return str(RequirementCheck(requirement, section.at_worst, section.measured))


def confirmed_text(record: CheckSection) -> str:
    """Return how many predictions the confirming replay confirmed."""
    confirmed = f"{record.held} of {len(record.numbers)} predictions confirmed"
    if not record.predicted:
        return f"{confirmed} at the engine's own speed"
    of = "new windows" if record.unseen else "the same windows"
    failed = "predicted" in record.failed
    return f"{confirmed} on {of}{'; too few: the promise is what was measured' * failed}"


# The rows of a block


def _answer(profile: ServingProfile, given: CapNumbers) -> str:
    """Return the sentence that says what to set, and what that changes."""
    decision, now = profile.decision, profile.baseline
    cap = f"max_num_seqs {decision.max_num_seqs}"
    kept = now is not None and now.max_num_seqs == decision.max_num_seqs
    beside = "" if now is None or kept else f" (now {now.max_num_seqs})"
    if decision.broken:
        return f"{cap}{beside} breaks {decision.broken[0].text}"
    share = f"{percent(given.attainment)} of requests meet the SLO"
    if decision.verdict == "inconclusive":
        return f"No sure answer yet: {cap}{beside} is the best so far, {share}"
    if given.attainment < LOW:
        return f"Only {share}, with {cap}{beside}"
    verb = "Use at least" if decision.verdict == "not_reached" else "Keep" if kept else "Use"
    compared, standing = _compared(profile), ""
    if now is not None and compared is not None:
        standing = " (predicted)" * _is_predicted(now, profile.curve)
        if now.numbers_at != now.max_num_seqs:
            standing = f" with {now.numbers_at}"
        share = _gain(given, compared, standing)
    return f"{verb} {cap}{beside}: {share}"


def _compared(profile: ServingProfile) -> CapNumbers | None:
    """Return the numbers of the cap that is set now, where it is another one and they can be
    compared: a replay behind a server has no other cap beside it."""
    now = profile.baseline
    if now is None or now.max_num_seqs == profile.decision.max_num_seqs:
        return None
    given, served = promised(profile), profile.provenance.confirm == "server"
    by_twin = profile.evidence is not None and profile.decision.verdict != "overloaded"
    alone = not isinstance(given, Predicted) if by_twin else given is profile.promise and served
    return None if alone else now.numbers


def _gain(given: CapNumbers, now: CapNumbers, standing: str) -> str:
    """Return what the choice gives instead of what is given now."""
    parts = [f"{percent(given.attainment)} of requests meet the SLO"]
    if abs(given.attainment - now.attainment) > SAME / 2:
        parts[0] += f" instead of {percent(now.attainment)}{standing}"
    here, there = _time(given, "tpot_ms", "p95"), _time(now, "tpot_ms", "p95")
    if here is not None and there is not None and here < there * (1 - SAME):
        parts.append(f"p95 TPOT {milliseconds(here)} instead of {milliseconds(there)}")
    if now.output_tokens_per_s > 0:
        rate = given.output_tokens_per_s / now.output_tokens_per_s - 1
        more = f"at {abs(rate):.0%} {'more' if rate > 0 else 'less'} throughput"
        parts.append("at the same throughput" if abs(rate) <= SAME else more)
    return ", ".join(parts)


def _time(numbers: CapNumbers, name: str, statistic: str) -> float | None:
    spread: SpreadSection | None = getattr(numbers, name)
    return None if spread is None else float(getattr(spread, statistic))


def _cost(profile: ServingProfile, given: CapNumbers) -> str:
    now, cap = profile.baseline, profile.decision.max_num_seqs
    if now is not None and now.max_num_seqs != cap:
        return _against_now(profile, now, given)
    below = next((step for step in reversed(profile.curve) if step.max_num_seqs < cap), None)
    is_part = below is not None and below.cut and below.source == "measured"
    if below is None or is_part or profile.decision.verdict == "overloaded":
        return ""
    beside = given if isinstance(given, Predicted) else chosen_step(profile) or given
    worse = list(_worse(beside, below))
    return f"compared with {below.max_num_seqs}: {', '.join(worse)}" if worse else ""


def _against_now(profile: ServingProfile, now: Baseline, given: CapNumbers) -> str:
    compared = _compared(profile)
    if now.numbers is None:
        top = max((step.max_num_seqs for step in profile.curve), default=0)
        return f"not measured: {now.max_num_seqs} is above {top}, the largest tried"
    if compared is None:
        return "not measured: only the choice ran behind a server"
    if worse := list(_worse(given, compared)):
        return f"compared with now: {', '.join(worse)}"
    if now.never_filled:
        return f"none: the traffic never fills the {now.max_num_seqs} of now"
    return "none compared with now"


def _worse(given: CapNumbers, beside: CapNumbers) -> Iterator[str]:
    """Yield in what the first is worse, as "p99 TTFT 2.08 s instead of 135 ms"."""
    lost = beside.attainment - given.attainment
    if lost > SAME / 2:
        yield f"{100 * lost:.1f} points fewer meet the SLO"
    for name, statistic in (("tpot", "p95"), ("ttft", "p99"), ("e2el", "p99")):
        here, there = (_time(each, f"{name}_ms", statistic) for each in (given, beside))
        if here is not None and there and here > (1 + SAME) * there:
            times = f"{milliseconds(here)} instead of {milliseconds(there)}"
            yield f"{statistic} {name.upper()} {times}"
    if given.kv_cache_usage is not None and beside.kv_cache_usage is not None:
        more = given.kv_cache_usage.peak - beside.kv_cache_usage.peak
        if more > SAME:
            yield f"{100 * more:.0f} points more KV cache"
    if given.preemptions > beside.preemptions:
        yield f"{given.preemptions - beside.preemptions} more preemptions"


def _load(profile: ServingProfile) -> str:
    """Return which requirements hold, and what a higher load gives."""
    requirements = profile.decision.requirements
    kept = [f"keeps {required(section)}" for section in requirements if section.kept]
    broken = [f"breaks {required(section)}" for section in requirements if not section.kept]
    return "; ".join([*broken, *kept, _headroom(profile)])


def _headroom(profile: ServingProfile) -> str:
    if promised(profile).attainment < LOW:
        return "too much for one server"
    validity, loads = profile.validity, profile.promise.predicted
    raised = max(loads, key=lambda numbers: numbers.load, default=None)
    shares, holds_more, load = [], validity.validated_load > 1.0, validity.validated_load
    if raised is not None and raised.load > 1.0:
        shares.append(f"{percent(raised.attainment)} meet the SLO (predicted)")
        holds_more &= holds(promised(profile).attainment, raised.attainment)
        load = raised.load
    if validity.headroom_attainment is not None:
        shares.append(f"{percent(validity.headroom_attainment)} in the part that was replayed")
    times = f"{load:g}x the recorded load"
    if holds_more:
        return ": ".join([f"OK up to {times}", *[", ".join(shares)] * bool(shares)])
    return f"at {times} {', '.join(shares)}" if shares else "more load was not tried"


def _checked(profile: ServingProfile) -> str:
    """Return what confirmed the choice, and the engine time that all of it took."""
    promise, origin, given = profile.promise, profile.provenance, promised(profile)
    parts = []
    if isinstance(promise.checked, str):
        parts.append(promise.checked)
    elif promise.source == "confirming run":
        record = promise.record if promise.predicted else None
        what = "replayed"
        if record is not None and record.numbers:
            what = f"{record.held} of {len(record.numbers)} predictions confirmed"
        parts.append(f"{what} on a fresh {'server' if origin.confirm == 'server' else 'engine'}")
        if isinstance(given, Predicted):
            ends = dict.fromkeys(map(percent, given.intervals["attainment"]))
            parts.append(f"{' to '.join(ends)} meet the SLO in 95% of cases")
    spent_s = origin.engine_seconds.starts + origin.engine_seconds.replay
    return "; ".join([*parts, engine_time(spent_s, simulated=is_simulated(profile))])

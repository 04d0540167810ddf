"""The summary of a profile in words, the answer first: its verdict block. Pure."""

import re
from collections.abc import Iterator

from tuner.engines.vllm import supported
from tuner.profile.numbers import (
    Baseline,
    CapNumbers,
    CheckSection,
    CurveStep,
    Predicted,
    SpreadSection,
)
from tuner.profile.schema import RequirementSection, ServingProfile
from tuner.profile.verdict_block import NAMES, VerdictBlock
from tuner.traffic.requirements import RequirementCheck, parse_requirement
from tuner.twin.objective import holds

LOW = 0.90
"""Attainment below which that is the answer, and not the cap."""

SERVED = ("server",)
"""Ways of confirming in which a front end stands before the engine."""

SAME = 0.02
"""A time or a share of the KV cache that differs by less is the same to whoever decides."""

KINDS = {
    "knee": "knee",
    "plateau": "plateau",
    "kv_bound": "KV cache binds",
    "not_reached": "still rising",
    "overloaded": "overloaded",
    "inconclusive": "inconclusive",
}
"""Verdict → the same in words."""


def with_share(share: float, title: str) -> str:
    """Return the title of an answer, after the share of requests in time where that is too low.

    >>> with_share(0.71, "max_num_seqs 16 breaks its promise"), with_share(0.99, "max_num_seqs 16")
    ('only 71.0% meet the SLO: max_num_seqs 16 breaks its promise', 'max_num_seqs 16')
    """
    return f"only {percent(share)} meet the SLO: {title}" if share < LOW else title


_HEADLINE = re.compile(
    r"^(?:[^:(]*\(95 %: [^)]*\): |overloaded: )(?:the fewest slots that [^;]*; )?"
)
"""Words of a reason that the title and its aside say already, and the objective, which is the same
for every knee."""


def block_of(profile: ServingProfile) -> VerdictBlock:
    """Return the verdict block of a profile."""
    decision, given = profile.decision, promised(profile)
    aside = KINDS[decision.verdict]
    if decision.confidence and decision.verdict not in {"overloaded", "not_reached"}:
        aside += f", confidence {decision.confidence:.2f}"
    if is_simulated(profile):
        aside += ", simulated"
    if decision.busy is not None:
        aside += ", measured on a busy machine"
    rows = [
        ("cost", _cost(profile, given)),
        ("load", _load(profile)),
        ("why", why(profile)),
        ("checked", _checked(profile)),
    ]
    title = _answer(profile, given)
    return VerdictBlock(title, aside, [(name, text) for name, text in rows if text])


def why(profile: ServingProfile) -> str:
    """Return the reason of a decision without what the title and the aside already say."""
    return _HEADLINE.sub("", profile.decision.reason)


def _answer(profile: ServingProfile, given: CapNumbers) -> str:
    """Return the sentence that says what to set, and what that changes."""
    decision, now = profile.decision, profile.baseline
    cap = f"max_num_seqs {decision.max_num_seqs}"
    kept = now is not None and now.max_num_seqs == decision.max_num_seqs
    beside = "" if now is None or kept else f" (now {now.max_num_seqs})"
    if decision.broken:
        return f"{cap}{beside} breaks {decision.broken[0].text}"
    share = f"{percent(given.attainment)} of requests meet the SLO"
    if given.attainment < LOW:
        return f"Only {share}, with {cap}{beside}"
    if decision.verdict == "inconclusive":
        return f"No sure answer yet: {cap}{beside} is the best so far"
    verb = {"not_reached": "Use at least"}.get(decision.verdict, "Keep" if kept else "Use")
    compared = _compared(profile)
    gain = share if compared is None else _gain(given, compared, _standing(profile))
    return f"{verb} {cap}{beside}: {gain}"


def _standing(profile: ServingProfile) -> str:
    """Return what to know of the numbers of the cap that is set now: that another one stands for
    it, or that no replay is behind them."""
    now = profile.baseline
    if now is None:
        return ""
    if now.numbers_at != now.max_num_seqs:
        return f" with {now.numbers_at}"
    return " (predicted)" if now.max_num_seqs in predicted_caps(profile) else ""


def predicted_caps(profile: ServingProfile) -> list[int]:
    """Return the caps of the table that were not replayed, ascending."""
    now, curve = profile.baseline, profile.curve
    caps = {step.max_num_seqs for step in curve if step.measured is None}
    if now is not None and now.numbers is not None and now.max_num_seqs > curve[-1].max_num_seqs:
        top = curve[-1]
        is_as_top = top.measured is not None and top.running_peak < top.max_num_seqs
        if now.numbers_at == now.max_num_seqs and not is_as_top:
            caps.add(now.max_num_seqs)
    return sorted(caps)


def _gain(given: CapNumbers, now: CapNumbers, standing: str) -> str:
    """Return what the choice gives instead of what is given now."""
    more = given.attainment - now.attainment
    parts = [f"{percent(given.attainment)} of requests meet the SLO"]
    if abs(more) > SAME / 2:
        parts[0] += f" instead of {percent(now.attainment)}{standing}"
    here, there = _time(given, "tpot_ms", "p95"), _time(now, "tpot_ms", "p95")
    if here is not None and there is not None and here < there * (1 - SAME):
        parts.append(f"p95 TPOT {milliseconds(here)} instead of {milliseconds(there)}")
    if now.output_tokens_per_s > 0:
        rate = given.output_tokens_per_s / now.output_tokens_per_s - 1
        parts.append(
            "at the same throughput"
            if abs(rate) <= SAME
            else f"at {abs(rate):.0%} {'more' if rate > 0 else 'less'} throughput"
        )
    return ", ".join(parts)


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


def promised(profile: ServingProfile) -> CapNumbers:
    """Return what the choice gives as captured: the twin's numbers of all of the traffic. Where the
    twin's forecast failed, or the windows decided, the confirming replay's; where nothing
    confirmed, the ladder's."""
    promise, record = profile.promise, profile.promise.record
    if profile.decision.verdict == "overloaded":  # the curve says so: no confirmation is better
        return chosen_step(profile) or promise
    twin = next((numbers for numbers in promise.predicted if numbers.load == 1.0), None)
    if twin is not None and not (record is not None and "foretold" in record.failed):
        return twin
    confirmed = twin is not None or promise.source == "confirming run"
    return promise if confirmed else chosen_step(profile) or promise


def chosen_step(profile: ServingProfile) -> CurveStep | None:
    """Return the step of the curve that was chosen; None where the choice is not on it."""
    cap = profile.decision.max_num_seqs
    return next((step for step in profile.curve if step.max_num_seqs == cap), None)


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
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s".removesuffix(" 0 s")
    return f"{whole // 3600} h {whole % 3600 // 60} min".removesuffix(" 0 min")


def required(section: RequirementSection) -> str:
    """Return what was required and what it comes to.

    >>> section = RequirementSection(
    ...     text="p99 ttft <= 500ms", at_worst=0.612, measured=None, kept=False
    ... )
    >>> required(section)
    'p99 ttft <= 500ms (at worst 612 ms)'
    """
    requirement = parse_requirement(section.text)
    return str(RequirementCheck(requirement, section.at_worst, section.measured))


def _compared(profile: ServingProfile) -> CapNumbers | None:
    """Return the numbers of the cap that is set now, where it is another one and they can be
    compared: a replay behind a server has no other cap beside it."""
    now = profile.baseline
    if now is None or now.max_num_seqs == profile.decision.max_num_seqs:
        return None
    given, served = promised(profile), profile.provenance.confirm in SERVED
    by_twin = profile.twin is not None and profile.decision.verdict != "overloaded"
    alone = not isinstance(given, Predicted) if by_twin else given is profile.promise and served
    return None if alone else now.numbers


def _time(numbers: CapNumbers, name: str, statistic: str) -> float | None:
    spread: SpreadSection | None = getattr(numbers, name)
    return None if spread is None else float(getattr(spread, statistic))


def _cost(profile: ServingProfile, given: CapNumbers) -> str:
    now = profile.baseline
    if now is not None and now.max_num_seqs != profile.decision.max_num_seqs:
        return _against_now(profile, now, given)
    below = _below(profile)
    if below is None or _is_part(below) or profile.decision.verdict == "overloaded":
        return ""
    worse = list(_worse(chosen_step(profile) or given, below))
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


def _below(profile: ServingProfile) -> CurveStep | None:
    """Return the next smaller step; None where the choice is the smallest."""
    cap = profile.decision.max_num_seqs
    return next((step for step in reversed(profile.curve) if step.max_num_seqs < cap), None)


def _is_part(step: CurveStep) -> bool:
    """Whether a step's numbers are those of a replay that was cut."""
    return step.cut and step.source == "measured"


def _worse(given: CapNumbers, other: CapNumbers) -> Iterator[str]:
    """Yield in what the first is worse, as "p99 TTFT 2.08 s instead of 135 ms"."""
    lost = other.attainment - given.attainment
    if lost > SAME / 2:
        yield f"{100 * lost:.1f} points fewer meet the SLO"
    for name, statistic, label in (
        ("tpot_ms", "p95", "p95 TPOT"),
        ("ttft_ms", "p99", "p99 TTFT"),
        ("e2el_ms", "p99", "p99 E2EL"),
    ):
        here, there = _time(given, name, statistic), _time(other, name, statistic)
        if here is not None and there and here > (1 + SAME) * there:
            yield f"{label} {milliseconds(here)} instead of {milliseconds(there)}"
    if given.kv_cache_usage is not None and other.kv_cache_usage is not None:
        more = given.kv_cache_usage.peak - other.kv_cache_usage.peak
        if more > SAME:
            yield f"{100 * more:.0f} points more KV cache"
    if given.preemptions > other.preemptions:
        yield f"{given.preemptions - other.preemptions} more preemptions"


def _load(profile: ServingProfile) -> str:
    """Return which requirements hold, and what a higher load gives."""
    requirements = profile.decision.requirements
    kept = [required(section) for section in requirements if section.kept]
    broken = [f"breaks {required(section)}" for section in requirements if not section.kept]
    return "; ".join([*broken, *(f"keeps {text}" for text in kept), _headroom(profile)])


def _headroom(profile: ServingProfile) -> str:
    if promised(profile).attainment < LOW:
        return "too much for one server"
    validity, raised = profile.validity, max(profile.promise.predicted, key=_by_load, default=None)
    shares, holds_more = [], validity.validated_load > 1.0
    load = f"{validity.validated_load:g}x the recorded load"
    if raised is not None and raised.load > 1.0:
        shares.append(f"{percent(raised.attainment)} meet the SLO (predicted)")
        holds_more &= holds(promised(profile).attainment, raised.attainment)
        load = f"{raised.load:g}x the recorded load"
    if validity.headroom_attainment is not None:
        shares.append(f"{percent(validity.headroom_attainment)} in the part that was replayed")
    if holds_more:
        return ": ".join([f"OK up to {load}", *[", ".join(shares)] * bool(shares)])
    return f"at {load} {', '.join(shares)}" if shares else "more load was not tried"


def _by_load(numbers: Predicted) -> float:
    return numbers.load


def confirmed_text(record: CheckSection) -> str:
    """Return how many predictions the confirming replay confirmed."""
    confirmed = f"{record.held} of {len(record.numbers)} predictions confirmed"
    if not record.foretold:
        return f"{confirmed} at the engine's own speed"
    of = "new windows" if record.unseen else "the same windows"
    failed = "foretold" in record.failed
    return f"{confirmed} on {of}{'; too few: the promise is what was measured' * failed}"


def _checked(profile: ServingProfile) -> str:
    """Return what confirmed the choice, and the engine time that all of it took."""
    promise, origin = profile.promise, profile.provenance
    parts = []
    if isinstance(promise.checked, str):
        parts.append(promise.checked)
    elif promise.source == "confirming run":
        where = "server" if origin.confirm in SERVED else "engine"
        record = promise.record if promise.predicted else None
        what = "replayed"
        if record is not None and record.numbers:
            what = f"{record.held} of {len(record.numbers)} predictions confirmed"
        parts.append(f"{what} on a fresh {where}{_interval(promised(profile))}")
    spent_s = origin.engine_seconds.starts + origin.engine_seconds.replay
    return "; ".join([*parts, engine_time(spent_s, simulated=is_simulated(profile))])


def _interval(given: CapNumbers) -> str:
    """Return between what the share of a fresh server lies in 95 % of cases."""
    if not isinstance(given, Predicted):
        return ""
    low, high = given.intervals["attainment"]
    return f"; {percent(low)} to {percent(high)} meet the SLO in 95% of cases"


def engine_time(spent_s: float, *, simulated: bool) -> str:
    """Return the time of an engine that an answer cost, and whether the engine was a real one.

    >>> engine_time(252.0, simulated=False), engine_time(252.0, simulated=True)
    ('4 min 12 s of engine time', '4 min 12 s of simulated time')
    """
    return f"{minutes(spent_s)} of {'simulated' if simulated else 'engine'} time"


def is_simulated(profile: ServingProfile) -> bool:
    return profile.provenance.engine == "sim"

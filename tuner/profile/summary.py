"""The summary of a profile in words, the answer first: its verdict block. Pure."""

import math
import re
from collections.abc import Iterator

from tuner.engines.vllm import supported
from tuner.profile.numbers import (
    Baseline,
    Binds,
    CapNumbers,
    CheckSection,
    CurveStep,
    FrontEndSection,
    SpreadSection,
)
from tuner.profile.schema import RequirementSection, ServingProfile
from tuner.profile.verdict_block import NAMES, VerdictBlock
from tuner.traffic.requirements import RequirementCheck, parse_requirement
from tuner.twin.objective import holds

LOW = 0.90
"""Attainment below which that is the answer, and not the cap."""

SERVED = ("server", "plain")
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

UNSURE = {"not_reached": "at least {}, not final", "inconclusive": "{}, not proven"}
"""Verdict → how its max_num_seqs is told, where that is not the last word."""


def first_said(share: float, title: str) -> str:
    """Return the title of an answer, after the share of requests in time where that is too low.

    >>> first_said(0.71, "max_num_seqs 16 breaks its promise"), first_said(0.99, "max_num_seqs 16")
    ('only 71.0 % in SLO: max_num_seqs 16 breaks its promise', 'max_num_seqs 16')
    """
    return f"only {percent(share)} in SLO: {title}" if share < LOW else title


_HEADLINE = re.compile(
    r"^(?:[^:(]*\(95 %: [^)]*\): |overloaded: )(?:the fewest slots that [^;]*; )?"
)
"""Words of a reason that the title and its aside say already, and the objective, which is the same
for every knee."""


def block_of(profile: ServingProfile, *, next_: str) -> VerdictBlock:
    """Return the verdict block of a profile; ``next_`` is the command to run."""
    decision, given = profile.decision, promised(profile)
    title = f"max_num_seqs {decision.max_num_seqs}"
    if given.attainment < LOW:
        title = f"only {percent(given.attainment)} of requests meet the SLO: {title}"
    elif decision.broken:
        title = f"breaks {decision.broken[0].text}: {title}"
    else:
        title = UNSURE.get(decision.verdict, "{}").format(title)
    title += _now(profile)
    if decision.busy is not None:
        title += ", measured on a busy machine"
    aside = "simulated " * is_simulated(profile) + KINDS[decision.verdict]
    if decision.confidence and decision.verdict not in {"overloaded", "not_reached"}:
        aside += f", confidence {decision.confidence:.2f}"
    rows = [
        ("gives", _gives(profile, given)),
        ("costs", _costs(profile, given)),
        ("holds", _holds(profile)),
        ("why", _HEADLINE.sub("", decision.reason)),
        ("checked", _checked(profile)),
    ]
    return VerdictBlock(title, aside, [(name, text) for name, text in rows if text], next_)


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
    twin = next((one for one in promise.predicted if one.load == 1.0), None)
    if twin is not None and not (record is not None and "foretold" in record.failed):
        return twin
    confirmed = twin is not None or promise.source == "confirming run"
    return promise if confirmed else chosen_step(profile) or promise


def chosen_step(profile: ServingProfile) -> CurveStep | None:
    """Return the step of the curve that was chosen; None where the choice is not on it."""
    return next(
        (one for one in profile.curve if one.max_num_seqs == profile.decision.max_num_seqs), None
    )


LEAST_SHARE = 0.005
"""Share of the time below which a wait is nothing."""


def waits_for(binds: Binds | None, front_end: FrontEndSection | None) -> tuple[str, float] | None:
    """Return what requests wait for longest, and for which share of the time; None for nothing.

    For a front end that is busy for a share u of its time somebody waits for 1 - (1 - u) e^u of
    it: the time in which an M/D/1 queue holds more than the one that it serves.
    """
    found = [] if binds is None or binds.most is None else [binds.most]
    if front_end is not None:
        busy = min(1.0, front_end.utilisation)
        found.append(("front end", 1 - (1 - busy) * math.exp(busy)))
    most = max(found, key=lambda one: one[1], default=None)
    return None if most is None or most[1] < LEAST_SHARE else most


def percent(share: float) -> str:
    """Return a share for people.

    >>> percent(0.9914), percent(1.0), percent(0.99999)
    ('99.1 %', '100 %', '99.99 %')
    """
    if share == 1.0:
        return "100 %"
    text = f"{100 * share:.1f}"
    return f"{text if text != '100.0' else '99.99'} %"


def milliseconds(value_ms: float) -> str:
    """Return a time for people, with its unit.

    >>> milliseconds(8.42), milliseconds(252.4), milliseconds(1609.0), milliseconds(408_000.0)
    ('8.4 ms', '252 ms', '1.61 s', '408 s')
    """
    if value_ms < 1000:
        return f"{value_ms:.1f} ms" if value_ms < 100 else f"{value_ms:.0f} ms"
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


def required(one: RequirementSection) -> str:
    """Say what was required and what is known of it.

    >>> section = RequirementSection(
    ...     text="p99 ttft <= 500ms", at_worst=0.612, measured=None, kept=False
    ... )
    >>> required(section)
    'p99 ttft <= 500ms (at worst 612 ms)'
    """
    return str(RequirementCheck(parse_requirement(one.text), one.at_worst, one.measured))


def _now(profile: ServingProfile) -> str:
    now = profile.baseline
    if now is None:
        return ""
    same = now.max_num_seqs == profile.decision.max_num_seqs
    return "  (as now)" if same else f"  (now {now.max_num_seqs})"


def _compared(profile: ServingProfile) -> CapNumbers | None:
    """Return what is given now, where that is another cap, is known, and is told in the same way as
    the choice.

    What a replay behind a server measured has no other cap beside it.
    """
    now = profile.baseline
    if now is None or now.max_num_seqs == profile.decision.max_num_seqs:
        return None
    alone = promised(profile) is profile.promise and profile.provenance.confirm in SERVED
    return None if alone else now.numbers


def _gives(profile: ServingProfile, given: CapNumbers) -> str:
    now = _compared(profile)
    share = percent(given.attainment)
    beside = _instead(profile, given) if now is None else _beside(share, percent(now.attainment))
    parts = [f"{share} in SLO{beside}"]
    for name, statistic, label in (("tpot_ms", "p95", "TPOT"), ("ttft_ms", "p99", "TTFT")):
        time = _time(given, name, statistic)
        if time is not None:
            text = milliseconds(time)
            before = None if now is None else _time(now, name, statistic)
            beside = _beside(text, None if before is None else milliseconds(before))
            parts.append(f"{statistic} {label} {text}{beside}")
    return ", ".join(parts)


def _beside(text: str, now: str | None) -> str:
    return "" if now is None or now == text else f" (now {now})"


def _time(one: CapNumbers, name: str, statistic: str) -> float | None:
    spread: SpreadSection | None = getattr(one, name)
    return None if spread is None else float(getattr(spread, statistic))


def _costs(profile: ServingProfile, given: CapNumbers) -> str:
    now = profile.baseline
    if now is not None and now.max_num_seqs != profile.decision.max_num_seqs:
        return _against_now(profile, now, given)
    below = _below(profile)
    if below is None or _is_part(below) or profile.decision.verdict == "overloaded":
        return ""
    worse = list(_worse(chosen_step(profile) or given, below))
    slots = _slots(below)
    return f"against {slots}: {', '.join(worse)}" if worse else f"nothing against {slots}"


def _against_now(profile: ServingProfile, now: Baseline, given: CapNumbers) -> str:
    beside = _compared(profile)
    if now.numbers is None:
        top = max((one.max_num_seqs for one in profile.curve), default=0)
        return f"not measured: now has {now.max_num_seqs} slots, more than the {top} tried"
    if beside is None:
        return "not measured: behind a server there was only the choice"
    if worse := list(_worse(given, beside)):
        return f"against now: {', '.join(worse)}"
    if now.never_filled:
        return f"nothing, equal to now: the traffic never fills its {now.max_num_seqs} slots"
    return "nothing against now"


def _below(profile: ServingProfile) -> CurveStep | None:
    """Return the next smaller step; None where the choice is the smallest."""
    cap = profile.decision.max_num_seqs
    return next((one for one in reversed(profile.curve) if one.max_num_seqs < cap), None)


def _is_part(one: CurveStep) -> bool:
    """Whether a step's numbers are those of a replay that was cut."""
    return one.cut and one.source == "measured"


def _instead(profile: ServingProfile, given: CapNumbers) -> str:
    """Say what the next smaller step would serve, where that is less: " (8 slots: 88.1 %)"."""
    below = _below(profile)
    if below is None:
        return ""
    part = _is_part(below)
    share = below.intervals["attainment"][1] if part else below.attainment
    if min(given.attainment, (chosen_step(profile) or given).attainment) - share <= SAME / 2:
        return ""
    return f" ({_slots(below)}: {'at most ' * part}{percent(share)})"


def _slots(one: CurveStep) -> str:
    return f"{one.max_num_seqs} slot{'s' * (one.max_num_seqs != 1)}"


def _worse(given: CapNumbers, other: CapNumbers) -> Iterator[str]:
    """Yield in what the one is worse than the other, as "9 % more KV cache"."""
    lost = other.attainment - given.attainment
    if lost > SAME / 2:
        yield f"{100 * lost:.1f} points less in SLO"
    for name, statistic, label in (
        ("tpot_ms", "p95", "p95 TPOT"),
        ("ttft_ms", "p99", "p99 TTFT"),
        ("e2el_ms", "p99", "p99 E2EL"),
    ):
        here, there = _time(given, name, statistic), _time(other, name, statistic)
        if here is not None and there and here > (1 + SAME) * there:
            yield f"{label} {_longer(here / there - 1)}"
    if given.kv_cache_usage is not None and other.kv_cache_usage is not None:
        more = given.kv_cache_usage.peak - other.kv_cache_usage.peak
        if more > SAME:
            yield f"{100 * more:.0f} points more KV cache"
    if given.preemptions > other.preemptions:
        yield f"{given.preemptions - other.preemptions} more preemptions"


def _longer(share: float) -> str:
    return f"{100 * share:.0f} % longer" if share < 10 else f"{1 + share:,.0f} times as long"


def _holds(profile: ServingProfile) -> str:
    broken = [f"not {required(one)}" for one in profile.decision.requirements if not one.kept]
    kept = [required(one) for one in profile.decision.requirements if one.kept]
    if broken and kept:
        kept[0] = f"but {kept[0]}"
    return "; ".join([*broken, *kept, _load_held(profile)])


def _load_held(profile: ServingProfile) -> str:
    if promised(profile).attainment < LOW:
        return "not at this load"
    validated = profile.validity.validated_load
    raised = max(profile.promise.predicted, key=lambda one: one.load, default=None)
    share = "" if raised is None else f"{percent(raised.attainment)} in SLO"
    foretold = raised is not None and raised.load == validated
    falls = raised is not None and not holds(promised(profile).attainment, raised.attainment)
    if validated > 1.0 and not (foretold and falls):
        return f"to {validated:g} times the load" + f": {share} there" * foretold
    seen = profile.validity.headroom_attainment
    if raised is None or raised.load <= 1.0:
        more = "more was not tried" if seen is None else f"with headroom {percent(seen)} in SLO"
        return f"at this load; {more}"
    if seen is None:
        return f"at this load; at {raised.load:g} times this load {share} by the twin alone"
    both = f"measured {percent(seen)} in SLO, forecast {percent(raised.attainment)}"
    return f"at this load; at {raised.load:g} times: {both}"


def said_of(record: CheckSection) -> str:
    """Say how many numbers of the confirming replay were as the twin had said."""
    held = f"{record.held} of {len(record.numbers)} numbers"
    if not record.foretold:
        return f"{held} held at the engine's own speed"
    of = "unseen windows" if record.unseen else "the same windows on another engine"
    failed = "" if "foretold" not in record.failed else ", too few: what was measured is promised"
    return f"{held} of {of} held{failed}"


def _checked(profile: ServingProfile) -> str:
    """Say what the confirming replay of some windows gave, how much of that was foretold, and what
    all of it took."""
    promise, origin = profile.promise, profile.provenance
    seen, behind = [], ""
    if promise.source == "confirming run":
        seen.append(f"in part: {percent(promise.attainment)} in SLO")
        behind = {"server": "; behind a server", "plain": "; behind a plain server"}.get(
            origin.confirm or "", ""
        )
    if isinstance(promise.checked, str):
        seen.append(promise.checked)
    record = promise.record if promise.predicted else None
    if record is not None and record.numbers:
        how = "as foretold" if record.foretold else "as its speed has them"
        failed = "" if "foretold" not in record.failed else ", too few: the measured is promised"
        seen.append(f"{record.held} of {len(record.numbers)} {how}{failed}")
    spent_s = origin.engine_seconds.starts + origin.engine_seconds.replay
    took = engine_time(spent_s, simulated=is_simulated(profile))
    return "; ".join(filter(None, [", ".join(seen), took])) + behind


def engine_time(spent_s: float, *, simulated: bool) -> str:
    """Return the time of an engine that an answer cost, and whether the engine was a real one.

    >>> engine_time(252.0, simulated=False), engine_time(252.0, simulated=True)
    ('4 min 12 s of engine', '4 min 12 s simulated')
    """
    return f"{minutes(spent_s)} {'simulated' if simulated else 'of engine'}"


def is_simulated(profile: ServingProfile) -> bool:
    return profile.provenance.engine == "sim"

"""The summary of a profile in words, the answer first. Pure."""

import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from tuner.engines import provenance
from tuner.profile.profile import (
    Baseline,
    CapNumbers,
    Predicted,
    ServingProfile,
)
from tuner.traffic.slo import holds

LOW = 0.90
"""Attainment below which that is the answer, and not the cap."""

SAME = 0.02
"""A time or a throughput that differs by less is the same to whoever decides."""

WIDTH, NAMES, MOST_LINES = 80, 11, 2
"""Columns of a line, of a row's name with the space on both sides, and lines of a row."""

# Words for numbers


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

    >>> minutes(42.0), minutes(252.0), minutes(7260.0)
    ('42 s', '4.2 min', '121 min')
    """
    return f"{seconds:.0f} s" if seconds < 100 else f"{round(seconds / 60, 1):,g} min"


def engine_time(spent_s: float, *, simulated: bool) -> str:
    """Return the time of an engine that an answer cost, and whether the engine was a real one."""
    return f"{minutes(spent_s)} of {'simulated' if simulated else 'engine'} time"


def with_share(share: float, title: str) -> str:
    """Return the title of an answer, after the share that meets the SLO where that is too low."""
    return f"only {percent(share)} meet the SLO: {title}" if share < LOW else title


def wrapped(text: str, *, most: int | None = None) -> list[str]:
    """Return the sentence of a row in lines, ``most`` of them at most."""
    width = WIDTH - NAMES
    return textwrap.wrap(text, width, max_lines=most, placeholder=" …", break_on_hyphens=False)


# What a profile says


class VerdictBlock(NamedTuple):
    """A verdict: what to set, then what that gives and rests on."""

    title: str
    aside: str
    """What sort of answer it is, and how sure."""
    rows: list[tuple[str, str]]
    """Name and sentence of each, the most important first."""

    def lines(self) -> list[str]:
        """Return the title and MOST_LINES lines a row, of at most WIDTH columns."""
        lines = textwrap.wrap(self.title, WIDTH, max_lines=2, placeholder=" …")
        for name, text in [("verdict", self.aside), *self.rows]:
            for number, line in enumerate(wrapped(text, most=MOST_LINES)):
                lines.append(f"  {'' if number else name:<{NAMES - 2}}{line}")
        return lines


def block_of(profile: ServingProfile) -> VerdictBlock:
    """Return the verdict block of a profile."""
    decision, given = profile.decision, promised(profile)
    aside = decision.verdict.replace("_", " ")
    if decision.verdict not in {"overloaded", "not_reached"}:
        aside += f", confidence {decision.confidence:.2f}"
    aside += ", simulated" * is_simulated(profile)
    rows = [
        ("load", "; ".join(_load(profile, given))),
        ("why", decision.reason),
        ("checked", "; ".join(_checked(profile, given))),
    ]
    return VerdictBlock(_answer(profile, given), aside, rows)


def facts_of(profile: ServingProfile) -> list[str]:
    """Return for whom a profile is, a line each: model and machine, SLO, traffic, origin."""
    origin, validity = profile.provenance, profile.validity
    vllm = provenance.vllm_in(origin.versions)
    device = origin.device.get("name") or "a machine without a name"
    rows = {
        "model": f"{profile.model} on {device}{f', vLLM {vllm}' if vllm else ''}",
        "SLO": f"{profile.decision.slo.slo}{' (derived)' * profile.decision.slo.derived}",
        "traffic": f"{validity.arrival_rate_rps:.2f} req/s, {validity.window}",
        "made": f"{origin.created[:10]} by tuner {origin.tuner}, {profile.digest[:19]}",
    }
    return [f"  {name:<{NAMES - 2}}{text}" for name, text in rows.items()]


def is_simulated(profile: ServingProfile) -> bool:
    return profile.provenance.engine == "sim"


def promised(profile: ServingProfile) -> CapNumbers:
    """Return what the choice gives at the recorded load: the twin's numbers of all the traffic.

    Where the windows decided, the confirming replay's; where nothing confirmed, the ladder's.
    """
    promise, cap = profile.promise, profile.decision.max_num_seqs
    numbers: list[CapNumbers] = [each for each in promise.predicted if each.load == 1.0]
    if promise.source != "confirming run":
        numbers += [step for step in profile.curve if step.max_num_seqs == cap]
    return [*numbers, promise][0]


def confirmed(profile: ServingProfile) -> str | None:
    """Return how many predictions the confirming replay confirmed; None where it was no check."""
    record = profile.promise.checked
    if not isinstance(record, dict) or not record:
        return None
    held = sum(low <= measured <= high for _, low, high, measured in record.values())
    return f"{held} of {len(record)} predictions confirmed"


# The rows of a block


def _answer(profile: ServingProfile, given: CapNumbers) -> str:
    """Return the sentence that says what to set, and what that changes."""
    decision, now = profile.decision, profile.baseline
    cap = f"max_num_seqs {decision.max_num_seqs}"
    is_kept = now is not None and now.max_num_seqs == decision.max_num_seqs
    cap += "" if now is None or is_kept else f" (now {now.max_num_seqs})"
    share = f"{percent(given.attainment)} of requests meet the SLO"
    if decision.broken:
        return f"{cap} breaks {decision.broken[0].text}"
    if decision.verdict == "inconclusive":
        return f"No sure answer yet: {cap} is the best so far, {share}"
    if given.attainment < LOW:
        return f"Only {share}, with {cap}"
    verb = "Use at least" if decision.verdict == "not_reached" else "Keep" if is_kept else "Use"
    # a replay behind a server has no other cap beside it
    is_alone = given is profile.promise and profile.provenance.confirm == "server"
    gain = "" if now is None or is_kept or is_alone else ", ".join(_gain(given, now))
    return f"{verb} {cap}: {share}{gain}"


def _gain(given: CapNumbers, now: Baseline) -> Iterator[str]:
    """Yield what the choice gives instead of what is given now."""
    if (before := now.numbers) is None:
        return
    at_cap = f" with {now.numbers_at}" * (now.numbers_at != now.max_num_seqs)
    at_cap += " (predicted)" * isinstance(given, Predicted)
    is_apart = abs(given.attainment - before.attainment) > SAME / 2
    yield f" instead of {percent(before.attainment)}{at_cap}" * is_apart
    tpot_ms, was_ms = (each.tpot_ms.p95 if each.tpot_ms else 0.0 for each in (given, before))
    if 0 < tpot_ms < was_ms * (1 - SAME):
        yield f"p95 TPOT {milliseconds(tpot_ms)} instead of {milliseconds(was_ms)}"
    if before.output_tokens_per_s > 0:
        rate = given.output_tokens_per_s / before.output_tokens_per_s - 1
        more = f"{abs(rate):.0%} {'more' if rate > 0 else 'less'}"
        yield f"at {'the same' if abs(rate) <= SAME else more} throughput"


def _load(profile: ServingProfile, given: CapNumbers) -> Iterator[str]:
    """Yield which requirements hold, and what a higher load gives."""
    for each in sorted(profile.decision.requirements, key=lambda each: each.kept):
        yield f"{'keeps' if each.kept else 'breaks'} {each}"
    if given.attainment < LOW:
        yield "too much for one server"
        return
    load = profile.validity.validated_load
    raised = next((each for each in profile.promise.predicted if each.load > 1.0), None)
    share = "" if raised is None else f": {percent(raised.attainment)} meet the SLO (predicted)"
    if load > 1.0 and (raised is None or holds(given.attainment, raised.attainment)):
        yield f"OK up to {load:g}x the recorded load{share}"
    else:
        yield f"at {raised.load:g}x the recorded load{share}" if raised else "more was not tried"


def _checked(profile: ServingProfile, given: CapNumbers) -> Iterator[str]:
    """Yield what confirmed the choice, and the engine time that all of it took."""
    promise, origin = profile.promise, profile.provenance
    if isinstance(promise.checked, str):
        yield promise.checked
    elif promise.source == "confirming run":
        what = "server" if origin.confirm == "server" else "engine"
        yield f"{confirmed(profile) or 'replayed'} on a fresh {what}"
        if isinstance(given, Predicted):
            ends = dict.fromkeys(map(percent, given.intervals["attainment"]))
            yield f"{' to '.join(ends)} meet the SLO in 95% of cases"
    spent = origin.engine_seconds
    yield engine_time(spent.starts + spent.replay, simulated=is_simulated(profile))

"""``tuner plan``: from its options to the printed result."""

import math
from dataclasses import asdict

from tuner.commands.options import PlanOptions
from tuner.commands.shared.next_step import again, command
from tuner.commands.shared.options import times
from tuner.commands.shared.results import finish
from tuner.commands.shared.traffic import required_of
from tuner.errors import GateError, UsageError
from tuner.profile.evidence import StoredTwin, twin_of
from tuner.profile.plan import MOST_REPLICAS, Fleet, shared_caps
from tuner.profile.profile import ServingProfile
from tuner.profile.profile import load as load_profile
from tuner.profile.summary import confirmed_text
from tuner.traffic.constants import EQUAL_ATTAINMENT
from tuner.twin.decide import rule
from tuner.views.plan import FleetPlan, plan_json, plan_page, replicas_in_words, shared_page

MOST_LOAD = 16.0
MOST_TIMES = 1e6
LEAST_TARGET = 0.9
"""Share in time that is planned for where the profile itself promises less: nobody wants more of
that."""


def run(options: PlanOptions) -> None:
    """Ask and print. Raises ProfileError and UsageError."""
    profile = load_profile(options.profile)
    if options.other is not None:
        given = {"load": options.load != "1x", "replicas": options.replicas is not None,
                 "price": options.price is not None, "require": options.require}  # fmt: skip
        if names := [f"--{name}" for name, is_given in given.items() if is_given]:
            raise UsageError(
                f"{' and '.join(names)}: of two profiles only their curves are compared",
                hint="Leave it out, or ask of each profile by itself.",
            )
        _print_shared(options, profile, load_profile(options.other))
        return
    cure = "Sweep on a quieter machine or longer, so that the twin is believed."
    twin = twin_of(profile, options.profile, cure=cure, behind=profile.front_end)
    result = _planned(options, profile, twin)
    next_ = _next(result, profile, options)
    page = plan_page(result, profile, subject=f"Plan for {options.profile}", next_=next_)
    finish(options, plan_json(result), page)
    if result.broken:
        _refuse(result)


def _print_shared(options: PlanOptions, *profiles: ServingProfile) -> None:
    """Print which cap serves both kinds of traffic. Raises ProfileError."""
    paths = [str(options.profile), str(options.other)]
    caps, best = shared_caps(profiles)
    result = {"profiles": paths, "max_num_seqs": best, "caps": [asdict(each) for each in caps]}
    page = shared_page(caps, best, profiles, paths, next_=command("show", *paths))
    finish(options, result, page)


def _next(plan: FleetPlan, profile: ServingProfile, options: PlanOptions) -> str:
    """Return what to run: the rollout where that many replicas do, else the same question with as
    many as it takes, or the curves where no number does."""
    if profile.provenance.engine == "sim":
        return command("show", options.profile)
    if plan.least(plan.max_num_seqs) >= plan.attainment and not plan.broken:
        return command("apply", options.profile, "--dry-run")
    needed = plan.replicas_that_keep if plan.broken else plan.replicas_needed
    if needed is None or needed == plan.replicas:
        return command("show", options.profile, "-o", "page.html")
    return again("plan", options, replicas=needed, json=False)


def _planned(options: PlanOptions, profile: ServingProfile, twin: StoredTwin) -> FleetPlan:
    replicas_then = profile.provenance.replicas
    captured_rps = len(twin.traffic) / twin.length_s
    load = load_of(options.load, replicas_then * captured_rps) * replicas_then
    slo = profile.decision.slo.slo
    cap = profile.decision.max_num_seqs
    target = max(LEAST_TARGET, _promised(profile) - EQUAL_ATTAINMENT)
    before = profile.provenance.router
    # sessions that keep to a server: what the fewest requests in flight choose is nearest to it
    router = "least" if before is None or before == "session" else before
    fleet = Fleet(twin, slo, load, router)
    caps = sorted({step.max_num_seqs for step in profile.curve} | {cap})
    if options.replicas is not None:
        _check_load(load / options.replicas)
    needed = fleet.replicas_for(cap, attainment=target)
    replicas = options.replicas or needed or max(1, math.ceil(load))
    _check_load(load / replicas)
    headroom, record = profile.promise.headroom, profile.promise.record
    samples = fleet.ask(caps, replicas=replicas, headroom=headroom)
    peaks = {each: samples.middle("running_peak", each) for each in caps}
    guesses = [each for each, peak in peaks.items() if peak > twin.extrapolated_from]
    requirements = required_of(profile, options.require, headroom=headroom)
    bounds = fleet.bounds(caps, requirements, headroom=headroom, replicas=replicas)
    keeping = None
    if bounds.broken(cap):
        keeping = fleet.replicas_that_keep(cap, requirements, headroom=headroom, guess=replicas)
    eligible = bounds.eligible(caps)
    shares, tails_s = (
        [samples.middle(name, each) for each in eligible] for name in ("attainment", "e2el_p99_s")
    )
    raised = None
    if headroom > 1:
        raised = [samples.middle("attainment", each, raised=True) for each in eligible]
    return FleetPlan(
        load=load / replicas_then,
        rps=load * captured_rps,
        replicas=replicas,
        router=fleet.router,
        max_num_seqs=cap,
        best=eligible[int(rule(shares, tails_s, raised).choice)],
        attainment=target,
        replicas_needed=needed,
        replicas_by_cap={
            each: fleet.replicas_for(each, attainment=target, surely=False) for each in caps
        },
        stored_requests=len(twin.traffic),
        samples=samples,
        guesses=guesses,
        required=[str(each) for each in bounds.checks(cap)],
        broken=[str(each) for each in bounds.checks(cap) if not each.is_kept],
        replicas_that_keep=keeping,
        price=options.price,
        checked="never checked by a replay"
        if record is None
        else f"checked: {confirmed_text(record)}",
        warnings=_warnings(profile, load / replicas, guesses, needed),
    )


def _check_load(of_one: float) -> None:
    if of_one > MOST_LOAD:
        raise UsageError(
            f"{of_one:,.0f} times the profile's traffic on one replica is no question",
            hint="Leave out --replicas to find out how many the load needs.",
        )


def _refuse(plan: FleetPlan) -> None:
    """Raise GateError where the profile's cap breaks what is required of it at this load."""
    cure = "No number of replicas keeps it: require less."
    if plan.replicas_that_keep is not None:
        cure = f"On {replicas_in_words(plan.replicas_that_keep)} it keeps all."
    raise GateError(
        f"max_num_seqs {plan.max_num_seqs} on {replicas_in_words(plan.replicas)} does not keep "
        f"{', '.join(plan.broken)}",
        hint=cure,
    )


def _promised(profile: ServingProfile) -> float:
    """Return the attainment that the twin is sure of at the recorded load."""
    for each in profile.promise.predicted:
        if each.load == 1.0 and "attainment" in each.intervals:
            return min(each.attainment, each.intervals["attainment"][0])
    return profile.promise.attainment


def load_of(text: str, recorded_rps: float) -> float:
    """Return a load as a multiple of the recorded one. Raises UsageError.

    >>> load_of("1.5x", 2.0), load_of("150%", 2.0), load_of("3rps", 2.0), load_of("1.5", 2.0)
    (1.5, 1.5, 1.5, 1.5)
    """
    number, unit, _ = text.strip().lower().partition("rps")
    try:
        load = float(number) / recorded_rps if unit else times(number)
    except ValueError:
        load = math.nan
    if not 0 < load <= MOST_TIMES:
        raise UsageError(
            f"--load {text!r}: is no load to plan for",
            hint=f"Give 1.5, 1.5x, 150% or 35rps: more than 0, up to {MOST_TIMES:,.0f}x.",
        )
    return load


def _warnings(
    profile: ServingProfile, load: float, guesses: list[int], needed: int | None
) -> list[str]:
    text = []
    if (each := profile.provenance.of_ranks) is not None:
        text.append(f"{each}; a replica here is such a rank")
    if load > profile.validity.validated_load * 1.001:
        text.append(
            f"{load:.2f} times the load on a replica is more than the "
            f"{profile.validity.validated_load:g} that was validated: a forecast; tuner sweep with "
            "a larger --headroom measures it"
        )
    if guesses:
        text.append(
            "batches larger than any that was measured: predictions of "
            f"{', '.join(map(str, guesses))} are a guess; tuner sweep with a larger --ceiling "
            "measures them"
        )
    if needed is None:
        text.append(
            f"{MOST_REPLICAS:,} replicas do not serve what the profile promises: relax the SLO"
        )
    return text

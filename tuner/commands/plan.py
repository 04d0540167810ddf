"""``tuner plan``: from its options to the printed result."""

import math

from tuner.commands.options import PlanOptions
from tuner.commands.shared.next_step import command
from tuner.commands.shared.options import times
from tuner.commands.shared.results import finish
from tuner.commands.shared.traffic import required_of
from tuner.errors import GateError, UsageError
from tuner.profile.evidence import twin_of
from tuner.profile.plan import MOST_REPLICAS, Fleet, shared_caps
from tuner.profile.profile import Predicted, ServingProfile
from tuner.profile.profile import load as load_profile
from tuner.profile.summary import confirmed, is_simulated, promised
from tuner.traffic.constants import EQUAL_ATTAINMENT
from tuner.twin.decide import rule
from tuner.views.plan import FleetPlan, plan_json, plan_page, replicas_in_words, shared_page

MOST_LOAD, MOST_TIMES = 16.0, 1e6
"""Of the profile's traffic, on one replica and in all."""
LEAST_TARGET = 0.9
"""Share in time that is planned for where the profile itself promises less: nobody wants more of
that."""


def run(options: PlanOptions) -> None:
    """Ask and print. Raises GateError, ProfileError and UsageError."""
    profile = load_profile(options.profile)
    if options.other is not None:
        _compare(options, profile, load_profile(options.other))
        return
    plan = _planned(options, profile)
    is_served = plan.least(plan.max_num_seqs) >= plan.attainment and not plan.broken
    next_ = command("show", options.profile)
    if is_served and not is_simulated(profile):
        next_ = command("apply", options.profile, "--dry-run")
    page = plan_page(plan, profile, subject=f"Plan for {options.profile}", next_=next_)
    finish(options, plan_json(plan), page)
    if plan.broken:
        cure = "No number of replicas keeps it: require less."
        if plan.replicas_needed is not None:
            cure = f"On {replicas_in_words(plan.replicas_needed)} it keeps all."
        raise GateError(
            f"max_num_seqs {plan.max_num_seqs} on {replicas_in_words(plan.replicas)} does not keep "
            f"{', '.join(plan.broken)}",
            hint=cure,
        )


def _compare(options: PlanOptions, *profiles: ServingProfile) -> None:
    """Print which cap serves both kinds of traffic. Raises ProfileError and UsageError."""
    given = {"load": options.load != "1x", "replicas": options.replicas is not None,
             "price": options.price is not None, "require": options.require}  # fmt: skip
    if names := [f"--{name}" for name, is_given in given.items() if is_given]:
        raise UsageError(
            f"{' and '.join(names)}: of two profiles only their curves are compared",
            hint="Leave it out, or ask of each profile by itself.",
        )
    paths = [str(options.profile), str(options.other)]
    caps, best = shared_caps(profiles)
    rows = [each._asdict() for each in caps]
    result = {"profiles": paths, "max_num_seqs": best.max_num_seqs, "caps": rows}
    finish(options, result, shared_page(caps, best, profiles, paths, next_=command("show", *paths)))


def _planned(options: PlanOptions, profile: ServingProfile) -> FleetPlan:
    cure = "Sweep on a quieter machine or longer, so that the twin is believed."
    twin = twin_of(profile, options.profile, cure=cure, behind=profile.front_end)
    origin, promise, cap = profile.provenance, profile.promise, profile.decision.max_num_seqs
    stored_rps = len(twin.traffic) / twin.length_s
    load = load_of(options.load, origin.replicas * stored_rps) * origin.replicas
    # sessions that keep to a server: what the fewest requests in flight choose is nearest to it
    router = "least" if origin.router in {None, "session"} else origin.router
    requirements = required_of(profile, options.require, headroom=promise.headroom)
    fleet = Fleet(twin, profile.decision.slo.slo, load, router, requirements)  # type: ignore[arg-type] # is no session
    caps = sorted({step.max_num_seqs for step in profile.curve} | {cap})
    if options.replicas is not None and load / options.replicas > MOST_LOAD:
        raise UsageError(
            f"{load / options.replicas:,.0f} times the profile's traffic on one replica is no "
            "question",
            hint="Leave out --replicas to find out how many the load needs.",
        )
    given = promised(profile)
    sure = given.intervals["attainment"][0] if isinstance(given, Predicted) else given.attainment
    target = max(LEAST_TARGET, sure - EQUAL_ATTAINMENT)
    needed = fleet.replicas_for(cap, attainment=target, headroom=promise.headroom)
    replicas = options.replicas or needed or math.ceil(load)
    samples = fleet.ask(caps, fleet.draws, replicas=replicas, headroom=promise.headroom)
    bounds = fleet.bounds(caps, replicas=replicas, headroom=promise.headroom)
    eligible = bounds.eligible()
    shares, tails_s = (
        [samples.middle(name, each) for each in eligible] for name in ("attainment", "e2el_p99_s")
    )
    raised = [samples.middle("attainment", each, raised=True) for each in eligible]
    ruling = rule(shares, tails_s, raised if samples.has_headroom else None)
    peaks = {each: samples.middle("running_peak", each) for each in caps}
    guesses = [each for each, peak in peaks.items() if peak > twin.extrapolated_from]
    return FleetPlan(
        load=load / origin.replicas,
        rps=load * stored_rps,
        replicas=replicas,
        router=router,  # type: ignore[arg-type] # is no session
        max_num_seqs=cap,
        best=eligible[int(ruling.choice)],
        attainment=target,
        replicas_needed=needed,
        replicas_by_cap={
            each: fleet.replicas_for(each, attainment=target, headroom=1.0, draws=fleet.law)
            for each in caps
        },
        stored_requests=len(twin.traffic),
        samples=samples,
        required=[str(each) for each in bounds.checks(cap)],
        broken=[str(each) for each in bounds.checks(cap) if not each.is_kept],
        price=options.price,
        checked=f"checked: {confirmed(profile) or 'never'}",
        warnings=_warnings(profile, load / replicas, guesses, needed),
    )


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
    warnings, validated = [], profile.validity.validated_load
    if (each := profile.provenance.of_ranks) is not None:
        warnings.append(f"{each}; a replica here is such a rank")
    if load > validated * 1.001:
        warnings.append(
            f"{load:.2f} times the load on a replica is more than the {validated:g} that was "
            "validated: a forecast; tuner sweep with a larger --headroom measures it"
        )
    if guesses:
        warnings.append(
            f"batches larger than any that was measured: {', '.join(map(str, guesses))} are a "
            "guess; tuner sweep with a larger --ceiling measures them"
        )
    if needed is None:
        warnings.append(f"{MOST_REPLICAS:,} replicas do not serve what is promised: relax the SLO")
    return warnings

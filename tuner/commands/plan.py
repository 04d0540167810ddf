"""``tuner plan``: from its options to the printed result."""

import math

from tuner.commands.options import PlanOptions
from tuner.commands.shared.next_step import command
from tuner.commands.shared.options import as_typed, times
from tuner.commands.shared.results import finish
from tuner.commands.shared.traffic import required_of
from tuner.errors import GateError, UsageError
from tuner.profile.evidence import twin_of
from tuner.profile.plan import Fleet, shared_caps
from tuner.profile.profile import ServingProfile
from tuner.profile.profile import load as load_profile
from tuner.profile.summary import is_simulated
from tuner.views.plan import plan_page, replicas_in_words, shared_page

MOST_LOAD, MOST_TIMES = 16.0, 1e6
"""Of the profile's traffic, on one replica and in all."""


def run(options: PlanOptions) -> None:
    """Ask and print. Raises GateError, ProfileError and UsageError."""
    profile = load_profile(options.profile)
    if options.other is not None:
        _compare(options, profile, load_profile(options.other))
        return
    fleet = _fleet(options, profile)
    choice = fleet.choice(fleet.caps, fleet.replicas)
    checks = choice.bounds.checks(fleet.cap)
    broken = [str(each) for each in checks if not each.kept]
    next_ = command("show", options.profile)
    if not broken and not is_simulated(profile) and fleet.replicas >= (fleet.needed or math.inf):
        next_ = command("apply", options.profile, "--dry-run")
    result = {
        "load": fleet.load / profile.provenance.replicas,
        "rps": fleet.rps,
        "replicas": fleet.replicas,
        "router": fleet.router,
        "max_num_seqs": fleet.cap,
        "best": choice.best,
        "attainment": fleet.target,
        "replicas_needed": fleet.needed,
        "required": list(map(str, checks)),
        "broken": broken,
        "warnings": _warnings(fleet),
    }
    page = plan_page(fleet, result, options.price, next_)
    finish(options, {**result, "steps": page.tables[0].records()}, page)
    if broken:
        cure = "No number of replicas keeps it: require less."
        if fleet.needed is not None:
            cure = f"On {replicas_in_words(fleet.needed)} it keeps all."
        words = f"max_num_seqs {fleet.cap} on {replicas_in_words(fleet.replicas)} does not keep"
        raise GateError(f"{words} {', '.join(broken)}", hint=cure)


def _compare(options: PlanOptions, *profiles: ServingProfile) -> None:
    """Print which cap serves both kinds of traffic. Raises ProfileError and UsageError."""
    given = [word for word in as_typed(options) if word.startswith("--") and word != "--json"]
    if given:
        raise UsageError(
            f"{' '.join(given)}: of two profiles only their curves are compared",
            hint="Leave it out, or ask of each profile by itself.",
        )
    paths = [str(options.profile), str(options.other)]
    caps, best = shared_caps(profiles)
    page = shared_page(caps, best, paths, next_=command("show", *paths))
    rows = page.tables[0].records()
    finish(options, {"profiles": paths, "max_num_seqs": best.max_num_seqs, "caps": rows}, page)


def _fleet(options: PlanOptions, profile: ServingProfile) -> Fleet:
    """Return the servers of a profile under another load. Raises ProfileError and UsageError."""
    cure = "Sweep on a quieter machine or longer, so that the twin is believed."
    twin = twin_of(profile, options.profile, cure=cure, behind=profile.front_end)
    replicas = profile.provenance.replicas
    load = load_of(options.load, replicas * len(twin.traffic) / twin.length_s) * replicas
    if options.replicas is not None and load / options.replicas > MOST_LOAD:
        raise UsageError(
            f"{load / options.replicas:,.0f} times the profile's traffic on one replica is no "
            "question",
            hint="Leave out --replicas to find out how many the load needs.",
        )
    requirements = required_of(profile, options.require, headroom=profile.promise.headroom)
    return Fleet(profile, twin, load, requirements, options.replicas)


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


def _warnings(fleet: Fleet) -> list[str]:
    warnings, validated = list[str](), fleet.profile.validity.validated_load
    if (of_ranks := fleet.profile.provenance.of_ranks) is not None:
        warnings.append(f"{of_ranks}; a replica here is such a rank")
    if (load := fleet.load / fleet.replicas) > validated * 1.001:
        warnings.append(
            f"{load:.2f} times the load on a replica is more than the {validated:g} that was "
            "validated: a forecast; tuner sweep with a larger --headroom measures it"
        )
    peaks = {cap: fleet.samples.middle("running_peak", cap) for cap in fleet.caps}
    guesses = [str(cap) for cap, peak in peaks.items() if peak > fleet.twin.extrapolated_from]
    if guesses:
        warnings.append(
            f"batches larger than any that was measured: {', '.join(guesses)} are a guess; tuner "
            "sweep with a larger --ceiling measures them"
        )
    return warnings

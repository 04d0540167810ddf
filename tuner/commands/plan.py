"""``tuner plan``: from its options to the printed result."""

import math

from tuner.commands.options import PlanOptions
from tuner.commands.shared.next_step import command
from tuner.commands.shared.options import as_typed, times
from tuner.commands.shared.run_folder import finish
from tuner.commands.shared.traffic import required_of
from tuner.errors import GateError, UsageError
from tuner.profile.evidence import twin_of
from tuner.profile.plan import Fleet, shared_caps
from tuner.profile.profile import ServingProfile, load
from tuner.profile.summary import is_simulated, percent, with_share
from tuner.views.page import Cell, Column, Page, Section, Table
from tuner.views.profile import COLUMNS

MOST_LOAD, MOST_TIMES = 16.0, 1e6
"""Of the profile's traffic, on one replica and in all."""
SHOWN = ("attainment", "goodput_rps", "tpot_p95_s", "e2el_p99_s")
"""What the table has of every cap."""


def run(options: PlanOptions) -> None:
    """Ask and print. Raises GateError, ProfileError and UsageError."""
    profile = load(options.profile)
    if options.second is not None:
        _compare(options, profile, load(options.second))
        return
    fleet = _fleet(options, profile)
    cap, needed, here = fleet.cap, fleet.needed, _replicas(fleet.replicas)
    choice, table = fleet.choice(fleet.caps, fleet.replicas), _table(fleet, options.price)
    checks, times_load = choice.checks[cap], fleet.load / profile.provenance.replicas
    required, broken = list(map(str, checks)), [str(each) for each in checks if not each.kept]
    title = with_share(fleet.samples.middle("attainment", cap), f"max_num_seqs {cap} on {here}")
    if needed is None:
        title = f"no number of replicas serves {percent(fleet.target)} within the SLO"
        title += " and keeps what is required" * bool(required)
    of = f"{times_load:g} times the profile's traffic ({len(fleet.twin.traffic):,} requests)"
    facts = [("load", f"{fleet.rps:,.2f} req/s, {of}")]
    if needed is not None:
        facts.append(("needs", f"{_replicas(needed)} for {percent(fleet.target)} at least"))
    is_ready = not broken and fleet.replicas >= (needed or math.inf) and not is_simulated(profile)
    page = Page(
        subject="Plan",
        title=title,
        aside=f"{'simulated ' * is_simulated(profile)}prediction, --router {fleet.router}",
        facts=[*facts, *([("requires", "; ".join(required))] if required else [])],
        sections=[Section("Every max_num_seqs", tables=[table])],
        warnings=_warnings(fleet),
        next=command(
            *(("apply", options.profile, "--dry-run") if is_ready else ("show", options.profile))
        ),
    )
    result = {
        "load": times_load,
        "rps": fleet.rps,
        "replicas": fleet.replicas,
        "router": fleet.router,
        "max_num_seqs": cap,
        "best": choice.best,
        "attainment": fleet.target,
        "replicas_needed": needed,
        "steps": table.records(),
        "required": required,
        "broken": broken,
        "warnings": page.warnings,
    }
    finish(options, result, page)
    if broken:
        cure = "No number of replicas keeps it: require less."
        cure = cure if needed is None else f"On {_replicas(needed)} it keeps all."
        raise GateError(
            f"max_num_seqs {cap} on {here} does not keep {', '.join(broken)}", hint=cure
        )


def _table(fleet: Fleet, price: float | None) -> Table:
    """Return what every cap gives a replica: likely, and at worst in 39 of 40 draws; ``price`` is
    of a replica per hour."""
    columns = [
        *(COLUMNS[name] for name in ("max_num_seqs", *SHOWN)),
        Column("attainment_least", "met least", "share"),
        Column("replicas", "needs about", "count"),
        Column("per_hour", "" if price is None else "per hour", "number"),
    ]
    rows = list[list[Cell]]()
    for cap, count in fleet.needed_by_cap.items():
        middles = [fleet.samples.middle(name, cap) for name in SHOWN]
        least, _ = fleet.samples.ends("attainment", cap) or (math.nan, math.nan)
        cost = None if price is None or count is None else price * count
        rows.append([cap, *middles, least, count, cost])
    return Table(columns, rows, chosen=fleet.caps.index(fleet.cap))


def _replicas(count: int) -> str:
    return f"{count:,} replica{'s' * (count != 1)}"


def _compare(options: PlanOptions, *profiles: ServingProfile) -> None:
    """Print which cap serves both kinds of traffic, and what each loses by it. Raises ProfileError
    and UsageError."""
    given = [word for word in as_typed(options) if word.startswith("--") and word != "--json"]
    if given:
        raise UsageError(
            f"{' '.join(given)}: of two profiles only their curves are compared",
            hint="Leave it out, or ask of each profile by itself.",
        )
    paths, names = [str(options.profile), str(options.second)], ("first", "second")
    caps, best = shared_caps(profiles)
    columns = [
        COLUMNS["max_num_seqs"],
        *(Column(f"met_{name}", f"met, {name}", "share") for name in names),
        Column("lost", "loses", "share"),
        Column("longer", "p99 E2EL x", "number"),
    ]
    table = Table(
        columns,
        [[each.max_num_seqs, *each.shares, each.lost, each.longer] for each in caps],
        "the most that either loses, compared with its own choice",
        chosen=caps.index(best),
    )
    page = Page(
        subject=f"Plan for {' and '.join(paths)}",
        title=f"max_num_seqs {best.max_num_seqs} serves both kinds of traffic",
        facts=list(zip(names, paths, strict=True)),
        sections=[Section("Every max_num_seqs", tables=[table])],
        next=command("show", *paths),
    )
    result = {"profiles": paths, "max_num_seqs": best.max_num_seqs, "caps": table.records()}
    finish(options, result, page)


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

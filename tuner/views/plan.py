"""The page and the JSON of a plan for a fleet. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tuner.profile.plan import FleetRouter, SharedCap
from tuner.profile.profile import ServingProfile
from tuner.profile.summary import LOW, is_simulated, percent, with_share
from tuner.twin.samples import ON_CURVE, Samples, in_ms
from tuner.views.numbers import COLUMNS
from tuner.views.page import Cell, Column, Page, Section, Table


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    """What every max_num_seqs gives at a load, and how many replicas it takes."""

    load: float
    rps: float
    replicas: int
    router: FleetRouter
    max_num_seqs: int
    """The profile's."""
    best: int
    """The cap that the objective picks at this load and with the profile's headroom."""
    attainment: float
    """The share that is to be served within the SLO."""
    replicas_needed: int | None
    """For that share and all that is required, with the profile's cap."""
    replicas_by_cap: dict[int, int | None]
    """About how many each cap needs for that share, by the law alone."""
    stored_requests: int
    """How many requests the profile's traffic is here."""
    samples: Samples
    """Of every max_num_seqs on a replica."""
    required: list[str]
    """What is required of the profile's cap on these replicas, and at worst given."""
    broken: list[str]
    """Which of it is not kept."""
    price: float | None
    """Of a replica per hour."""
    checked: str
    """What confirmed the predictions."""
    warnings: list[str]

    def share(self, cap: int) -> float:
        return self.samples.middle("attainment", cap)

    def least(self, cap: int) -> float:
        ends = self.samples.ends("attainment", cap)
        return math.nan if ends is None else ends[0]


def plan_json(plan: FleetPlan) -> dict[str, Any]:
    """Return the object that ``tuner plan --json`` prints; of each cap what it gives a replica,
    middles and intervals of 95 %, times in milliseconds."""
    samples, steps = plan.samples, []
    for cap in samples.caps:
        step: dict[str, Any] = {"max_num_seqs": cap, "intervals": samples.intervals(cap)}
        for name in ON_CURVE:
            step[in_ms(name)] = samples.middle(name, cap) * (1e3 if name.endswith("_s") else 1.0)
        steps.append(step)
    return {**{k: v for k, v in vars(plan).items() if k != "samples"}, "steps": steps}


def plan_page(plan: FleetPlan, profile: ServingProfile, *, subject: str, next_: str) -> Page:
    """Return what to run at this load and how many replicas it takes."""
    needed, cap = plan.replicas_needed, plan.max_num_seqs
    title = f"max_num_seqs {cap} on {replicas_in_words(needed or plan.replicas)}"
    if needed is None:
        title = f"no number of replicas serves {percent(plan.attainment)} within the SLO"
    elif plan.share(cap) < LOW:
        title = f"max_num_seqs {cap} on {plan.replicas:,} of {replicas_in_words(needed)}"
        title = with_share(plan.share(cap), title)
    share, least = percent(plan.share(cap)), percent(plan.least(cap))
    of = f"{plan.load:g} times the profile's traffic ({plan.stored_requests:,} requests)"
    facts = [
        ("load", f"{plan.rps:,.2f} req/s, {of}"),
        ("gives", f"{share} on {replicas_in_words(plan.replicas)} meet the SLO, {least} at least"),
    ]
    counts = {each: count for each, count in plan.replicas_by_cap.items() if count is not None}
    cheapest = min(counts, key=lambda each: (counts[each], each), default=cap)
    if needed is not None:
        words = f"{replicas_in_words(needed)} for {percent(plan.attainment)} at least"
        facts.append(("needs", f"{words}{_cost(plan, needed)}"))
    if cheapest != cap and counts[cheapest] < counts.get(cap, math.inf):
        words = f"max_num_seqs {cheapest} on about {replicas_in_words(counts[cheapest])}"
        cost = _cost(plan, counts[cheapest])
        facts.append(("cheapest", f"{words}{cost}: sweep a trace of this load"))
    if plan.required:
        facts.append(("requires", "; ".join(plan.required)))
    facts.append(("rests on", f"the profile's prediction, {plan.checked}"))
    return Page(
        subject=subject,
        title=title,
        aside=f"{'simulated ' * is_simulated(profile)}prediction, --router {plan.router}",
        facts=facts,
        sections=[Section("Every max_num_seqs", tables=[_table(plan)])],
        details=[f"SLO {profile.decision.slo.slo}"],
        warnings=plan.warnings,
        next=next_,
    )


def replicas_in_words(count: int) -> str:
    return f"{count:,} replica{'s' * (count != 1)}"


def _cost(plan: FleetPlan, replicas: int) -> str:
    return "" if plan.price is None else f", {replicas * plan.price:,.2f} per hour"


def _table(plan: FleetPlan) -> Table:
    """Return what every cap gives a replica: likely, and at worst in 39 of 40 draws."""
    columns = [
        *(COLUMNS[name] for name in ("max_num_seqs", "attainment")),
        Column("attainment_least", "met least", "share"),
        *(COLUMNS[name] for name in ("goodput_rps", "tpot_p95_s", "e2el_p99_s")),
        Column("replicas", "needs about", "count"),
        *([] if plan.price is None else [Column("per_hour", "per hour", "number")]),
    ]
    rows = list[list[Cell]]()
    for cap in plan.samples.caps:
        names = ("goodput_rps", "tpot_p95_s", "e2el_p99_s")
        middles = [plan.samples.middle(name, cap) for name in names]
        count = plan.replicas_by_cap[cap]
        rows.append([cap, plan.share(cap), plan.least(cap), *middles, count])
        if plan.price is not None:
            rows[-1].append(None if count is None else plan.price * count)
    return Table(columns, rows, chosen=plan.samples.caps.index(plan.max_num_seqs))


def shared_page(
    caps: Sequence[SharedCap],
    best: SharedCap,
    profiles: Sequence[ServingProfile],
    paths: Sequence[str],
    *,
    next_: str,
) -> Page:
    """Return which cap serves two kinds of traffic, and what each loses by it."""
    names = ("first", "second")
    columns = [
        COLUMNS["max_num_seqs"],
        *(Column(f"met_{name}", f"met, {name}", "share") for name in names),
        Column("lost", "loses", "share"),
        Column("longer", "p99 E2EL x", "number"),
    ]
    rows: list[list[Cell]] = [
        [each.max_num_seqs, *each.shares, max(each.lost), max(each.longer)] for each in caps
    ]
    caption = "the most that either loses, compared with its own choice"
    table = Table(columns, rows, caption, chosen=caps.index(best))
    return Page(
        subject=f"Plan for {' and '.join(paths)}",
        title=f"max_num_seqs {best.max_num_seqs} serves both kinds of traffic",
        aside="simulated" if any(map(is_simulated, profiles)) else "by their curves",
        facts=[
            (name, f"{path}: {percent(share)} meet the SLO")
            for name, path, share in zip(names, paths, best.shares, strict=True)
        ],
        sections=[Section("Every max_num_seqs", tables=[table])],
        next=next_,
    )

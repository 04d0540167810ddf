"""The page and the JSON of a plan for a fleet. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.profile.evidence import MOST_STORED
from tuner.profile.plan import SharedCap
from tuner.profile.profile import ServingProfile
from tuner.profile.summary import LOW, is_simulated, percent, with_share
from tuner.traffic.constants import EQUAL_ATTAINMENT
from tuner.twin.samples import ON_CURVE, Samples, in_ms
from tuner.views.numbers import COLUMNS
from tuner.views.page import Cell, Column, Page, Section, Table

ORDER = ("first", "second")
"""Names of the profiles that share a server."""


@dataclass(frozen=True)
class FleetPlan:
    """What every max_num_seqs gives at a load, and how many replicas it takes."""

    load: float
    rps: float
    replicas: int
    router: str
    max_num_seqs: int
    """The profile's."""
    best: int
    """The cap that the objective picks at this load and with the profile's headroom."""
    attainment: float
    """The share that is to be served within the SLO."""
    replicas_needed: int | None
    replicas_by_cap: dict[int, int | None]
    """About how many each cap needs, by the law alone."""
    stored_requests: int
    """How many requests the profile's traffic is here."""
    samples: Samples
    """Of every max_num_seqs on a replica."""
    guesses: list[int]
    """Values at which batches became larger than any that was measured."""
    checked: str
    """What confirmed the predictions."""
    warnings: list[str]
    required: list[str] = field(default_factory=list)
    """What is required of the profile's cap on these replicas, and at worst given."""
    broken: list[str] = field(default_factory=list)
    """Which of it is not kept."""
    price: float | None = None
    """Of a replica per hour."""
    replicas_that_keep: int | None = None
    """On how many replicas all of it is kept; None where it is, or on none."""

    def share(self, cap: int) -> float:
        return self.samples.middle("attainment", cap)

    def least(self, cap: int) -> float:
        ends = self.samples.ends("attainment", cap)
        return math.nan if ends is None else ends[0]


def plan_json(plan: FleetPlan) -> dict[str, Any]:
    """Return the object that ``tuner plan --json`` prints."""
    fields = {k: v for k, v in vars(plan).items() if k not in {"samples", "guesses"}}
    steps = [{"max_num_seqs": cap, **_step(plan, cap)} for cap in plan.samples.caps]
    return {**fields, "steps": steps}


def _step(plan: FleetPlan, cap: int) -> dict[str, Any]:
    """Return what a cap gives a replica: middles, and intervals of 95 %, times in milliseconds."""
    samples = plan.samples
    middles = {name: samples.middle(name, cap) for name in ON_CURVE}
    return {
        **{
            in_ms(name): known(value * (1e3 if name.endswith("_s") else 1.0))
            for name, value in middles.items()
        },
        "intervals": samples.intervals(cap),
        "is_guess": cap in plan.guesses,
    }


def plan_page(plan: FleetPlan, profile: ServingProfile, *, subject: str, next_: str) -> Page:
    """Return what to run at this load and how many replicas it takes."""
    needed, cap = plan.replicas_needed, plan.max_num_seqs
    title = f"max_num_seqs {cap} on {replicas_in_words(needed or plan.replicas)}"
    if needed is None:
        title = f"no number of replicas serves {percent(plan.attainment)} within the SLO"
    elif plan.share(cap) < LOW:
        title = f"max_num_seqs {cap} on {plan.replicas:,} of {replicas_in_words(needed)}"
        title = with_share(plan.share(cap), title)
    times = "the profile's own traffic"
    if f"{plan.load:g}" != "1":
        times = f"{plan.load:g} times the profile's traffic"
    if plan.stored_requests >= MOST_STORED:
        times += f" (its busiest {plan.stored_requests:,} requests)"
    share, least = percent(plan.share(cap)), percent(plan.least(cap))
    facts = [
        ("load", f"{plan.rps:,.2f} req/s, {times}"),
        ("gives", f"{share} on {replicas_in_words(plan.replicas)} meet the SLO, {least} at least"),
    ]
    if needed is not None:
        words = f"{replicas_in_words(needed)} for {percent(plan.attainment)} at least"
        words += "" if plan.price is None else f", {needed * plan.price:,.2f} per hour"
        facts.append(("needs", words))
    counts = {cap: count for cap, count in plan.replicas_by_cap.items() if count is not None}
    cheapest = min(counts, key=lambda each: (counts[each], each), default=cap)
    if cheapest != cap and counts[cheapest] < counts.get(cap, math.inf):
        words = f"max_num_seqs {cheapest} on about {replicas_in_words(counts[cheapest])}"
        words += "" if plan.price is None else f" for {counts[cheapest] * plan.price:,.2f} per hour"
        facts.append(("cheapest", f"{words}: sweep a trace of this load"))
    if plan.required:
        facts.append(("requires", "; ".join(plan.required)))
    if plan.share(plan.best) > plan.share(cap) + EQUAL_ATTAINMENT:
        there = percent(plan.share(plan.best))
        words = f"with max_num_seqs {plan.best}, {there} would meet the SLO: sweep a trace of it"
        facts.append(("better", words))
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


def _table(plan: FleetPlan) -> Table:
    """Return what every cap gives a replica: likely, and at worst in 39 of 40 draws."""
    columns = [
        *(COLUMNS[name] for name in ("max_num_seqs", "attainment")),
        Column("attainment_least", "met least", "share"),
        *(COLUMNS[name] for name in ("goodput_rps", "tpot_p95_s", "e2el_p99_s")),
        Column("e2el_most_s", "E2EL worst", "time"),
        *(COLUMNS[name] for name in ("queue_p95_s", "kv_peak")),
        Column("replicas", "needs about", "count"),
        *([] if plan.price is None else [Column("per_hour", "per hour", "number")]),
    ]
    samples, rows = plan.samples, list[list[Cell]]()
    for cap in samples.caps:
        middle = {name: known(samples.middle(name, cap)) for name in ON_CURVE}
        worst = samples.ends("e2el_p99_s", cap)
        rows.append(
            [
                cap,
                middle["attainment"],
                plan.least(cap),
                middle["goodput_rps"],
                middle["tpot_p95_s"],
                middle["e2el_p99_s"],
                None if worst is None else worst[1],
                middle["queue_p95_s"],
                middle["kv_cache_usage_peak"],
                count := plan.replicas_by_cap[cap],
            ]
        )
        if plan.price is not None:
            rows[-1].append(None if count is None else plan.price * count)
    return Table(columns, rows, chosen=samples.caps.index(plan.max_num_seqs))


def shared_page(
    caps: Sequence[SharedCap],
    best: int,
    profiles: Sequence[ServingProfile],
    paths: Sequence[str],
    *,
    next_: str,
) -> Page:
    """Return which cap serves several kinds of traffic, and what each loses by it."""
    chosen = next(cap for cap in caps if cap.max_num_seqs == best)
    facts = list[tuple[str, str]]()
    for path, profile, share, lost, longer in zip(
        paths, profiles, chosen.shares, chosen.lost, chosen.longer, strict=True
    ):
        own = profile.decision.max_num_seqs
        costs = f"{100 * lost:.1f} points fewer and {longer:.2f}x the p99 E2EL of its own {own}"
        costs = "its own choice" if own == best else costs
        facts.append((ORDER[len(facts)], f"{path}: {percent(share)} met; {costs}"))
    columns = [COLUMNS["max_num_seqs"]]
    for number, name in enumerate(ORDER, 1):
        columns += [
            Column(f"met_{number}", f"met, {name}", "share"),
            Column(f"lost_{number}", "loses", "share"),
            Column(f"longer_{number}", "p99 E2EL x", "number"),
        ]
    rows: list[list[Cell]] = [
        [
            cap.max_num_seqs,
            *(
                cell
                for cells in zip(cap.shares, cap.lost, cap.longer, strict=True)
                for cell in cells
            ),
        ]
        for cap in caps
    ]
    place = [cap.max_num_seqs for cap in caps].index(best)
    return Page(
        subject=f"Plan for {' and '.join(paths)}",
        title=f"max_num_seqs {best} serves both kinds of traffic",
        aside="simulated" if any(map(is_simulated, profiles)) else "by their curves",
        facts=facts,
        sections=[Section("Every max_num_seqs", tables=[Table(columns, rows, chosen=place)])],
        next=next_,
    )


def known(value: float) -> float | None:
    return None if math.isnan(value) else value

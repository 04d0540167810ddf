"""The page and the JSON of a plan for a fleet. Pure."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from tuner.profile.plan import CapForecast
from tuner.profile.schema import ServingProfile
from tuner.profile.stored_twin import MOST_STORED
from tuner.profile.summary import LOW, is_simulated, percent, with_share
from tuner.twin.objective import EQUAL_ATTAINMENT
from tuner.views.numbers import COLUMNS
from tuner.views.page import Column, Page, Section, Table


@dataclass(frozen=True, slots=True)
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
    steps: list[CapForecast]
    checked: str
    """What confirmed the predictions."""
    warnings: list[str]
    required: list[str] = field(default_factory=list)
    """What is required of the profile's cap on these replicas, and at worst given."""
    broken: list[str] = field(default_factory=list)
    """Which of it is not kept."""
    replicas_that_keep: int | None = None
    """On how many replicas all of it is kept; None where it is, or on none."""

    @property
    def chosen(self) -> CapForecast:
        return next(step for step in self.steps if step.max_num_seqs == self.max_num_seqs)


def plan_json(plan: FleetPlan) -> dict[str, Any]:
    """Return the object that ``tuner plan --json`` prints."""
    return {name: _six_digits(value) for name, value in asdict(plan).items()}


def _six_digits(value: Any) -> Any:  # noqa: ANN401 - JSON content
    if isinstance(value, dict):
        return {key: _six_digits(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_six_digits(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def plan_page(plan: FleetPlan, profile: ServingProfile, *, subject: str, next_: str) -> Page:
    """Return what to run at this load and how many replicas it takes."""
    needed, cap, chosen = plan.replicas_needed, plan.max_num_seqs, plan.chosen
    title = f"max_num_seqs {cap} on {replicas_in_words(needed or plan.replicas)}"
    if needed is None:
        title = f"no number of replicas serves {percent(plan.attainment)} within the SLO"
    elif chosen.attainment_middle < LOW:
        title = f"max_num_seqs {cap} on {plan.replicas:,} of {replicas_in_words(needed)}"
        title = with_share(chosen.attainment_middle, title)
    times = "the profile's own traffic"
    if f"{plan.load:g}" != "1":
        times = f"{plan.load:g} times the profile's traffic"
    if plan.stored_requests >= MOST_STORED:
        times += f" (its busiest {plan.stored_requests:,} requests)"
    share, least = percent(chosen.attainment_middle), percent(chosen.attainment[0])
    facts = [
        ("load", f"{plan.rps:,.2f} req/s, {times}"),
        ("gives", f"{share} on {replicas_in_words(plan.replicas)} meet the SLO, {least} at least"),
    ]
    if needed is not None:
        words = f"{replicas_in_words(needed)} for {percent(plan.attainment)} at least"
        facts.append(("needs", words))
    known = {cap: count for cap, count in plan.replicas_by_cap.items() if count is not None}
    cheapest = min(known, key=lambda each: (known[each], each), default=cap)
    if cheapest != cap and known[cheapest] < known.get(cap, math.inf):
        words = f"max_num_seqs {cheapest} on about {replicas_in_words(known[cheapest])}"
        facts.append(("cheapest", f"{words}: sweep a trace of this load"))
    if plan.required:
        facts.append(("requires", "; ".join(plan.required)))
    best = next(step for step in plan.steps if step.max_num_seqs == plan.best)
    if best.attainment_middle > chosen.attainment_middle + EQUAL_ATTAINMENT:
        there = percent(best.attainment_middle)
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
    ]
    return Table(
        columns,
        [
            [
                step.max_num_seqs,
                step.attainment_middle,
                step.attainment[0],
                step.goodput_rps,
                _seconds(step.tpot_p95_ms),
                _seconds(step.e2el_p99_ms),
                _seconds(None if step.e2el_p99_range_ms is None else step.e2el_p99_range_ms[1]),
                _seconds(step.queue_p95_ms),
                step.kv_cache_usage_peak,
                plan.replicas_by_cap[step.max_num_seqs],
            ]
            for step in plan.steps
        ],
        chosen=[step.max_num_seqs for step in plan.steps].index(plan.max_num_seqs),
    )


def _seconds(time_ms: float | None) -> float | None:
    return None if time_ms is None else time_ms / 1e3

"""The output of ``tuner plan``."""

from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

from tuner.commands.plan.options import PlanOptions
from tuner.commands.shared.console import (
    TimeColumn,
    console_for,
    plain_table,
    print_block,
    print_warnings,
    shown,
)
from tuner.commands.shared.next_step import asked_for, command
from tuner.profile.plan import CapForecast
from tuner.profile.schema import ServingProfile
from tuner.profile.stored_twin import MOST_STORED
from tuner.profile.summary import LOW, first_said, is_simulated, percent
from tuner.profile.verdict_block import VerdictBlock
from tuner.twin.objective import EQUAL_ATTAINMENT


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """All that is printed of a plan."""

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
    stored_requests: int
    """How many requests the profile's traffic is here."""

    steps: list[CapForecast]
    checked: str
    """What the twin was held against."""

    warnings: list[str]
    required: list[str] = field(default_factory=list)
    """What is required of the profile's cap on these replicas, and at worst given."""

    broken: list[str] = field(default_factory=list)
    """Which of it is not kept."""

    replicas_that_keep: int | None = None
    """On how many replicas all of it is kept; None where it is, or on none."""


def json_of(found: FleetPlan) -> dict[str, Any]:
    """Return the object that ``tuner plan --json`` prints."""
    return {name: _six_digits(value) for name, value in asdict(found).items()}


def _six_digits(value: Any) -> Any:  # noqa: ANN401 - JSON content
    if isinstance(value, dict):
        return {key: _six_digits(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_six_digits(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return value


def render(found: FleetPlan, profile: ServingProfile, options: PlanOptions) -> None:
    """Print what each cap gives, then what to run at this load and how many replicas it takes."""
    console = console_for()
    console.print(_table(found))
    if options.details:
        console.print(f"SLO {shown(profile.decision.slo.slo)}")
    console.print()
    print_block(console, _block(found, profile, options))
    print_warnings(console, found.warnings, all_=options.details)


def _block(found: FleetPlan, profile: ServingProfile, options: PlanOptions) -> VerdictBlock:
    needed, cap = found.replicas_needed, found.max_num_seqs
    title = f"max_num_seqs {cap} on {replicas_in_words(needed or found.replicas)}"
    one = next(step for step in found.steps if step.max_num_seqs == cap)
    if needed is None:
        title = f"no number of replicas serves {percent(found.attainment)} in SLO"
    elif one.attainment_middle < LOW:
        title = f"max_num_seqs {cap} on {found.replicas:,} of {replicas_in_words(needed)}"
        title = first_said(one.attainment_middle, title)
    at_least, _ = one.attainment
    times = (
        "the profile's own" if f"{found.load:g}" == "1" else f"{found.load:g} times the profile's"
    )
    load = f"{found.rps:,.2f} req/s, {times} traffic"
    middle, worst = percent(one.attainment_middle), percent(at_least)
    rows = [
        ("load", load + _of_a_stretch(found.stored_requests)),
        ("gives", f"{middle} in SLO on {replicas_in_words(found.replicas)}, {worst} at least"),
    ]
    if needed is not None:
        rows.append(
            ("needs", f"{replicas_in_words(needed)} for {percent(found.attainment)} at least")
        )
    if found.required:
        rows.append(("requires", "; ".join(found.required)))
    best = next(step for step in found.steps if step.max_num_seqs == found.best)
    if best.attainment_middle > one.attainment_middle + EQUAL_ATTAINMENT:
        there = percent(best.attainment_middle)
        slots = f"{found.best} slots would serve more of this load, {there} in SLO"
        rows.append(("beside", f"{slots}: sweep a trace of it"))
    rests = f"the profile's forecast, {found.checked}; 'at least' holds in 39 of 40 draws"
    rows.append(("rests on", rests))
    step = _next(found, profile, options, is_served=at_least >= found.attainment)
    aside = f"{'simulated ' * is_simulated(profile)}forecast, --router {found.router}"
    return VerdictBlock(title, aside, rows, step)


def _next(
    found: FleetPlan, profile: ServingProfile, options: PlanOptions, *, is_served: bool
) -> str:
    """Return what to run: the rollout where that many replicas do, else the same question with as
    many as it takes, or the curves where no number does."""
    path = options.profile
    if profile.provenance.engine == "sim":
        return command("show", path)
    if is_served and not found.broken:
        return command("apply", path, "--dry-run")
    needed = found.replicas_that_keep if found.broken else found.replicas_needed
    if needed is None or needed == found.replicas:
        return command("report", path)
    return asked_for("plan", options, replicas=needed, json=False)


def replicas_in_words(count: int) -> str:
    return f"{count:,} replica{'s' * (count != 1)}"


def _of_a_stretch(requests: int) -> str:
    return f" (its busiest {requests:,} requests)" if requests >= MOST_STORED else ""


def _table(found: FleetPlan) -> Table:
    """Return what every cap gives a replica: likely, and at worst under 97.5 % of laws."""
    tails = [None if (ends := one.e2el_p99_range_ms) is None else ends[1] for one in found.steps]
    tpot = TimeColumn.of(_s(one.tpot_p95_ms) for one in found.steps)
    e2el = TimeColumn.of(map(_s, (*tails, *(one.e2el_p99_ms for one in found.steps))))
    queue = TimeColumn.of(_s(one.queue_p95_ms) for one in found.steps)
    table = plain_table(
        "max_num\n_seqs", " in SLO\nlikely", " in SLO\nat least", " goodput\nreq/s",
        f" TPOT\np95 {tpot.unit}", f" E2EL\np99 {e2el.unit}", f" E2EL p99\nat most {e2el.unit}",
        f" queue\np95 {queue.unit}", " KV\npeak",
    )  # fmt: skip
    for one, tail in zip(found.steps, tails, strict=True):
        chosen = one.max_num_seqs == found.max_num_seqs
        table.add_row(
            f"{'> ' if chosen else ''}{one.max_num_seqs}",
            f"{one.attainment_middle:.1%}",
            f"{one.attainment[0]:.1%}",
            f"{one.goodput_rps:,.2f}",
            tpot.shown(_s(one.tpot_p95_ms)),
            e2el.shown(_s(one.e2el_p99_ms)),
            e2el.shown(_s(tail)),
            queue.shown(_s(one.queue_p95_ms)),
            f"{one.kv_cache_usage_peak:.0%}",
            style="bold" if chosen else None,
        )
    return table


def _s(time_ms: float | None) -> float | None:
    return None if time_ms is None else time_ms / 1e3

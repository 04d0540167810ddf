"""The output of ``tuner plan``."""

from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from tuner.commands.shared.console import console_for, shown_ms
from tuner.profile.plan import CapForecast
from tuner.profile.schema import ServingProfile
from tuner.profile.stored_twin import MOST_STORED


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
    """The cap that the objective picks at this load."""

    attainment: float
    """The share that is to be served within the SLO."""

    replicas_needed: int | None
    stored_requests: int
    """How many requests the profile's traffic is here."""

    steps: list[CapForecast]
    twin_error: float | None
    warnings: list[str]


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


def render(found: FleetPlan, profile: ServingProfile) -> None:
    console = console_for()
    each = found.rps / found.replicas
    console.print(
        f"{found.rps:,.2f} req/s, {found.load:g} times the profile's traffic"
        f"{_of_a_stretch(found.stored_requests)}, over "
        f"{found.replicas:,} {'replica' if found.replicas == 1 else 'replicas'} "
        f"({each:,.2f} req/s each, router {found.router})"
    )
    console.print(_table(found))
    console.print()
    choice = f"max_num_seqs {found.max_num_seqs} is the profile's"
    if found.best != found.max_num_seqs:
        choice += f"; at this load {found.best} would be better"
    console.print(choice)
    if found.replicas_needed is not None:
        console.print(
            f"[bold]{found.replicas_needed:,} "
            f"{'replica serves' if found.replicas_needed == 1 else 'replicas serve'} "
            f"{found.attainment:.1%} within the SLO[/] at max_num_seqs {found.max_num_seqs}, as "
            "surely as the twin can say"
        )
    error = found.twin_error
    told = "was not held against a replay" if error is None else f"{error:.1%} in the median"
    console.print(f"SLO {escape(str(profile.decision.slo.slo))}; the twin's error {told}")
    for warning in found.warnings:
        console.print(f"[yellow]Warning:[/] {escape(warning)}")


def _of_a_stretch(requests: int) -> str:
    return f" (its busiest {requests:,} requests)" if requests >= MOST_STORED else ""


def _table(found: FleetPlan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in (
        "max_num\n_seqs", "in SLO", "(95 %)", "goodput\nreq/s", "TPOT\np95 ms", "E2EL\np99 ms",
        "(95 %)", "queue\np95 ms", "KV\npeak",
    ):  # fmt: skip
        table.add_column(heading, justify="right", no_wrap=True)
    for one in found.steps:
        chosen = one.max_num_seqs == found.max_num_seqs
        low, high = one.attainment
        tails = one.e2el_p99_range_ms
        table.add_row(
            f"{'> ' if chosen else ''}{one.max_num_seqs}",
            f"{one.attainment_middle:.1%}",
            f"{low:.1%}-{high:.1%}",
            f"{one.goodput_rps:,.2f}",
            shown_ms(one.tpot_p95_ms),
            shown_ms(one.e2el_p99_ms),
            "-" if tails is None else f"{shown_ms(tails[0])}-{shown_ms(tails[1])}",
            shown_ms(one.queue_p95_ms),
            f"{one.kv_cache_usage_peak:.0%}",
            style="bold" if chosen else None,
        )
    return table

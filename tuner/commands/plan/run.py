"""What ``tuner plan`` does, and how it looks."""

import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from tuner.commands.shared.console import console_for, shown_ms
from tuner.errors import ProfileError, UsageError
from tuner.profile.plan import MOST_REPLICAS, CapForecast, FleetRouter, ask, replicas_for
from tuner.profile.profile import load as load_profile
from tuner.profile.schema import ServingProfile
from tuner.profile.stored_twin import MOST_STORED, StoredTwin, restored
from tuner.twin.uncertainty import EQUAL_ATTAINMENT, choose

MOST_LOAD = 16.0
LEAST_TARGET = 0.9
"""What is planned for where the profile itself promises less: nobody wants more of that."""


@dataclass(frozen=True, slots=True)
class Question:
    """The command line, as given."""

    profile: Path
    load: float | None
    rps: float | None
    replicas: int | None
    router: FleetRouter
    attainment: float | None
    seed: int
    json: bool


@dataclass(frozen=True, slots=True)
class _Plan:
    """What there is to print."""

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


def run(question: Question) -> None:
    """Ask and print. Raises ProfileError and UsageError."""
    profile = load_profile(question.profile)
    if profile.twin is None:
        raise ProfileError(
            f"{question.profile}: twin: is null: the windows alone decided this profile",
            hint="Sweep on a quieter machine or longer, so that the twin is believed.",
        )
    twin = restored(profile.twin, source=str(question.profile))
    found = _planned(question, profile, twin)
    if question.json:
        sys.stdout.write(json.dumps(_jsonable(asdict(found))) + "\n")
    else:
        _render(found, profile)


def _planned(question: Question, profile: ServingProfile, twin: StoredTwin) -> _Plan:
    captured_rps = len(twin.traffic) / twin.length_s
    load = _load(question, captured_rps)
    slo = profile.decision.slo.slo
    cap = profile.decision.max_num_seqs
    target = question.attainment
    if target is None:
        target = max(LEAST_TARGET, _promised(profile) - EQUAL_ATTAINMENT)
    how: dict[str, Any] = {"load": load, "router": question.router, "seed": question.seed}
    caps = sorted({step.max_num_seqs for step in profile.curve} | {cap})
    needed = replicas_for(twin, slo, cap, attainment=target, **how)
    replicas = question.replicas or needed or max(1, math.ceil(load))
    if load / replicas > MOST_LOAD:
        raise UsageError(
            f"{load / replicas:,.0f} times the profile's traffic on one replica is no question",
            hint="Leave out --replicas to find out how many the load needs.",
        )
    steps = ask(twin, slo, caps, replicas=replicas, **how)
    return _Plan(
        load=load,
        rps=load * captured_rps,
        replicas=replicas,
        router=question.router,
        max_num_seqs=cap,
        best=choose({one.max_num_seqs: _value(one) for one in steps}),
        attainment=target,
        replicas_needed=needed,
        stored_requests=len(twin.traffic),
        steps=steps,
        twin_error=profile.provenance.twin_error,
        warnings=_warnings(profile, load / replicas, steps, needed),
    )


def _promised(profile: ServingProfile) -> float:
    """Return the attainment that the twin is sure of as captured."""
    for one in profile.promise.predicted:
        if one.load == 1.0 and "attainment" in one.intervals:
            return min(one.attainment, one.intervals["attainment"][0])
    return profile.promise.attainment


def _load(question: Question, captured_rps: float) -> float:
    if question.load is not None and question.rps is not None:
        raise UsageError("--load and --rps say the same thing", hint="Give one of them.")
    load = question.load if question.load is not None else 1.0
    if question.rps is not None:
        load = question.rps / captured_rps
    if not (math.isfinite(load) and 0 < load <= 1e6):
        raise UsageError(
            f"a load of {load:g} cannot be planned for",
            hint="Give a positive multiple of the traffic, such as --load 1.5.",
        )
    return load


def _value(one: CapForecast) -> tuple[float, float]:
    tail_ms = one.e2el_p99_ms
    return one.attainment_middle, math.inf if tail_ms is None else math.log(tail_ms)


def _warnings(
    profile: ServingProfile, load: float, steps: list[CapForecast], needed: int | None
) -> list[str]:
    said = []
    if (one := profile.provenance.of_ranks) is not None:
        said.append(f"{one}; a replica here is such a rank")
    if load > profile.validity.validated_load * 1.001:
        said.append(
            f"{load:.2f} times the load on a replica is more than the "
            f"{profile.validity.validated_load:g} that was validated: a forecast, not a measurement"
        )
    if guessed := [str(one.max_num_seqs) for one in steps if one.is_guess]:
        said.append(
            f"batches larger than any that was measured: what is said of {', '.join(guessed)} is "
            "a guess"
        )
    if needed is None:
        said.append(f"{MOST_REPLICAS:,} replicas do not serve the share that is asked for")
    return said


def _jsonable(value: Any) -> Any:  # noqa: ANN401 - JSON content
    if isinstance(value, dict):
        return {key: _jsonable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return value


def _render(found: _Plan, profile: ServingProfile) -> None:
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


def _table(found: _Plan) -> Table:
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

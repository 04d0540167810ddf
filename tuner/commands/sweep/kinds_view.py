"""How sweeps on several kinds of nodes look beside each other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape

from tuner.commands.shared.console import console_for, shown_ms
from tuner.commands.sweep.done import Done, warnings_of
from tuner.commands.sweep.view import TABLE_WIDTH, plain_table, render_found
from tuner.errors import TunerError
from tuner.replay.measure import Measurement, Spread
from tuner.runs.cluster.prices import per_million_tokens
from tuner.runs.result import json_object


@dataclass(frozen=True, slots=True)
class Found:
    """What one kind of node came to."""

    kind: str
    takes: str
    """What an engine takes of such a node."""

    done: Done | TunerError
    per_hour: float | None
    """Price of one engine."""

    profile: Path

    @property
    def numbers(self) -> Measurement | None:
        """What the chosen cap does, for all of the traffic."""
        if isinstance(self.done, TunerError):
            return None
        outcome = self.done.outcome
        return outcome.conclusion.step(outcome.verdict.max_num_seqs).numbers

    @property
    def per_million(self) -> float | None:
        """What a million output tokens cost of requests within the SLO; None without a price."""
        if self.per_hour is None or (one := self.numbers) is None:
            return None
        return per_million_tokens(self.per_hour, one.output_tokens_per_s * one.attainment)


def json_of(found: Sequence[Found], run_dir: Path) -> dict[str, Any]:
    """Return the object that ``tuner sweep --ray --json`` prints."""
    kinds: dict[str, Any] = {}
    for one in found:
        said = {"takes": one.takes, "price_per_hour": one.per_hour}
        if isinstance(one.done, TunerError):
            kinds[one.kind] = {**said, "failed": str(one.done)}
            continue
        result = json_object(
            one.done.outcome,
            run_dir=str(one.done.run_dir),
            profile=str(one.profile),
            warnings=warnings_of(one.done),
        )
        cost = one.per_million
        cost = cost if cost is not None and math.isfinite(cost) else None
        kinds[one.kind] = {**result, **said, "cost_per_million_output_tokens": cost}
    return {"kinds": kinds, "run_dir": str(run_dir)}


def render_kinds(found: Sequence[Found], run_dir: Path) -> None:
    """Print what each kind comes to, then all of them beside each other."""
    console = console_for(at_least=TABLE_WIDTH)
    for one in found:
        console.print(f"[bold]{escape(one.kind)}[/], {one.takes} an engine", soft_wrap=True)
        if isinstance(one.done, TunerError):
            console.print(f"[yellow]Failed:[/] {escape(str(one.done))}", soft_wrap=True)
        else:
            render_found(
                one.done.outcome,
                profile_path=one.profile,
                run_dir=one.done.run_dir,
                warnings=warnings_of(one.done),
            )
        console.print()
    table = plain_table(
        "kind", "verdict", "cap", "in SLO", "goodput\nreq/s", "TTFT\np95 ms", "TPOT\np95 ms",
        "E2EL\np95 ms", "tok/s", "cost per\n1M tokens",
    )  # fmt: skip
    for one in found:
        if isinstance(one.done, Done) and (numbers := one.numbers) is not None:
            verdict = one.done.outcome.verdict
            table.add_row(
                escape(one.kind),
                f" {verdict.kind}",
                f" {verdict.max_num_seqs}",
                f" {numbers.attainment:.1%}",
                f" {numbers.goodput_rps:.2f}",
                *(_p95(each) for each in (numbers.ttft_s, numbers.tpot_s, numbers.e2el_s)),
                f" {numbers.output_tokens_per_s:,.0f}",
                _cost(one.per_million),
            )
    console.print("the same traffic on each kind, at its own cap")
    console.print(table)
    if any(one.per_million is not None for one in found):
        console.print("cost: per million output tokens of requests within the SLO, at this load")
    console.print(f"measurements: {escape(str(run_dir))}", soft_wrap=True)


def _p95(one: Spread | None) -> str:
    return f" {shown_ms(None if one is None else one.p95 * 1e3)}"


def _cost(cost: float | None) -> str:
    if cost is None:
        return " -"
    return f" {cost:,.2f}" if math.isfinite(cost) else " none served"

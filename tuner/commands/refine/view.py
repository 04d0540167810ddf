"""The output of ``tuner refine``."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tuner.commands.refine.plan import OTHER_TRACE
from tuner.commands.shared.console import (
    TimeColumn,
    console_for,
    plain_table,
    print_end,
    print_warnings,
    shown,
)
from tuner.commands.shared.next_step import after, command, is_short
from tuner.profile.schema import ServingProfile
from tuner.profile.summary import block_of, engine_time, is_simulated
from tuner.profile.verdict_block import VerdictBlock
from tuner.runs.refine.knobs import LIVE, Configuration, Space
from tuner.runs.refine.objective import Objective
from tuner.runs.refine.refinement import REFINED, Refinement, RefinePlan, TrialRow
from tuner.runs.refine.trials import in_words


def said_of_space(space: Space) -> Iterator[str]:
    """Yield a line for everything that is searched, and for what is not."""
    for knob in space.knobs:
        values = ", ".join("default" if one is None else str(one) for one in knob.values)
        how = "live" if knob.name in LIVE else "an engine each"
        yield f"searching {knob.name} ({how}): {values}; {knob.why}"
    for line in space.left_out:
        yield f"not searching {line}"


@dataclass(frozen=True, slots=True)
class RefinePrint:
    """The facts that are printed of a refinement beside what it found."""

    profile: ServingProfile
    """What was written."""

    path: Path
    trace: Path
    run_dir: Path
    details: bool


def render(found: Refinement, plan: RefinePlan, how: RefinePrint) -> None:
    """Print the trials, the comparison and what it means."""
    console = console_for()
    console.print(trials_table(found.trials, found.chosen, plan.space.knee, plan.aim))
    if how.details:
        _print_details(console, found)
    for failed in found.failed:
        console.print(f"[yellow]Failed:[/] {shown(failed)}")
    console.print()
    print_end(console, how.run_dir, block_of_refinement(found, how))
    before = [
        one
        for one in found.warnings
        if one in {*plan.warnings, *plan.profile.provenance.warnings} and one != OTHER_TRACE
    ]
    doubts = [one for one in found.warnings if one not in before]
    print_warnings(
        console,
        [*doubts, *before] if how.details else doubts,
        all_=how.details,
        before=0 if how.details else len(before),
    )


def block_of_refinement(found: Refinement, how: RefinePrint) -> VerdictBlock:
    """Return the verdict on a refinement: what is better and by how much, or that nothing is."""
    profile = how.profile
    block = block_of(profile, next_=after(profile, how.path))
    rows = dict(block.rows)
    count = len(found.trials) - 1
    spent_s = sum(found.starts_s) + found.replay_s
    rows["checked"] = f"{count} trials, {engine_time(spent_s, simulated=is_simulated(profile))}"
    simulated = "simulated, " * is_simulated(profile)
    if found.outcome is None:
        _, _, rows["why"] = found.reason.rpartition(REFINED)
        return replace(block, aside=f"{simulated}the knee stays", rows=list(rows.items()))
    assert found.paired is not None
    del rows["why"]
    gains = "; ".join(map(str, found.paired.ratios.values()))
    first, *rest = rows.items()
    doubt, colon, _ = block.title.rpartition(": ")
    return replace(
        block,
        title=doubt + colon + in_words(found.chosen),
        aside=f"{simulated}better, proven in {found.paired.pairs} pairs",
        rows=[first, ("gains", gains), *rest],
        next=_verifying(profile, how),
    )


def _verifying(profile: ServingProfile, how: RefinePrint) -> str:
    if profile.provenance.engine == "sim" or is_short(profile):
        return after(profile, how.path)
    return command("verify", how.path, "--trace", how.trace)


def _print_details(console: Console, found: Refinement) -> None:
    console.print()
    if found.paired is not None:
        chosen = shown(in_words(found.chosen))
        console.print(f"{chosen} against the knee, {found.paired.pairs} pairs in turns")
        for ratio in found.paired.ratios.values():
            console.print(f"  {ratio}")
    console.print(shown(found.reason))
    starts = len(found.starts_s)
    console.print(
        f"{starts} engine start{'s' * (starts != 1)}, {sum(found.starts_s):.0f}s; "
        f"{found.replay_s:.0f}s of replay"
    )


def trials_table(
    trials: Sequence[TrialRow], chosen: Configuration, knee: Configuration, aim: Objective
) -> Table:
    """Return every trial that served, the chosen one marked."""
    table = plain_table(gap=1)
    table.add_column("configuration", overflow="fold")  # what is cut off is lost
    served = [one.measured for one in trials if not one.cut]
    tpot = TimeColumn.of(one.tpot_s.p95 for one in served if one.tpot_s)
    e2el = TimeColumn.of(one.e2el_s.p99 for one in served if one.e2el_s)
    for heading in (
        f"{aim.name}\ngain",
        "in SLO",
        "goodput\nreq/s",
        f"TPOT\np95 {tpot.unit}",
        f"E2EL\np99 {e2el.unit}",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in trials:
        style = "bold" if one.configuration == chosen else None
        table.add_row(
            "\n".join(map(shown, _words(one, knee).splitlines())),
            "-" if one.gain is None else f"{math.expm1(one.gain):+.1%}",
            *_numbers(one, tpot, e2el),
            style="dim" if one.cut else style,
        )
    return table


def _words(one: TrialRow, knee: Configuration) -> str:
    changed = {
        name: "default" if value is None else value
        for name, value in one.configuration.items()
        if value != knee.get(name)
    }
    words = in_words(changed) if changed else f"the knee: {in_words(knee)}"
    return f"{words}\nended early in {one.cut}" if one.cut else words


def _numbers(one: TrialRow, tpot: TimeColumn, e2el: TimeColumn) -> list[str]:
    """Return what was measured; of a trial that was ended early only the most that it attains."""
    measured = one.measured
    if one.cut:
        return [f"<={measured.attainment_bound:.1%}", "-", "-", "-"]
    return [
        f"{measured.attainment:.1%}",
        f"{measured.goodput_rps:.2f}",
        tpot.shown(measured.tpot_s.p95 if measured.tpot_s else None),
        e2el.shown(measured.e2el_s.p99 if measured.e2el_s else None),
    ]


def json_of(
    found: Refinement, plan: RefinePlan, *, run_dir: Path, profile_path: Path
) -> dict[str, Any]:
    """Return the object that ``tuner refine --json`` prints."""
    paired = found.paired
    return {
        "refined": found.outcome is not None,
        "reason": found.reason,
        "chosen": dict(found.chosen),
        "knee": dict(plan.space.knee),
        "ratios": {
            name: {
                "value": one.value,
                "low": one.low,
                "high": one.high,
                "forecast": one.forecast,
            }
            for name, one in (paired.ratios if paired else {}).items()
        },
        "pairs": paired.pairs if paired else 0,
        "windows": [[str(window) for window in pair] for pair in found.pairs],
        "objective": plan.aim.name,
        "trials": [
            {
                "configuration": dict(one.configuration),
                "gain": one.gain,
                "replayed": one.replayed,
                "foreseen": one.foreseen,
                "keeps_slo": one.keeps_slo,
                "attainment": None if one.cut else one.measured.attainment,
                "attainment_bound": one.measured.attainment_bound,
                "goodput_rps": None if one.cut else one.measured.goodput_rps,
                "cut": one.cut,
            }
            for one in found.trials
        ],
        "space": [
            {"name": knob.name, "values": list(knob.values), "why": knob.why}
            for knob in plan.space.knobs
        ],
        "left_out": list(plan.space.left_out),
        "failed": list(found.failed),
        "complete": found.complete,
        "engine_starts": len(found.starts_s),
        "engine_seconds": {"starts": sum(found.starts_s), "replay": found.replay_s},
        "run_dir": str(run_dir),
        "profile": str(profile_path),
        "warnings": list(found.warnings),
    }

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
from tuner.runs.refine.study.importance import FEWEST
from tuner.runs.refine.trial_runner import told


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
    space, objectives = plan.space, plan.objectives
    console.print(trials_table(found.trials, found.chosen, space.knee, objectives))
    if how.details:
        _print_details(console, found, plan)
    for one in found.front:
        gained = ", ".join(
            f"{aim.name} {gain}"
            for aim, gain in zip(objectives, _gains(one, len(objectives)), strict=True)
        )
        console.print(f"on the front: {shown(told(one.configuration))}: {gained}")
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
    count = len(found.trials) - 1 + found.pruned
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
        title=doubt + colon + told(found.chosen),
        aside=f"{simulated}better, proven in {found.paired.pairs} pairs",
        rows=[first, ("gains", gains), *rest],
        next=_verifying(profile, how),
    )


def _verifying(profile: ServingProfile, how: RefinePrint) -> str:
    if profile.provenance.engine == "sim" or is_short(profile):
        return after(profile, how.path)
    return command("verify", how.path, "--trace", how.trace)


def _print_details(console: Console, found: Refinement, plan: RefinePlan) -> None:
    console.print()
    if found.paired is not None:
        chosen = shown(told(found.chosen))
        console.print(f"{chosen} against the knee, {found.paired.pairs} pairs in turns")
        for ratio in found.paired.ratios.values():
            console.print(f"  {ratio}")
    console.print(shown(found.reason))
    _print_importances(console, found, plan.space)
    starts, pruned = len(found.starts_s), found.pruned
    console.print(
        f"{starts} engine start{'s' * (starts != 1)}, {sum(found.starts_s):.0f}s; "
        f"{found.replay_s:.0f}s of replay; {pruned} trial{'s' * (pruned != 1)} ended early, by the "
        "twin or a cut"
        + (f"; {found.of_others} more of others who share the study" if found.of_others else "")
    )


def trials_table(
    trials: Sequence[TrialRow],
    chosen: Configuration,
    knee: Configuration,
    objectives: Sequence[Objective],
) -> Table:
    """Return every trial that served, those of one place together and the chosen one marked."""
    table = plain_table(gap=1)
    table.add_column("configuration", overflow="fold")  # what is cut off is lost
    served = [one.measured for one in trials if not one.cut]
    tpot = TimeColumn.of(one.tpot_s.p95 for one in served if one.tpot_s)
    e2el = TimeColumn.of(one.e2el_s.p99 for one in served if one.e2el_s)
    twin = ",\nwith twin" if any(one.foreseen is not None for one in trials) else ""
    for heading in (
        *(f"{aim.name}\ngain{twin}" for aim in objectives),
        "in SLO",
        "goodput\nreq/s",
        f"TPOT\np95 {tpot.unit}",
        f"E2EL\np99 {e2el.unit}",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    workers = list(dict.fromkeys(one.worker for one in trials))
    for worker in workers:
        if len(workers) > 1:
            table.add_section()
            table.add_row(f"on {shown(worker)}", style="dim")
        for one in trials:
            if one.worker == worker:
                style = "bold" if one.configuration == chosen else None
                words = _words(one, knee)
                if len(objectives) > 1:  # so narrow that a value is a line's own
                    words = words.replace("=", "= ")
                table.add_row(
                    "\n".join(map(shown, words.splitlines())),
                    *(_gains(one, len(objectives))),
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
    words = told(changed) if changed else f"the knee: {told(knee)}"
    return f"{words}\nended early in {one.cut}" if one.cut else words


def _gains(one: TrialRow, aims: int) -> list[str]:
    return ["-"] * aims if one.gains is None else [f"{math.expm1(gain):+.1%}" for gain in one.gains]


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


def _print_importances(console: Console, found: Refinement, space: Space) -> None:
    for aim, shares in found.importances:
        if not shares:
            console.print(shown(_why_unknown(aim, space)))
        for one in shares:
            console.print(
                f"{one.name} explains {one.share:.0%} of {aim} ({one.low:.0%} to {one.high:.0%})"
            )


def _why_unknown(aim: str, space: Space) -> str:
    if len(space.knobs) == 1:
        return f"{space.knobs[0].name} alone was searched: there is nothing to weigh for {aim}"
    return (
        f"which argument matters for {aim} cannot be told from these trials: it takes {FEWEST} at "
        "least, and a share that chance does not explain"
    )


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
                "replayed": one.value,
                "forecast": one.forecast,
            }
            for name, one in (paired.ratios if paired else {}).items()
        },
        "pairs": paired.pairs if paired else 0,
        "windows": [[str(window) for window in pair] for pair in found.pairs],
        "objective": [aim.name for aim in plan.objectives],
        "trials": [
            {
                "configuration": dict(one.configuration),
                "gains": one.gains,
                "replayed": one.replayed,
                "foreseen": one.foreseen,
                "keeps_slo": one.keeps_slo,
                "attainment": None if one.cut else one.measured.attainment,
                "attainment_bound": one.measured.attainment_bound,
                "goodput_rps": None if one.cut else one.measured.goodput_rps,
                "cut": one.cut,
                "worker": one.worker or None,
            }
            for one in found.trials
        ],
        "front": [dict(one.configuration) for one in found.front],
        "importance": {
            aim: {one.name: [one.share, one.low, one.high] for one in shares} or None
            for aim, shares in found.importances
        },
        "space": [
            {"name": knob.name, "values": list(knob.values), "why": knob.why}
            for knob in plan.space.knobs
        ],
        "left_out": list(plan.space.left_out),
        "pruned": found.pruned,
        "of_others": found.of_others,
        "failed": list(found.failed),
        "complete": found.complete,
        "engine_starts": len(found.starts_s),
        "engine_seconds": {"starts": sum(found.starts_s), "replay": found.replay_s},
        "run_dir": str(run_dir),
        "profile": str(profile_path),
        "warnings": list(found.warnings),
    }

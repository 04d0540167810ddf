"""The page and the JSON of a refinement. Pure."""

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from msgspec.structs import replace

from tuner.profile.profile import ServingProfile
from tuner.profile.summary import engine_time, is_simulated
from tuner.runs.events import Configuration
from tuner.runs.refine.refine import THEN_REFINED, Refinement, RefinePlan, TrialRow
from tuner.runs.refine.space import LIVE, Space, in_words
from tuner.views.numbers import COLUMNS, cells
from tuner.views.page import Cell, Column, Page, Section, Table
from tuner.views.profile import profile_page

MEASURED = ("attainment", "goodput_rps", "tpot_p95_s", "e2el_p99_s")


def refine_page(
    refinement: Refinement, plan: RefinePlan, profile: ServingProfile, *, run_dir: str, next_: str
) -> Page:
    """Return what is better and by how much, or that nothing is, above the refined profile's."""
    page = profile_page(profile, subject=f"Refinement {run_dir}", next_=next_)
    facts, aside = dict(page.facts), "the knee stays"
    spent_s = sum(refinement.starts_s) + refinement.replay_s
    took = engine_time(spent_s, simulated=is_simulated(profile))
    facts["knee"] = in_words(plan.space.knee)
    facts["checked"] = f"{len(refinement.trials) - 1} trials, {took}"
    if refinement.outcome is None:
        facts["why"] = refinement.reason.rpartition(THEN_REFINED)[2]
    elif refinement.proof is not None:
        facts.pop("why", None)
        gains = refinement.proof.in_words()
        facts = {"set": in_words(refinement.chosen), "gains": gains, **facts}
        aside = f"better, proven in {refinement.proof.pairs} pairs"
    (curve,) = page.sections
    tables = [replace(table, is_detail=True) for table in curve.tables]
    search = Section(
        "Search", f"{len(refinement.trials)} trials.", tables=[_trials(refinement, plan)]
    )
    failed = [f"failed: {each}" for each in refinement.failed]
    return replace(
        page,
        aside="simulated, " * is_simulated(profile) + aside,
        facts=list(facts.items()),
        sections=[search, replace(curve, tables=tables)],
        details=[*failed, refinement.reason, *page.details],
        warnings=list(refinement.warnings),
        run_dir=run_dir,
    )


def _trials(refinement: Refinement, plan: RefinePlan) -> Table:
    columns = [
        Column("configuration", "configuration"),
        Column("gain", "goodput gain", "change"),
        *(COLUMNS[name] for name in MEASURED),
    ]
    chosen = [trial.configuration == refinement.chosen for trial in refinement.trials]
    return Table(
        columns,
        [_row(trial, plan.space.knee) for trial in refinement.trials],
        chosen=chosen.index(True) if True in chosen else None,
    )


def _row(trial: TrialRow, knee: Configuration) -> list[Cell]:
    """Return a trial; of one that ended early only the most that it could attain."""
    changed = {k: v for k, v in trial.configuration.items() if v != knee.get(k)}
    words = in_words(changed) if changed else "the knee"
    gain = None if trial.gain is None else math.expm1(trial.gain)
    if not trial.cut:
        return [words, gain, *cells(trial.measured, *MEASURED)]
    bound = f"<={100 * trial.measured.attainment_bound:.1f}%"
    return [f"{words}, ended early in {trial.cut}", gain, bound, *[None] * (len(MEASURED) - 1)]


def refine_json(
    refinement: Refinement, plan: RefinePlan, *, run_dir: str, profile: str
) -> dict[str, Any]:
    """Return the object that ``tuner refine --json`` prints."""
    proof, keys = refinement.proof, ("value", "low", "high")
    ratios = proof.ratios if proof else {}
    return {
        "refined": refinement.outcome is not None,
        "reason": refinement.reason,
        "chosen": dict(refinement.chosen),
        "knee": dict(plan.space.knee),
        "ratios": {
            name: {key: getattr(ratio, key) for key in keys} for name, ratio in ratios.items()
        },
        "pairs": proof.pairs if proof else 0,
        "trials": [
            {
                "configuration": dict(trial.configuration),
                "gain": trial.gain,
                "keeps_slo": trial.is_kept,
                "attainment": None if trial.cut else trial.measured.attainment,
                "attainment_bound": trial.measured.attainment_bound,
                "goodput_rps": None if trial.cut else trial.measured.goodput_rps,
                "cut": trial.cut,
            }
            for trial in refinement.trials
        ],
        "space": [asdict(knob) for knob in plan.space.knobs],
        "left_out": list(plan.space.left_out),
        "failed": list(refinement.failed),
        "complete": refinement.complete,
        "engine_starts": len(refinement.starts_s),
        "engine_seconds": {"starts": sum(refinement.starts_s), "replay": refinement.replay_s},
        "run_dir": run_dir,
        "profile": profile,
        "warnings": list(refinement.warnings),
    }


def space_lines(space: Space) -> Iterator[str]:
    """Yield a line for everything that is searched, and for what is not."""
    for knob in space.knobs:
        values = ", ".join("default" if value is None else str(value) for value in knob.values)
        how = "live" if knob.name in LIVE else "an engine each"
        yield f"searching {knob.name} ({how}): {values}; {knob.why}"
    for line in space.left_out:
        yield f"not searching {line}"

"""The page of a refinement. Pure."""

import math

from msgspec.structs import replace

from tuner.profile.profile import ServingProfile
from tuner.profile.summary import engine_time, is_simulated
from tuner.runs.journal import Configuration
from tuner.runs.refine.refine import THEN_REFINED, Refinement, TrialRow
from tuner.runs.refine.space import in_words
from tuner.views.page import Cell, Column, Page, Section, Table
from tuner.views.profile import COLUMNS, cells, profile_page

MEASURED = ("attainment", "goodput_rps", "tpot_p95_s", "e2el_p99_s")


def refine_page(
    refinement: Refinement,
    knee: Configuration,
    profile: ServingProfile,
    *,
    run_dir: str,
    next_: str,
) -> Page:
    """Return what is better and by how much, or that nothing is, above the refined profile's."""
    page = profile_page(profile, subject=f"Refinement {run_dir}", next_=next_)
    facts, aside = dict(page.facts), "the knee stays"
    spent_s = sum(refinement.starts_s) + refinement.replay_s
    took = engine_time(spent_s, simulated=is_simulated(profile))
    facts["knee"] = in_words(knee)
    facts["checked"] = f"{len(refinement.trials) - 1} trials, {took}"
    if refinement.outcome is None:
        facts["why"] = refinement.reason.rpartition(THEN_REFINED)[2]
    elif refinement.proof is not None:
        facts.pop("why", None)
        gains = refinement.proof.in_words()
        facts = {"set": in_words(refinement.chosen), "gains": gains, **facts}
        aside = f"better, proven in {refinement.proof.pairs} pairs"
    (curve,) = page.sections
    columns = [
        Column("configuration", "configuration"),
        Column("gain", "goodput gain", "change"),
        *(COLUMNS[name] for name in MEASURED),
    ]
    chosen = [trial.configuration == refinement.chosen for trial in refinement.trials]
    rows = [_row(trial, knee) for trial in refinement.trials]
    trials = Table(columns, rows, chosen=chosen.index(True) if True in chosen else None)
    search = Section("Search", f"{len(rows)} trials.", tables=[trials])
    failed = [f"failed: {each}" for each in refinement.failed]
    return replace(
        page,
        aside="simulated, " * is_simulated(profile) + aside,
        facts=list(facts.items()),
        sections=[search, replace(curve, tables=[])],
        details=[*failed, refinement.reason, *page.details],
        warnings=list(refinement.warnings),
        run_dir=run_dir,
    )


def _row(trial: TrialRow, knee: Configuration) -> list[Cell]:
    changed = {k: v for k, v in trial.configuration.items() if v != knee.get(k)}
    words = in_words(changed) if changed else "the knee"
    gain = None if trial.gain is None else math.expm1(trial.gain)
    return [words, gain, *cells(trial.measured, *MEASURED)]

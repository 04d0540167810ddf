"""The page of a refinement. Pure."""

import math
from collections.abc import Sequence

from msgspec.structs import replace

from tuner.profile.profile import ServingProfile
from tuner.profile.summary import engine_time, is_simulated
from tuner.runs.journal import Configuration, Failed
from tuner.runs.refine.refine import THEN_REFINED, Refining, TrialRow
from tuner.runs.refine.space import in_words
from tuner.views.page import Cell, Column, Page, Section, Table
from tuner.views.profile import COLUMNS, cells, profile_page

MEASURED = ("attainment", "goodput_rps", "tpot_p95_s", "e2el_p99_s")


def refine_page(
    refining: Refining,
    profile: ServingProfile,
    *,
    warnings: Sequence[str],
    next_: str,
) -> Page:
    """Return what is better and by how much, or that nothing is, above the refined profile's."""
    run_dir = str(refining.journal.run_dir)
    page = profile_page(profile, subject=f"Refinement {run_dir}", next_=next_)
    facts, aside, trials = dict(page.facts), "the knee stays", refining.rows()
    took = engine_time(refining.journal.spent_s(), simulated=is_simulated(profile))
    facts["knee"] = in_words(refining.knee)
    facts["checked"] = f"{len(trials) - 1} trials, {took}"
    if refining.outcome is None:
        facts["why"] = refining.reason.rpartition(THEN_REFINED)[2]
    elif refining.proof is not None:
        facts.pop("why", None)
        gains = refining.proof.in_words()
        facts = {"set": in_words(refining.chosen), "gains": gains, **facts}
        aside = f"better, proven in {refining.proof.pairs} pairs"
    (curve,) = page.sections
    columns = [
        Column("configuration", "configuration"),
        Column("gain", "goodput gain", "change"),
        *(COLUMNS[name] for name in MEASURED),
    ]
    chosen = [trial.configuration == refining.chosen for trial in trials]
    rows = [_row(trial, refining.knee) for trial in trials]
    table = Table(columns, rows, chosen=chosen.index(True) if True in chosen else None)
    search = Section("Search", f"{len(rows)} trials.", tables=[table])
    failed = [f"failed: {each.why}" for each in refining.journal.of(Failed)]
    return replace(
        page,
        aside="simulated, " * is_simulated(profile) + aside,
        facts=list(facts.items()),
        sections=[search, replace(curve, tables=[])],
        details=[*failed, refining.reason, *page.details],
        warnings=warnings,
        run_dir=run_dir,
    )


def _row(trial: TrialRow, knee: Configuration) -> list[Cell]:
    changed = {k: v for k, v in trial.configuration.items() if v != knee.get(k)}
    words = in_words(changed) if changed else "the knee"
    gain = None if trial.gain is None else math.expm1(trial.gain)
    return [words, gain, *cells(trial.measured, *MEASURED)]

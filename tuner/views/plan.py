"""The page of a plan for a fleet, and of a cap for two kinds of traffic. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tuner.profile.plan import Fleet, SharedCap
from tuner.profile.summary import is_simulated, percent, with_share
from tuner.views.numbers import COLUMNS
from tuner.views.page import Cell, Column, Page, Section, Table

SHOWN = ("attainment", "goodput_rps", "tpot_p95_s", "e2el_p99_s")
"""What the table has of every cap."""


def plan_page(fleet: Fleet, result: Mapping[str, Any], price: float | None, next_: str) -> Page:
    """Return what to run at this load and how many replicas it takes; ``price`` is of one per
    hour."""
    cap, needed, counts, rows = fleet.cap, fleet.needed, fleet.needed_by_cap, list[list[Cell]]()
    for each, count in counts.items():
        middles = [fleet.samples.middle(name, each) for name in SHOWN]
        least, _ = fleet.samples.ends("attainment", each) or (math.nan, math.nan)
        cost = None if price is None or count is None else price * count
        rows.append([each, *middles, least, count, cost])
    columns = [
        *(COLUMNS[name] for name in ("max_num_seqs", *SHOWN)),
        Column("attainment_least", "met least", "share"),
        Column("replicas", "needs about", "count"),
        Column("per_hour", "" if price is None else "per hour", "number"),
    ]
    table = Table(columns, rows, chosen=fleet.caps.index(cap))
    share, here = fleet.samples.middle("attainment", cap), replicas_in_words(fleet.replicas)
    title = with_share(share, f"max_num_seqs {cap} on {here}")
    of = f"{result['load']:g} times the profile's traffic ({len(fleet.twin.traffic):,} requests)"
    facts = [("load", f"{fleet.rps:,.2f} req/s, {of}")]
    if needed is None:
        title = f"no number of replicas serves {percent(fleet.target)} within the SLO"
    else:
        words = f"{replicas_in_words(needed)} for {percent(fleet.target)} at least"
        facts.append(("needs", words))
    cheapest = min(fleet.caps, key=lambda each: counts[each] or math.inf)
    if (counts[cheapest] or math.inf) < (counts[cap] or math.inf):
        words = f"max_num_seqs {cheapest} on about {counts[cheapest]:,}: sweep a trace of this load"
        facts.append(("cheapest", words))
    if result["required"]:
        facts.append(("requires", "; ".join(result["required"])))
    return Page(
        subject="Plan",
        title=title,
        aside=f"{'simulated ' * is_simulated(fleet.profile)}prediction, --router {fleet.router}",
        facts=facts,
        sections=[Section("Every max_num_seqs", tables=[table])],
        warnings=result["warnings"],
        next=next_,
    )


def replicas_in_words(count: int) -> str:
    return f"{count:,} replica{'s' * (count != 1)}"


def shared_page(
    caps: Sequence[SharedCap], best: SharedCap, paths: Sequence[str], *, next_: str
) -> Page:
    """Return which cap serves two kinds of traffic, and what each loses by it."""
    names = ("first", "second")
    columns = [
        COLUMNS["max_num_seqs"],
        *(Column(f"met_{name}", f"met, {name}", "share") for name in names),
        Column("lost", "loses", "share"),
        Column("longer", "p99 E2EL x", "number"),
    ]
    table = Table(
        columns,
        [[each.max_num_seqs, *each.shares, each.lost, each.longer] for each in caps],
        "the most that either loses, compared with its own choice",
        chosen=caps.index(best),
    )
    return Page(
        subject=f"Plan for {' and '.join(paths)}",
        title=f"max_num_seqs {best.max_num_seqs} serves both kinds of traffic",
        aside="by their curves",
        facts=[
            (name, f"{path}: {percent(share)} meet the SLO")
            for name, path, share in zip(names, paths, best.shares, strict=True)
        ],
        sections=[Section("Every max_num_seqs", tables=[table])],
        next=next_,
    )

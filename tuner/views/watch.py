"""The page of a watch. Pure."""

from collections.abc import Sequence

from tuner.live.watch import Watch
from tuner.profile.summary import is_simulated, percent, with_share
from tuner.views.page import Column, Page, Section, Table

COLUMNS = [
    Column("measure", "measure"),
    *(Column(name, name, "number") for name in ("mean", "low", "high")),
    Column("at_least", "at least", "number"),
    Column("at_most", "at most", "number"),
    Column("windows", "windows", "count"),
    Column("state", "state"),
]


def watch_page(watch: Watch, *, url: str, warnings: Sequence[str], next_: str) -> Page:
    """Return whether the server may keep its profile, and why."""
    title, facts = f"max_num_seqs {watch.cap}: {watch.verdict}", [("why", watch.reason)]
    if watch.choice is not None:
        share = watch.choice.samples.middle("attainment", watch.cap)
        facts.append(("today", f"{percent(share)} meet the SLO (predicted)"))
        title = with_share(share, title)
    windows = f"{watch.windows} window{'s' * (watch.windows != 1)}"
    facts.append(("seen", f"{watch.requests:,} requests at {url}, {windows}"))
    table = Table(
        COLUMNS,
        [
            [name, *each.mean, each.low, each.high, len(each.values), each.state]
            for name, each in watch.measures.items()
        ],
        "means over windows with 95% intervals: times the law, the profile's, or the cap",
    )
    return Page(
        subject=f"Watch of {url}",
        title=title,
        aside="simulated profile, " * is_simulated(watch.profile) + windows,
        facts=facts,
        sections=[Section("Windows", tables=[table])],
        warnings=list(warnings),
        next=next_,
    )

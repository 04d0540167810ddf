"""The page and the JSON of a watch. Pure."""

from collections.abc import Sequence
from typing import Any

from tuner.live.watch import LABELS, Watch
from tuner.profile.summary import is_simulated, percent, with_share
from tuner.views.page import Column, Page, Section, Table


def watch_page(watch: Watch, *, url: str, warnings: Sequence[str], next_: str) -> Page:
    """Return whether the server may keep its profile, and why."""
    choice, title = watch.choice, f"max_num_seqs {watch.cap}: {watch.verdict}"
    windows = f"{watch.windows} window{'s' * (watch.windows != 1)}"
    facts = [("why", watch.reason)]
    if choice is not None:
        facts.append(("today", f"{percent(choice.attainment)} meet the SLO (predicted)"))
        title = with_share(choice.attainment, title)
    facts.append(("seen", f"{watch.requests:,} requests at {url}, {windows}"))
    columns = [
        Column("measure", "measure"), Column("mean", "mean"), Column("windows", "windows", "count"),
        Column("state", "state"),
    ]  # fmt: skip
    table = Table(
        columns,
        [
            [LABELS[name], str(measure), len(measure.values), measure.state]
            for name, measure in watch.measures.items()
        ],
    )
    return Page(
        subject=f"Watch of {url}",
        title=title,
        aside="simulated profile, " * is_simulated(watch.profile) + windows,
        facts=facts,
        sections=[Section("Windows", tables=[table])] if watch.windows else [],
        warnings=list(warnings),
        next=next_,
    )


def watch_json(watch: Watch, *, profile: str, url: str, warnings: Sequence[str]) -> dict[str, Any]:
    """Return the object that ``tuner watch --json`` prints."""
    measures = {
        name: {
            "state": measure.state,
            "value": (mean := measure.interval()) and mean._asdict(),
            "low": measure.low,
            "high": measure.high,
            "windows": len(measure.values),
        }
        for name, measure in watch.measures.items()
    }
    return {
        "verdict": watch.verdict,
        "reason": watch.reason,
        "profile": profile,
        "url": url,
        "max_num_seqs": watch.cap,
        "windows": watch.windows,
        "requests": watch.requests,
        "restarts": watch.restarts,
        "most_running": watch.most_running,
        "measures": measures,
        "choice": watch.choice and watch.choice._asdict(),
        "warnings": list(warnings),
    }

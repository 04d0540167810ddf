"""The report of a refinement: its profile, and every trial around the knee."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from tuner.commands.report.drawing.chart import Bar, barred
from tuner.commands.report.drawing.page import (
    Cell,
    Figure,
    File,
    Page,
    PageSection,
    Table,
    csv_file,
)
from tuner.commands.report.replays import Step, read_back
from tuner.commands.report.sweep import (
    UNFINISHED,
    Shown,
    profile_page,
    said_by,
    said_of,
    undecided,
)
from tuner.commands.shared.kept_result import NAME, block_in, read_result
from tuner.commands.shared.next_step import after
from tuner.commands.shared.run_folder import goes_on
from tuner.profile.profile import load
from tuner.profile.summary import percent
from tuner.runs.engine_runner import in_words
from tuner.runs.evidence import Evidence
from tuner.runs.journal import Event, Journal
from tuner.runs.refine.trial_runner import told


def of_run(book: Journal, *, budget: int) -> Page:
    """Return the report of a refinement, as far as it came. Raises RunError, ProfileError."""
    run_dir, evidence = book.run_dir, Evidence(book)
    steps, lost = steps_of(book)
    path, chosen = run_dir / "profile.yaml", evidence.selection()
    shown = Shown(
        kind=f"Refinement {run_dir}",
        next=goes_on(book),
        budget=budget,
        steps=steps,
        windows=() if chosen is None else chosen.windows,
        partly=said_of(lost),
    )
    if not path.exists():
        partly = f"{UNFINISHED} {shown.partly}".strip()
        return undecided(replace(shown, partly=partly), evidence)
    profile = load(path)
    page = profile_page(profile, replace(shown, next=after(profile, path)), source=str(path))
    if not (run_dir / NAME).exists():  # of an older tuner
        return page
    found, content = read_result(run_dir, _check)
    sections = [_search_section(found), *page.sections]
    page = _answered(page, found, reason=profile.decision.reason)
    file = File(NAME, "every trial, the pairs and what was searched", "application/json", content)
    trials = csv_file("trials.csv", "every trial", HEADINGS, _rows(found))
    return replace(page, sections=sections, files=[*page.files, trials, file])


def _answered(page: Page, found: Mapping[str, Any], *, reason: str) -> Page:
    """Return the page with the answer that the refinement gave, and the whole reason for it."""
    if (block := block_in(found)) is None:  # of an older tuner
        better = f"better, proven in {found['pairs']} pairs"
        return replace(page, aside=better if found["refined"] else "the knee stays")
    rows = [(name, text) for name, text in block.rows if name != "why"]
    return said_by(replace(block, rows=[*rows, ("why", reason)]), page)


def steps_of(book: Journal) -> tuple[list[Step], list[str]]:
    """Return every trial that was replayed, and what could not be read back."""
    trials = list(book.of("trial"))
    found, lost = list[Step](), list[str]()

    def of(event: Event) -> object:
        return event["trial"]

    for number, events in groupby(sorted(book.of("replay"), key=lambda one: int(one["trial"])), of):
        event = trials[int(str(number))] if int(str(number)) < len(trials) else {}
        replays = read_back(book, events, lost)
        if replays:
            where = told(event.get("configuration", {}))
            title = f"{in_words(str(event.get('purpose', 'trial')))} {where}"
            found.append(Step(title, replays[0].max_num_seqs, replays))
    return found, lost


def _check(found: Mapping[str, Any]) -> None:
    _search_section(found), found["refined"], block_in(found)


HEADINGS = ("configuration", "gain", "in SLO", "goodput req/s", "ended early")


def _rows(found: Mapping[str, Any]) -> list[list[str]]:
    return [_row(one) for one in found["trials"]]


def _row(one: Mapping[str, Any]) -> list[str]:
    gains = one["gains"]
    goodput = one["goodput_rps"]
    share = one["attainment"]
    return [
        told(one["configuration"]),
        "-" if gains is None else ", ".join(f"{100 * float(gain):+.1f} %" for gain in gains),
        f"at most {percent(one['attainment_bound'])}" if share is None else percent(share),
        "-" if goodput is None else f"{goodput:,.2f}",
        str(one["cut"] or ""),
    ]


def _search_section(found: Mapping[str, Any]) -> PageSection:
    """Return the trials, and the comparison in turns."""
    parts: list[Any] = []
    known = [one for one in found["trials"] if one["gains"]]
    if known:
        bars = [
            Bar(_beside_knee(one, found), float(one["gains"][0]),
                look="accent" if one["configuration"] == found["chosen"] else "plain")
            for one in known
        ]  # fmt: skip
        aim = found["objective"][0]
        note = "over the knee; blue: what was kept"
        parts.append(
            [Figure(f"Gain in {aim}", barred(bars, lambda gain: f"{100 * gain:+.1f} %"), note)]
        )
    rows: list[list[Cell]] = [list(row) for row in _rows(found)]
    chosen = [one["configuration"] == found["chosen"] for one in found["trials"]]
    place = chosen.index(True) if True in chosen else None
    parts.append(Table("Every trial", HEADINGS, rows, chosen=place, text=(0, 4)))
    if found["ratios"]:
        parts.append(_pairs(found))
    said = (
        f"{len(found['trials'])} trials, {found['pruned']} more ended early by the twin or a cut."
    )
    return PageSection("Search", said, parts)


def _beside_knee(trial: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Return in what a trial differs from the knee."""
    other = trial["configuration"]
    return told({k: v for k, v in other.items() if found["knee"].get(k) != v}) or "the knee"


def _pairs(found: Mapping[str, Any]) -> Table:
    rows: Sequence[Sequence[Cell]] = [
        [name, f"{one['value']:.3f}", f"{one['low']:.3f} to {one['high']:.3f}"]
        for name, one in found["ratios"].items()
    ]
    caption = f"{told(found['chosen'])} over the knee, in {found['pairs']} pairs replayed in turns"
    return Table(caption, ("", "ratio", "95 %"), rows)

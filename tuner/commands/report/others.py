"""The reports of a refinement and of a verification: their tables, and every replay."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

from tuner.commands.report.drawing.page import Cell, Page, PageSection, Table
from tuner.commands.report.replays import Step, read_back, replay_section
from tuner.commands.report.sweep import UNFINISHED, Shown, profile_page, said_of, undecided
from tuner.commands.shared.kept_result import block_in, read_result
from tuner.commands.shared.run_folder import goes_on
from tuner.commands.verify.view import SHARES, TIMES
from tuner.profile.profile import load
from tuner.profile.summary import milliseconds, percent
from tuner.runs.engine_runner import in_words
from tuner.runs.evidence import Evidence
from tuner.runs.journal import Event, Journal
from tuner.runs.refine.trials import in_words as words_of


def of_refinement(book: Journal) -> Page:
    """Return the report of a refinement, as far as it came. Raises RunError, ProfileError."""
    run_dir, evidence = book.run_dir, Evidence(book)
    steps, lost = _trials(book)
    path, chosen = run_dir / "profile.yaml", evidence.selection()
    shown = Shown(
        kind=f"Refinement {run_dir}",
        next=goes_on(book),
        steps=steps,
        windows=() if chosen is None else chosen.windows,
        partly=said_of(lost),
    )
    if not path.exists():
        partly = f"{UNFINISHED} {shown.partly}".strip()
        return undecided(replace(shown, partly=partly), evidence)
    result, _ = read_result(run_dir, lambda one: (_search(one), block_in(one)))
    profile = load(path)
    page = profile_page(profile, shown, source=str(path))
    return _answered(replace(page, sections=[_search(result), *page.sections]), result)


def _trials(book: Journal) -> tuple[list[Step], list[str]]:
    """Return every trial that was replayed, and what could not be read back."""
    trials = list(book.of("trial"))
    steps, lost = list[Step](), list[str]()

    def of(event: Event) -> int:
        return int(event["trial"])

    for number, events in groupby(sorted(book.of("replay"), key=of), of):
        event = trials[number] if number < len(trials) else {}
        replays = read_back(book, events, lost)
        if replays:
            where = words_of(event.get("configuration", {}))
            title = f"{in_words(str(event.get('purpose', 'trial')))} {where}"
            steps.append(Step(title, replays[0].max_num_seqs, replays))
    return steps, lost


def _search(result: Mapping[str, Any]) -> PageSection:
    headings = ("configuration", "gain", "in SLO", "goodput req/s", "ended early")
    chosen = [one["configuration"] == result["chosen"] for one in result["trials"]]
    trials = Table(
        "Every trial",
        headings,
        [_trial(one) for one in result["trials"]],
        chosen=chosen.index(True) if True in chosen else None,
        text=(0, 4),
    )
    note = f"{len(result['trials'])} trials."
    return PageSection("Search", note, [trials])


def _trial(one: Mapping[str, Any]) -> list[Cell]:
    gain, goodput, share = one["gain"], one["goodput_rps"], one["attainment"]
    return [
        words_of(one["configuration"]),
        "-" if gain is None else f"{100 * float(gain):+.1f} %",
        f"at most {percent(one['attainment_bound'])}" if share is None else percent(share),
        "-" if goodput is None else f"{goodput:,.2f}",
        str(one["cut"] or ""),
    ]


def of_verification(book: Journal) -> Page:
    """Return the report of a verification. Raises RunError, ProfileError."""
    run_dir = book.run_dir
    profile = load(run_dir / "profile.yaml")
    result, _ = read_result(run_dir, lambda one: (_gates(one), block_in(one), str(one["trace"])))
    cap = profile.decision.max_num_seqs
    sections = [_gates(result)]
    if replays := [book.replay(event) for event in book.of("replay")]:
        slo = profile.decision.slo.slo
        sections.append(replay_section([Step(f"verify {cap}", cap, replays)], slo, opened=0))
    page = Page(
        kind=f"Verification {run_dir}",
        title=f"max_num_seqs {cap}",
        rows=[],
        next="",
        sections=sections,
        made=f"{result['profile']} on trace {result['trace']}; {profile.digest}.",
    )
    return _answered(page, result)


def _gates(result: Mapping[str, Any]) -> PageSection:
    rows: list[list[Cell]] = [
        [
            TIMES.get(str(one["name"]), str(one["name"])),
            _value(one, "promised") if one["is_promise"] else "-",
            _value(one, "measured"),
            _value(one, "limit"),
            ("kept", "good") if one["kept"] else ("broken", "bad"),
            str(one["limit_is"]),
        ]
        for one in result["gates"]
    ]
    headings = ("gate", "promised", "measured", "limit", "", "because")
    note = (
        "What the profile's twin predicts for the windows that were replayed, the worst that still "
        "counts as kept, and what was measured."
    )
    return PageSection("Gates", note, [Table("Every gate", headings, rows, text=(0, 4, 5))])


def _value(one: Mapping[str, Any], key: str) -> str:
    value = float(one[key])
    if one["name"] in SHARES:
        return percent(value)
    return milliseconds(value) if str(one["name"]).endswith("_ms") else f"{value:,.1f}"


def _answered(page: Page, result: Mapping[str, Any]) -> Page:
    """Return the page with the answer that the command gave."""
    block = block_in(result)
    if block is None:
        return page
    return replace(page, title=block.title, aside=block.aside, rows=block.rows, next=block.next)

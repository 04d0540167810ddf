"""The report of a sweep, and of a profile without its run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tuner.commands.report.curve import (
    STATISTICS,
    Curves,
    curve_figure,
    curve_section,
)
from tuner.commands.report.drawing.page import Cell, Figure, Page, PageSection, Part, Table
from tuner.commands.report.law import law_section
from tuner.commands.report.replays import (
    Step,
    read_back,
    replay_section,
    seen_batches,
)
from tuner.commands.report.traffic import traffic_section
from tuner.commands.shared.kept_result import block_of_run
from tuner.commands.shared.next_step import after, command
from tuner.commands.shared.run_folder import goes_on, parts_of
from tuner.commands.sweep.one_trace import TRACE_COPY, rescored, sealed
from tuner.commands.sweep.options import SweepOptions
from tuner.errors import InputError
from tuner.profile.profile import load
from tuner.profile.schema import ServingProfile
from tuner.profile.stored_twin import StoredTwin
from tuner.profile.summary import KINDS, block_of, milliseconds, percent, promised, why
from tuner.profile.verdict_block import VerdictBlock
from tuner.runs.engine_runner import in_words
from tuner.runs.evidence import CONFIRMING, Evidence
from tuner.runs.journal import Journal
from tuner.trace.trace import load as load_trace
from tuner.traffic.slo import Slo
from tuner.traffic.window import Window

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Everything that a page shows beside its verdict."""

    kind: str
    """What it is a report of."""

    next: str
    """The command to run."""

    steps: Sequence[Step] = ()
    opened: int | None = None
    """The step that is unfolded: the choice, on the engine that confirms it."""

    traffic: tuple[Floats, Ints, Ints] | None = None
    """Arrival in seconds, prompt and output tokens."""

    windows: Sequence[Window] = ()
    partly: str = ""
    """What is missing, where the run has not ended."""


def of_profile(path: Path) -> Page:
    """Return the report of a profile alone. Raises ProfileError."""
    profile = load(path)
    shown = Shown(kind=f"Serving profile {path}", next=after(profile, path))
    return profile_page(profile, shown, source=str(path))


def of_run(book: Journal) -> Page:
    """Return the report of a sweep's run, as far as it came. Raises RunError, ProfileError."""
    if names := parts_of(book):
        return _of_parts(book, names)
    run_dir, evidence = book.run_dir, Evidence(book)
    evidence.check()
    path = run_dir / "profile.yaml"
    chosen = evidence.selection()
    steps, lost = steps_of(book)
    shown = Shown(
        kind=f"Sweep {run_dir}",
        next=goes_on(book),
        steps=steps,
        partly=said_of(lost),
        traffic=_traffic(run_dir),
        windows=() if chosen is None else chosen.windows,
    )
    if path.exists():
        profile = load(path)
        opened = _confirming(shown.steps, profile)
        block = block_of_run(run_dir)
        next_ = after(profile, path) if block is None else block.next
        shown = replace(shown, next=next_, opened=opened)
        return profile_page(profile, shown, source=str(path))
    shown = replace(shown, partly=f"{UNFINISHED} {shown.partly}".strip())
    try:
        done = rescored(SweepOptions(rescore=run_dir), book)
    except InputError as problem:
        partly = f"{shown.partly} Nothing can be decided yet: {problem}."
        return undecided(replace(shown, partly=partly), evidence)
    return profile_page(sealed(done), shown, source=str(run_dir))


def said_of(lost: Sequence[str]) -> str:
    """Return what could not be read back, in one sentence; empty where all could."""
    if not lost:
        return ""
    more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    return f"A part of this run cannot be read back: {lost[0]}{more}."


UNFINISHED = "This run has not ended: what stands here is what was measured until now."


def steps_of(book: Journal) -> tuple[list[Step], list[str]]:
    """Return the steps of a run in order, neighbouring replays of one trial as one; and what could
    not be read back."""
    found, lost = list[Step](), list[str]()

    def of(event: dict[str, object]) -> tuple[object, ...]:
        return event["trial"], event["purpose"], event["max_num_seqs"]

    for (_, purpose, cap), events in groupby(book.of("replay"), of):
        replays = read_back(book, events, lost)
        to = "to " if str(purpose).endswith("ramp") else ""
        if replays:
            found.append(Step(f"{in_words(str(purpose))} {to}{cap}", int(str(cap)), replays))
    return found, lost


def _confirming(steps: Sequence[Step], profile: ServingProfile) -> int | None:
    cap = profile.decision.max_num_seqs
    found = [
        number for number, one in enumerate(steps)
        if one.max_num_seqs == cap and any(len(each.requests) for each in one.replays)
    ]  # fmt: skip
    confirmed = [number for number in found if steps[number].title.startswith(CONFIRMING[0])]
    return (confirmed or found)[-1] if found else None


def _traffic(run_dir: Path) -> tuple[Floats, Ints, Ints] | None:
    path = run_dir / TRACE_COPY
    if not path.exists():
        return None
    requests = load_trace(path).requests
    columns = np.array(
        [(one.arrival_s, one.input_length, one.output_length) for one in requests], float
    ).T
    return columns[0], columns[1].astype(np.int64), columns[2].astype(np.int64)


def profile_page(profile: ServingProfile, shown: Shown, *, source: str) -> Page:
    """Return a page whose verdict is a profile's. Raises ProfileError when its twin, which is of
    ``source``, makes no sense."""
    block = block_of(profile, next_="")
    curves = Curves.of(profile, source=source)
    seen = seen_batches(shown.steps)
    sections = [
        curve_section(curves),
        law_section(curves.twin, seen),
        _traffic_section(shown, curves.twin),
        _replays(shown, profile.decision.slo.slo),
    ]
    return Page(
        kind=shown.kind,
        title=block.title,
        aside=block.aside,
        # a page has room for the whole reason
        rows=[(name, why(profile) if name == "why" else text) for name, text in block.rows],
        next=shown.next,
        sections=[one for one in sections if one is not None],
        partly=shown.partly,
        made=f"Made by tuner {profile.provenance.tuner} from {profile.digest}.",
        warnings=profile.provenance.warnings,
    )


def _replays(shown: Shown, slo: Slo | None) -> PageSection | None:
    if not shown.steps:
        return None
    return replay_section(shown.steps, slo, opened=shown.opened)


def _traffic_section(shown: Shown, twin: StoredTwin | None) -> PageSection | None:
    if shown.traffic is not None and len(shown.traffic[0]):
        return traffic_section(*shown.traffic, windows=shown.windows)
    if twin is None:
        return None
    one, note = twin.traffic, "As the profile keeps it: what its twin is asked about."
    return traffic_section(one.arrival_s, one.input_length, one.output_length, note=note)


def undecided(shown: Shown, evidence: Evidence) -> Page:
    """Return the page of a run that had not come far enough for a verdict."""
    seen = seen_batches(shown.steps)
    plan = evidence.journal.events[0]["plan"]
    facts: list[list[Cell]] = [[key, str(value)] for key, value in plan.items()]
    sections = [
        law_section(None, seen),
        _traffic_section(shown, None),
        _replays(shown, None),
        PageSection("Plan", "What the run was asked for.", [Table("", (), facts, is_facts=True)]),
    ]
    count = len(shown.steps)
    return Page(
        kind=shown.kind,
        title="Not decided yet",
        rows=[("measured", f"{count} step{'s' * (count != 1)}")],
        next=shown.next,
        sections=[one for one in sections if one is not None],
        partly=shown.partly,
    )


def _of_parts(book: Journal, names: list[str]) -> Page:
    """Return the report of a sweep on several kinds of nodes, as far as it came: what each comes to
    by itself, and where its own report is. Raises ProfileError."""
    run_dir = book.run_dir
    found = {name: load(path) for name in names if (path := _profile_of(run_dir / name)).exists()}
    has_ended = bool(found)  # some may have failed
    block = block_of_run(run_dir) if has_ended else None
    page = Page(
        kind=f"Sweep {run_dir}",
        title=f"{len(names)} kinds of nodes" if has_ended else "Not decided yet",
        aside=f"{len(found)} of {len(names)} decided",
        rows=[(name, _part_in_words(one)) for name, one in found.items()],
        next=command("report", run_dir / names[0]) if has_ended else goes_on(book),
        sections=[_parts_section(run_dir, names, found)],
        partly="" if has_ended else UNFINISHED,
    )
    return page if block is None else said_by(block, page)


def said_by(block: VerdictBlock, page: Page) -> Page:
    """Return the page with the answer that the command gave."""
    return replace(
        page,
        title=block.title,
        aside=block.aside,
        rows=block.rows,
        next=block.next,
    )


def _profile_of(run_dir: Path) -> Path:
    return run_dir / "profile.yaml"


def _part_in_words(one: ServingProfile) -> str:
    share = percent(promised(one).attainment)
    return (
        f"max_num_seqs {one.decision.max_num_seqs}, {KINDS[one.decision.verdict]}, {share} in SLO"
    )


PART_HEADINGS = ("", "max_num_seqs", "verdict", "in SLO", "p95 TPOT", "p99 E2EL", "all of it")


def _parts_section(
    run_dir: Path, names: list[str], found: Mapping[str, ServingProfile]
) -> PageSection:
    rows = [_part_row(run_dir / name, name, found.get(name)) for name in names]
    parts: list[Part] = [Table("Every part", PART_HEADINGS, rows, text=(0, 2, 6))]
    if figures := list(_goodput(run_dir, found)):
        parts.insert(0, figures)
    return PageSection("Each by itself", "A run of its own each, in a folder of its own.", parts)


def _goodput(run_dir: Path, found: Mapping[str, ServingProfile]) -> Iterator[Figure]:
    for name, one in found.items():
        goodput = curve_figure(Curves.of(one, source=str(run_dir / name)), STATISTICS[0])
        yield replace(goodput, title=f"{name}: {goodput.title.lower()}")


def _part_row(folder: Path, name: str, one: ServingProfile | None) -> list[Cell]:
    own = command("report", folder)
    if one is None:
        return [name, "-", "not decided yet", *["-"] * 3, own]
    given = promised(one)
    tpot, e2el = given.tpot_ms, given.e2el_ms
    return [
        name,
        f"{one.decision.max_num_seqs:,}",
        KINDS[one.decision.verdict],
        percent(given.attainment),
        "-" if tpot is None else milliseconds(tpot.p95),
        "-" if e2el is None else milliseconds(e2el.p99),
        own,
    ]

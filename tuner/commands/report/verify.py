"""The report of a verification: every gate, and the replays that it measured."""

from collections.abc import Mapping
from typing import Any

from tuner.commands.report.drawing.page import Cell, File, Page, PageSection, Table
from tuner.commands.report.replays import Step, points_for, replay_files, replay_section
from tuner.commands.report.sweep import said_by
from tuner.commands.shared.kept_result import block_in, read_result
from tuner.commands.shared.next_step import after, command
from tuner.commands.verify.view import SHARES, TIMES, title_of
from tuner.profile.profile import dump, load
from tuner.profile.summary import milliseconds, percent
from tuner.runs.journal import Journal


def of_run(book: Journal, *, budget: int) -> Page:
    """Return the report of a verification. Raises RunError, ProfileError."""
    run_dir = book.run_dir
    path = run_dir / "profile.yaml"
    profile = load(path)
    found, content = read_result(run_dir, _check)
    kept, gates = bool(found["kept"]), list(found["gates"])
    slo = profile.decision.slo.slo
    cap = profile.decision.max_num_seqs
    replays = [book.replay(event) for event in book.of("replay")]
    steps = [Step(f"verify {cap}", cap, replays)] if replays else []
    points = points_for(steps, budget=budget)
    of_promise = any(one.get("is_promise", True) for one in gates)
    broken = sum(not one["kept"] for one in gates)
    rows = [("why", f"{broken} of {len(gates)} gates broken" if broken else "every gate is kept")]
    rows += [(_name(one), _said(one)) for one in gates]
    is_simulated = profile.provenance.engine == "sim"
    again = command("sweep", "--trace", found["trace"], "--model", profile.model)
    next_ = after(profile, path) if kept or is_simulated else again
    if not of_promise:
        next_ = command("show", path)
    sections = [PageSection("Gates", NOTE, [_table(gates)])]
    if steps:
        sections.append(replay_section(steps, slo, opened=0, points=points))
    page = Page(
        kind=f"Verification {run_dir}",
        title=title_of(cap, kept=kept, of_promise=of_promise),
        rows=rows,
        next=next_,
        sections=sections,
        files=[
            File(
                "profile.yaml", "the profile that was verified", "application/yaml", dump(profile)
            ),
            File("result.json", "the gates", "application/json", content),
            *(replay_files(steps, points) if steps else []),
        ],
        made=f"{found['profile']} on trace {found['trace']}; {profile.digest}.",
    )
    block = block_in(found)
    return page if block is None else said_by(block, page)


NOTE = (
    "What the twin in the profile says of the very windows that were replayed, the worst that "
    "still counts as kept, and what was measured."
)


def _check(found: Mapping[str, Any]) -> None:
    assert isinstance(found["kept"], bool)
    _table(found["gates"])
    str(found["profile"]), str(found["trace"]), block_in(found)


def _table(gates: list[Any]) -> Table:
    rows: list[list[Cell]] = [
        [
            _name(one),
            "-"
            if one["name"] == "slo" or not one.get("is_promise", True)
            else _told(one, "promised"),
            _told(one, "measured"),
            _told(one, "limit"),
            ("kept", "good") if one["kept"] else ("broken", "bad"),
            str(one["limit_is"]),
        ]
        for one in gates
    ]
    headings = ("gate", "promised", "measured", "held to", "", "because")
    return Table("Every gate", headings, rows, text=(0, 4, 5))


NAMES = {"slo": "half in SLO", "attainment": "in SLO", **TIMES}


def _name(one: Mapping[str, Any]) -> str:
    return NAMES.get(str(one["name"]), str(one["name"]))


def _said(one: Mapping[str, Any]) -> str:
    return f"{_told(one, 'measured')}, held to {_told(one, 'limit')}"


def _told(one: Mapping[str, Any], key: str) -> str:
    value = float(one[key])
    if one["name"] in SHARES:
        return percent(value)
    return milliseconds(value) if str(one["name"]).endswith("_ms") else f"{value:,.1f}"

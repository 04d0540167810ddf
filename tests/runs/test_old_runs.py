"""Runs that an earlier tuner measured, when purposes had other words, are still good for all.

before_words/ was written by the commit before the words changed, from its trace.jsonl and
world.yaml: ``twin.run`` and ``twin.yaml`` by tuner sweep --ceiling 8 --step 6s --budget 300s,
``windows.run`` by the same with --closed-sessions --slo ttft=1.5s,tpot=400ms, ``refine.run`` by
tuner refine --step 6s --budget 400s.
"""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.in_process import tuner
from tests.support.places import ROOT
from tuner.engines.sim.start import SimStarter
from tuner.engines.sim.virtual_time import run
from tuner.engines.sim.world import read_world
from tuner.profile import profile
from tuner.runs import journal
from tuner.runs.evidence import Evidence
from tuner.runs.outcome import SweepOutcome
from tuner.runs.settings import settings_in
from tuner.runs.sweep.rescore import rescore
from tuner.runs.sweep.sweep import sweep
from tuner.trace.trace import load
from tuner.traffic.slo import parse_slo

OLD = ROOT / "tests" / "runs" / "before_words"
RUNS = sorted(path.stem for path in OLD.glob("*.run"))


class Silent:
    """A watcher who tells nobody."""

    def stage(self, text: str) -> None: ...
    def trial(self, what: str, length_s: float) -> None: ...
    def live(self, seen: object) -> None: ...
    def measured(self, what: str, measurement: object) -> None: ...
    def warn(self, text: str) -> None: ...
    def believed(self, best: int, agreeing: int, draws: int) -> None: ...


def purposes(run_dir: Path) -> list[str]:
    """Return why each trial was made, in the words that stand in the file."""
    lines = (run_dir / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    events = map(json.loads, lines)
    return [event["purpose"] for event in events if event["event"] == "trial"]


def rescored(run_dir: Path) -> SweepOutcome:
    """Return what the run comes to for its own load alone: then no other was asked about."""
    book = journal.read(run_dir)
    plan = book.events[0]["plan"]
    settings = settings_in(plan, slo=parse_slo(plan["slo"]) if plan["slo"] else None)
    return rescore(load(OLD / "trace.jsonl").requests, replace(settings, headroom=1.0), book)


IN_TODAYS_WORDS = {
    "refine": ["ramp", "search"],
    "twin": ["ramp", "short", "ladder", "drift_ramp"],
    "windows": ["ladder", "repeat", "drift_replay", "tie_break"],
}


@pytest.mark.parametrize("name", RUNS)
def test_an_old_run_is_read_in_todays_words(name: str) -> None:
    trials = Evidence(journal.read(OLD / f"{name}.run")).trials()
    assert list(dict.fromkeys(one.purpose for one in trials)) == IN_TODAYS_WORDS[name]


@pytest.mark.parametrize("name", RUNS)
def test_an_old_run_has_a_page_in_todays_words(name: str, tmp_path: Path) -> None:
    assert tuner(tmp_path, "report", OLD / f"{name}.run").returncode == 0
    said = re.findall(r"\w+", (tmp_path / "report.html").read_text(encoding="utf-8"))
    assert {"Decode", "ladder" if name == "windows" else "ramp"} <= {*said}
    assert not {"climb", "glance", "bracket"} & {*said}


def test_an_old_refinement_goes_on_and_measures_nothing_again(tmp_path: Path) -> None:
    shutil.copytree(OLD / "refine.run", tmp_path / "run")
    where = ("--trace", OLD / "trace.jsonl", "--engine", "sim", "--world", OLD / "world.yaml")
    asked = ("--step", "6s", "--budget", "400s", "--run-dir", "run", "--resume", "--json")
    done = tuner(tmp_path, "refine", OLD / "twin.yaml", *where, *asked, "-o", "refined.yaml")
    assert (done.returncode, purposes(tmp_path / "run")) == (0, purposes(OLD / "refine.run"))
    found = json.loads(done.stdout)
    assert found["knee"] == {"max_num_seqs": 4, "max_num_batched_tokens": 512}
    assert [one["configuration"]["max_num_seqs"] for one in found["trials"]] == [4, 5, 3, 2]


@pytest.mark.parametrize("name", ["twin", "windows"])
def test_an_old_run_is_rescored_as_it_was(name: str) -> None:
    found = rescored(OLD / f"{name}.run").verdict
    assert (found.kind, found.max_num_seqs) == {
        "twin": ("plateau", 4),
        "windows": ("plateau", 8),
    }[name]
    if name == "twin":
        was = profile.load(OLD / "twin.yaml").decision
        assert (was.verdict, was.max_num_seqs) == (found.kind, found.max_num_seqs)


def test_an_old_run_goes_on_and_keeps_its_spelling(tmp_path: Path) -> None:
    shutil.copytree(OLD / "twin.run", tmp_path / "run")
    path = tmp_path / "run" / "journal.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    starter = SimStarter(read_world(OLD / "world.yaml"))
    begun = next(i for i, line in enumerate(lines) if '"purpose": "climb"' in line)
    versions = json.loads(lines[1])["facts"]["versions"]
    # numbers of two machines make no curve, and these were measured with other versions
    kept = "".join(lines[: begun + 1]).replace(
        json.dumps(versions), json.dumps(dict(starter.versions))
    )
    path.write_text(kept, encoding="utf-8")
    plan = json.loads(lines[0])["plan"]
    book = journal.resume(tmp_path / "run", plan)
    starter.go_on_after(Evidence(book).engines())
    trace = load(OLD / "trace.jsonl")
    sweeping = sweep(trace.requests, starter, settings_in(plan, slo=None), book, Silent())
    try:
        run(sweeping, begin_s=book.clock_s)
    finally:
        book.close()
    made = purposes(tmp_path / "run")
    assert made[:3] == purposes(OLD / "twin.run")[:3] == ["climb", "glance", "glance"]
    assert set(made) <= {"climb", "glance", "ladder", "control", "again"}

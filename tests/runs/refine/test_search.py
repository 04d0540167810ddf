"""The search: what it does not replay again, and what it tells a study that knows nothing."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.builders import record, replay_of, settings
from tuner.commands.sweep.view import RunProgress
from tuner.runs import journal
from tuner.runs.engine_runner import EngineRunner
from tuner.runs.evidence import Evidence
from tuner.runs.refine.knobs import CAP, TOKENS, Configuration, Knob, Space, number
from tuner.runs.refine.objective import GOODPUT, OBJECTIVES, KnownTrial
from tuner.runs.refine.scoring import SearchProblem
from tuner.runs.refine.search import Search
from tuner.runs.refine.study.study import Study
from tuner.runs.refine.trial_runner import SEARCH, Build, FinishedTrial, LocalTrialRunner, VllmVary
from tuner.trace.trace import TraceRequest
from tuner.traffic.slo import Slo, Unloaded
from tuner.traffic.window import Part, Window
from tuner.traffic.workload import workload_of

SLO = Slo(ttft_s=60.0)
SETTINGS = settings(SLO, ceiling=8)
WORKLOAD = workload_of(
    [TraceRequest(0, 0.0, 10, 5)], SLO, Unloaded(0.01, 0.0, 0.01), Part(0.0, 1.0),
    [Window(0.0, 1.0, 0.0)], 6.0,
)  # fmt: skip
SPACE = Space(knobs=(Knob(CAP, (4, 8), ""),), knee={CAP: 8, TOKENS: 64}, left_out=())
OTHER = {CAP: 4, TOKENS: 64}
"""All that the space holds beside the knee."""

WHOLE = replay_of([record()])
CUT = replay_of([record(outcome="cut")], cut="lost", attainment_bound=0.4)


def study(where: Path, *, run: str = "ours", aims: int = 1) -> Study:
    return Study(
        str(where), "name", SPACE, aims=aims, seed=0, run=run, machine="one", warn=lambda _: None
    )


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[LocalTrialRunner]:
    """A run that has replayed the knee."""
    book = journal.create(tmp_path / "run", {})
    vary = VllmVary({})
    runner = EngineRunner(vary({}), SETTINGS, Evidence(book), RunProgress(SETTINGS.budget_s), None)
    one = LocalTrialRunner(runner, vary)
    put(one, SPACE.knee, cut=False)
    yield one
    book.close()


def put(runner: LocalTrialRunner, configuration: Configuration, *, cut: bool) -> None:
    """Write a trial of one window into the run's journal."""
    book, cap = runner.evidence.journal, number(configuration[CAP])
    place = sum(1 for _ in book.of("trial"))
    of_trial = {"purpose": SEARCH, "max_num_seqs": cap, "at_s": 0.0}
    book.append("trial", configuration=dict(configuration), **of_trial)
    book.append_replay(CUT if cut else WHOLE, **of_trial, elapsed_s=10.0, window=0, trial=place)
    book.append("measured", failed=None, engine=1, at_s=0.0)


def search(runner: LocalTrialRunner, study: Study, *, aims: int = 1) -> Search:
    """Return one that has no budget left to replay anything."""
    knee: FinishedTrial = runner.done()[0]
    objectives = (GOODPUT, OBJECTIVES["tpot"])[:aims]
    problem = SearchProblem(
        space=SPACE, objectives=objectives, workload=WORKLOAD, knee=knee, surrogate=None,
        budget_s=0.0, start_s=1.0, step_s=1.0, build=Build(8, 64), hash_block_size=16,
    )  # fmt: skip
    return Search(runner, study, problem)


def test_a_new_study_begins_with_the_profiles_curve(
    tmp_path: Path, runner: LocalTrialRunner
) -> None:
    curve = [KnownTrial(OTHER, (-0.2,), 0.1, source="profile")]
    ours = study(tmp_path / "study.log")
    asyncio.run(search(runner, ours).gather(curve))
    assert ours.told()[0] == curve[0]
    assert [told.configuration for told in ours.told()] == [OTHER, SPACE.knee]
    theirs = study(tmp_path / "study.log", run="theirs")
    asyncio.run(search(runner, theirs).gather(curve))
    assert [told.source for told in theirs.told()].count("profile") == 1


@pytest.mark.parametrize(("failures", "is_ruled_out"), [(1, True), (3, False)])
def test_what_a_place_where_nothing_is_served_did_not_start_may_start_elsewhere(
    tmp_path: Path, runner: LocalTrialRunner, failures: int, *, is_ruled_out: bool
) -> None:
    small = {**SPACE.knee, "block_size": 8}
    book = runner.evidence.journal
    for _ in range(failures):
        book.append("trial", purpose=SEARCH, max_num_seqs=8, configuration=small, at_s=0.0)
        book.append("measured", failed="no memory", engine=0, worker="a.0", started=False, at_s=0.0)
    one = search(runner, study(tmp_path / "study.log"))
    assert one._cannot_start({**small, CAP: 4}) == is_ruled_out
    assert not one._is_known(small)


@pytest.mark.parametrize("aims", [1, 2])
def test_what_another_run_has_cut_is_not_replayed_again(
    tmp_path: Path, runner: LocalTrialRunner, aims: int
) -> None:
    theirs = study(tmp_path / "study.log", run="theirs", aims=aims)
    theirs.first(OTHER)
    theirs.prune(theirs.ask(), -0.6, "cut", by="engine")
    ours = search(runner, study(tmp_path / "study.log", aims=aims), aims=aims)
    assert asyncio.run(ours.gather([]))  # nothing that would have cost some budget


def test_what_the_twin_of_another_run_has_ruled_out_may_be_replayed(
    tmp_path: Path, runner: LocalTrialRunner
) -> None:
    theirs = study(tmp_path / "study.log", run="theirs")
    theirs.first(OTHER)
    theirs.prune(theirs.ask(), -0.6, "the twin rules it out", by="twin")
    ours = search(runner, study(tmp_path / "study.log"))
    assert not asyncio.run(ours.gather([]))


@pytest.mark.parametrize("aims", [1, 2])
def test_a_study_that_knows_nothing_of_what_was_cut_is_told_once(
    tmp_path: Path, runner: LocalTrialRunner, aims: int
) -> None:
    put(runner, OTHER, cut=True)
    for _ in range(2):  # as a run that is resumed with another storage, and again
        late = study(tmp_path / "late.log", aims=aims)
        search(runner, late, aims=aims).catch_up([])
        assert late.pruned == 1
        assert late.tried() == [SPACE.knee, OTHER]


def test_arguments_that_only_a_replay_could_tell_of_are_named_until_one_did(
    runner: LocalTrialRunner, tmp_path: Path
) -> None:
    knee = {**SPACE.knee, "block_size": 16}
    space = Space((*SPACE.knobs, Knob("block_size", (8, 16), "")), knee, ())
    put(runner, knee, cut=False)
    problem = SearchProblem(
        space=space, objectives=[GOODPUT], workload=WORKLOAD, knee=runner.done()[-1],
        surrogate=None, budget_s=0.0, start_s=1.0, step_s=1.0, build=Build(8, 64),
        hash_block_size=16,
    )  # fmt: skip
    search = Search(runner, study(tmp_path / "study.log"), problem)
    put(runner, {**knee, CAP: 4}, cut=False)
    assert search.untried() == ["block_size"]
    put(runner, {**knee, "block_size": 8}, cut=False)
    assert search.untried() == []

"""The trials of a search on a simulated engine: which are made, on which engine, which are cut."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.runs.refine.test_balance import surrogate_of
from tests.support.builders import request, settings
from tuner.commands.sweep.view import RunProgress
from tuner.engines.seam import Starter
from tuner.engines.sim import virtual_time
from tuner.engines.sim.engine import SimEngine
from tuner.engines.sim.start import SimStarter
from tuner.engines.sim.world import read_world
from tuner.errors import EngineError
from tuner.runs import journal
from tuner.runs.engine_runner import EngineRunner
from tuner.runs.evidence import Evidence
from tuner.runs.refine.knobs import CAP, TOKENS, Configuration, Knob, Space
from tuner.runs.refine.objective import GOODPUT
from tuner.runs.refine.scoring import LOST, SearchProblem
from tuner.runs.refine.search import Search
from tuner.runs.refine.study.study import Study
from tuner.runs.refine.surrogate import Surrogate
from tuner.runs.refine.trial_runner import RAMP, SEARCH, Build, FinishedTrial, LocalTrialRunner
from tuner.traffic.slo import Slo, Unloaded
from tuner.traffic.window import Part, Window
from tuner.traffic.workload import Workload, workload_of

WORLD = "{step: {a: 0.1, b: 0, n0: 64, h: 0, c: 0}, engine_start: 30}"
"""Every iteration takes 0.1 s, so that one of ten tokens takes one second."""

SLO = Slo(ttft_s=1.5)
THREES = [(6.0 * row, 10, 10) for row in range(30) for _ in range(3)]
"""Three at once: with one slot the third is late."""

BLOCKS = "block_size"
KNEE: Configuration = {CAP: 4, TOKENS: 64, BLOCKS: 16}
SPACE = Space(
    (Knob(CAP, (1, 2, 4), ""), Knob(TOKENS, (2, 64), ""), Knob(BLOCKS, (8, 16), "")), KNEE, ()
)
BUILD = Build(4, 64)
BUDGET_S = 1e6


class Fragile(SimEngine):
    """An engine that dies with its first request."""

    async def generate(self, *_: object) -> None:
        raise EngineError("the engine died", hint="")


@dataclass
class Machine:
    """Engines of a simulated machine, of which those of some block size are not well."""

    starter: SimStarter
    dead: tuple[int, ...] = ()
    """Block sizes with which no engine starts."""

    fragile: list[int] = field(default_factory=list)
    """With which the next one dies, each once."""

    def __call__(self, one: Configuration) -> Starter:
        varied = self.starter.varied({k: v for k, v in one.items() if k != CAP})
        machine, size = self, one[BLOCKS]

        class Sick:
            """As much of a starter as a runner asks for."""

            resolve, doing = varied.resolve, varied.doing

            async def start(self, *, max_num_seqs: int) -> SimEngine:
                if size in machine.dead:
                    raise EngineError("no memory", hint="")
                engine = await varied.start(max_num_seqs=max_num_seqs)
                if size in machine.fragile:
                    machine.fragile.remove(int(str(size)))
                    engine.__class__ = Fragile
                return engine

        return Sick()


@dataclass
class Run:
    runner: LocalTrialRunner
    study: Study
    machine: Machine
    surrogate: Surrogate | None = None
    space: Space = SPACE
    window = Window(60.0, 30.0, 0.0)

    def searching(self, work: Callable[[Search], Awaitable[Any]]) -> list[FinishedTrial]:
        """Replay the knee, then do this with a search; return the trials in the order in which they
        ended."""

        async def main() -> None:
            try:
                await self.runner.trial(SEARCH, KNEE, self.workload, BUILD)
                await work(Search(self.runner, self.study, self.problem))
            finally:
                await self.runner.stop()

        virtual_time.run(main())
        return self.runner.done()

    @property
    def workload(self) -> Workload:
        traffic = [
            request(row, arrival_s=at_s, input_length=prompt, output_length=output)
            for row, (at_s, prompt, output) in enumerate(THREES)
        ]
        unloaded = Unloaded(0.1, 0.01, 0.1)
        return workload_of(traffic, SLO, unloaded, Part(0.0, 180.0), [self.window], 60.0)

    @property
    def problem(self) -> SearchProblem:
        return SearchProblem(
            space=self.space, objectives=[GOODPUT], workload=self.workload,
            knee=self.runner.done()[0], surrogate=self.surrogate, budget_s=BUDGET_S, start_s=30.0,
            step_s=30.0, build=BUILD, hash_block_size=16,
        )  # fmt: skip

    def starts(self) -> int:
        return len(self.runner.evidence.starts_s())


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    (tmp_path / "world.yaml").write_text(WORLD)
    machine = Machine(SimStarter(read_world(tmp_path / "world.yaml")))
    book = journal.create(tmp_path / "run", {})
    of_sweep = settings(SLO, ceiling=4)
    runner = EngineRunner(
        machine.starter, of_sweep, Evidence(book), RunProgress(of_sweep.budget_s), None
    )
    study = Study(
        str(tmp_path / "study.log"), "name", SPACE, aims=1, seed=0, run="ours", machine="one",
        warn=lambda _: None,
    )  # fmt: skip
    yield Run(LocalTrialRunner(runner, machine), study, machine)
    study.close()
    book.close()


def test_what_has_lost_for_certain_is_cut(run: Run) -> None:
    _, slow = run.searching(lambda search: search._try([{**KNEE, CAP: 1}]))
    assert slow.replays[0].cut is not None
    assert slow.replays[0].elapsed_s < 30.0
    assert run.study.pruned == 1


def test_what_needs_the_same_engine_is_tried_together(run: Run) -> None:
    small = {**KNEE, BLOCKS: 8}
    turns = [{**one, CAP: cap} for cap in (1, 2) for one in (small, KNEE)]
    _, *done = run.searching(lambda search: search._try(turns))
    assert len(done) == len(turns)
    assert run.starts() == 2
    assert [one.configuration[BLOCKS] for one in done] == [16, 16, 8, 8]


def test_what_the_sampler_has_in_mind_is_tried_unless_it_contradicts_itself(run: Run) -> None:
    absurd = {**KNEE, CAP: 4, TOKENS: 2}
    run.study.first(absurd)
    done = run.searching(lambda search: search._measure(search._propose))
    tried = [one.configuration for one in done]
    assert len(tried) > 1
    assert absurd not in tried


def test_what_never_started_is_not_tried_with_other_caps(run: Run) -> None:
    run.machine.dead = (8,)
    others = [{**KNEE, BLOCKS: 8, CAP: cap} for cap in (1, 2, 4)]
    _, *done = run.searching(lambda search: search._try(others))
    assert [one.failed for one in done] == ["no memory"]


def test_an_engine_that_died_once_rules_nothing_out(run: Run) -> None:
    run.machine.fragile.append(8)
    small = {**KNEE, BLOCKS: 8}

    async def work(search: Search) -> None:
        await search._try([small, {**small, CAP: 2}])
        await search._try([small])

    _, died, other, again = run.searching(work)
    assert died.failed == "the engine died"
    assert (other.failed, again.failed) == (None, None)
    assert again.configuration == small


def test_what_failed_twice_is_not_tried_again(run: Run) -> None:
    run.machine.fragile += [8, 8]
    small = {**KNEE, BLOCKS: 8}

    async def work(search: Search) -> None:
        for _ in range(4):
            await search._try([small])

    assert [one.failed for one in run.searching(work)[1:]] == ["the engine died"] * 2


def test_a_ramp_fails_as_a_trial_does(run: Run) -> None:
    run.machine.fragile.append(16)

    async def main() -> None:
        for _ in range(2):
            await run.runner.ramp(KNEE, run.workload, BUILD)
        await run.runner.stop()

    virtual_time.run(main())
    first, second = run.runner.done()
    assert first.failed is not None
    assert run.runner.served(RAMP) == [second]


def test_trials_here_are_held_against_the_knee_here_after_a_cluster_began_the_run(run: Run) -> None:
    run.searching(_nothing)
    events = run.runner.evidence.journal.events
    next(event for event in events if event["event"] == "measured")["worker"] = "a.0"

    async def resumed() -> None:
        run.runner.begin(KNEE, run.workload, BUILD)
        await Search(run.runner, run.study, run.problem)._try([{**KNEE, CAP: 2}])
        await run.runner.stop()

    virtual_time.run(resumed())
    assert [(one.worker, one.configuration[CAP]) for one in run.runner.done()] == [
        ("a.0", 4), ("", 4), ("", 2),
    ]  # fmt: skip


def test_a_replay_is_cut_below_what_was_measured_and_what_the_twin_expects_of_a_slow_time(
    run: Run,
) -> None:
    run.surrogate = replace(surrogate_of(THREES), knee=KNEE, slowdowns=((1.0, 0.5), (1.4, 0.5)))
    run.searching(_nothing)
    scoring = Search(run.runner, run.study, run.problem).scoring
    expected = run.surrogate.worst({**KNEE, CAP: 2}, run.surrogate.traffic, run.window)
    assert 0.3 < expected < 0.9
    assert list(scoring.floors({**KNEE, CAP: 2})("")) == [pytest.approx(expected - LOST)]
    assert list(scoring.floors(KNEE)("")) == [pytest.approx(1.0 - LOST)]
    assert list(scoring.floors({**KNEE, BLOCKS: 8})("")) == [pytest.approx(1.0 - LOST)]


def test_the_answer_is_what_the_twin_likes_best_in_the_end_unless_a_replay_spoke_against_it(
    run: Run,
) -> None:
    slow_knee = {**KNEE, CAP: 1}
    run.surrogate = replace(surrogate_of(THREES), knee=slow_knee)
    run.space = replace(SPACE, knee=slow_knee)
    virtual_time.run(_replayed(run, slow_knee, 0.0))
    assert Search(run.runner, run.study, run.problem).answer() == {**KNEE, CAP: 4}
    virtual_time.run(_replayed(run, {**KNEE, CAP: 4}, 2.0))
    assert run.runner.done()[-1].replays[0].cut is not None
    assert Search(run.runner, run.study, run.problem).answer() == {**KNEE, CAP: 2}


def test_what_died_is_not_the_answer_however_much_the_twin_likes_it(run: Run) -> None:
    slow_knee = {**KNEE, CAP: 1}
    run.surrogate = replace(surrogate_of(THREES), knee=slow_knee)
    run.space = replace(SPACE, knee=slow_knee)
    virtual_time.run(_replayed(run, slow_knee, 0.0))
    run.machine.fragile.append(16)
    virtual_time.run(_replayed(run, {**KNEE, CAP: 4}, 0.0))
    assert run.runner.done()[-1].failed is not None
    assert Search(run.runner, run.study, run.problem).answer() == {**KNEE, CAP: 2}


async def _replayed(run: Run, one: Configuration, floor: float) -> None:
    await run.runner.trial(SEARCH, one, run.workload, BUILD, lambda _: [floor])
    await run.runner.stop()


async def _nothing(_: Search) -> None:
    """Leave it at the knee."""

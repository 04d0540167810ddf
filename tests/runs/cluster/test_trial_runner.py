"""The runner of a cluster with places in this process: one that is not well is not everybody's."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import pytest

from tests.support.builders import request, settings
from tuner.commands.sweep.view import RunProgress
from tuner.engines.seam import Starter
from tuner.engines.sim.start import SimStarter
from tuner.engines.sim.world import read_world
from tuner.errors import EngineError
from tuner.runs import journal
from tuner.runs.cluster.kinds import Description
from tuner.runs.cluster.session import WorkerHandle
from tuner.runs.cluster.trial_runner import ClusterTrialRunner
from tuner.runs.cluster.worker import TrialWorker, WorkerConfig
from tuner.runs.cluster.worker_pool import WorkerPool
from tuner.runs.evidence import Evidence
from tuner.runs.refine.knobs import CAP, TOKENS, Configuration
from tuner.runs.refine.trial_runner import SEARCH, Build
from tuner.traffic.slo import Slo, Unloaded
from tuner.traffic.window import Part, Window
from tuner.traffic.workload import workload_of

WORLD = "{step: {a: 0.01, b: 0, n0: 64, h: 0, c: 0}, engine_start: 30}"
SLO = Slo(ttft_s=60.0)
KNEE: Configuration = {CAP: 4, TOKENS: 64}
BUILD = Build(4, 64)
WORKLOAD = workload_of(
    [request(row) for row in range(10)], SLO, Unloaded(0.01, 0.01, 0.01), Part(0.0, 10.0),
    [Window(0.0, 10.0, 0.0)], 6.0,
)  # fmt: skip


class Here(WorkerHandle):
    """A worker on a node that is a thread of this process. See WorkerHandle."""

    def __init__(self, config: WorkerConfig, node: str) -> None:
        self.worker, self.node, self.busy = TrialWorker(config), node, Lock()

    async def call(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 - as the method
        def work() -> Any:  # noqa: ANN401 - as the method
            with self.busy:
                return getattr(self.worker, method)(*arguments)

        return await asyncio.to_thread(work)

    def node_id(self) -> str:
        return self.node

    def dismiss(self) -> None:
        """End it, once it has done what it does: a thread cannot be killed. Elsewhere than on the
        thread of a loop that runs."""
        self.busy.acquire()
        ending = Thread(target=self.worker._runner.close)
        ending.start()
        ending.join()


def no_memory(_: Configuration) -> Starter:
    class Sick(SimStarter):
        async def start(self, **_: object) -> Any:  # noqa: ANN401 - nothing comes back
            raise EngineError("free memory on device is less than desired", hint="")

    return Sick.__new__(Sick)


class Heard(RunProgress):
    """Keeps what the user is warned of."""

    def __init__(self, of_sweep: Any) -> None:  # noqa: ANN401 - settings
        super().__init__(of_sweep.budget_s)
        self.warnings: list[str] = []
        self.said = asyncio.Event()

    def warn(self, text: str) -> None:
        self.warnings.append(text)
        self.said.set()
        self.said = asyncio.Event()


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Any]:
    (tmp_path / "world.yaml").write_text(WORLD)
    machine = SimStarter(read_world(tmp_path / "world.yaml"))
    of_sweep = settings(SLO, ceiling=4)
    simulated = Description(machine.device, machine.versions, "2.60.0", "c0de")
    books: list[journal.Journal] = []

    def runner(*sick: bool) -> tuple[ClusterTrialRunner, Heard]:
        """Return one with so many places, of which some are not well."""
        book = journal.create(tmp_path / f"run-{len(books)}", {})
        books.append(book)
        places = iter(
            Here(
                WorkerConfig(
                    no_memory if one else lambda c: machine.varied({TOKENS: c.get(TOKENS, 64)}),
                    of_sweep,
                    simulated,
                    None,
                ),
                f"{'sick' if one else 'well'}{number}",
            )
            for number, one in enumerate(sick)
        )
        heard = Heard(of_sweep)
        pool = WorkerPool(
            lambda: next(places), {}, takes="1 CPU", width=len(sick), watcher=heard, expected=None
        )
        return ClusterTrialRunner(pool, Evidence(book), heard), heard

    yield runner
    for book in books:
        book.close()


def test_a_place_where_nothing_is_served_is_left_out_and_the_others_go_on(made: Any) -> None:  # noqa: ANN401 - the fixture
    runner, heard = made(True, False)

    async def main() -> None:
        runner.begin(KNEE, WORKLOAD, BUILD)
        async with runner.lane() as lane:
            async with asyncio.timeout(60.0):
                while not any("left out" in warning for warning in heard.warnings):
                    await heard.said.wait()
            for cap in (1, 2, 3):
                await lane.trial(SEARCH, {**KNEE, CAP: cap}, WORKLOAD, BUILD)
        await runner.stop()

    asyncio.run(main())
    assert [done.worker for done in runner.served(SEARCH)] == ["well1.0"] * 4
    failed = [done for done in runner.done() if done.failed is not None]
    assert [done.worker for done in failed] == ["sick0.0"] * 3


@pytest.mark.parametrize("places", [1, 2])
def test_where_nothing_is_served_anywhere_the_run_ends_with_the_reason(
    made: Any,  # noqa: ANN401 - the fixture
    places: int,
) -> None:
    runner, heard = made(*[True] * places)

    async def main() -> None:
        runner.begin(KNEE, WORKLOAD, BUILD)
        try:
            async with runner.lane():
                pass
        finally:
            await runner.stop()

    with pytest.raises(EngineError, match=r"3 trials failed one after the other on sick.*memory"):
        asyncio.run(main())
    assert sum("is left out: nothing is served there" in one for one in heard.warnings) == places

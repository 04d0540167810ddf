"""A real engine in a worker of a Ray cluster: it serves there, and dies with its worker."""

import asyncio
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.builders import settings
from tuner.engines.seam import ArgumentValue
from tuner.replay.measure import Measurement
from tuner.runs import journal
from tuner.runs.evidence import Evidence
from tuner.runs.refine.knobs import CAP, TOKENS
from tuner.runs.refine.trial_runner import SEARCH, Build, VllmVary
from tuner.trace.trace import TraceRequest
from tuner.traffic.slo import Slo, Unloaded
from tuner.traffic.window import Part, Window
from tuner.traffic.workload import workload_of

pytest.importorskip("ray")

pytestmark = [pytest.mark.vllm, pytest.mark.long]

SLO = Slo(ttft_s=60.0)
SETTINGS = settings(SLO, ceiling=4)
REQUESTS = [TraceRequest(row, row / 10, 20, 30) for row in range(10)]
WORKLOAD = workload_of(
    REQUESTS, SLO, Unloaded(0.01, 0.0, 0.01), Part(0.0, 1.0), [Window(0.0, 1.0, 0.0)], 6.0
)
BUILD = Build(4, 256)
ENGINE: dict[str, ArgumentValue] = {
    "model": "tuner:tiny",
    "max_model_len": 256,
    "kv_cache_memory_bytes": 2**26,
    TOKENS: 256,
}
ONE = {CAP: 4, TOKENS: 256}


class Listener:
    """See runner.Watcher; keeps the warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def stage(self, text: str) -> None: ...
    def trial(self, what: str, length_s: float) -> None: ...
    def believed(self, best: int, agreeing: int, draws: int) -> None: ...
    def live(self, seen: object) -> None: ...
    def measured(self, what: str, measurement: Measurement) -> None: ...
    def warn(self, text: str) -> None:
        self.warnings.append(text)


def workers() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::TrialWorker"):
                found.append(process)
    return found


def test_an_engine_serves_in_a_worker_and_dies_with_it_and_its_trial_is_made_again(
    tmp_path: Path,
) -> None:
    from tuner.runs.cluster.site import ClusterRequest, Work, site_on  # noqa: PLC0415 - imports ray

    work = Work(ENGINE, VllmVary(ENGINE), SETTINGS, 5.0, None, lambda _: None)
    book, listener = journal.create(tmp_path / "run", {}), Listener()
    engines: list[psutil.Process] = []

    async def go() -> None:
        runner = site.runner(Evidence(book), listener)
        try:
            async with runner.lane() as lane:
                first = await lane.trial(SEARCH, ONE, WORKLOAD, BUILD)
                worker = workers()[0]
                engines.extend(worker.children(recursive=True))
                worker.send_signal(signal.SIGKILL)
                again = await lane.trial(SEARCH, ONE, WORKLOAD, BUILD)
            assert (first.failed, again.failed) == (None, None)
            assert [len(one.replays[0].records) for one in (first, again)] == [10, 10]
            assert first.engine != again.engine
            engines.extend(workers()[0].children(recursive=True))
        finally:
            await runner.stop()

    with site_on(ClusterRequest("local", 1, None), work) as site:
        asyncio.run(go())
    book.close()
    assert len(list(book.of("lost"))) == 1
    assert any("is gone" in warning for warning in listener.warnings)
    assert {one["facts"]["engine"] for one in book.of("start")} == {"vllm"}
    assert engines
    _, alive = psutil.wait_procs(engines, timeout=20)
    assert alive == []

"""A real engine in a worker of a Ray cluster: it serves there, and dies with its worker."""

import asyncio
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.builders import settings
from tuner import journal
from tuner.engines.seam import ArgumentValue
from tuner.evidence import Evidence
from tuner.measure import Measurement
from tuner.refine.bench import Build
from tuner.refine.judge import SEARCH
from tuner.refine.knobs import CAP, TOKENS
from tuner.refine.starters import VllmVary
from tuner.slo import Slo, Unloaded
from tuner.trace import TraceRequest
from tuner.window import Part, Window
from tuner.workload import workload_of

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
    """See rig.Watcher; keeps the warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def stage(self, text: str) -> None: ...
    def trial(self, what: str, length_s: float) -> None: ...
    def live(self, elapsed_s: float, done: int, in_flight: int) -> None: ...
    def measured(self, what: str, measurement: Measurement) -> None: ...
    def warn(self, text: str) -> None:
        self.warnings.append(text)


def workers() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::Worker"):
                found.append(process)
    return found


def test_an_engine_serves_in_a_worker_and_dies_with_it_and_its_trial_is_made_again(
    tmp_path: Path,
) -> None:
    from tuner.cluster.site import Wish, Work, site_on  # noqa: PLC0415 - imports ray

    work = Work(ENGINE, VllmVary(ENGINE), SETTINGS, 5.0, None, lambda _: None)
    book, listener = journal.create(tmp_path / "run", {}), Listener()
    engines: list[psutil.Process] = []

    async def go() -> None:
        bench = site.bench(Evidence(book), listener)
        try:
            async with bench.lane() as lane:
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
            await bench.stop()

    with site_on(Wish("local", 1, None), work) as site:
        asyncio.run(go())
    book.close()
    assert len(list(book.of("lost"))) == 1
    assert any("is gone" in warning for warning in listener.warnings)
    assert {one["facts"]["engine"] for one in book.of("start")} == {"vllm"}
    assert engines
    _, alive = psutil.wait_procs(engines, timeout=20)
    assert alive == []

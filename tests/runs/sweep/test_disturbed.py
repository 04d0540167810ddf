"""Whatever disturbs a sweep, it ends with an answer, and with none that is sure and wrong."""

import asyncio
import math
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from tests.runs.sweep.test_sweep import HALF, SLOTS_COST_LATE, UP_TO_8, Notes
from tuner.engines.seam import Engine, EngineRequest, Reply
from tuner.engines.sim.start import SimStarter
from tuner.engines.sim.virtual_time import run
from tuner.engines.sim.world import World, WorldNoise
from tuner.errors import EngineError
from tuner.runs import journal
from tuner.runs.result import SweepOutcome
from tuner.runs.sweep.sweep import sweep
from tuner.traffic.slo import Slo

pytestmark = pytest.mark.usefixtures("by_few_draws")

SLO = Slo(ttft_s=1.0, tpot_s=0.028)
SETTINGS = replace(UP_TO_8, ceiling=16, slo=SLO, confirm="server", step_s=30, budget_s=420)


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What goes wrong in a sweep."""

    lag_s: float = 0.0
    """How late requests leave, at most."""

    dies_at_s: float = math.inf
    """When the engine that is up dies, on the clock of the run."""

    server_starts_s: float = 60.0
    server: str = "lives"
    """``lives``, ``refuses`` or ``dies`` of its first replay."""

    noise: WorldNoise = field(default_factory=WorldNoise)
    busy_s: tuple[float, float] = (0.0, 0.0)
    """From when to when others take 60 % of the cores."""


class Disturbed:
    """An engine behind which things go wrong."""

    def __init__(self, engine: Engine, lag_s: float, dies_at_s: float) -> None:
        self.engine, self.lag_s, self.dies_at_s = engine, lag_s, dies_at_s
        self.rng = np.random.default_rng(0)

    def __getattr__(self, name: str) -> object:
        return getattr(self.engine, name)

    def _check(self) -> None:
        if asyncio.get_running_loop().time() >= self.dies_at_s:
            raise EngineError("the engine died", hint="See its log.")

    async def generate(self, request: EngineRequest, reply: Reply) -> None:
        self._check()
        if self.lag_s:
            await asyncio.sleep(self.lag_s * self.rng.random())
            reply.sent_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(self.dies_at_s if self.dies_at_s < math.inf else None):
                await self.engine.generate(request, reply)
        except TimeoutError:
            self._check()
            raise


class DisturbedStarter(SimStarter):
    def __init__(self, world: World, what: Disturbance, *, is_server: bool) -> None:
        super().__init__(world)
        self.what, self.is_server, self.started = what, is_server, 0
        self.device = SimStarter(SLOTS_COST_LATE).device

    async def start(self, *, max_num_seqs: int) -> Engine:  # type: ignore[override]
        if self.is_server and self.what.server == "refuses":
            raise EngineError("the server did not start", hint="See its log.")
        engine = await super().start(max_num_seqs=max_num_seqs)
        self.started += 1
        dies_at_s = self.what.dies_at_s if self.started == 1 else math.inf
        if self.is_server:
            dies_at_s = math.inf
            if self.what.server == "dies":
                dies_at_s = asyncio.get_running_loop().time() + 10
        return Disturbed(engine, self.what.lag_s, dies_at_s)  # type: ignore[return-value]


def disturbed(run_dir: Path, what: Disturbance) -> tuple[SweepOutcome, float]:
    """Sweep while this happens; return what was found, and after how many seconds."""
    world = structs.replace(SLOTS_COST_LATE, noise=what.noise)
    server = structs.replace(world, engine_start=what.server_starts_s)

    async def main(book: journal.Journal) -> tuple[SweepOutcome, float]:
        now_s = asyncio.get_running_loop().time
        begun_s = now_s()

        def read() -> tuple[float, ...]:
            others = 0.6 if what.busy_s[0] <= now_s() < what.busy_s[1] else 0.02
            return (1.0, math.nan, math.nan, others, 0.0, math.nan, math.nan, math.nan)

        outcome = await sweep(
            HALF,
            DisturbedStarter(world, what, is_server=False),
            SETTINGS,
            book,
            Notes(),
            read_device=read,
            confirming=DisturbedStarter(server, what, is_server=True),
        )
        return outcome, now_s() - begun_s

    with closing(journal.opened(run_dir, {})) as book:
        return run(main(book))


CASES = {
    "late": (Disturbance(lag_s=0.3), None),
    "busy": (Disturbance(busy_s=(100.0, 230.0)), "others took"),
    "slower for a while": (
        Disturbance(noise=WorldNoise(episode_rate=0.01, episode_len=120.0, episode_mult=2.0)),
        "its speed varied by",
    ),
    "dead": (Disturbance(dies_at_s=140.0), None),
    "dead server": (Disturbance(server="dies"), None),
    "no server": (Disturbance(server="refuses"), None),
    "late server": (Disturbance(server_starts_s=400.0), None),
}  # fmt: skip


@pytest.mark.parametrize(("what", "busy"), CASES.values(), ids=CASES)
def test_a_disturbed_sweep_ends_with_an_answer(
    tmp_path: Path, what: Disturbance, busy: str | None
) -> None:
    outcome, took_s = disturbed(tmp_path / "run", what)
    # 4 slots are too few for this traffic, and it never fills more than 8
    assert outcome.verdict.max_num_seqs in {8, 16} or outcome.verdict.confidence < 0.95
    assert took_s <= SETTINGS.budget_s + 10
    assert (busy is None) == (outcome.busy is None)
    if busy is not None:
        assert busy in str(outcome.busy)
        assert outcome.verdict.confidence <= 0.9
    assert any("requests left late" in warning for warning in outcome.warnings) == (what.lag_s > 0)
    is_lost = what.server != "lives" or what.server_starts_s > 300
    assert (outcome.unconfirmed is not None) == is_lost

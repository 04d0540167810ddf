"""A replay that shows something else than the engine is made again."""

from dataclasses import replace

import pytest

from tests.replay.test_replay import NEVER_CUT, SECOND_A_STEP, planned
from tuner.engines.seam import EngineFacts, EngineRequest, IterationLog, Reply
from tuner.engines.sim.engine import SimEngine
from tuner.engines.sim.start import SimStarter
from tuner.engines.sim.virtual_time import run
from tuner.errors import ReadLateError
from tuner.replay.attempts import RETRIES, replay_in_time
from tuner.traffic.window import Window


class Compiling(SimEngine):
    """Compiles a kernel in each of its first ``shapes`` replays."""

    shapes = 0

    async def take_iterations(self) -> IterationLog:
        log = await super().take_iterations()
        if len(log) and len(self.stalls.compiled) < self.shapes:
            self.stalls.compiled.append(f"Triton JIT compilation during inference: {len(log)}")
        return log


def attempts(shapes: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """Return how often a request of three tokens was replayed, and what was thrown away."""
    monkeypatch.setattr("tuner.engines.sim.start.SimEngine", Compiling)
    monkeypatch.setattr(Compiling, "shapes", shapes)
    begun: list[None] = []
    told: list[str] = []
    run(replaying(begun, told))
    return len(begun), told


async def replaying(begun: list[None], told: list[str]) -> None:
    await replay_in_time(
        [planned(0, 0.0)],
        await SimStarter(SECOND_A_STEP).start(max_num_seqs=4),
        Window(0.0, 0.0, 10.0),
        max_num_seqs=4,
        rule=NEVER_CUT,
        read=None,
        begun=lambda: begun.append(None),
        late=lambda error, elapsed_s: told.append(f"{elapsed_s:.0f} s: {error}"),
    )


def test_a_replay_in_which_the_engine_compiled_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thrown = "3 s: max_num_seqs=4: the engine compiled meanwhile: Triton JIT compilation during"
    assert attempts(0, monkeypatch) == (1, [])
    assert attempts(2, monkeypatch) == (3, [f"{thrown} inference: 3"] * 2)


def test_one_that_never_stops_compiling_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    times, told = attempts(99, monkeypatch)
    assert (times, len(told)) == (1 + RETRIES, RETRIES)


class Late(SimEngine):
    """Stands for a GPU's engine of which half of the outputs come joined with others."""

    @property
    def facts(self) -> EngineFacts:
        return replace(super().facts, engine="vllm", device={"kind": "gpu", "name": "a GPU"})

    async def generate(self, request: EngineRequest, reply: Reply) -> None:
        await super().generate(request, reply)
        reply.merged_outputs = reply.output_tokens // 2


def test_outputs_that_are_read_late_twice_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same way a third time would be no better."""
    monkeypatch.setattr("tuner.engines.sim.start.SimEngine", Late)
    begun: list[None] = []
    told: list[str] = []
    with pytest.raises(ReadLateError, match="outputs were read late"):
        run(replaying(begun, told))
    assert (len(begun), len(told)) == (2, 2)

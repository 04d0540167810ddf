"""Engines to test against: few, shared by the session, each living on a loop of its own."""

import asyncio
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tuner.engines.seam import ArgumentValue, Engine, EngineRequest, Reply, Starter
from tuner.engines.sim.start import SimStarter
from tuner.engines.sim.virtual_time import VirtualTimeLoop
from tuner.engines.sim.world import World, WorldKv, WorldStep
from tuner.engines.vllm.start import VllmStarter

CEILING = 8
"""The max_num_seqs that the shared engines are started with."""

VLLM = pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.alone, pytest.mark.gpu])

CHEAP = ["sim", VLLM]
"""Engines that start in seconds."""

KINDS = [
    *CHEAP, pytest.param("serve", marks=[pytest.mark.vllm, pytest.mark.alone, pytest.mark.long])
]  # fmt: skip
"""A server takes half a minute to start, and is the same engine with the same hooks."""

TINY: Mapping[str, ArgumentValue] = {
    "model": "tuner:tiny",
    "gpu_memory_utilization": 0.1,  # several stand side by side; on a CPU nothing depends on it
}
VLLM_ROOMY: Mapping[str, ArgumentValue] = {
    **TINY,
    "max_model_len": 1024,
    "max_num_batched_tokens": 512,
}
VLLM_CRAMPED: Mapping[str, ArgumentValue] = {
    **TINY,
    "max_model_len": 256,
    "block_size": 32,
    "num_gpu_blocks_override": 13,  # 12 of 32 tokens to use: three requests of 128
}


def world(*, blocks: int, block_size: int) -> World:
    return World(
        step=WorldStep(a=0.005, b=0.0003, c=0.0003),
        kv=WorldKv(blocks=blocks, block_size=block_size),
        budget=512,
        engine_start=1.0,
    )


class StartedEngine:
    """A starter, the loop that its engines live on, and one engine that is running."""

    def __init__(self, starter: Starter, runner: asyncio.Runner) -> None:
        self.starter = starter
        self.run = runner.run
        self.engine: Engine = self.run(starter.start(max_num_seqs=CEILING))


def starter(kind: str, *, cramped: bool) -> tuple[Starter, asyncio.Runner]:
    if kind == "sim":
        machine = world(blocks=12, block_size=32) if cramped else world(blocks=300, block_size=128)
        return SimStarter(machine), asyncio.Runner(loop_factory=VirtualTimeLoop)
    arguments = VLLM_CRAMPED if cramped else VLLM_ROOMY
    return VllmStarter(arguments, kind=kind), asyncio.Runner()


def started(kind: str, *, cramped: bool) -> Iterator[StartedEngine]:
    start, runner = starter(kind, cramped=cramped)
    with runner:
        engine = StartedEngine(start, runner)
        yield engine
        engine.run(engine.engine.stop())


@pytest.fixture(scope="session", params=KINDS)
def shared(request: pytest.FixtureRequest) -> Iterator[StartedEngine]:
    yield from started(request.param, cramped=False)


@pytest.fixture
def roomy(shared: StartedEngine) -> Iterator[StartedEngine]:
    """An idle engine with KV cache enough for everything, its limits and caches as at its start."""
    yield shared
    shared.run(shared.engine.prepare(max_num_seqs=CEILING, max_num_batched_tokens=512))


@pytest.fixture(scope="session", params=KINDS)
def cramped(request: pytest.FixtureRequest) -> Iterator[StartedEngine]:
    """An engine whose KV cache holds 384 tokens."""
    yield from started(request.param, cramped=True)


@pytest.fixture(scope="session")
def lone() -> Any:  # noqa: ANN401 - a module that imports vLLM
    """tests.support.lone_scheduler, which has no business in tests without vLLM."""
    return importlib.import_module("tests.support.lone_scheduler")


async def until_it_generates(reply: Reply) -> None:
    while reply.output_tokens < 2:  # noqa: ASYNC110 - a reply tells nobody that it grows
        await asyncio.sleep(0.001)


def request(name: int, *, prompt: int, output: int) -> EngineRequest:
    """Return a request whose prompt shares no block with that of another name."""
    return EngineRequest([3 + (name * 31 + at) % 1000 for at in range(prompt)], output)


async def generate(engine: Engine, wanted: EngineRequest) -> Reply:
    reply = Reply()
    await engine.generate(wanted, reply)
    return reply


async def generate_all(engine: Engine, *requests: EngineRequest) -> list[Reply]:
    return await asyncio.gather(*(generate(engine, request) for request in requests))

"""What only an engine on a GPU shows: pytest --gpu -m gpu."""

import asyncio

import pytest

from tests.engines.conftest import VLLM_ROOMY, generate, request
from tuner.engines import devices
from tuner.engines.seam import EngineFacts
from tuner.engines.vllm.start import VllmStarter

pytestmark = [pytest.mark.vllm, pytest.mark.alone, pytest.mark.gpu(only=True)]


def test_an_engine_says_on_which_gpu_and_how_it_runs() -> None:
    before = devices.memory_used()

    async def main() -> EngineFacts:
        engine = await VllmStarter(VLLM_ROOMY).start(max_num_seqs=8)
        try:
            assert (await generate(engine, request(1, prompt=10, output=5))).output_tokens == 5
        finally:
            await engine.stop()
        assert await devices.given_back(before)
        return engine.facts

    facts = asyncio.run(main())
    assert facts.device["kind"] == "gpu"
    assert facts.arguments["async_scheduling"] is True

"""A refinement's trials and its space on a real engine."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.support.builders import settings
from tests.support.places import ROOT
from tuner.commands.options import RefineOptions
from tuner.commands.refine.plan import engines_of
from tuner.commands.refine.space import space_of
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import UsageError
from tuner.profile import profile
from tuner.runs import journal
from tuner.runs.bench import Bench
from tuner.runs.refine.knobs import CAP, TOKENS, Configuration, Space
from tuner.runs.refine.trials import Build, Trials
from tuner.trace.trace import TraceRequest
from tuner.traffic.slo import Slo, Unloaded
from tuner.traffic.window import Part, Window
from tuner.traffic.workload import workload_of
from tuner.views.live import Progress

pytestmark = pytest.mark.vllm

PROFILE = ROOT / "profiles" / "translation-tiny-cpu.yaml"
SLO = Slo(ttft_s=60.0)
SETTINGS = settings(SLO, ceiling=4)
REQUESTS = [TraceRequest(row, row / 100, 20, 30) for row in range(10)]
WORKLOAD = workload_of(
    REQUESTS, SLO, Unloaded(0.01, 0.0, 0.01), Part(0.0, 1.0), [Window(0.0, 1.0, 0.0)], 6.0
)
BUILD = Build(4, 256)


@pytest.mark.alone
@pytest.mark.long
def test_limits_change_live_and_a_killed_engine_costs_its_trial_alone(tmp_path: Path) -> None:
    def vary(one: Configuration) -> VllmStarter:
        return VllmStarter(
            {
                "model": "tuner:tiny",
                "max_model_len": 256,
                "kv_cache_memory_bytes": 2**26,
                TOKENS: one.get(TOKENS, 256),
            },
            log=tmp_path / "vllm.log",
        )

    book = journal.create(tmp_path / "run", {})
    runner = Trials(
        Bench(book, Progress(SETTINGS.budget_s), None, block_size=16),
        vary,
    )

    async def kill() -> None:
        engine = runner.bench.engine
        while not engine._control._in_flight:  # type: ignore[union-attr]  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.001)
        core = engine._context.processes[0].pid  # type: ignore[union-attr]
        os.kill(core, signal.SIGKILL)

    async def main() -> None:
        try:
            for cap, tokens in ((4, 256), (1, 64)):
                await runner.trial("search", {CAP: cap, TOKENS: tokens}, WORKLOAD, BUILD)
            dying = runner.trial("search", {CAP: 2, TOKENS: 256}, WORKLOAD, BUILD)
            await asyncio.gather(dying, kill())
            await runner.trial("search", {CAP: 3, TOKENS: 256}, WORKLOAD, BUILD)
        finally:
            await runner.stop()

    asyncio.run(main())
    book.close()
    wide, narrow, killed, after = runner.done()
    assert wide.measured(WORKLOAD).running_peak > 1
    assert narrow.measured(WORKLOAD).running_peak == 1
    assert "killed by SIGKILL" in str(killed.failed)
    assert after.failed is None
    assert [done.engine for done in (wide, narrow, after)] == [1, 1, 2]


def space(*search: str) -> Space:
    options = RefineOptions(profile=PROFILE, trace=Path(), search=search)
    one = profile.load(PROFILE)
    engines = engines_of(options, one)
    return space_of(options, one, engines.vary, requests=REQUESTS, block_size=16)


def test_vllm_is_asked_about_every_value_before_anything_starts() -> None:
    found = space(
        "--block-size=64,128",
        "kv_cache_dtype=auto,fp8",
        'compilation_config={"mode": 0, "custom_ops": ["none", "+rms_norm"]},{"mode": 2}',
    )
    values = {knob.name: knob.values for knob in found.knobs}
    assert values["block_size"] == (64, 128)
    assert values["kv_cache_dtype"] == ("auto", "fp8")
    assert values["compilation_config"] == (
        None, {"mode": 0, "custom_ops": ["none", "+rms_norm"]}, {"mode": 2},
    )  # fmt: skip
    assert not any("async" in name for name in values)  # off on a CPU, whatever is asked
    for search, said in (
        ("kv_cache_dtype=nonsense", "vLLM (does not take|refuses: .*) 'nonsense'"),
        ('compilation_config={"mode": 99}', "vLLM does not take {'mode': 99}"),
        ('compilation_config={"mode"', "not JSON"),
        ("max_num_sqs=3", "is not an argument of this vLLM"),
        ("async_scheduling=true", "it is False here, whatever is asked"),
    ):
        with pytest.raises(UsageError, match=said):
            space(search)

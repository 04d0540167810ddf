"""Measure tuner's own speed, by ratios within one run: python scripts/bench.py [--json].

live ladder    six caps on one engine against an engine of its own for every cap: seconds spent on
               starting, stopping and switching, and how far the curves are apart
generator      lag of the replay and its share of a core while 32 streams run at once
sim            requests per second through the simulated engine
iteration log  what logging an iteration costs inside EngineCore, by its number of sequences
live control   vLLM's schedule() without it, with it, and while a client asks without a pause
twin           a million requests at one cap, 20 refits of an hour's trace at four caps, and what
               weighing the caps for both loads costs over weighing them for today's
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median
from timeit import repeat
from types import SimpleNamespace
from typing import Any

import numpy as np
from random_worlds import case, shape_of

from tuner.engines.scheduler.state import StepLaw
from tuner.engines.seam import Engine, EngineFacts
from tuner.engines.server.scheduler_log import SchedulerLog
from tuner.engines.sim import virtual_time
from tuner.engines.sim.world import step_law
from tuner.engines.vllm.start import VllmStarter
from tuner.replay.measure import measure
from tuner.replay.plan import PlannedRequest
from tuner.replay.records import Replay
from tuner.replay.replay import CutRule, replay
from tuner.runs.ladder import doubling
from tuner.runs.outcome import predictions_of
from tuner.trace.trace import TraceRequest, load
from tuner.traffic.prompts import prompt_token_ids
from tuner.traffic.slo import Slo
from tuner.twin.choice import weigh
from tuner.twin.draws import MOST_FLICKER, MachineHistory
from tuner.twin.forecast import Forecast
from tuner.twin.law import Segment, fit_law
from tuner.twin.load import Loads, loads_of
from tuner.twin.simulation import EngineShape, Traffic, simulate

TRACE = Path(__file__).parents[1] / "traces" / "translation.jsonl"
CAPS = doubling(32)
ASKS = """
import sys
from pathlib import Path
from tuner.engines.server import control_client
control_client.state(Path(sys.argv[1]))
print(flush=True)
while True:
    control_client.state(Path(sys.argv[1]))
"""
NEVER_CUT = CutRule(Slo(ttft_s=1e9), floor=0.0)


def planned(
    requests: Sequence[TraceRequest], facts: EngineFacts, *, every_s: float
) -> list[PlannedRequest]:
    """Return the requests as a plan in which one leaves every ``every_s`` seconds."""
    prompt = partial(prompt_token_ids, seed=0, vocab_size=facts.vocab_size, block_size=16)
    return [
        PlannedRequest(number, number * every_s, prompt(one), one.output_length)
        for number, one in enumerate(requests)
    ]


async def replayed(engine: Engine, plan: Sequence[PlannedRequest], cap: int) -> Replay:
    tokens = int(str(engine.facts.arguments["max_num_batched_tokens"]))
    await engine.set_limits(max_num_seqs=cap, max_num_batched_tokens=tokens)
    await engine.reset_prefix_cache()
    return await replay(
        plan,
        engine,
        max_num_seqs=cap,
        scored_from_s=0.0,
        window_s=plan[-1].planned_s + 1e-3,
        cut_rule=NEVER_CUT,
    )


async def timed(work: Awaitable[Any]) -> tuple[float, Any]:
    begin_s = time.monotonic()
    result = await work
    return time.monotonic() - begin_s, result


def tokens_per_s(result: Replay) -> float:
    return sum(one.output_tokens for one in result.records) / result.elapsed_s


async def ladders(requests: Sequence[TraceRequest]) -> dict[str, Any]:
    """Walk the caps live and fresh in turn, so that both meet the same machine."""
    starter = VllmStarter({"model": "tuner:tiny"})
    await (await starter.start(max_num_seqs=1)).stop()  # imports vLLM once, for both ladders
    live_s, live = await timed(starter.start(max_num_seqs=CAPS[-1]))
    whole = planned(requests, live.facts, every_s=0.0)
    await replayed(live, whole[: CAPS[-1]], CAPS[-1])  # the first replay of an engine warms it up
    fresh_s = switch_s = 0.0
    ratios = {}
    for cap in CAPS:
        plan = whole[: max(4, 2 * cap)]
        start_s, fresh = await timed(starter.start(max_num_seqs=cap))
        await replayed(fresh, plan[:cap], cap)
        fresh_speed = tokens_per_s(await replayed(fresh, plan, cap))
        stop_s, _ = await timed(fresh.stop())
        fresh_s += start_s + stop_s
        tokens = int(str(live.facts.arguments["max_num_batched_tokens"]))
        one_switch_s, _ = await timed(
            live.set_limits(max_num_seqs=cap, max_num_batched_tokens=tokens)
        )
        switch_s += one_switch_s
        ratios[cap] = tokens_per_s(await replayed(live, plan, cap)) / fresh_speed
    stop_s, _ = await timed(live.stop())
    live_s += stop_s
    return {
        "live_overhead_s": live_s + switch_s,
        "fresh_overhead_s": fresh_s,
        "fresh_over_live": fresh_s / (live_s + switch_s),
        "switch_ms": 1e3 * switch_s / len(CAPS),
        "live_over_fresh_tokens_per_s": ratios,
        "live_over_fresh_mean": fmean(ratios.values()),
    }


async def generator(requests: Sequence[TraceRequest]) -> dict[str, Any]:
    """Keep 32 streams busy and look at the sender."""
    engine = await VllmStarter({"model": "tuner:tiny"}).start(max_num_seqs=32)
    plan = planned(requests, engine.facts, every_s=0.1)
    await replayed(engine, plan[:8], 32)
    begin_cpu_s = time.process_time()
    elapsed_s, result = await timed(replayed(engine, plan, 32))
    cpu_s = time.process_time() - begin_cpu_s
    await engine.stop()
    one = measure([result], NEVER_CUT.slo)
    assert one.itl_s is not None
    return {
        "running_peak": one.running_peak,
        "output_tokens_per_s": tokens_per_s(result),
        "lag_p99_ms": 1e3 * one.lag_p99_s,
        "lag_p99_over_itl_p50": one.lag_p99_s / one.itl_s.p50,
        "cpu_share_of_one_core": cpu_s / elapsed_s,
        "merged_share": one.merged_share,
    }


async def sim(requests: Sequence[TraceRequest]) -> dict[str, Any]:
    """Replay an hour of the sample's traffic on the simulated engine."""
    # vLLM's child processes import this script anew, and numba breaks its start on a CPU.
    from tuner.engines.sim.start import SimStarter  # noqa: PLC0415
    from tuner.engines.sim.world import World, WorldStep  # noqa: PLC0415

    engine = await SimStarter(World(step=WorldStep(a=0.02, b=0.0006))).start(max_num_seqs=16)
    plan = planned(list(requests) * 12, engine.facts, every_s=0.3)
    await replayed(engine, plan[:10], 16)  # compiles
    elapsed_s, result = await timed(replayed(engine, plan, 16))
    await engine.stop()
    return {
        "requests": len(plan),
        "requests_per_s": len(plan) / elapsed_s,
        "virtual_over_real": result.elapsed_s / elapsed_s,
    }


def iteration_log() -> dict[str, Any]:
    """Log decode iterations of vLLM's scheduler output, without the rest of the engine."""
    microseconds = {}
    for size in (1, 32, 256):
        names = [f"request-{number}" for number in range(size)]
        request = SimpleNamespace(
            num_computed_tokens=201, num_prompt_tokens=100, is_prefill_chunk=False
        )
        pool = SimpleNamespace(num_gpu_blocks=1000, get_num_free_blocks=lambda: 500)
        scheduler = SimpleNamespace(
            requests=dict.fromkeys(names, request),
            kv_cache_manager=SimpleNamespace(block_pool=pool),
            get_request_counts=lambda size=size: (size, 0),
            has_requests=lambda: True,
        )
        output = SimpleNamespace(
            num_scheduled_tokens=dict.fromkeys(names, 1),
            scheduled_spec_decode_tokens={},
            scheduled_new_reqs=[],
            scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set()),
        )
        one = SimpleNamespace(prefill_stats=None, finish_reason=None)
        result = {0: SimpleNamespace(outputs=[one] * size)}
        log = SchedulerLog(scheduler)

        def iterate(log: SchedulerLog = log, output: Any = output, result: Any = result) -> None:  # noqa: ANN401
            log.scheduled(output, 0.0)
            log.computed(output, result)

        microseconds[f"us_at_{size}_sequences"] = min(repeat(iterate, number=500)) / 500 * 1e6
    return microseconds


def live_control() -> dict[str, Any]:
    """Schedule the same decode iterations without it, with it, and while a client asks, in turn."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415 - slow to import

    from tests.support import lone_scheduler as lone  # noqa: PLC0415

    results: dict[str, float] = {}
    for size in (1, 32):
        config = lone.configured(max_num_seqs=32)
        with tempfile.TemporaryDirectory() as folder:
            path = os.environ[lone.live.SOCKET] = f"{folder}/tuner.sock"
            plain, live = (
                lone.scheduler_of(k, config) for k in (Scheduler, lone.live.LiveScheduler)
            )
            for number in range(2 * size):
                lone.add((plain, live)[number % 2], f"{number}", prompt=8, tokens=2000)
            times: dict[str, list[float]] = {"none": [], "control": [], "asked": []}
            command = [sys.executable, "-c", ASKS, path]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as client:  # noqa: S603 - ours
                assert client.stdout is not None
                client.stdout.readline()
                for _ in range(12):
                    times["asked"].append(_schedule_us(lone, live))
                    client.send_signal(signal.SIGSTOP)
                    times["control"].append(_schedule_us(lone, live))
                    times["none"].append(_schedule_us(lone, plain))
                    client.send_signal(signal.SIGCONT)
                client.kill()
            live.shutdown()
        results[f"us_at_{size}_sequences"] = median(times["none"])
        for name in ("control", "asked"):
            ratios = [one / other for one, other in zip(times[name], times["none"], strict=True)]
            results[f"{name}_over_none_at_{size}"] = median(ratios)
    return results


def _schedule_us(lone: Any, scheduler: Any) -> float:  # noqa: ANN401 - a module, and vLLM's
    """Return the mean time of one schedule()."""
    taken_s = 0.0
    for _ in range(60):
        begin_s = time.monotonic()
        iteration = lone.schedule(scheduler)
        taken_s += time.monotonic() - begin_s
        lone.compute(scheduler, iteration)
    return 1e6 * taken_s / 60


def twin() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shape = EngineShape(
        max_num_batched_tokens=8192, block_size=16, kv_blocks=10_000, max_model_len=8192
    )
    law = StepLaw(np.linspace(0.020, 0.040, 33), 1e-5, 0.0, 0.0, 0.0)

    def traffic(count: int, length_s: float) -> Traffic:
        arrivals = np.sort(rng.uniform(0, length_s, count)).tolist()
        return Traffic.of((at_s, 100, int(rng.integers(50, 150))) for at_s in arrivals)

    million, hour = traffic(1_000_000, 200_000.0), traffic(19_000, 3600.0)
    simulate(hour, law, shape, max_num_seqs=16)  # compiles
    begin_s = time.monotonic()
    simulate(million, law, shape, max_num_seqs=16)
    million_s = time.monotonic() - begin_s
    log = simulate(hour, law, shape, max_num_seqs=32, log=True).iterations
    log["duration_s"] *= np.exp(rng.normal(0.0, 0.05, len(log)))
    begin_s = time.monotonic()
    fitted = fit_law([Segment(log, 0.0, 0)], max_num_seqs=32)
    slo = Slo(ttft_s=1.0)
    said = weigh(Loads(hour), fitted, shape, slo, (4, 8, 16, 32), everywhere=True, draws=20)
    refits_s = time.monotonic() - begin_s
    view = Forecast(
        fitted,
        shape,
        loads_of(hour, 1.25, seed=0),
        slo,
        length_s=3600.0,
        hit_share=0.0,
        stalled_share=0.0,
        weighed=said,
        machine=MachineHistory(np.ones(240), flicker=np.ones(MOST_FLICKER)),
    )
    begin_s = time.process_time()
    predictions_of(view, 16)
    promise_s = time.process_time() - begin_s
    return {
        "million_requests_s": million_s,
        "fit_of_iterations": len(log),
        "fit_and_20_refits_of_an_hour_s": refits_s,
        "promise_of_an_hour_cpu_s": promise_s,
        **_both_loads_over_today(),
    }


WORLDS = 24


def _both_loads_over_today() -> dict[str, float]:
    """Return how much more CPU time it takes to weigh the caps for both loads, as a run does after
    a trial, than for today's alone: in the mean over random worlds, and at most."""
    ratios = []
    for seed in range(WORLDS):
        one = case(seed, "typical")
        law, shape = step_law(one.world.step, CAPS[-1]), shape_of(one.world, known=False)
        log = simulate(one.traffic, law, shape, max_num_seqs=CAPS[-1], log=True).iterations
        log["duration_s"] *= np.exp(np.random.default_rng(seed).normal(0.0, 0.05, len(log)))
        fitted = fit_law([Segment(log, 0.0, 0)], max_num_seqs=CAPS[-1])
        took_s = []
        for loads in (Loads(one.traffic), loads_of(one.traffic, 1.25, seed=seed)):
            begin_s = time.process_time()
            weigh(loads, fitted, shape, one.slo, CAPS)
            took_s.append(time.process_time() - begin_s)
        ratios.append(took_s[1] / took_s[0])
    return {"both_loads_over_today": float(np.mean(ratios)), "at_most": max(ratios)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    as_json = parser.parse_args().json
    requests = [one for one in load(TRACE).requests if one.status == "ok"]
    results: dict[str, Any] = {}
    benches: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        ("live ladder", lambda: asyncio.run(ladders(requests[:64]))),
        ("generator", lambda: asyncio.run(generator(requests[:150]))),
        ("sim", lambda: virtual_time.run(sim(requests))),
        ("iteration log", iteration_log),
        ("live control", live_control),
        ("twin", twin),
    ]
    for name, bench in benches:
        sys.stderr.write(f"{name} ...\n")
        results[name] = bench()
        if not as_json:
            sys.stdout.write(f"{name}\n")
            for key, value in results[name].items():
                sys.stdout.write(f"  {key:32} {_shown(value)}\n")
    if as_json:
        sys.stdout.write(json.dumps(results) + "\n")
    return 0


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {number:.2f}" for key, number in value.items())
    return f"{value:,.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())

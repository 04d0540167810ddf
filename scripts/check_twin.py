"""The twin against an engine: fitted on some caps, what does it predict of the others?

    python scripts/check_twin.py [--trace traces/translation.jsonl] [--world FILE] [--ramp 60]

Starts one engine at 32 slots (a real vLLM, or with --world a simulated one), replays the busiest
window at caps 1, 4, 16 and then at 2, 8, 32, fits the law to the first three (and to a ramp), and
prints what the twin says of all six at the speed that the engine had, number by number. Replays
that take more than twice as long as the window are cut.
"""

import argparse
import asyncio
from pathlib import Path

from tuner.engines.seam import Engine, Starter
from tuner.engines.sim import virtual_time
from tuner.engines.sim.start import SimStarter
from tuner.engines.sim.world import read_world
from tuner.engines.vllm.start import VllmStarter
from tuner.replay.plan import plan_requests
from tuner.replay.ramp import ramp
from tuner.replay.replay import CutRule, replay
from tuner.trace.trace import Trace, TraceRequest, load
from tuner.traffic.arrivals import busiest_window
from tuner.traffic.prompts import prompt_token_ids
from tuner.traffic.slo import Slo
from tuner.traffic.window import Window, in_window
from tuner.twin.check import Observed, check_at_own_speed, driver, lag_s, observed
from tuner.twin.law import FittedLaw, Segment, fit_law
from tuner.twin.simulation import shape_of

CEILING = 32
FITTED, PREDICTED = (1, 4, 16), (2, 8, 32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", type=Path, default=Path("traces/translation.jsonl"))
    parser.add_argument("--world", type=Path)
    parser.add_argument("--window", type=float, default=40.0, metavar="SECONDS")
    parser.add_argument("--ramp", type=float, default=0.0, metavar="SECONDS")
    options = parser.parse_args()
    trace = load(options.trace)
    model = trace.header.model or "tuner:tiny"
    lengths = {"window_s": options.window, "ramp_s": options.ramp}
    if options.world is None:
        asyncio.run(compare(trace, VllmStarter({"model": model}), **lengths))
    else:
        virtual_time.run(compare(trace, SimStarter(read_world(options.world)), **lengths))


async def compare(trace: Trace, starter: Starter, *, window_s: float, ramp_s: float) -> None:
    engine = await starter.start(max_num_seqs=CEILING)
    try:
        segments, windows = [], []
        if ramp_s:
            segments.append(await ramped(trace, engine, ramp_s))
        for cap in (*FITTED, *PREDICTED):
            segment, window = await replayed(trace, engine, cap, window_s)
            windows.append(window)
            if cap in FITTED:
                segments.append(segment)
    finally:
        await engine.stop()
    fitted = fit_law(segments, max_num_seqs=CEILING)
    report(windows, fitted, engine)


async def ramped(trace: Trace, engine: Engine, ramp_s: float) -> Segment:
    limits = engine.facts.arguments
    tokens = int(str(limits["max_num_batched_tokens"]))
    await engine.set_limits(max_num_seqs=CEILING, max_num_batched_tokens=tokens)
    log, start_s = await ramp(
        [one for one in trace.requests if one.status == "ok"],
        engine,
        ceiling=CEILING,
        length_s=ramp_s,
        tpot_s=0.01,
        prompt=lambda one: prompt_of(one, trace, engine),
    )
    return Segment(log, start_s, 0)


async def replayed(
    trace: Trace, engine: Engine, cap: int, window_s: float
) -> tuple[Segment, Observed]:
    tokens = int(str(engine.facts.arguments["max_num_batched_tokens"]))
    await engine.set_limits(max_num_seqs=cap, max_num_batched_tokens=tokens)
    await engine.reset_prefix_cache()
    begin_s, end_s = busiest_window(trace.requests, window_s)
    window = Window(begin_s, end_s - begin_s, 0.0)
    plan = plan_requests(
        in_window(trace.requests, window),
        window,
        max_model_len=engine.facts.max_model_len,
        prompt=lambda one: prompt_of(one, trace, engine),
    )
    start_s = asyncio.get_running_loop().time()
    never = CutRule(Slo(), floor=0.0, stop_after_s=2 * window_s)
    found = await replay(
        plan, engine, max_num_seqs=cap, scored_from_s=0.0, window_s=window_s, cut_rule=never
    )
    return Segment(found.iterations, start_s, 0), observed(found)


def prompt_of(request: TraceRequest, trace: Trace, engine: Engine) -> list[int]:
    return list(
        prompt_token_ids(
            request, vocab_size=engine.facts.vocab_size, block_size=trace.header.block_size, seed=0
        )
    )


def report(windows: list[Observed], fitted: FittedLaw, engine: Engine) -> None:
    shape = shape_of(engine.facts)
    shape = shape_of(engine.facts, lag_s=lag_s(windows[: len(FITTED)], fitted.law, shape))
    print(f"lag {shape.lag_s * 1e3:.1f} ms; noise {fitted.noise_sd:.3f}; law {fitted.law}")
    for window in windows:
        kind = "fitted" if window.max_num_seqs in FITTED else "predicted"
        found = check_at_own_speed([window], fitted.law, Slo(), driver(fitted.law, shape))
        print(
            f"{window.max_num_seqs} ({kind}{', cut' if window.cut else ''}): {found.held} of "
            f"{len(found.numbers)} held, {'failed' if found.failed else 'passed'}"
        )
        for one in found.numbers:
            print(
                f"  {one.name:15} {one.measured:10.4g} for {one.predicted:10.4g} "
                f"({one.low:.4g} to {one.high:.4g})"
            )


if __name__ == "__main__":
    main()

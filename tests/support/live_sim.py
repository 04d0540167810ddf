"""A simulated server as its /metrics shows it: a world and its traffic, scraped at any times."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from tests.support.profiles import profile, step
from tuner.engines.scheduler.model import advance
from tuner.engines.scheduler.state import (
    FINISHED,
    FULL,
    NO_NOISE,
    Floats,
    Ints,
    Noise,
    new_requests,
    new_scheduler,
)
from tuner.engines.sim.noise import engine_noise, machine_noise
from tuner.engines.sim.world import World, step_law
from tuner.live.prometheus import Counter, Distribution, Histogram, ServerMetrics
from tuner.profile.evidence import pack
from tuner.profile.profile import ServingProfile, resealed
from tuner.traffic.slo import Slo
from tuner.twin.decide import choose
from tuner.twin.forecast import Forecast
from tuner.twin.law import Segment, fit_law
from tuner.twin.samples import Loads
from tuner.twin.simulation import EngineShape, Traffic, simulate

LENGTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, math.inf)
REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0, math.inf),
)
FIRST_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0, math.inf),
)
GAP_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, math.inf),
)
"""vLLM's own buckets."""

NAMES: Mapping[str, str] = {
    "ttft_s": "time_to_first_token_seconds",
    "itl_s": "inter_token_latency_seconds",
    "tpot_s": "request_time_per_output_token_seconds",
    "e2el_s": "e2e_request_latency_seconds",
    "input_length": "request_prompt_tokens",
    "output_length": "request_generation_tokens",
    "running": "num_requests_running",
    "waiting": "num_requests_waiting",
    "kv_cache_usage": "kv_cache_usage_perc",
    "preemptions": "num_preemptions",
    "input_tokens": "prompt_tokens",
    "output_tokens": "generation_tokens",
}


@dataclass(frozen=True, slots=True)
class _Values:
    """Values in order of the time at which they were counted."""

    at_s: Floats
    upto: Floats
    """Sum of all up to each."""

    in_bucket: tuple[Floats, ...]
    """For each bound the times of those up to it."""

    bounds: tuple[float, ...]

    @classmethod
    def of(cls, at_s: Floats, values: Floats, bounds: tuple[float, ...]) -> "_Values":
        order = np.argsort(at_s, kind="stable")
        at_s, values = at_s[order], values[order]
        inside = tuple(at_s[values <= bound] for bound in bounds)
        return cls(at_s, np.concatenate(([0.0], np.cumsum(values))), inside, bounds)

    def histogram(self, now_s: float) -> Histogram:
        counts = tuple(float(np.searchsorted(each, now_s, "right")) for each in self.in_bucket)
        place = int(np.searchsorted(self.at_s, now_s, "right"))
        return Histogram(self.bounds, counts, float(self.upto[place]))


@dataclass(frozen=True, slots=True)
class SimulatedServer:
    """All that it did, so that any moment can be scraped."""

    arrival_s: Floats
    scheduled_s: Floats
    last_s: Floats
    values: Mapping[Distribution, _Values]
    token_s: Floats
    preempted_s: Floats
    usage: tuple[Floats, Floats]
    """Times, and the share of the KV cache from then on."""

    def scrape(self, now_s: float) -> ServerMetrics:
        def count(times_s: Floats) -> float:
            return float(np.count_nonzero(times_s <= now_s))

        done = count(self.last_s)
        running = count(self.scheduled_s) - done
        distributions = {name: each.histogram(now_s) for name, each in self.values.items()}
        place = int(np.searchsorted(self.usage[0], now_s, "right")) - 1
        counters: dict[Counter, float] = {
            "preemptions": count(self.preempted_s),
            "input_tokens": distributions["input_length"].total,
            "output_tokens": count(self.token_s),
            "requests": done,
        }
        return ServerMetrics(
            gauges={
                "running": running,
                "waiting": count(self.arrival_s) - done - running,
                "kv_cache_usage": float(self.usage[1][place]) if place >= 0 else 0.0,
            },
            counters=counters,
            distributions=distributions,
            finish_reasons={"length": done, "abort": 0.0, "error": 0.0},
        )


def simulated(  # noqa: PLR0913 - the machine, its traffic, and what happens to it
    world: World,
    traffic: Traffic,
    *,
    cap: int,
    until_s: float,
    slow_from_s: float = math.inf,
    slow_by: float = 1.0,
    start: int = 1,
) -> SimulatedServer:
    """Serve the traffic on the world's machine, which from some time on is so much slower.

    ``start`` counts the engine starts on that machine, each with its own speed.
    """
    noise = _noise(world, until_s, slow_from_s, slow_by, start)
    law = step_law(world.step, max(cap, 64))
    scheduler = new_scheduler(
        max_num_seqs=cap,
        max_num_batched_tokens=world.budget,
        block_size=world.kv.block_size,
        kv_blocks=world.kv.blocks,
        async_scheduling=world.step.async_release,
        rows=max(1, len(traffic)),
        log_length=65_536,
        token_length=int(traffic.output_length.sum()) + 1024,
    )
    scheduler.requests[: len(traffic)] = new_requests(
        traffic.arrival_s + world.step.lag, traffic.input_length, traffic.output_length
    )
    scheduler.state["rows"] = len(traffic)
    logs = []
    while advance(scheduler, law, noise, until_s, False) == FULL:
        logs.append(scheduler.log.copy())
        scheduler.state["logged"] = 0
    logs.append(scheduler.log[: scheduler.state["logged"][0]].copy())
    log = np.concatenate(logs)
    count = int(scheduler.state["tokens"][0])
    return _recorded(
        world, traffic, scheduler.requests[: len(traffic)], log,
        scheduler.tokens.row[:count].copy(), scheduler.tokens.at_s[:count].copy(),
    )  # fmt: skip


def _noise(world: World, until_s: float, slow_from_s: float, slow_by: float, start: int) -> Noise:
    noise = engine_noise(machine_noise(world), world, number=start, now_s=0.0)
    if not noise.slowdown.size:
        noise = NO_NOISE._replace(slowdown=np.ones(int(until_s) + 2))
    times = np.arange(noise.slowdown.size) * noise.grid_s
    return noise._replace(slowdown=noise.slowdown * np.where(times >= slow_from_s, slow_by, 1.0))


def _recorded(  # noqa: PLR0913, PLR0917 - what the scheduler leaves behind
    world: World, traffic: Traffic, requests: np.ndarray, log: np.ndarray, rows: Ints, at_s: Floats
) -> SimulatedServer:
    order = np.lexsort((at_s, rows))
    same = np.diff(rows[order], prepend=-1) == 0
    gap_s = np.diff(at_s[order], prepend=0.0)[same]
    gap_at_s = at_s[order][same]
    first_s = requests["first_token_s"]
    started = ~np.isnan(first_s)
    done = requests["status"] == FINISHED
    last_s = requests["last_token_s"][done]
    arrival_s = traffic.arrival_s
    outputs = traffic.output_length[done]
    several = outputs > 1
    tpot_s = np.where(several, (last_s - first_s[done]) / np.maximum(1, outputs - 1), 0.0)
    values: dict[Distribution, _Values] = {
        "itl_s": _Values.of(gap_at_s, gap_s, GAP_S),
        "ttft_s": _Values.of(first_s[started], (first_s - arrival_s)[started], FIRST_S),
        "e2el_s": _Values.of(last_s, last_s - arrival_s[done], REQUEST_S),
        "tpot_s": _Values.of(last_s, tpot_s, GAP_S),
        "input_length": _Values.of(last_s, traffic.input_length[done].astype(float), LENGTHS),
        "output_length": _Values.of(last_s, outputs.astype(float), LENGTHS),
    }
    return SimulatedServer(
        arrival_s=arrival_s,
        scheduled_s=np.sort(requests["scheduled_s"][~np.isnan(requests["scheduled_s"])]),
        last_s=np.sort(last_s),
        values=values,
        token_s=np.sort(at_s),
        preempted_s=np.repeat(log["start_s"], log["preemptions"]),
        usage=(log["start_s"].copy(), log["kv_blocks_used"] / world.kv.blocks),
    )


def exposition(
    engines: Mapping[str, ServerMetrics],
    *,
    names: Mapping[str, str] = NAMES,
    started_s: float | None = None,
) -> str:
    """Return what a server with these engines writes at /metrics."""
    lines = [] if started_s is None else [f"process_start_time_seconds {started_s}"]
    for engine, each in engines.items():
        label = f'engine="{engine}",model_name="m"'
        for gauge, value in each.gauges.items():
            lines.append(f"vllm:{names[gauge]}{{{label}}} {value}")
        for counter, value in each.counters.items():
            if counter in names:
                lines.append(f"vllm:{names[counter]}_total{{{label}}} {value}")
        for reason, value in each.finish_reasons.items():
            lines.append(
                f'vllm:request_success_total{{{label},finished_reason="{reason}"}} {value}'
            )
        for name, histogram in each.distributions.items():
            theirs = f"vllm:{names[name]}"
            for bound, upto in zip(histogram.bounds, histogram.counts, strict=True):
                le = "+Inf" if math.isinf(bound) else f"{bound:g}"
                lines.append(f'{theirs}_bucket{{{label},le="{le}"}} {upto}')
            lines.append(f"{theirs}_sum{{{label}}} {histogram.total}")
            lines.append(f"{theirs}_count{{{label}}} {histogram.count}")
    return "\n".join([*lines, ""])


def poisson(rate_rps: float, length_s: float, *, seed: int, output: int = 60) -> Traffic:
    """Return requests at random times: prompts of 20 to 200 tokens, outputs of mean ``output``."""
    rng = np.random.default_rng(seed)
    count = rng.poisson(rate_rps * length_s)
    arrival_s = np.sort(rng.uniform(0, length_s, count))
    inputs = rng.integers(20, 200, count)
    outputs = rng.integers(output // 2, output + output // 2, count)
    return Traffic(arrival_s, inputs, outputs, np.zeros(count, np.int64))


def profile_of(  # noqa: PLR0913 - the machine, its traffic, and what a sweep would say
    world: World,
    traffic: Traffic,
    length_s: float,
    *,
    cap: int,
    caps: tuple[int, ...],
    model: str = "m",
) -> ServingProfile:
    """Return a profile whose twin knows the world's law from a noisy log of this traffic."""
    slo = Slo(ttft_s=0.5, tpot_s=0.05)
    shape = EngineShape(
        max_num_batched_tokens=world.budget,
        block_size=world.kv.block_size,
        kv_blocks=world.kv.blocks,
        max_model_len=world.kv.blocks * world.kv.block_size,
        lag_s=world.step.lag,
    )
    law = step_law(world.step, caps[-1])
    log = simulate(traffic, law, shape, max_num_seqs=caps[-1], log=True).iterations
    log["duration_s"] *= np.exp(np.random.default_rng(0).normal(0, 0.02, len(log)))
    fitted = fit_law([Segment(log, 0.0, 0)], max_num_seqs=caps[-1])
    view = Forecast(
        fitted=fitted,
        shape=shape,
        loads=Loads(traffic),
        slo=slo,
        length_s=length_s,
        hit_share=0.0,
        stalled_share=0.0,
        choice=choose(Loads(traffic), fitted, shape, slo, caps),
    )
    engine = {"model": model, "max_num_seqs": cap, "max_num_batched_tokens": world.budget}
    plain = profile(engine=engine, curve=tuple(step(cap) for cap in caps))
    validity = replace(plain.validity, arrival_rate_rps=len(traffic) / length_s)
    return resealed(plain, validity=validity, evidence=pack(view))

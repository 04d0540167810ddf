"""A simulated server as its /metrics shows it, scraped at any times, and a profile of it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from tests.support.profiles import profile, resealed, step
from tuner.engines.scheduler.state import Floats, StepLaw
from tuner.live.prometheus import ServerMetrics
from tuner.profile.evidence import pack
from tuner.profile.profile import ServingProfile
from tuner.replay.records import ttft_s
from tuner.traffic.slo import Slo
from tuner.twin.decide import choose
from tuner.twin.forecast import Forecast
from tuner.twin.law import fit_law
from tuner.twin.samples import Loads, Machine
from tuner.twin.simulation import EngineShape, Traffic, simulate

LAW = StepLaw(0.02 + 0.0006 * np.arange(65.0) + 0.0025 * (np.arange(65) > 16), 1e-4, 0.0, 0.0, 0.0)
SHAPE = EngineShape(
    max_num_batched_tokens=2048, block_size=16, kv_blocks=4000, max_model_len=64_000
)


@dataclass(frozen=True, slots=True)
class SimulatedServer:
    """All that it did, so that any moment can be scraped."""

    changes: Mapping[str, tuple[Floats, Floats]]
    """Name of a sample → ascending times at which it changes, and its values from then on."""

    def scrape(self, now_s: float) -> ServerMetrics:
        values = {}
        for name, (times_s, upto) in self.changes.items():
            place = int(np.searchsorted(times_s, now_s, "right"))
            values[name] = float(upto[place - 1]) if place else 0.0
        return ServerMetrics(values, model="m")


def simulated(traffic: Traffic, *, cap: int, slow_by: float = 1.0) -> SimulatedServer:
    """Serve the traffic on a machine that is so many times slower than LAW."""
    replay = simulate(traffic, LAW.slowed(slow_by), SHAPE, max_num_seqs=cap, log=True)
    rows = replay.requests
    scheduled_s, first_s, last_s = rows["scheduled_s"], rows["first_s"], rows["last_s"]
    work = replay.iterations
    done_s, gaps = work["start_s"] + work["duration_s"], work["decode_seqs"].astype(float)
    ones = np.ones(len(traffic))
    added = {
        "num_requests_running": [(scheduled_s, ones), (last_s, -ones)],
        "num_requests_waiting": [(traffic.arrival_s, ones), (scheduled_s, -ones)],
        "generation_tokens_total": [(done_s, gaps), (first_s, ones)],
        "request_success_total": [(last_s, ones)],
        "time_to_first_token_seconds_sum": [(first_s, ttft_s(rows))],
        "time_to_first_token_seconds_count": [(first_s, ones)],
        "inter_token_latency_seconds_sum": [(done_s, gaps * work["duration_s"])],
        "inter_token_latency_seconds_count": [(done_s, gaps)],
        "request_prompt_tokens_sum": [(last_s, traffic.input_length)],
        "request_prompt_tokens_count": [(last_s, ones)],
        "request_generation_tokens_sum": [(last_s, traffic.output_length)],
        "request_generation_tokens_count": [(last_s, ones)],
    }
    changes = {}
    for name, parts in added.items():
        times_s, values = (np.concatenate(each) for each in zip(*parts, strict=True))
        order = np.argsort(times_s, kind="stable")
        changes[name] = (times_s[order], np.cumsum(values[order]))
    return SimulatedServer(changes)


def exposition(metrics: ServerMetrics, *, started_s: float | None = None) -> str:
    """Return what a server writes at /metrics."""
    lines = [] if started_s is None else [f"process_start_time_seconds {started_s}"]
    for name, value in metrics.values.items():
        lines.append(f'vllm:{name}{{engine="0",model_name="m"}} {value}')
    return "\n".join([*lines, ""])


def poisson(rate_rps: float, length_s: float, *, seed: int, output: int = 60) -> Traffic:
    """Return requests at random times: prompts of 20 to 200 tokens, outputs of mean ``output``."""
    rng = np.random.default_rng(seed)
    count = rng.poisson(rate_rps * length_s)
    arrival_s = np.sort(rng.uniform(0, length_s, count))
    inputs = rng.integers(20, 200, count)
    outputs = rng.integers(output // 2, output + output // 2, count)
    return Traffic(arrival_s, inputs, outputs, np.zeros(count, np.int64))


def profile_of(
    traffic: Traffic, length_s: float, *, cap: int, caps: tuple[int, ...]
) -> ServingProfile:
    """Return a profile whose twin knows the law from a noisy log of this traffic."""
    slo = Slo(ttft_s=0.5, tpot_s=0.05)
    log = simulate(traffic, LAW, SHAPE, max_num_seqs=caps[-1], log=True).iterations
    log["duration_s"] *= np.exp(np.random.default_rng(0).normal(0, 0.02, len(log)))
    fitted = fit_law([log], max_num_seqs=caps[-1])
    view = Forecast(
        fitted=fitted,
        shape=SHAPE,
        loads=Loads(traffic),
        slo=slo,
        length_s=length_s,
        machine=Machine(),
        choice=choose(
            Loads(traffic), fitted.laws[:40], SHAPE, slo, caps, seen=fitted.extrapolated_from
        ),
    )
    engine = {"model": "m", "max_num_seqs": cap, "max_num_batched_tokens": 2048}
    plain = profile(engine=engine, curve=tuple(step(cap) for cap in caps))
    validity = replace(plain.validity, arrival_rate_rps=len(traffic) / length_s)
    return resealed(plain, validity=validity, evidence=pack(view))

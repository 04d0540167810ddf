"""The twin's forecast for the part that is tuned for: every cap, how sure, how wrong. Pure.

The law is fitted to everything that was measured, checked against the windows that were replayed,
and then asked about all of the traffic.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tuner.engines.scheduler.state import StepLaw
from tuner.engines.seam import EngineFacts, IterationLog
from tuner.replay.numbers import Measurement, kv_cache_usage, measure, spread
from tuner.replay.records import ProbeResult, Replay, ttft_s
from tuner.traffic.constants import DRAWS, PRINTED_DRAWS
from tuner.traffic.requirements import Requirement
from tuner.traffic.slo import Slo
from tuner.traffic.workload import Workload
from tuner.twin.check import alarm, check_at_own_speed, fit_front_end
from tuner.twin.decide import Choice, choose
from tuner.twin.law import FittedLaw, fit_law
from tuner.twin.samples import Loads, Machine, Samples, ask, draws_of, loads_of, slowdowns
from tuner.twin.simulation import EngineShape, Traffic, shape_of, simulate, traffic_of

ALONE_S = 1e4
"""Between requests of which none sees another."""

BURST_S = 10.0
"""Traffic that arrives in a shorter time takes longer to be served; its rates are over this
time."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The twin's answer."""

    fitted: FittedLaw
    shape: EngineShape
    loads: Loads
    slo: Slo
    length_s: float
    """Of the part that the traffic arrives in."""

    choice: Choice
    machine: Machine
    """What is known of runs besides the law."""

    requirements: tuple[Requirement, ...] = ()
    doubt: str | None = None
    """Reason for replays to decide and not the twin; None where the twin is believed."""

    @property
    def traffic(self) -> Traffic:
        """Today's traffic."""
        return self.loads.today

    def measurement(self, cap: int, *, raised: bool = False) -> Measurement:
        """Return what a replay of all of the traffic would have measured at a cap by the law
        itself, at the recorded load or with headroom."""
        traffic = self.loads.raised[0] if raised else self.traffic
        replay = simulate(
            traffic, self.fitted.law, self.shape, max_num_seqs=cap,
            front_end=self.machine.front_end, log=True,
        )  # fmt: skip
        rows, work = replay.requests, replay.iterations
        begin_s = float(traffic.arrival_s[0]) if len(traffic) else 0.0
        span_s = self.length_s
        if span_s < BURST_S:
            span_s = max(span_s, float(rows["end_s"].max(initial=0.0)) - begin_s)
        as_measured = Replay(
            max_num_seqs=cap,
            scored_from_s=begin_s,
            window_s=span_s,
            elapsed_s=span_s,
            iterations=work,
            kv_blocks=self.shape.kv_blocks,
            requests=rows,
            token_budget=self.shape.max_num_batched_tokens,
        )
        gaps_s = spread(np.repeat(work["duration_s"], work["decode_seqs"]))
        usage = kv_cache_usage(work, self.shape.kv_blocks)  # of the end too, where queues drain
        return replace(measure([as_measured], self.slo), itl_s=gaps_s, kv_cache_usage=usage)

    def promised(self, caps: Sequence[int]) -> Samples:
        """Return what fresh engines at these caps give again, at the recorded load and with
        headroom."""
        draws = draws_of(self.fitted.laws, self.machine, self.traffic)
        return ask(draws, self.loads, caps, self.shape, self.slo)

    def again(self, machine: Machine) -> "Forecast":
        """Return the forecast of a server with another front end."""
        choice = choose(
            self.loads, self.fitted.laws, self.shape, self.slo, self.choice.samples.caps,
            seen=self.fitted.extrapolated_from, requirements=self.requirements,
            front_end=machine.front_end,
        )  # fmt: skip
        return replace(self, machine=machine, choice=choice)


def forecast(  # noqa: PLR0913 - what was measured, and what is asked
    logs: Sequence[IterationLog],
    windows: Sequence[Replay],
    workload: Workload,
    facts: EngineFacts,
    *,
    hash_block_size: int,
    caps: Sequence[int],
    requirements: Sequence[Requirement] = (),
    headroom: float = 1.0,
    seed: int = 0,
    probes: Sequence[ProbeResult] = (),
    printed: bool = False,
) -> Forecast:
    """Fit the law, check it, and choose between the caps for this workload, and with headroom.

    ``logs`` hold an iteration at least. ``windows`` are the replays to check against. ``probes``
    are lone requests through the front end that the traffic will come through. What is ``printed``
    has more draws.
    """
    fitted = fit_law(logs, max_num_seqs=max(caps))
    law, slo, length_s = fitted.law, workload.slo, workload.twin_length_s
    shape = shape_of(facts)
    shape = replace(shape, lag_s=_lag_s(workload, law, shape))
    today = traffic_of(workload.twin_requests, shape, hash_block_size=hash_block_size)
    loads = loads_of(today, headroom, seed=seed, rate_rps=len(today) / length_s)
    front_end = fit_front_end(law, probes)
    choice = choose(
        loads, fitted.laws[: PRINTED_DRAWS if printed else DRAWS], shape, slo, caps,
        seen=fitted.extrapolated_from, requirements=requirements, front_end=front_end,
    )  # fmt: skip
    slowdown = np.concatenate([slowdowns(log, law) for log in logs])
    return Forecast(
        fitted=fitted,
        shape=shape,
        loads=loads,
        slo=slo,
        length_s=length_s,
        choice=choice,
        machine=Machine(slowdown, fitted.speed_sd, front_end),
        requirements=tuple(requirements),
        doubt=_doubt(facts, windows, slo, law, shape),
    )


def _lag_s(workload: Workload, law: StepLaw, shape: EngineShape) -> float:
    """Return by how much lone requests' TTFT was longer than the scheduler model has it, prompts in
    pieces included."""
    lengths = [request.input_length for request in workload.twin_requests]
    tokens = np.quantile(lengths, np.linspace(0.05, 0.95, 19)).round()
    lone = Traffic.of((ALONE_S * place, each, 1) for place, each in enumerate(tokens.tolist()))
    line, model = workload.unloaded, simulate(lone, law, shape, max_num_seqs=1).requests
    later_s = line.ttft_s + line.ttft_s_per_input_token * lone.input_length - ttft_s(model)
    later_s = later_s[~np.isnan(later_s)]
    return max(0.0, float(np.median(later_s))) if len(later_s) else 0.0


def _doubt(
    facts: EngineFacts, windows: Sequence[Replay], slo: Slo, law: StepLaw, shape: EngineShape
) -> str | None:
    """Return why the twin is not to be believed: what it does not know of the engine, or where it
    was wrong about a window."""
    if facts.unmodelled:
        return f"the twin does not know {', '.join(facts.unmodelled)}"
    checks = (alarm(check_at_own_speed(each, slo, law, shape)) for each in windows)
    wrong = [worst for worst in checks if worst is not None]
    if not wrong:
        return None
    furthest = max(wrong, key=lambda number: number.off)
    return f"the twin was wrong at the engine's own speed ({furthest})"

"""The twin's forecast for the part that is tuned for: every cap, how sure, how wrong. Pure.

The law is fitted to everything that was measured, checked against the windows that were replayed,
and then asked about all of the traffic.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tuner.engines.scheduler.state import StepLaw
from tuner.engines.seam import EngineFacts, IterationLog
from tuner.replay.numbers import (
    Measurement,
    bound_shares,
    kv_cache_usage,
    most_at_once,
    spread,
)
from tuner.replay.records import ProbeResult, Replay
from tuner.traffic.constants import DRAWS, PRINTED_DRAWS
from tuner.traffic.requirements import Requirement
from tuner.traffic.slo import Slo
from tuner.traffic.workload import Workload
from tuner.twin.check import Check, check_at_own_speed
from tuner.twin.decide import Choice, choose
from tuner.twin.front_end import fit_front_end
from tuner.twin.law import FittedLaw, fit_law
from tuner.twin.samples import Loads, Machine, Samples, ask, draws_of, loads_of, slowdowns
from tuner.twin.simulation import (
    EngineShape,
    Traffic,
    TwinReplay,
    met,
    shape_of,
    simulate,
    traffic_of,
)

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
    checks: tuple[Check, ...] = ()
    """One a cap of which windows were replayed for real, at the speed that the engine had."""

    unmodeled: tuple[str, ...] = ()
    """What the engine does that the twin does not."""

    @property
    def traffic(self) -> Traffic:
        """Today's traffic."""
        return self.loads.today

    @property
    def headroom(self) -> float:
        """The load that caps are asked about besides; 1 where none is."""
        return self.loads.headroom

    @property
    def doubt(self) -> str | None:
        """Reason for replays to decide and not the twin; None where the twin is believed."""
        if self.unmodeled:
            return f"the twin does not know {', '.join(self.unmodeled)}"
        wrong = [check.worst for check in self.checks if check.failed]
        if wrong:
            furthest = max(wrong, key=lambda item: abs(item.off)).words
            return f"the twin was wrong at the engine's own speed ({furthest})"
        return None

    @property
    def is_believed(self) -> bool:
        return self.doubt is None

    def measurement(self, cap: int, *, raised: bool = False) -> Measurement:
        """Return what a replay of all of the traffic would have measured at a cap by the law
        itself, at the recorded load or with headroom."""
        traffic = self.loads.raised[0] if raised else self.traffic
        replay = simulate(
            traffic, self.fitted.law, self.shape, max_num_seqs=cap,
            front_end=self.machine.front_end, log=True,
        )  # fmt: skip
        return measurement_of(traffic, replay, self.slo, shape=self.shape, length_s=self.length_s)

    def promised(self, caps: Sequence[int]) -> Samples:
        """Return what fresh engines at these caps give again, at the recorded load and with
        headroom."""
        draws = draws_of(self.fitted.laws, self.machine, [self.traffic, *self.loads.raised])
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
    law, slo = fitted.law, workload.slo
    requests, length_s = workload.twin_requests, workload.twin_length_s
    shape = shape_of(facts)
    shape = replace(shape, lag_s=_lag_s(workload, law, shape))
    today = traffic_of(requests, shape, hash_block_size=hash_block_size)
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
        checks=_checks(windows, slo, law, shape),
        unmodeled=tuple(facts.unmodelled),
    )


def _lag_s(workload: Workload, law: StepLaw, shape: EngineShape) -> float:
    """Return by how much lone requests' TTFT was longer than the scheduler model has it, prompts in
    pieces included."""
    lengths = [request.input_length for request in workload.twin_requests]
    tokens = np.quantile(lengths, np.linspace(0.05, 0.95, 19)).round()
    lone = Traffic.of((ALONE_S * place, each, 1) for place, each in enumerate(tokens.tolist()))
    line, model = workload.unloaded, simulate(lone, law, shape, max_num_seqs=1)
    later_s = line.ttft_s + line.ttft_s_per_input_token * lone.input_length - model.ttft_s
    later_s = later_s[~np.isnan(later_s)]
    return max(0.0, float(np.median(later_s))) if len(later_s) else 0.0


def _checks(
    windows: Sequence[Replay], slo: Slo, law: StepLaw, shape: EngineShape
) -> tuple[Check, ...]:
    by_cap: dict[tuple[int, int], list[Replay]] = {}
    for window in windows:
        by_cap.setdefault((window.max_num_seqs, window.token_budget), []).append(window)
    checks = (check_at_own_speed(alike, slo, law, shape) for alike in by_cap.values())
    return tuple(each for each in checks if each.numbers)


def measurement_of(
    traffic: Traffic, replay: TwinReplay, slo: Slo, *, shape: EngineShape, length_s: float
) -> Measurement:
    """Return a replay by the twin, made with its log, in the words of a real one."""
    served = ~np.isnan(replay.e2el_s)
    good = int(met(traffic, replay, slo).sum())
    total = max(1, len(traffic))
    work = replay.iterations
    span_s = length_s if length_s >= BURST_S else max(length_s, replay.duration_s)
    end_s = (traffic.arrival_s[0] if len(traffic) else 0.0) + span_s
    last_s = (traffic.arrival_s + replay.e2el_s)[served]
    first = int((traffic.arrival_s + replay.ttft_s < end_s).sum())
    tokens = first + int(work["decode_seqs"][work["start_s"] < end_s].sum())
    cap = replay.max_num_seqs
    return Measurement(
        max_num_seqs=cap,
        blocks=0,
        requests=total,
        attainment=good / total,
        attainment_bound=good / total,
        arrival_rate_rps=total / span_s,
        goodput_rps=good / span_s,
        offered_tokens_per_s=float(traffic.output_length.sum()) / span_s,
        requests_per_s=int((last_s < end_s).sum()) / span_s,
        output_tokens_per_s=tokens / span_s,
        ttft_s=spread(replay.ttft_s),
        tpot_s=spread(replay.tpot_s),
        itl_s=spread(np.repeat(work["duration_s"], work["decode_seqs"])),
        e2el_s=spread(replay.e2el_s),
        queue_s=spread(replay.queue_s),
        kv_cache_usage=kv_cache_usage(work, shape.kv_blocks),
        preemptions=int(replay.preemptions.sum()),
        recomputed_tokens=replay.recomputed_tokens,
        running_peak=replay.running_peak,
        in_flight_peak=most_at_once(traffic.arrival_s[served], last_s),
        cut=None,
        **bound_shares(work, cap, shape.max_num_batched_tokens),
    )

"""The twin's forecast for the part that is tuned for: every cap, how sure, how wrong. Pure.

The law is fitted to everything that was measured, checked against the windows that were replayed,
and then asked about all of the traffic.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tuner.engines.scheduler.state import Floats, StepLaw
from tuner.engines.seam import EngineFacts
from tuner.replay.numbers import (
    Measurement,
    Spread,
    batch_times,
    kv_cache_usage,
    most_at_once,
    spread,
    token_bound_share,
    waiting_share,
)
from tuner.replay.records import Replay
from tuner.trace.trace import TraceRequest
from tuner.traffic.constants import DRAWS, PRINTED_DRAWS, STALL
from tuner.traffic.requirements import Requirement
from tuner.traffic.slo import Slo, Unloaded
from tuner.twin.check import Check, check_at_own_speed, lag_s
from tuner.twin.decide import Bounds, Choice, choose
from tuner.twin.front_end import Passages, fit_front_end, probed_contention
from tuner.twin.law import FittedLaw, Segment, fit_law, prompt_s
from tuner.twin.samples import Draw, Loads, Machine, Samples, ask, draws_of, loads_of
from tuner.twin.samples import slowdowns as slowdowns_of
from tuner.twin.simulation import (
    EngineShape,
    Traffic,
    TwinReplay,
    met,
    shape_of,
    simulate,
    traffic_of,
)

NORMAL_RANGE = 3.29
"""Standard deviations between the 5 % and the 95 % quantile of a normal distribution."""

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

    hit_share: float
    stalled_share: float
    """Share of the engine's busy time that was lost in iterations of more than STALL times the law.
    The law knows nothing of it, and so the twin's tails do not."""

    choice: Choice
    checks: tuple[Check, ...] = ()
    """One a cap of which windows were replayed for real, at the speed that the engine had."""

    machine: Machine = field(default_factory=Machine)
    """What is known of runs besides the law."""

    unmodelled: tuple[str, ...] = ()
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
        """Reason for replays to decide and not the twin; None where the twin is believed.

        One number that is far off is enough. Numbers just outside of their 95 % are not: of many
        checks some are by chance.
        """
        if self.unmodelled:
            return f"the twin does not know {', '.join(self.unmodelled)}"
        wrong = [check.worst for check in self.checks if check.is_far_off]
        if wrong:
            furthest = max(wrong, key=lambda item: abs(item.off)).words
            return f"the twin was wrong at the engine's own speed ({furthest})"
        return None

    @property
    def is_believed(self) -> bool:
        return self.doubt is None

    @property
    def speed_sd(self) -> float:
        """Standard deviation of the machine's log slowdown, or what its range says of it."""
        return speed_sd_of(self.fitted)

    def measurement(self, cap: int, *, raised: bool = False) -> Measurement:
        """Return what a replay of all of the traffic would have measured at a cap, at the recorded
        load or with headroom."""
        traffic = self.loads.raised[0] if raised else self.traffic
        replay = self.replayed(traffic, cap, log=True)
        return measurement_of(traffic, replay, self.slo, shape=self.shape, length_s=self.length_s)

    def replayed(self, traffic: Traffic, cap: int, *, log: bool = False) -> TwinReplay:
        """Return what clients see of traffic at a cap, by the law itself."""
        return simulate(
            traffic, self.fitted.law, self.shape, max_num_seqs=cap,
            front_end=self.machine.front_end, log=log,
        )  # fmt: skip

    def promised(self, caps: Sequence[int]) -> Samples:
        """Return what fresh engines at these caps give again, at the recorded load and with
        headroom."""
        traffics = [self.traffic, *self.loads.raised]
        draws = draws_of(self.fitted.draws(PRINTED_DRAWS), self.machine, traffics)
        return ask(draws, self.loads, caps, self.shape, self.slo)

    def bounds(self, cap: int) -> Bounds:
        """Return how far a cap is sure to keep what is required of it."""
        requirements = self.choice.bounds.requirements
        draws = [Draw(law, self.machine.front_end) for law in self.fitted.draws(DRAWS)]
        log = any(each.needs_log for each in requirements)
        samples = ask(draws, self.loads, (cap,), self.shape, self.slo, log=log)
        return Bounds.of(requirements, samples)


def forecast(  # noqa: PLR0913 - what was measured, and what is asked
    segments: Sequence[Segment],
    windows: Sequence[Replay],
    *,
    requests: Sequence[TraceRequest],
    length_s: float,
    hash_block_size: int,
    facts: EngineFacts,
    unloaded: Unloaded,
    slo: Slo,
    caps: Sequence[int],
    requirements: Sequence[Requirement] = (),
    headroom: float = 1.0,
    seed: int = 0,
    hit_share: float = 0.0,
    probes: Sequence[Passages] = (),
    printed: bool = False,
    taken: float = 0.0,
) -> Forecast:
    """Fit the law, check it, and choose between the caps for these requests, and with headroom.

    ``segments`` hold an iteration at least. ``windows`` are the replays to check against; without
    any the delay before the scheduler comes from the probes. ``hit_share`` is what the prefix cache
    gave of what it could have given. ``probes`` are the ways of lone requests through the front end
    that the traffic will come through. What is ``printed`` has more draws. ``taken`` is the share
    of the cores that others took.
    """
    fitted = fit_law(segments, max_num_seqs=max(caps), taken=taken)
    law, shape = fitted.law, shape_of(facts)
    complete = [window for window in windows if window.cut is None]
    lag = lag_s(complete, law, shape) if complete else _probed_lag_s(unloaded, law, requests)
    shape = replace(shape, lag_s=lag)
    today = traffic_of(
        requests, hash_block_size=hash_block_size, hit_share=hit_share, kv_tokens=shape.kv_tokens
    )
    loads = loads_of(today, headroom, seed=seed, rate_rps=len(today) / length_s)
    front_end = fit_front_end(probes, contention=probed_contention(law, probes))
    choice = choose(
        loads,
        fitted,
        shape,
        slo,
        caps,
        requirements=requirements,
        front_end=front_end,
        draws=PRINTED_DRAWS if printed else DRAWS,
    )
    slowdown = np.concatenate([slowdowns_of(segment.log, law) for segment in segments])
    return Forecast(
        fitted=fitted,
        shape=shape,
        loads=loads,
        slo=slo,
        length_s=length_s,
        hit_share=hit_share,
        stalled_share=_stalled_share(segments, law),
        choice=choice,
        checks=_checks(windows, slo, law, shape),
        machine=Machine(slowdown, speed_sd_of(fitted), front_end=front_end),
        unmodelled=tuple(facts.unmodelled),
    )


def _checks(
    windows: Sequence[Replay], slo: Slo, law: StepLaw, shape: EngineShape
) -> tuple[Check, ...]:
    by_cap: dict[tuple[int, int], list[Replay]] = {}
    for window in windows:
        by_cap.setdefault((window.max_num_seqs, window.token_budget), []).append(window)
    result = (check_at_own_speed(alike, slo, law, shape) for alike in by_cap.values())
    return tuple(each for each in result if each.numbers)


def speed_sd_of(fitted: FittedLaw) -> float:
    low, high = np.log(np.quantile(fitted.slowdown, (0.05, 0.95)))
    return max(fitted.speed_sd, float(high - low) / NORMAL_RANGE)


def _stalled_share(segments: Sequence[Segment], law: StepLaw) -> float:
    log = np.concatenate([segment.log for segment in segments])
    over_s = log["duration_s"] - law.durations_s(log)
    stalls = log["duration_s"] > STALL * law.durations_s(log)
    return float(over_s[stalls].sum() / log["duration_s"].sum())


def _probed_lag_s(unloaded: Unloaded, law: StepLaw, requests: Sequence[TraceRequest]) -> float:
    """Return what a lone request's TTFT was above the time of its prompt's iteration."""
    tokens = float(np.median([request.input_length for request in requests]))
    ttft_s = unloaded.ttft_s + unloaded.ttft_s_per_input_token * tokens
    return max(0.0, ttft_s - prompt_s(law, tokens))


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
        ttft_s=_spread(replay.ttft_s),
        tpot_s=_spread(replay.tpot_s),
        itl_s=spread(work["duration_s"], work["decode_seqs"]) if tokens else None,
        e2el_s=_spread(replay.e2el_s),
        queue_s=_spread(replay.queue_s),
        batch_times=batch_times(work),
        kv_cache_usage=kv_cache_usage(work, shape.kv_blocks),
        preemptions=int(replay.preemptions.sum()),
        recomputed_tokens=replay.recomputed_tokens,
        running_peak=replay.running_peak,
        cap_bound_share=waiting_share(work, cap, full=True),
        kv_bound_share=waiting_share(work, cap, full=False),
        token_bound_share=token_bound_share(work, cap, shape.max_num_batched_tokens),
        in_flight_peak=most_at_once(traffic.arrival_s[served], last_s),
        cut=None,
        ruled_out=False,
    )


def _spread(values: Floats) -> Spread | None:
    return spread(values[~np.isnan(values)])

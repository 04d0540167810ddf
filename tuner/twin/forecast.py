"""The twin's forecast for the part that is tuned for: every cap, how sure, how wrong. Pure.

The law is fitted to everything that was measured, checked against the windows that were replayed,
and then asked about all of the traffic.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tuner.engines.scheduler.state import Floats, StepLaw
from tuner.engines.seam import EngineFacts
from tuner.replay.iterations import (
    batch_times,
    kv_cache_usage,
    token_bound_share,
    waiting_share,
)
from tuner.replay.measure import Measurement, Spread, most_at_once, spread
from tuner.trace.trace import TraceRequest
from tuner.traffic.requirements import Requirement
from tuner.traffic.slo import Slo, Unloaded
from tuner.twin.check import Check, Drive, Observed, check_at_own_speed, driver, lag_s
from tuner.twin.choice import DRAWS, Bounds, Question, Weighed, weigh
from tuner.twin.draws import (
    PRINTED,
    UNKNOWN,
    MachineHistory,
    PredictedRanges,
    draws_of,
    ends_of,
    promised,
    slowdown_of,
)
from tuner.twin.front_end import (
    Passages,
    fit_front_end,
    probed_contention,
    simulate_behind,
)
from tuner.twin.law import FittedLaw, Segment, fit_law
from tuner.twin.load import Loads, loads_of, scaled
from tuner.twin.objective import holds
from tuner.twin.simulation import (
    EngineShape,
    Traffic,
    TwinReplay,
    attainment,
    met,
    shape_of,
    traffic_of,
)
from tuner.twin.verdict_text import miss_in_words

Range = tuple[float, float]

FEW_DRAWS = 20
"""Of each load that is tried for what is required."""

BISECTIONS = 6
"""Of loads: to a hundredth of the headroom."""

NORMAL_RANGE = 3.29
"""Standard deviations between the 5 % and the 95 % quantile of a normal distribution."""

BURST_S = 10.0
"""Traffic that arrives in a shorter time takes longer to be served; its rates are over this
time."""

STALL = 3.0
"""Times the law beyond which an iteration was held up by something else."""


@dataclass(frozen=True, slots=True)
class StepChange:
    """The change by a step up the ladder, and its 95 % interval."""

    value: float
    low: float
    high: float


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

    weighed: Weighed
    checks: tuple[Check, ...] = ()
    """One a cap of which windows were replayed for real, at the speed that the engine had."""

    machine: MachineHistory = UNKNOWN
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
        wrong = [one.worst for one in self.checks if one.is_far_off]
        if wrong:
            furthest = miss_in_words(max(wrong, key=lambda one: abs(one.off)))
            return f"the twin was wrong at the engine's own speed ({furthest})"
        return None

    @property
    def is_believed(self) -> bool:
        return self.doubt is None

    @property
    def speed_sd(self) -> float:
        """Standard deviation of the machine's log slowdown, or what its range says of it."""
        return _speed_sd(self.fitted)

    def measurement(self, cap: int, *, raised: bool = False) -> Measurement:
        """Return what a replay of all of the traffic would have measured at a cap, as captured or
        with headroom."""
        traffic = self.loads.raised[0] if raised else self.traffic
        replay = self.replayed(traffic, cap, log=True)
        return measurement_of(traffic, replay, self.slo, shape=self.shape, length_s=self.length_s)

    def replayed(self, traffic: Traffic, cap: int, *, log: bool = False) -> TwinReplay:
        """Return what clients see of traffic at a cap, by the law itself."""
        law, front_end = self.fitted.law, self.machine.front_end
        return simulate_behind(front_end, traffic, law, self.shape, max_num_seqs=cap, log=log)

    def promised(self, cap: int, *, raised: bool = False) -> PredictedRanges:
        """Return what a fresh engine at a cap gives again, as captured or with headroom."""
        return self._promised(cap, self.loads.raised if raised else (self.traffic,))

    def _promised(self, cap: int, traffics: Sequence[Traffic]) -> PredictedRanges:
        draws = draws_of(self.fitted.draws(PRINTED), self.machine, traffics)
        return promised(traffics, draws, self.shape, self.slo, max_num_seqs=cap)

    def most_load(self, cap: int) -> float:
        """Return the largest load up to the headroom that still holds at a cap, by the law itself:
        a multiple of today's; 0 where today does not hold."""

        def attained(load: float) -> float:
            traffic = scaled(self.traffic, load, np.random.default_rng(0))
            return attainment(traffic, self.replayed(traffic, cap), self.slo)

        today = self.weighed.values[cap][0]
        low, high = 1.0, self.headroom
        if not holds(today, today):
            low, high = 0.0, 1.0
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if holds(today, attained(middle)) else (low, middle)
        return low

    def load_that_meets(self, cap: int) -> float:
        """Return the largest share of today's load at which a cap keeps all that is required of it,
        its headroom included; 0 where none does."""

        def keeps(load: float) -> bool:
            today = scaled(self.traffic, load, np.random.default_rng(0))
            loads = loads_of(today, self.headroom, seed=0)
            rate_rps = load * len(self.traffic) / self.length_s
            return not self._bounds(cap, loads, rate_rps, FEW_DRAWS).broken(cap)

        low, high = 0.0, 1.0
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if keeps(middle) else (low, middle)
        return low

    def bounds(self, cap: int) -> Bounds:
        """Return how far a cap is sure to keep what is required of it."""
        return self._bounds(cap, self.loads, len(self.traffic) / self.length_s, DRAWS)

    def _bounds(self, cap: int, loads: Loads, rate_rps: float, draws: int) -> Bounds:
        question = Question(
            loads,
            self.shape,
            self.slo,
            self.weighed.bounds.requirements,
            rate_rps,
            self.machine.front_end,
        )
        laws = enumerate(self.fitted.draws(draws))
        drawn = [question.drawn(number, law, (cap,))[1] for number, law in laws]
        return Bounds.of(question.requirements, drawn)

    def intervals(self, cap: int) -> dict[str, Range]:
        """Return the 95 % interval of each number at a cap, over the draws."""
        column = partial(self.weighed.samples.column, cap=cap)
        shares = column("attainment")
        named = {
            "attainment": shares,
            "goodput_rps": shares * len(self.traffic) / self.length_s,
            "tpot_p95_ms": column("tpot_p95_s") * 1e3,
            "e2el_p99_ms": np.exp(column("log_tail")) * 1e3,
            "queue_p95_ms": column("queue_p95_s") * 1e3,
            "kv_cache_usage_peak": column("kv_peak"),
            "preemptions": column("preemptions"),
        }
        found = {name: _interval(values) for name, values in named.items()}
        return {name: ends for name, ends in found.items() if ends is not None}

    def changes(self, below: int, cap: int) -> dict[str, StepChange]:
        """Return what ``cap`` gives more than ``below``, draw by draw: shares of goodput, p95 TPOT
        and p99 E2EL, differences of the rest."""

        def ratio(name: str) -> Floats:
            column = self.weighed.samples.column
            return np.asarray(column(name, cap) / column(name, below) - 1)

        def more(name: str) -> Floats:
            column = self.weighed.samples.column
            return np.asarray(column(name, cap) - column(name, below))

        with np.errstate(divide="ignore", invalid="ignore"):
            named = {
                "goodput_rps": ratio("attainment"),
                "tpot_p95_ms": ratio("tpot_p95_s"),
                "e2el_p99_ms": np.expm1(more("log_tail")),
                "queue_p95_ms": more("queue_p95_s") * 1e3,
                "kv_cache_usage_peak": more("kv_peak"),
                "preemptions": more("preemptions"),
            }
        found = {}
        for name, values in named.items():
            if (ends := _interval(values)) is not None:
                middle = float(np.median(values[np.isfinite(values)]))
                found[name] = StepChange(middle, *ends)
        return found


def forecast(  # noqa: PLR0913 - what was measured, and what is asked
    segments: Sequence[Segment],
    windows: Sequence[Observed],
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
    shape = shape_of(facts)
    whole = [window for window in windows if not window.cut]
    lag = (
        lag_s(whole, fitted.law, shape) if whole else _probed_lag_s(unloaded, fitted.law, requests)
    )
    shape = replace(shape, lag_s=lag)
    kv_tokens = shape.kv_tokens
    today = traffic_of(
        requests, hash_block_size=hash_block_size, hit_share=hit_share, kv_tokens=kv_tokens
    )
    loads = loads_of(today, headroom, seed=seed)
    front_end = fit_front_end(probes, contention=probed_contention(fitted.law, probes))
    drive = driver(fitted.law, shape)
    return Forecast(
        fitted=fitted,
        shape=shape,
        loads=loads,
        slo=slo,
        length_s=length_s,
        hit_share=hit_share,
        stalled_share=_stalled_share(segments, fitted.law),
        weighed=weigh(
            loads,
            fitted,
            shape,
            slo,
            caps,
            requirements=requirements,
            front_end=front_end,
            length_s=length_s,
            draws=PRINTED if printed else DRAWS,
        ),
        checks=_checks(windows, slo, drive),
        machine=MachineHistory(
            _slowdowns(segments, fitted.law), _speed_sd(fitted), front_end=front_end
        ),
        unmodelled=tuple(facts.unmodelled),
    )


def _checks(windows: Sequence[Observed], slo: Slo, drive: Drive) -> tuple[Check, ...]:
    by_cap: dict[tuple[int, int | None], list[Observed]] = {}
    for one in windows:
        by_cap.setdefault((one.max_num_seqs, one.max_num_batched_tokens), []).append(one)
    found = (check_at_own_speed(alike, slo, drive) for alike in by_cap.values())
    return tuple(one for one in found if one.numbers)


def _slowdowns(segments: Sequence[Segment], law: StepLaw) -> Floats:
    """Return how much slower than the law the machine was, in all that was measured."""
    slowdowns = (slowdown_of(one.log, law) for one in segments)
    return np.concatenate([one.factors for one in slowdowns if one is not None])


def _speed_sd(fitted: FittedLaw) -> float:
    low, high = np.log(np.quantile(fitted.slowdown, (0.05, 0.95)))
    return max(fitted.speed_sd, float(high - low) / NORMAL_RANGE)


def _stalled_share(segments: Sequence[Segment], law: StepLaw) -> float:
    log = np.concatenate([one.log for one in segments])
    over_s = log["duration_s"] - law.durations_s(log)
    stalls = log["duration_s"] > STALL * law.durations_s(log)
    return float(over_s[stalls].sum() / log["duration_s"].sum())


def _probed_lag_s(unloaded: Unloaded, law: StepLaw, requests: Sequence[TraceRequest]) -> float:
    """Return what a lone request's TTFT was above the time of its prompt's iteration."""
    tokens = float(np.median([one.input_length for one in requests]))
    lawful_s = (
        law.decode_s[0]
        + law.prefill_token_s * tokens
        + law.prefill_token_squared_s * tokens**2
        + law.prefill_seq_s
    )
    ttft_s = unloaded.ttft_s + unloaded.ttft_s_per_input_token * tokens
    return max(0.0, ttft_s - float(lawful_s))


def measurement_of(
    traffic: Traffic, replay: TwinReplay, slo: Slo, *, shape: EngineShape, length_s: float
) -> Measurement:
    """Return a replay by the twin, made with its log, in the words of a real one."""
    served = ~np.isnan(replay.e2el_s)
    good = int(met(traffic, replay, slo).sum())
    total = max(1, len(traffic))
    work = replay.iterations
    span_s = length_s if length_s >= BURST_S else max(length_s, replay.duration_s)
    inside = work["start_s"] < (traffic.arrival_s[0] if len(traffic) else 0.0) + span_s
    in_time = np.sort(traffic.arrival_s[served] + replay.e2el_s[served])
    ended = int(np.searchsorted(in_time, traffic.arrival_s[0] + span_s)) if len(traffic) else 0
    first = int((traffic.arrival_s + replay.ttft_s < traffic.arrival_s[:1] + span_s).sum())
    tokens = first + int(work["decode_seqs"][inside].sum())
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
        requests_per_s=ended / span_s,
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
        in_flight_peak=most_at_once(
            traffic.arrival_s[served], traffic.arrival_s[served] + replay.e2el_s[served]
        ),
        lag_p99_s=0.0,
        cut=None,
        device=None,
        ruled_out=False,
    )


def _spread(values: Floats) -> Spread | None:
    return spread(values[~np.isnan(values)])


def _interval(values: Floats) -> Range | None:
    known = values[np.isfinite(values)]
    if not len(known):
        return None
    return ends_of(known)

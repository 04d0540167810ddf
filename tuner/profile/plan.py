"""Plans by the stored twin: other loads, caps, replica counts and routers. Pure, and seeded.

A fleet's traffic is the stored traffic, raised or thinned: every request comes ``load`` times,
copies within JITTER_S of their original, so that bursts stay bursts. Of the replicas a few are
simulated: they are alike.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from tuner.engines.scheduler.state import Floats
from tuner.profile.stored_twin import StoredTwin
from tuner.traffic.slo import Slo
from tuner.twin.choice import DRAWS, Statistics
from tuner.twin.draws import ENDS, PRINTED, Draw
from tuner.twin.front_end import MOST_UTILISATION
from tuner.twin.load import scaled
from tuner.twin.simulation import Traffic, TwinReplay

FleetRouter = Literal["least", "rr", "random"]

ASKED_REPLICAS = 4
"""Replicas of a fleet that are simulated."""

MOST_ROUTED = 200_000
"""Requests that are handed to replicas one by one. A fleet that gets more is asked about as one
that is so much smaller: among hundreds of replicas nothing else depends on their number."""

SMALL_FLEET = 32

MOST_REPLICAS = 100_000
LEAST_LOAD = 1 / 64
"""Of the stored traffic: a replica that cannot carry so little can carry nothing."""

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class CapForecast:
    """The forecast of one cap for a replica of the fleet; middle values with 95 % intervals."""

    max_num_seqs: int
    attainment: Range
    attainment_middle: float
    goodput_rps: float
    """Of one replica."""

    tpot_p95_ms: float | None
    e2el_p99_ms: float | None
    e2el_p99_range_ms: Range | None
    queue_p95_ms: float | None
    kv_cache_usage_peak: float
    preemptions: float
    """Per thousand requests."""

    is_guess: bool
    """Whether batches became larger than any that was measured."""


def ask(  # noqa: PLR0913 - what is asked of the twin
    twin: StoredTwin,
    slo: Slo,
    caps: Sequence[int],
    *,
    load: float,
    replicas: int,
    router: FleetRouter,
    seed: int,
    promised: int | None = None,
) -> list[CapForecast]:
    """Return what each cap gives at ``load`` times the stored traffic over so many replicas: of the
    ``promised`` one with all draws of the profile's promise."""
    parts = parts_of(twin, load=load, replicas=replicas, router=router, seed=seed)
    rate_rps = load * len(twin.traffic) / twin.length_s / replicas
    draws = twin.draws([twin.traffic])
    counts = {cap: PRINTED if cap == promised else DRAWS for cap in caps}
    return [_answer(twin, slo, cap, parts, rate_rps, draws[: counts[cap]]) for cap in caps]


def attained(  # noqa: PLR0913 - what is asked of the twin
    twin: StoredTwin,
    slo: Slo,
    caps: Sequence[int],
    *,
    load: float,
    replicas: int,
    router: FleetRouter,
    seed: int,
) -> dict[int, float]:
    """Return cap → the share of requests within the SLO at this load, by the law alone."""
    parts = parts_of(twin, load=load, replicas=replicas, router=router, seed=seed)
    busy = [part for part in parts if len(part)]
    if not busy:
        return dict.fromkeys(caps, 1.0)
    weights = np.array([len(part) for part in busy], float)
    return {cap: float(_pooled(busy, _lawful(twin, cap), slo, weights)[0]) for cap in caps}


def replicas_for(  # noqa: PLR0913 - what is asked of the twin
    twin: StoredTwin,
    slo: Slo,
    cap: int,
    *,
    load: float,
    attainment: float,
    router: FleetRouter,
    seed: int,
) -> int | None:
    """Return the fewest replicas with which 97.5 % of the laws serve this share of requests within
    the SLO, and front ends are not too busy for a promise; None when MOST_REPLICAS do not."""

    draws = twin.draws([twin.traffic], DRAWS)

    def enough(replicas: int) -> bool:
        if twin.busy(load / replicas) > MOST_UTILISATION:
            return False
        parts = parts_of(twin, load=load, replicas=replicas, router=router, seed=seed)
        return _answer(twin, slo, cap, parts, 0.0, draws).attainment[0] >= attainment

    def carries(share: float) -> bool:
        one = scaled(twin.traffic, share, np.random.default_rng(seed))
        return bool(_pooled([one], _lawful(twin, cap), slo, np.ones(1))[0] >= attainment)

    if not carries(LEAST_LOAD):
        return None
    guess = max(1, math.ceil(load / _most_load(carries)))
    return least(enough, guess, MOST_REPLICAS)


def _most_load(carries: Callable[[float], bool]) -> float:
    """Return about the most load that one replica carries, as a multiple of the stored traffic."""
    low, high = LEAST_LOAD, 1 / LEAST_LOAD
    for _ in range(10):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if carries(middle) else (low, middle)
    return low


def least(enough: Callable[[int], bool], guess: int, most: int) -> int | None:
    """Return the least number that is enough, from a guess on outwards, then by halving."""
    high = min(guess, most)
    low = 0
    step = max(1, high // 16)
    if enough(high):
        while high > 1 and enough(max(1, high - step)):
            high = max(1, high - step)
            step *= 2
        low = max(0, high - step)
    else:
        while not enough(high):
            if high >= most:
                return None
            low, high = high, min(most, high + step)
            step *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def parts_of(
    twin: StoredTwin, *, load: float, replicas: int, router: FleetRouter, seed: int
) -> list[Traffic]:
    """Return the traffic of a few replicas of a fleet."""
    rng = np.random.default_rng(seed)
    asked = min(replicas, ASKED_REPLICAS)
    if router == "random":  # what each gets is a random share, whatever the others get
        return [scaled(twin.traffic, load / replicas, rng) for _ in range(asked)]
    share = min(1.0, MOST_ROUTED / (load * len(twin.traffic)))
    if share < 1 and replicas > SMALL_FLEET:
        smaller = max(SMALL_FLEET, round(share * replicas))
        load, replicas = load * smaller / replicas, smaller
    whole = scaled(twin.traffic, load, rng)
    numbers = np.arange(len(whole)) % replicas
    if router == "least":
        from tuner.profile.least_in_flight import least_in_flight  # noqa: PLC0415 - numba: 0.2 s

        numbers = least_in_flight(whole.arrival_s, _lasting_s(twin, whole), replicas)
    first = rng.choice(replicas, asked, replace=False)
    return [whole.rows(np.flatnonzero(numbers == replica)) for replica in first.tolist()]


Replayed = Callable[[Traffic], TwinReplay]


def _lawful(twin: StoredTwin, cap: int) -> Replayed:
    """Return the twin's replay by its law alone."""
    return lambda part: twin.replayed(part, twin.law, max_num_seqs=cap)


def _answer(  # noqa: PLR0913, PLR0917 - what is asked, and how hard to look
    twin: StoredTwin,
    slo: Slo,
    cap: int,
    parts: Sequence[Traffic],
    rate_rps: float,
    draws: Sequence[Draw],
) -> CapForecast:
    busy = [part for part in parts if len(part)]
    if not busy:
        return CapForecast(
            cap, (1.0, 1.0), 1.0, 0.0, None, None, None, None, 0.0, 0.0, is_guess=False
        )
    weights = np.array([len(part) for part in busy], float)
    replays = (
        partial(one.replay, shape=twin.shape, max_num_seqs=cap, clock=one.slowdown.clock())
        for one in draws
    )
    samples = np.array([_pooled(busy, each, slo, weights) for each in replays])
    peak = max(twin.replayed(part, twin.law, max_num_seqs=cap).running_peak for part in busy)
    middle = np.nanmedian(samples, axis=0)
    low, high = np.nanquantile(samples, ENDS, axis=0, method="weibull")
    return CapForecast(
        max_num_seqs=cap,
        attainment=(float(low[0]), float(high[0])),
        attainment_middle=float(middle[0]),
        goodput_rps=float(middle[0]) * rate_rps,
        tpot_p95_ms=_known_ms(middle[2]),
        e2el_p99_ms=_known_ms(np.exp(middle[1])),
        e2el_p99_range_ms=_range_ms(np.exp(low[1]), np.exp(high[1])),
        queue_p95_ms=_known_ms(middle[3]),
        kv_cache_usage_peak=float(middle[4]),
        preemptions=float(middle[5]) / float(weights.mean()) * 1000,
        is_guess=peak > twin.extrapolated_from,
    )


def _pooled(parts: Sequence[Traffic], replayed: Replayed, slo: Slo, weights: Floats) -> Floats:
    """Return the mean of each statistic over the replicas, by their requests."""
    values = [Statistics.of(part, replayed(part), slo) for part in parts]
    return np.asarray(np.average(np.array(values, float), axis=0, weights=weights))


def _lasting_s(twin: StoredTwin, traffic: Traffic) -> Floats:
    """Return about how long each request is in flight, on a replica that is half full."""
    law = twin.law
    middle_s = float(law.decode_s[(len(law.decode_s) - 1) // 2])
    prompt_s = law.decode_s[0] + law.prefill_token_s * traffic.input_length
    return np.asarray(prompt_s + middle_s * traffic.output_length + twin.shape.lag_s)


def _known_ms(seconds: float) -> float | None:
    return float(seconds) * 1e3 if np.isfinite(seconds) else None


def _range_ms(low_s: float, high_s: float) -> Range | None:
    return (low_s * 1e3, high_s * 1e3) if np.isfinite(low_s) and np.isfinite(high_s) else None

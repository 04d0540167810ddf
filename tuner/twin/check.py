"""The model against what was really measured, at the speed that the engine had then. Pure.

What is left of an error at the engine's own speed is the scheduler model's. TTFT may be off by
TTFT_OFF and TPOT by TPOT_OFF, and the rank of a percentile by RANK_ERRORS. A check fails when one
number is more than ALARM half-widths off, on the side of the miss: of many numbers some are just
outside by chance. p99 TTFT is not checked: one late request is all of it.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuner.engines.scheduler.state import Floats, StepLaw
from tuner.replay.records import ProbeResult, Replay, Requests, e2el_s, met, ttft_s
from tuner.traffic.constants import (
    ALARM,
    FEW_REQUESTS_APART,
    FEWEST_PASSAGES,
    LEAST_MS,
    RANK_ERRORS,
    TPOT_OFF,
    TTFT_OFF,
)
from tuner.traffic.slo import Slo
from tuner.twin.simulation import EngineShape, FrontEnd, Traffic, clock_of, simulate

CHECKED = {"ttft": (50, 95), "tpot": (50, 95), "e2el": (95,)}
"""Percentiles."""


class Number(NamedTuple):
    """One number of a check, in milliseconds or as a share."""

    name: str
    predicted: float
    low: float
    high: float
    measured: float

    @property
    def off(self) -> float:
        """How far measured is from predicted, in half-widths on the side of the miss."""
        miss = self.measured - self.predicted
        half = self.high - self.predicted if miss > 0 else self.predicted - self.low
        return abs(miss) / half if half > 0 else 0.0

    def __str__(self) -> str:
        """Return the miss for people.

        >>> print(Number("ttft_p95_ms", 420.0, 400.0, 450.0, 20100.0))
        p95 TTFT 20,100 ms instead of 420 ms
        >>> print(Number("attainment", 0.99, 0.98, 1.0, 0.9))
        90.0% met the SLO instead of 99.0%
        """
        if self.name == "attainment":
            return f"{self.measured:.1%} met the SLO instead of {self.predicted:.1%}"
        time, share, _ = self.name.split("_")
        return f"{share} {time.upper()} {self.measured:,.0f} ms instead of {self.predicted:,.0f} ms"


def alarm(numbers: Sequence[Number]) -> Number | None:
    """Return the number that is furthest off, where that fails the check."""
    worst = max(numbers, key=lambda number: number.off, default=None)
    return worst if worst is not None and worst.off > ALARM else None


def driven(
    replay: Replay, law: StepLaw, shape: EngineShape, front_end: FrontEnd | None = None
) -> Requests:
    """Return the requests that were sent as the model has them, at the speed that the machine had
    then, to the last token. ``front_end`` is what they came through: how it slowed the engine is in
    that speed. A request that was given up generates what came."""
    sent, work = replay.requests, replay.iterations
    given_up = sent["outcome"] == "aborted"
    traffic = Traffic(
        sent["planned_s"].copy(),
        sent["input_length"].copy(),
        np.maximum(1, np.where(given_up, sent["output_tokens"], sent["output_length"])),
        np.maximum(0, sent["cached_tokens"]),
    )
    begin_s = work["start_s"].astype(float)
    after_s = np.append(begin_s[1:], np.inf)
    end_s = np.minimum(begin_s + work["duration_s"], after_s)
    # an idle engine's clock goes as the traffic's does
    steps_s = np.column_stack((law.durations_s(work), after_s - end_s)).ravel()[:-1]
    budget = replay.token_budget or shape.max_num_batched_tokens
    return simulate(
        traffic,
        law,
        replace(shape, max_num_batched_tokens=budget),
        max_num_seqs=replay.max_num_seqs,
        clock=clock_of(np.column_stack((begin_s, end_s)).ravel(), steps_s),
        front_end=None if front_end is None else replace(front_end, contention=1.0),
    ).requests


def check_at_own_speed(
    replay: Replay,
    slo: Slo,
    law: StepLaw,
    shape: EngineShape,
    front_end: FrontEnd | None = None,
) -> tuple[Number, ...]:
    """Compare the model at the engine's speed with a replay; nothing of one that was cut, or of
    which only clients report."""
    counted = replay.requests["scored"] & ~np.isnan(replay.requests["last_s"])
    if replay.cut is not None or not len(replay.iterations) or not counted.any():
        return ()
    sent, twin = replay.requests[counted], driven(replay, law, shape, front_end)[counted]

    def modeled(errors: int) -> dict[str, float]:
        """Return the model's numbers; with its errors at one end of what is allowed for -1 or 1."""
        first_s, gap_s = TTFT_OFF**errors * ttft_s(twin), TPOT_OFF**errors * twin["tpot_s"]
        e2el_s = first_s + np.nan_to_num(gap_s) * (sent["output_length"] - 1)
        broken = slo.broken_by(sent["input_length"], first_s, gap_s, e2el_s)
        good = ~(broken | np.isnan(first_s))
        return _numbers((first_s, gap_s, e2el_s), good, errors * RANK_ERRORS)

    fast, middle, slow = map(modeled, (-1, 0, 1))
    numbers = []
    measured = _numbers((ttft_s(sent), sent["tpot_s"], e2el_s(sent)), met(sent, slo))
    for name in filter(measured.__contains__, middle):
        least = LEAST_MS.get(name[:4], FEW_REQUESTS_APART / len(sent))
        low = max(0.0, min(fast[name], slow[name], middle[name] - least))
        high = max(fast[name], slow[name], middle[name] + least)
        high = min(1.0, high) if name == "attainment" else high
        numbers.append(Number(name, middle[name], low, high, measured[name]))
    return tuple(numbers)


def _numbers(
    times_s: Sequence[Floats], good: NDArray[np.bool_], errors: float = 0.0
) -> dict[str, float]:
    """Return the numbers of a check that there are, of TTFT, TPOT and E2EL. The ranks of
    percentiles are moved by so many of their standard errors."""
    result = {"attainment": float(good.mean())}
    for (name, percents), values_s in zip(CHECKED.items(), times_s, strict=True):
        known_s = values_s[~np.isnan(values_s)]
        for percent in percents if len(known_s) else ():
            rank = percent / 100
            rank += errors * math.sqrt(rank * (1 - rank) / len(known_s))
            at_s = float(np.quantile(known_s, min(1.0, max(0.0, rank))))
            result[f"{name}_p{percent}_ms"] = 1e3 * at_s
    return result


def fit_front_end(
    law: StepLaw, probes: Sequence[ProbeResult], replays: Sequence[Replay] = ()
) -> FrontEnd | None:
    """Return the front end of a server by its replays, or else by lone requests, which decode one
    sequence at a time; None of too few probes that know the engine's own times."""
    known = [probe for probe in probes if probe.passage_s]
    if len(known) < FEWEST_PASSAGES:
        return None
    sent_s, queued_s, begun_s, done_s, first_s, _ = np.array([each.passage_s for each in known]).T
    took_s, gaps = done_s - begun_s, sum(probe.output_tokens - 1 for probe in known)
    lawful_s = np.array([gaps * law.decode_s[1]])
    if replays:
        work = np.concatenate([each.iterations for each in replays])
        took_s, lawful_s = work["duration_s"], law.durations_s(work)
    # nothing gets faster by a front end
    contention = max(1.0, float(took_s.sum() / max(1e-9, lawful_s.sum())))
    delay_s = float(np.median(queued_s - sent_s + first_s - begun_s))
    return FrontEnd(contention, max(0.0, delay_s))

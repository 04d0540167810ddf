"""The model against what was really measured, at the speed that the engine had then. Pure.

What is left of an error at the engine's own speed is the scheduler model's. TTFT may be off by
TTFT_OFF and TPOT by TPOT_OFF, and the rank of a percentile by RANK_ERRORS. A check fails when one
number is more than ALARM half-widths off, on the side of the miss: of many numbers some are just
outside by chance. p99 TTFT is not checked: one late request is all of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tuner.engines.scheduler.state import Floats, StepLaw
from tuner.replay.records import Replay, e2el_s, met, ttft_s
from tuner.traffic.constants import (
    ALARM,
    FEW_REQUESTS_APART,
    LEAST_MS,
    RANK_ERRORS,
    TPOT_OFF,
    TTFT_OFF,
)
from tuner.traffic.slo import Slo
from tuner.twin.front_end import FrontEnd
from tuner.twin.simulation import Clock, EngineShape, Traffic, TwinReplay, simulate

CHECKED = {"ttft": (50, 95), "tpot": (50, 95), "e2el": (95,)}
"""Percentiles."""


@dataclass(frozen=True, slots=True)
class Number:
    """One number of a check, in milliseconds or as a share."""

    name: str
    predicted: float
    low: float
    high: float
    measured: float

    @property
    def held(self) -> bool:
        return self.low <= self.measured <= self.high

    @property
    def off(self) -> float:
        """The distance of measured from predicted, in half-widths on the side of the miss."""
        miss = self.measured - self.predicted
        half = self.high - self.predicted if miss > 0 else self.predicted - self.low
        return miss / half if half > 0 else 0.0

    @property
    def words(self) -> str:
        """The miss for people.

        >>> Number("ttft_p95_ms", 420.0, 400.0, 450.0, 20100.0).words
        'p95 TTFT 20,100 ms instead of 420 ms'
        >>> Number("attainment", 0.99, 0.98, 1.0, 0.9).words
        '90.0% met the SLO instead of 99.0%'
        """
        if self.name == "attainment":
            return f"{self.measured:.1%} met the SLO instead of {self.predicted:.1%}"
        time, share, _ = self.name.split("_")
        return f"{share} {time.upper()} {self.measured:,.0f} ms instead of {self.predicted:,.0f} ms"


@dataclass(frozen=True, slots=True)
class Check:
    """The numbers of a replay, each as the model has it and as it was measured."""

    numbers: tuple[Number, ...]

    @property
    def held(self) -> int:
        return sum(number.held for number in self.numbers)

    @property
    def worst(self) -> Number:
        return max(self.numbers, key=lambda item: abs(item.off))

    @property
    def failed(self) -> bool:
        return bool(self.numbers) and abs(self.worst.off) > ALARM


def driven(
    replay: Replay,
    law: StepLaw,
    shape: EngineShape,
    *,
    front_end: FrontEnd | None = None,
) -> TwinReplay:
    """Return the model's replay of the requests that were sent, at the speed that the machine had
    then, to its last token. ``front_end`` is what they came through: how it slowed the engine is in
    that speed. A request that was given up generates what came."""
    sent, work = replay.requests, replay.iterations
    given_up = sent["outcome"] == "aborted"
    traffic = Traffic(
        sent["planned_s"].copy(),
        sent["input_length"].copy(),
        np.maximum(1, np.where(given_up, sent["output_tokens"], sent["output_length"])),
        np.maximum(0, sent["cached_tokens"]),
    )
    budget = replay.token_budget or shape.max_num_batched_tokens
    return simulate(
        traffic,
        law,
        replace(shape, max_num_batched_tokens=budget),
        max_num_seqs=replay.max_num_seqs,
        clock=Clock.of_iterations(work, law) if len(work) else None,
        front_end=None if front_end is None else replace(front_end, contention=1.0),
    )


def check_at_own_speed(
    replays: Sequence[Replay],
    slo: Slo,
    law: StepLaw,
    shape: EngineShape,
    front_end: FrontEnd | None = None,
) -> Check:
    """Compare the model at the engine's speed with these replays of one cap. Those cut are left
    out, and those of which only clients report."""
    replays = [each for each in replays if each.cut is None and len(each.iterations)]
    counted = [each.requests["scored"] & ~np.isnan(each.requests["last_s"]) for each in replays]
    if not any(each.any() for each in counted):
        return Check(())
    twins = [driven(each, law, shape, front_end=front_end) for each in replays]
    sent = np.concatenate([r.requests[kept] for r, kept in zip(replays, counted, strict=True)])
    twin_ttft_s, twin_tpot_s = np.concatenate(
        [(twin.ttft_s[kept], twin.tpot_s[kept]) for twin, kept in zip(twins, counted, strict=True)],
        axis=1,
    )

    def modeled(ttft: float, tpot: float, errors: float) -> dict[str, float]:
        first_s, gap_s = ttft * twin_ttft_s, tpot * twin_tpot_s
        e2el_s = first_s + np.nan_to_num(gap_s) * (sent["output_length"] - 1)
        broken = slo.broken_by(sent["input_length"], first_s, gap_s, e2el_s)
        return _numbers(first_s, gap_s, e2el_s, ~(broken | np.isnan(first_s)), errors)

    seen = _numbers(ttft_s(sent), sent["tpot_s"], e2el_s(sent), met(sent, slo))
    middle = modeled(1.0, 1.0, 0.0)
    fast = modeled(1 / TTFT_OFF, 1 / TPOT_OFF, -RANK_ERRORS)
    slow = modeled(TTFT_OFF, TPOT_OFF, RANK_ERRORS)
    numbers = []
    for name in filter(seen.__contains__, middle):
        ends = fast[name], slow[name]
        least = LEAST_MS.get(name[:4], FEW_REQUESTS_APART / len(sent))
        low, high = max(0.0, min(*ends, middle[name] - least)), max(*ends, middle[name] + least)
        high = min(1.0, high) if name == "attainment" else high
        numbers.append(Number(name, middle[name], low, high, seen[name]))
    return Check(tuple(numbers))


def _numbers(
    ttft_s: Floats, tpot_s: Floats, e2el_s: Floats, good: NDArray[np.bool_], errors: float = 0.0
) -> dict[str, float]:
    """Return the numbers of a check that there are. The ranks of percentiles are moved by so many
    of their standard errors."""
    result = {"attainment": float(good.mean())}
    for name, values_s in (("ttft", ttft_s), ("tpot", tpot_s), ("e2el", e2el_s)):
        known_s = values_s[~np.isnan(values_s)]
        for percent in CHECKED[name] if len(known_s) else ():
            rank = percent / 100
            rank += errors * math.sqrt(rank * (1 - rank) / len(known_s))
            at_s = float(np.quantile(known_s, min(1.0, max(0.0, rank))))
            result[f"{name}_p{percent}_ms"] = 1e3 * at_s
    return result

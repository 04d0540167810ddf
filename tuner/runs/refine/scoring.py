"""The scores of a refinement's trials: their gains over the knee, and the best so far."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.replay.measure import Measurement, measure
from tuner.runs.refine.knobs import Configuration, Space, frees, smallest
from tuner.runs.refine.objective import Objective, deficit, gain_over
from tuner.runs.refine.surrogate import ALIKE, Surrogate
from tuner.runs.refine.trials import SEARCH, Build, FinishedTrial, Trials
from tuner.traffic.requirements import Requirement
from tuner.traffic.workload import Workload

LOST = 0.10
"""Shortfall of one window's attainment from the best in it, from which on a replay is not worth
continuing: two replays of the same at one speed hardly ever differ by so much."""

WORTH = 0.005
"""A gain that nobody would restart a server for."""

AT_LIMIT = 0.9
"""KV-cache usage from which on the next longer conversation does not fit."""


@dataclass(frozen=True, slots=True)
class SearchProblem:
    """The search: its space, and what it is compared with."""

    space: Space
    aim: Objective
    workload: Workload
    knee: FinishedTrial
    """The run's first replay of it."""

    surrogate: Surrogate | None
    """None where the twin is not believed."""

    budget_s: float
    """What the search may spend, of the whole run's engine time."""

    start_s: float
    step_s: float
    """How long one trial takes: on an engine with a backlog longer than its windows were meant."""

    build: Build
    """The engine that trials share."""

    requirements: Sequence[Requirement] = ()
    """What breaks one is no candidate: it counts as serving too few."""


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one configuration; gains are logarithms of ratios to the knee."""

    gain: float
    """By the twin where it can tell, which knows all of the traffic; else as replayed."""

    deficit: float
    replayed: float
    foreseen: float | None
    """By the twin alone; None where it cannot tell."""

    has_room: bool
    """Whether the KV cache was off its limit; see ``has_room``."""


class Scoring:
    """The scores of what was measured so far."""

    def __init__(self, trials: Trials, problem: SearchProblem) -> None:
        self.trials, self.problem = trials, problem

    def best(self) -> tuple[Configuration, float]:
        """Return the best of what was replayed, and its gain: the knee unless another is worth a
        restart; of equal ones the one with the least memory that keeps the KV cache off its limit,
        then the fewest slots."""
        knee = self.problem.space.knee
        known = [
            (done.configuration, score.gain)
            for done, score in self.each()
            if score is not None
            and score.deficit <= 0
            and (score.has_room or not frees(done.configuration, knee))
        ]
        top = max((gain for _, gain in known), default=0.0)
        if top < WORTH:  # only less memory is worth a restart
            freed = [one for one, gain in known if gain > -WORTH and frees(one, knee)]
            return min(freed, key=smallest, default=knee), max(0.0, top)
        return min((one for one, gain in known if gain > top - ALIKE), key=smallest), top

    def each(self) -> list[tuple[FinishedTrial, Score | None]]:
        """Return every trial of the search that served, its score None where it was cut."""
        return [(done, self._score(done)) for done in self.trials.served(SEARCH)]

    def floors(self) -> list[float]:
        """Return per window the attainment below which a trial has lost for certain."""
        slo = self.problem.workload.slo
        whole = [
            (place, measure([replay], slo).attainment)
            for done in self.trials.served(SEARCH)
            for place, replay in enumerate(done.replays)
            if replay.cut is None
        ]
        places = range(len(self.problem.workload.windows))
        return [max((share for at, share in whole if at == place), default=0.0) - LOST
                for place in places]  # fmt: skip

    def _score(self, done: FinishedTrial) -> Score | None:
        if any(replay.cut for replay in done.replays):
            return None
        problem, one = self.problem, done.configuration
        measured, knee = (each.measured(problem.workload) for each in (done, problem.knee))
        replayed = gain_over(problem.aim, measured, knee)
        if replayed is None:
            return None
        missed, room = broken_by(measured, problem.requirements), has_room(measured)
        surrogate = problem.surrogate
        foreseen = surrogate.foresee(one, sure=False) if surrogate else None
        if foreseen is None or not foreseen.is_whole:
            lacking = max(deficit(measured.attainment, knee.attainment), missed)
            return Score(replayed, lacking, replayed, None, room)
        lacking = max(foreseen.deficit, missed)
        return Score(foreseen.gain, lacking, replayed, foreseen.gain, room)


def broken_by(measured: Measurement, requirements: Sequence[Requirement]) -> float:
    """Return by how much of its limit a trial misses what it misses most of what is required at the
    recorded load; less than any deficit where it misses nothing."""
    misses = [
        one.miss(value)
        for one in requirements
        if not one.at_headroom and (value := one.value_in(measured)) is not None
    ]
    most = max(misses, default=0.0)
    return most if most > 0 else -math.inf


def has_room(measured: Measurement) -> bool:
    """Whether the KV cache was off its limit: never so full, and nobody preempted."""
    usage = measured.kv_cache_usage
    return measured.preemptions == 0 and (usage is None or usage.peak < AT_LIMIT)

"""The scores of a refinement's trials: their gains over the knee, and the best so far.

A trial is held against the knee as it was replayed in the same place, by the replays and the twin
together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.replay.measure import Measurement, measure
from tuner.runs.refine.knobs import Configuration, Space, frees, smallest
from tuner.runs.refine.objective import GOODPUT, KnownTrial, Objective, deficit, gains
from tuner.runs.refine.surrogate import ALIKE, Surrogate, combined
from tuner.runs.refine.trial_runner import (
    SEARCH,
    Build,
    FinishedTrial,
    Floors,
    TrialRunner,
    is_knee,
)
from tuner.traffic.requirements import Requirement
from tuner.traffic.workload import Workload

LOST = 0.10
"""Shortfall of one window's attainment from what is expected in it, from which on a replay is not
worth going on with: two replays of the same at one speed hardly ever differ by so much."""

WORTH = 0.005
"""A gain that nobody would restart a server for."""

AT_LIMIT = 0.9
"""KV-cache usage from which on the next longer conversation does not fit. Less memory is meant to
bring the usage to FULL of the space."""


@dataclass(frozen=True, slots=True)
class SearchProblem:
    """The search: its space, and what it is compared with."""

    space: Space
    objectives: Sequence[Objective]
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

    hash_block_size: int
    """Tokens that one of the trace's hash ids stands for."""

    requirements: Sequence[Requirement] = ()
    """What breaks one is no candidate: it counts as serving too few."""

    @property
    def aims(self) -> tuple[Objective, ...]:
        """The objectives, and goodput for the constraint."""
        return (*self.objectives, GOODPUT)


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one configuration; gains over the knee per aim."""

    gains: tuple[float, ...]
    """By the replays and the twin together, less the control variate."""

    deficit: float
    replayed: tuple[float, ...]
    """As the replays alone showed it; the gains where the twin cannot tell."""

    foreseen: tuple[float, ...] | None
    """By the twin alone; None where it is not asked or cannot tell."""

    has_room: bool
    """Whether the KV cache was off its limit; see ``has_room``."""


class Scoring:
    """The scores of what was measured so far."""

    def __init__(self, runner: TrialRunner, problem: SearchProblem) -> None:
        self.runner, self.problem = runner, problem
        self._scores: dict[int, Score | None] = {}
        """By the place of the trial in the run."""

    def best(self, others: Sequence[KnownTrial] = ()) -> Configuration:
        """Return the best of what was replayed, by this run and by ``others`` who share the study:
        the knee unless another is worth a restart; of equal ones the one with the least memory
        that keeps the KV cache off its limit, then the fewest slots."""
        knee = self.problem.space.knee
        known = [
            (one, each.gains[0])
            for one, each in self.scores()
            if each.deficit <= 0 and (each.has_room or not frees(one, knee))
        ]
        known += [
            (one.configuration, one.gains[0])
            for one in others
            if one.deficit <= 0 and (one.has_room or not frees(one.configuration, knee))
        ]
        top = max((gain for _, gain in known), default=0.0)
        if top < WORTH:  # only less memory is worth a restart
            freed = [one for one, gain in known if gain > -WORTH and frees(one, knee)]
            return min(freed, key=smallest, default=knee)
        return min((one for one, gain in known if gain > top - ALIKE), key=smallest)

    def scores(self) -> list[tuple[Configuration, Score]]:
        """Return every configuration of this run that was measured whole, with its gains."""
        return [(done.configuration, values) for done, values in self.each() if values is not None]

    def each(self) -> list[tuple[FinishedTrial, Score | None]]:
        """Return every trial of the search that served, with its gains as ``score`` has them."""
        found: list[tuple[FinishedTrial, Score | None]] = []
        for place, done in enumerate(self.runner.done()):
            if done.purpose == SEARCH and done.failed is None:
                if place not in self._scores:
                    self._scores[place] = self.score(done)
                found.append((done, self._scores[place]))
        return found

    def score(self, done: FinishedTrial) -> Score | None:
        """Return the gains over the knee, by replay and twin together, and the SLO's deficit; None
        of a trial that failed or was cut."""
        if done.failed is not None or any(replay.cut for replay in done.replays):
            return None
        problem = self.problem
        knee_done = self.knee_of(done.worker)
        measured, knee = (each.measured(problem.workload) for each in (done, knee_done))
        values = gains(problem.objectives, measured, knee)
        if values is None:
            return None
        missed = broken_by(measured, problem.requirements)
        surrogate, one, room = problem.surrogate, done.configuration, has_room(measured)
        if surrogate is None or not surrogate.tells(one):  # then there is no control variate
            lacking = max(deficit(measured.attainment, knee.attainment), missed)
            return Score(values, lacking, values, None, room)
        *ours, of_goodput = surrogate.control_variate(one, done.replays, problem.aims)
        *theirs, of_knees = surrogate.control_variate(
            knee_done.configuration, knee_done.replays, problem.aims
        )
        controls = list(zip(theirs, ours, strict=True))
        corrected = gains(problem.objectives, measured, knee, controls)
        assert corrected is not None
        attained_by_knee = min(1.0, knee.attainment - of_knees)
        foreseen = surrogate.foresee(one)
        return Score(
            combined(problem.objectives, foreseen, corrected, attainment=attained_by_knee),
            max(deficit(min(1.0, measured.attainment - of_goodput), attained_by_knee), missed),
            values,
            None if foreseen is None else foreseen.gains,
            room,
        )

    def knee_of(self, worker: str) -> FinishedTrial:
        """Return the knee as that worker replayed it; the run's first where it did not."""
        for done in self.runner.done():
            if is_knee(done, self.problem.space.knee) and done.worker == worker:
                return done
        return self.problem.knee

    def floors(self, one: Configuration) -> Floors:
        """Return the function that says, per window, the attainment below which a trial has lost
        for certain.

        It is held both to what was measured there and to what the twin says of it even in a slow
        time. What was measured alone would cut what is better, where the machine was fast before or
        the window is not like the traffic.
        """
        worst = self._worst(one)
        return lambda worker: [
            min(attained, least) - LOST
            for attained, least in zip(self._attained(worker), worst, strict=True)
        ]

    def _worst(self, one: Configuration) -> list[float]:
        """Return per window the least attainment that the twin expects; 1 where it cannot tell."""
        surrogate, workload = self.problem.surrogate, self.problem.workload
        if surrogate is None or not surrogate.tells(one):
            return [1.0] * len(workload.windows)
        size = self.problem.hash_block_size
        return [
            surrogate.worst(one, surrogate.sent_in(workload, window, hash_block_size=size), window)
            for window in workload.windows
        ]

    def _attained(self, worker: str) -> list[float]:
        """Return per window the most that was attained there: of all where goodput counts, else by
        the knee."""
        space, slo = self.problem.space, self.problem.workload.slo
        of_best = self.problem.objectives[0] is GOODPUT and len(self.problem.objectives) == 1
        found = []
        for place in range(len(self.problem.workload.windows)):
            attained = [
                measure([done.replays[place]], slo).attainment
                for done in self.runner.done()
                if done.purpose == SEARCH
                and done.worker == worker
                and len(done.replays) > place
                and done.replays[place].cut is None
                and (of_best or done.configuration == dict(space.knee))
            ]
            found.append(max(attained, default=0.0))
        return found


def broken_by(measured: Measurement, requirements: Sequence[Requirement]) -> float:
    """Return by how much of its limit a trial misses what it misses most of what is required of
    today's load; less than any deficit where it misses nothing."""
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

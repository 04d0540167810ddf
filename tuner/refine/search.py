"""What to replay next of a space, and what became of it: ask → group → replay → tell.

First what the twin likes best, then every argument that needs a restart by itself, then what the
sampler has in mind. The twin ends at once what cannot win any more, the certified cut ends replays
that have lost, and trials that share an engine are made together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.measure import Measurement, measure
from tuner.refine.bench import Bench, Build, Done
from tuner.refine.knobs import (
    CAP,
    LIVE,
    TOKENS,
    Configuration,
    Space,
    contradicts,
    frees,
    restart_key,
    smallest,
)
from tuner.refine.objective import GOODPUT, Objective, Told, deficit, gains
from tuner.refine.screen import Screen, combined
from tuner.refine.study import Asked, Study
from tuner.workload import Workload

FIRST = 3
"""Configurations that the twin likes best, to be replayed before the sampler has a say."""

BATCH = 4
"""Trials that are asked for together, so that those on one engine can be made one by one."""

MISSES = 12
"""So many proposals in a row that are known or have lost already end the search."""

ALIKE = 0.002
"""Gains so close by the twin are those of configurations between which nothing is to choose."""

LOST = 0.10
"""Attainment of one window below the best's in it, from which on a replay is not worth going on
with: two replays of the same hardly ever differ by so much."""

WORTH = 0.005
"""A gain that nobody would restart a server for."""

ROOM = 0.10
"""What an argument that the twin cannot tell of might add to what it says of the others."""

SEARCH = "search"


@dataclass(frozen=True, slots=True)
class Question:
    """What is searched, and what it is compared with."""

    space: Space
    objectives: Sequence[Objective]
    workload: Workload
    knee: Measurement
    luck: tuple[float, ...]
    """What the machine's speed did for the knee's replay, per aim."""

    screen: Screen | None
    """None where the twin is not believed."""

    budget_s: float
    """What the search may spend, of the whole run's engine time."""

    start_s: float
    build: Build
    """The engine that trials share."""


_Judged = tuple[tuple[float, ...], float] | None


class Search:
    """A search under way."""

    def __init__(self, bench: Bench, study: Study, question: Question) -> None:
        self.bench, self.study, self.question = bench, study, question
        self._judged: dict[int, _Judged] = {}
        """By the place of the trial in the run."""

    async def gather(self, curve: Sequence[Told]) -> bool:
        """Replay what is worth it; return False when the budget ended it early."""
        if (half := self.bench.under_way()) is not None:
            await self._trial(half)
        self.study.abandon()
        self._synchronise(curve)
        for wave in (self._likely, self._flipped):
            for one in wave():
                self.study.first(one)
                if not await self._measure([self.study.ask()]):
                    return False
        while batch := self._propose():
            if not await self._measure(batch):
                return False
        return True

    def best(self) -> Configuration:
        """Return the best of what was replayed: the knee unless another is worth a restart; of
        equal ones the one with the least memory, then the fewest slots."""
        knee = self.question.space.knee
        known = [(one, values[0][0]) for one, values in self.judged() if values[1] <= 0]
        top = max((gain for _, gain in known), default=0.0)
        if top < WORTH:  # only less memory is worth a restart
            freed = [one for one, gain in known if gain > -WORTH and frees(one, knee)]
            return min(freed, key=smallest, default=knee)
        return min((one for one, gain in known if gain > top - ALIKE), key=smallest)

    def judged(self) -> list[tuple[Configuration, tuple[tuple[float, ...], float]]]:
        """Return every configuration of this run that was measured whole, with its gains."""
        found: list[tuple[Configuration, tuple[tuple[float, ...], float]]] = []
        for place, done in enumerate(self.bench.done()):
            if place not in self._judged:
                self._judged[place] = self._judge(done) if done.purpose == SEARCH else None
            if (values := self._judged[place]) is not None:
                found.append((done.configuration, values))
        return found

    def _synchronise(self, curve: Sequence[Told]) -> None:
        """Tell the study what the journal knows and it does not; a new one the curve first."""
        if self.study.is_new:
            for told in curve:
                self.study.add(told)
        known = [told.configuration for told in self._told()]
        for one, values in self.judged():
            if one not in known:
                self.study.add(Told(dict(one), *values, source="engine"))

    def _likely(self) -> list[Configuration]:
        """Return live configurations to begin with: by the twin, or else the knee's neighbours."""
        space, screen = self.question.space, self.question.screen
        if screen is None:
            return [
                {**space.knee, knob.name: knob.values[place]}
                for knob in space.knobs
                if knob.name in LIVE
                for centre in [knob.values.index(space.knee[knob.name])]
                for place in (centre - 1, centre + 1)
                if 0 <= place < len(knob.values)
            ]
        found: dict[tuple[int, ...], Configuration] = {}
        for one in screen.best_first(space.configurations(live=True, at=space.knee)):
            foreseen = screen.foresee(one, sure=False)
            if foreseen is not None:  # equal gains: one and the same engine to this traffic
                effect = tuple(round(gain / ALIKE) for gain in foreseen.gains)
                found.setdefault(effect, one)
            if len(found) == FIRST:
                break
        return list(found.values())

    def _flipped(self) -> list[Configuration]:
        """Return the best so far with one other argument changed, for each that needs a restart."""
        best = self.best()
        return [
            {**best, knob.name: value}
            for knob in self.question.space.knobs
            if knob.name not in LIVE
            for value in knob.values
            if value != best[knob.name]
        ]

    def _propose(self) -> list[Asked]:
        """Ask the sampler for trials that are worth a replay, those on one engine together."""
        batch: list[Asked] = []
        misses = 0
        while len(batch) < BATCH and misses < MISSES:
            asked = self.study.ask()
            if any(asked.configuration == one.configuration for one in batch):
                self.study.fail(asked, "asked for already")
                misses += 1
            elif self._dismissed(asked):
                misses += 1
            else:
                batch.append(asked)
        return sorted(
            batch,
            key=lambda one: (
                not self.bench.is_up_for(one.configuration, self.question.build),
                restart_key(one.configuration),
            ),
        )

    def _dismissed(self, asked: Asked) -> bool:
        """End a trial at once that contradicts itself, is known, or has lost by the twin."""
        one = asked.configuration
        if contradicts(one):
            self.study.fail(asked, f"{TOKENS} is less than {CAP}")
        elif self._is_known(one):
            self.study.fail(asked, "known already")
        elif (lost := self._lost(one)) is not None:
            self.study.prune(asked, *lost)
        else:
            return False
        return True

    def _lost(self, one: Configuration) -> tuple[float, str] | None:
        """Return the most that a configuration can gain, and why that is nothing, by the twin."""
        screen = self.question.screen
        if screen is None or len(self.question.objectives) > 1:
            return None
        if (foreseen := screen.foresee(one)) is None:
            return None
        judged = self.judged()
        if any(screen.are_alike(one, other, within=ALIKE) for other, _ in judged):
            return foreseen.gains[0], "the twin sees no difference to one before"
        most = foreseen.upper(0) + (0.0 if foreseen.is_whole else ROOM)
        best = max((values[0][0] for _, values in judged if values[1] <= 0), default=0.0)
        return (most, "the twin rules it out") if most < best + WORTH else None

    async def _measure(self, batch: Sequence[Asked]) -> bool:
        """Replay these trials and tell; return False when the budget does not allow one."""
        for place, asked in enumerate(batch):
            if self._is_known(asked.configuration):
                self.study.fail(asked, "known already")
                continue
            if not self._affords(asked.configuration):
                for other in batch[place:]:
                    self.study.fail(other, "the budget was spent")
                return False
            done = await self._trial(asked.configuration)
            values = self._judge(done)
            if done.failed is not None:
                self.study.fail(asked, done.failed)
            elif values is None:
                bound = done.measured(self.question.workload).attainment_bound
                lost = bound / max(1e-9, self.question.knee.attainment) - 1
                self.study.prune(asked, lost, "cut")
            else:
                self.study.tell(asked, *values)
        return True

    async def _trial(self, one: Configuration) -> Done:
        question = self.question
        return await self.bench.trial(
            SEARCH, one, question.workload, question.build, self._floors()
        )

    def _judge(self, done: Done) -> _Judged:
        """Return the gains over the knee, by replay and twin together, and the SLO's deficit; None
        of a trial that failed or was cut."""
        if done.failed is not None or any(replay.cut for replay in done.replays):
            return None
        question = self.question
        measured = done.measured(question.workload)
        values = gains(question.objectives, measured, question.knee)
        if values is None:
            return None
        screen, one = question.screen, done.configuration
        if screen is None:
            return values, deficit(measured, question.knee)
        ours = screen.luck(one, done.replays, question.objectives)
        usual = [
            gain - here + there
            for gain, here, there in zip(values, ours, question.luck, strict=True)
        ]
        foreseen = screen.foresee(one)
        return combined(question.objectives, foreseen, usual), deficit(measured, question.knee)

    def _floors(self) -> list[float]:
        """Return per window the attainment below which a trial has lost for certain: to the best
        where goodput counts, else to the knee."""
        space, slo = self.question.space, self.question.workload.slo
        of_best = self.question.objectives[0] is GOODPUT and len(self.question.objectives) == 1
        found = []
        for place in range(len(self.question.workload.windows)):
            attained = [
                measure([done.replays[place]], slo).attainment
                for done in self.bench.done()
                if done.purpose == SEARCH
                and len(done.replays) > place
                and done.replays[place].cut is None
                and (of_best or done.configuration == dict(space.knee))
            ]
            found.append(max(attained, default=0.0) - LOST)
        return found

    def _is_known(self, one: Configuration) -> bool:
        tried = [done.configuration for done in self.bench.done() if done.purpose == SEARCH]
        return one in tried or one in [told.configuration for told in self._told()]

    def _told(self) -> list[Told]:
        return [told for told in self.study.told() if told.source == "engine"]

    def _affords(self, one: Configuration) -> bool:
        question = self.question
        start_s = 0.0 if self.bench.is_up_for(one, question.build) else question.start_s
        return self.bench.spent_s() + start_s + question.workload.step_s <= question.budget_s

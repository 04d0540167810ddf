"""The search of a space: ask → group → replay → tell.

First comes what the twin likes best, then every argument that needs a restart by itself, then what
the sampler has in mind. The twin ends at once what cannot win any more, the certified cut ends
replays that have lost, and trials that share an engine are made together.

Where there are several places, as many trials are under way. Each is held against the knee as it
was in the same place, so that a faster place is nobody's gain.
"""

import asyncio
from collections.abc import Callable, Sequence

from tuner.runs.refine.knobs import (
    CAP,
    LIVE,
    MEMORY,
    TOKENS,
    Configuration,
    Space,
    contradicts,
    fails_like,
    restart_key,
)
from tuner.runs.refine.objective import KnownTrial
from tuner.runs.refine.scoring import WORTH, Scoring, SearchProblem
from tuner.runs.refine.study.study import AskedTrial, Study
from tuner.runs.refine.surrogate import ALIKE, Surrogate
from tuner.runs.refine.trial_runner import (
    MOST_FAILURES,
    SEARCH,
    FinishedTrial,
    Lane,
    TrialRunner,
    is_knee,
)

BATCH = 4
"""Trials that are asked for together, so that those on one engine can be made one by one."""

MISSES = 12
"""Proposals in a row, known or lost already, that end the search."""

DEAD_AFTER = 2
"""Times as long as it should take that another run may be at a trial; then that run has died."""

ELSEWHERE = "another run is at it"

TRIES = 2
"""Times that a configuration may fail: an engine that died once may serve the next time."""

ROOM = 0.10
"""Gain that an argument of which the twin cannot tell might add to what the twin says of the
others."""

FIRST = 3
"""Configurations, of those that the twin likes best, that are tried before the sampler's."""


class Search:
    """A search under way."""

    def __init__(self, runner: TrialRunner, study: Study, problem: SearchProblem) -> None:
        self.runner, self.study, self.problem = runner, study, problem
        self.scoring = Scoring(runner, problem)
        self._waiting: list[AskedTrial] = []
        self._going: list[AskedTrial] = []
        self._is_spent = False

    async def gather(self, curve: Sequence[KnownTrial]) -> bool:
        """Replay what is worth it; return False when the budget ended it early."""
        if (half := self.runner.under_way()) is not None:
            await self.runner.trial(
                SEARCH, half, self.problem.workload, self.problem.build, self.scoring.floors(half)
            )
        self.catch_up(curve)
        await self._try(initial_candidates(self.problem.space, self.problem.surrogate))
        await self._try(flipped(self.problem.space, self.best()))
        await self._measure(self._propose)
        return not self._is_spent

    def score_anew(self, problem: SearchProblem) -> None:
        """Score all that was replayed by another surrogate."""
        self.problem, self.scoring = problem, Scoring(self.runner, problem)

    def best(self) -> Configuration:
        """Return the best of the whole study: what others found counts as well."""
        return self.scoring.best(self.study.others())

    def answer(self) -> Configuration:
        """Return what is worth comparing with the knee: the best; or what the twin, which knows of
        all the replays by now, likes better still and no replay has spoken against."""
        best, surrogate = self.best(), self.problem.surrogate
        if surrogate is None or not surrogate.tells(best):
            return best
        known = [one for one, _ in self.scoring.scores()]
        if best not in known:  # somebody else's
            return best
        gain = max(0.0, *(each.gains[0] for one, each in self.scoring.scores() if one == best))
        failed = [done.configuration for done in self.runner.done() if done.failed is not None]
        for one in initial_candidates(self.problem.space, surrogate):
            foreseen = surrogate.foresee(one, sure=False)
            if foreseen is None or foreseen.gains[0] < gain + WORTH:
                break
            if foreseen.deficit <= 0 and one not in failed and not self._is_known(one):
                return one
        return best

    def untried(self) -> list[str]:
        """Return the arguments that a replay alone could have told of, and none did."""
        tried = [*self.study.tried(), *(one for one, _ in self.scoring.scores())]
        space = self.problem.space
        return [
            knob.name
            for knob in space.knobs
            for value in [space.knee[knob.name]]
            if knob.name not in LIVE and all(one.get(knob.name, value) == value for one in tried)
        ]

    def catch_up(self, curve: Sequence[KnownTrial]) -> None:
        """Tell the study what the journal knows and it does not; a new one the curve first."""
        self.study.abandon()
        if self.study.is_new:
            for told in curve:
                self.study.add(told)
        known = [told.configuration for told in self._told()]
        for one, score in self.scoring.scores():
            if one not in known:
                told = KnownTrial(dict(one), score.gains, score.deficit, "engine", score.has_room)
                self.study.add(told)
                known.append(dict(one))
        self._catch_up_cut()

    def _catch_up_cut(self) -> None:
        knee = self.problem.space.knee
        known = self.study.tried()
        known += [one for one, _ in self.scoring.scores()]  # also what lies outside the space
        for done, _ in self.scoring.each():
            if not is_knee(done, knee) and done.configuration not in known:
                self.study.add_cut(done.configuration, self._bound(done))
                known.append(done.configuration)

    async def _try(self, ones: Sequence[Configuration]) -> None:
        for one in ones:
            self.study.first(one)
            asked = self.study.ask()  # another, where somebody else has taken this one
            if asked.configuration == one or not self._dismissed(asked):
                self._waiting.append(asked)
        await self._measure(list)

    def _propose(self) -> list[AskedTrial]:
        """Ask the sampler for trials that are worth a replay, those on one engine together."""
        batch: list[AskedTrial] = []
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
        return sorted(batch, key=lambda one: restart_key(one.configuration))

    def _dismissed(self, asked: AskedTrial) -> bool:
        """End a trial at once that contradicts itself, is known, or has lost by the twin."""
        one = asked.configuration
        if contradicts(one):
            self.study.fail(asked, f"{TOKENS} is less than {CAP}")
        elif (why := self._needless(asked)) is not None:
            self.study.fail(asked, why)
        elif (lost := self._lost(one)) is not None:
            self.study.prune(asked, *lost, by="twin")
        else:
            return False
        return True

    def _lost(self, one: Configuration) -> tuple[float, str] | None:
        """Return the most that a configuration can gain, and why that is nothing, by the twin."""
        surrogate = self.problem.surrogate
        if surrogate is None or len(self.problem.objectives) > 1:
            return None
        if (foreseen := surrogate.foresee(one)) is None:
            return None
        scores = self.scoring.scores()
        if any(surrogate.are_alike(one, other, within=ALIKE) for other, _ in scores):
            return foreseen.gains[0], "the twin sees no difference to one before"
        most = foreseen.upper(0) + (0.0 if foreseen.is_whole else ROOM)
        best = max((each.gains[0] for _, each in scores if each.deficit <= 0), default=0.0)
        return (most, "the twin rules it out") if most < best + WORTH else None

    async def _measure(self, more: Callable[[], list[AskedTrial]]) -> None:
        """Replay what waits and tell, then ``more``; until nothing is left or the budget is."""
        runners = [asyncio.create_task(self._run(more)) for _ in range(self.runner.width)]
        try:
            await asyncio.gather(*runners)
        finally:
            for runner in runners:
                runner.cancel()
            await asyncio.gather(*runners, return_exceptions=True)

    async def _run(self, more: Callable[[], list[AskedTrial]]) -> None:
        while True:
            async with self.runner.lane() as lane:
                if (asked := self._next(lane, more)) is None:
                    return
                self._going.append(asked)
                done = await lane.trial(
                    SEARCH,
                    asked.configuration,
                    self.problem.workload,
                    self.problem.build,
                    self.scoring.floors(asked.configuration),
                )
                self._going.remove(asked)
                self._tell(asked, done)

    def _next(self, lane: Lane, more: Callable[[], list[AskedTrial]]) -> AskedTrial | None:
        """Return what to replay there: what its engine can serve before what needs another."""
        while not self._is_spent:
            self._waiting = self._waiting or more()
            if not self._waiting:
                return None
            asked = min(self._waiting, key=lambda one: not self._is_up(lane, one))
            self._waiting.remove(asked)
            if (why := self._needless(asked)) is not None:
                self.study.fail(asked, why)
            elif self._affords(lane, asked):
                is_ours = self.study.claim(asked, within_s=self._dead_after_s)
                if is_ours and not self._is_known(asked.configuration):  # told meanwhile
                    return asked
                self.study.fail(asked, ELSEWHERE)
            else:
                self._is_spent = True
                for other in (asked, *self._waiting):
                    self.study.fail(other, "the budget was spent")
                self._waiting.clear()
        return None

    def _tell(self, asked: AskedTrial, done: FinishedTrial) -> None:
        score = self.scoring.score(done)
        if done.failed is not None:
            self.study.fail(asked, done.failed)
        elif score is None:
            self.study.prune(asked, self._bound(done), "cut", by="engine")
        else:
            self.study.tell(asked, score.gains, score.deficit, has_room=score.has_room)

    def _bound(self, done: FinishedTrial) -> float:
        """Return the most that a trial which was cut could have gained over the knee."""
        workload = self.problem.workload
        knee = self.scoring.knee_of(done.worker).measured(workload)
        return done.measured(workload).attainment_bound / max(1e-9, knee.attainment) - 1

    def _needless(self, asked: AskedTrial) -> str | None:
        """Return why a replay would tell nothing new; None where it may."""
        one = asked.configuration
        if self._is_known(one):
            return "known already"
        if self._cannot_start(one):
            return "no such engine starts"
        if self.study.is_elsewhere(one, within_s=self._dead_after_s):
            return ELSEWHERE
        return None

    @property
    def _dead_after_s(self) -> float:
        return DEAD_AFTER * (self.problem.start_s + self.problem.step_s)

    def _is_known(self, one: Configuration) -> bool:
        tried = [done.configuration for done in self.runner.served(SEARCH)]
        failed = [done.configuration for done in self._failed()]
        tried += [each for each in failed if failed.count(each) >= TRIES]
        going = [asked.configuration for asked in self._going]
        return one in [*tried, *going, *self.study.tried()]

    def _cannot_start(self, one: Configuration) -> bool:
        """Whether an engine that needs a restart for the same, or has more memory, did not start
        and none such ever served."""
        done = self.runner.done()
        served = {restart_key(each.configuration) for each in done if each.failed is None}
        return restart_key(one) not in served and any(
            fails_like(one, each.configuration)
            for each in self._failed()
            if not each.started and restart_key(each.configuration) not in served
        )

    def _failed(self) -> list[FinishedTrial]:
        """Return the trials that failed, but for those of places where nothing is served: these say
        nothing of a configuration."""
        by_worker: dict[str, list[FinishedTrial]] = {}
        for each in self.runner.done():
            by_worker.setdefault(each.worker, []).append(each)
        return [
            each
            for made in by_worker.values()
            if any(one.failed is None for one in made[-MOST_FAILURES:]) or len(made) < MOST_FAILURES
            for each in made
            if each.failed is not None
        ]

    def _told(self) -> list[KnownTrial]:
        return [told for told in self.study.told() if told.source == "engine"]

    def _is_up(self, lane: Lane, asked: AskedTrial) -> bool:
        return lane.is_up_for(asked.configuration, self.problem.build)

    def _affords(self, lane: Lane, asked: AskedTrial) -> bool:
        problem = self.problem
        start_s = 0.0 if self._is_up(lane, asked) else problem.start_s
        going_s = (len(self._going) + 1) * problem.step_s
        return self.runner.evidence.spent_s() + start_s + going_s <= problem.budget_s


def initial_candidates(space: Space, surrogate: Surrogate | None) -> list[Configuration]:
    """Return live configurations that are worth a trial, the best by the twin first; without one
    the knee's neighbours."""
    if surrogate is None:
        return [
            {**space.knee, knob.name: knob.values[place]}
            for knob in space.knobs
            if knob.name in LIVE
            for centre in [knob.values.index(space.knee[knob.name])]
            for place in (centre - 1, centre + 1)
            if 0 <= place < len(knob.values)
        ]
    found: dict[tuple[int, ...], Configuration] = {}
    for one in surrogate.best_first(space.configurations(live=True, at=space.knee)):
        foreseen = surrogate.foresee(one, sure=False)
        if foreseen is not None:  # equal gains: one and the same engine to this traffic
            effect = tuple(round(gain / ALIKE) for gain in foreseen.gains)
            found.setdefault(effect, one)
        if len(found) == FIRST:
            break
    return list(found.values())


def flipped(space: Space, best: Configuration) -> list[Configuration]:
    """Return the best so far with one other argument changed, for each that needs a restart; less
    and less memory, as the first that does not start rules out the rest."""
    return [
        {**best, knob.name: value}
        for knob in space.knobs
        if knob.name not in LIVE
        for value in (reversed(knob.values) if knob.name in MEMORY else knob.values)
        if value != best[knob.name]
    ]

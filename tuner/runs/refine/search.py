"""What to replay next of a space, and what became of it: ask → group → replay → tell.

First what the twin likes best, then every argument that needs a restart by itself, then what the
sampler has in mind. The twin ends at once what cannot win any more, the certified cut ends replays
that have lost, and trials that share an engine are made together.

On a bench with several places as many trials are under way; each is held against the knee as it was
in the same place, so that what one place is faster than another is nobody's gain.
"""

import asyncio
from collections.abc import Callable, Sequence

from tuner.runs.refine.bench import MOST_FAILURES, Done, Lane, TrialRunner
from tuner.runs.refine.gains.judge import SEARCH, WORTH, Judge, Question, is_knee
from tuner.runs.refine.gains.likely import flipped, likely
from tuner.runs.refine.gains.screen import ALIKE
from tuner.runs.refine.knobs import (
    CAP,
    LIVE,
    TOKENS,
    Configuration,
    contradicts,
    fails_like,
    restart_key,
)
from tuner.runs.refine.objective import Told
from tuner.runs.refine.study.study import Asked, Study

BATCH = 4
"""Trials that are asked for together, so that those on one engine can be made one by one."""

MISSES = 12
"""So many proposals in a row that are known or have lost already end the search."""

PATIENCE = 2
"""How often as long as it should take another run may be at a trial; then it has died."""

ELSEWHERE = "another run is at it"

TRIES = 2
"""How often a configuration may fail: an engine that died once may serve the next time."""

ROOM = 0.10
"""What an argument that the twin cannot tell of might add to what it says of the others."""


class Search:
    """A search under way."""

    def __init__(self, bench: TrialRunner, study: Study, question: Question) -> None:
        self.bench, self.study, self.question = bench, study, question
        self.judge = Judge(bench, question)
        self._waiting: list[Asked] = []
        self._going: list[Asked] = []
        self._is_spent = False

    async def gather(self, curve: Sequence[Told]) -> bool:
        """Replay what is worth it; return False when the budget ended it early."""
        if (half := self.bench.under_way()) is not None:
            await self.bench.trial(
                SEARCH, half, self.question.workload, self.question.build, self.judge.floors(half)
            )
        self.catch_up(curve)
        await self._try(likely(self.question.space, self.question.screen))
        await self._try(flipped(self.question.space, self.best()))
        await self._measure(self._propose)
        return not self._is_spent

    def rejudge(self, question: Question) -> None:
        """Judge all that was replayed by another screen."""
        self.question, self.judge = question, Judge(self.bench, question)

    def best(self) -> Configuration:
        """Return the best of the whole study: what others found counts as well."""
        return self.judge.best(self.study.others())

    def answer(self) -> Configuration:
        """Return what is worth comparing with the knee: the best; or what the twin, which knows of
        all the replays by now, likes better still and no replay has spoken against."""
        best, screen = self.best(), self.question.screen
        if screen is None or not screen.tells(best):
            return best
        known = [one for one, _ in self.judge.judged()]
        if best not in known:  # somebody else's
            return best
        gain = max(0.0, *(each.gains[0] for one, each in self.judge.judged() if one == best))
        failed = [done.configuration for done in self.bench.done() if done.failed is not None]
        for one in likely(self.question.space, screen):
            foreseen = screen.foresee(one, sure=False)
            if foreseen is None or foreseen.gains[0] < gain + WORTH:
                break
            if foreseen.deficit <= 0 and one not in failed and not self._is_known(one):
                return one
        return best

    def untried(self) -> list[str]:
        """Return the arguments that a replay alone could have told of, and none did."""
        tried = [*self.study.tried(), *(one for one, _ in self.judge.judged())]
        space = self.question.space
        return [
            knob.name
            for knob in space.knobs
            for value in [space.knee[knob.name]]
            if knob.name not in LIVE and all(one.get(knob.name, value) == value for one in tried)
        ]

    def catch_up(self, curve: Sequence[Told]) -> None:
        """Tell the study what the journal knows and it does not; a new one the curve first."""
        self.study.abandon()
        if self.study.is_new:
            for told in curve:
                self.study.add(told)
        known = [told.configuration for told in self._told()]
        for one, judged in self.judge.judged():
            if one not in known:
                told = Told(dict(one), judged.gains, judged.deficit, "engine", judged.has_room)
                self.study.add(told)
                known.append(dict(one))
        self._catch_up_cut()

    def _catch_up_cut(self) -> None:
        knee = self.question.space.knee
        known = self.study.tried()
        known += [one for one, _ in self.judge.judged()]  # also what lies outside the space
        for done, _ in self.judge.each():
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
        return sorted(batch, key=lambda one: restart_key(one.configuration))

    def _dismissed(self, asked: Asked) -> bool:
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
        screen = self.question.screen
        if screen is None or len(self.question.objectives) > 1:
            return None
        if (foreseen := screen.foresee(one)) is None:
            return None
        judged = self.judge.judged()
        if any(screen.are_alike(one, other, within=ALIKE) for other, _ in judged):
            return foreseen.gains[0], "the twin sees no difference to one before"
        most = foreseen.upper(0) + (0.0 if foreseen.is_whole else ROOM)
        best = max((each.gains[0] for _, each in judged if each.deficit <= 0), default=0.0)
        return (most, "the twin rules it out") if most < best + WORTH else None

    async def _measure(self, more: Callable[[], list[Asked]]) -> None:
        """Replay what waits and tell, then ``more``; until nothing is left or the budget is."""
        runners = [asyncio.create_task(self._run(more)) for _ in range(self.bench.width)]
        try:
            await asyncio.gather(*runners)
        finally:
            for runner in runners:
                runner.cancel()
            await asyncio.gather(*runners, return_exceptions=True)

    async def _run(self, more: Callable[[], list[Asked]]) -> None:
        while True:
            async with self.bench.lane() as lane:
                if (asked := self._next(lane, more)) is None:
                    return
                self._going.append(asked)
                done = await lane.trial(
                    SEARCH,
                    asked.configuration,
                    self.question.workload,
                    self.question.build,
                    self.judge.floors(asked.configuration),
                )
                self._going.remove(asked)
                self._tell(asked, done)

    def _next(self, lane: Lane, more: Callable[[], list[Asked]]) -> Asked | None:
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
                if self.study.claim(asked, within_s=self._patience_s):
                    return asked
                self.study.fail(asked, ELSEWHERE)
            else:
                self._is_spent = True
                for other in (asked, *self._waiting):
                    self.study.fail(other, "the budget was spent")
                self._waiting.clear()
        return None

    def _tell(self, asked: Asked, done: Done) -> None:
        judged = self.judge.judge(done)
        if done.failed is not None:
            self.study.fail(asked, done.failed)
        elif judged is None:
            self.study.prune(asked, self._bound(done), "cut", by="engine")
        else:
            self.study.tell(asked, judged.gains, judged.deficit, has_room=judged.has_room)

    def _bound(self, done: Done) -> float:
        """Return the most that a trial which was cut could have gained over the knee."""
        workload = self.question.workload
        knee = self.judge.knee_of(done.worker).measured(workload)
        return done.measured(workload).attainment_bound / max(1e-9, knee.attainment) - 1

    def _needless(self, asked: Asked) -> str | None:
        """Return why a replay would tell nothing new; None where it may."""
        one = asked.configuration
        if self._is_known(one):
            return "known already"
        if self._cannot_start(one):
            return "no such engine starts"
        if self.study.is_elsewhere(one, within_s=self._patience_s):
            return ELSEWHERE
        return None

    @property
    def _patience_s(self) -> float:
        return PATIENCE * (self.question.start_s + self.question.step_s)

    def _is_known(self, one: Configuration) -> bool:
        tried = [done.configuration for done in self.bench.served(SEARCH)]
        failed = [done.configuration for done in self._failed()]
        tried += [each for each in failed if failed.count(each) >= TRIES]
        going = [asked.configuration for asked in self._going]
        return one in [*tried, *going, *self.study.tried()]

    def _cannot_start(self, one: Configuration) -> bool:
        """Whether an engine that needs a restart for the same, or has more memory, did not start
        and none such ever served."""
        done = self.bench.done()
        served = {restart_key(each.configuration) for each in done if each.failed is None}
        return restart_key(one) not in served and any(
            fails_like(one, each.configuration)
            for each in self._failed()
            if not each.started and restart_key(each.configuration) not in served
        )

    def _failed(self) -> list[Done]:
        """Return the trials that failed, but for those of places where nothing is served: these say
        nothing of a configuration."""
        by_worker: dict[str, list[Done]] = {}
        for each in self.bench.done():
            by_worker.setdefault(each.worker, []).append(each)
        return [
            each
            for made in by_worker.values()
            if any(one.failed is None for one in made[-MOST_FAILURES:]) or len(made) < MOST_FAILURES
            for each in made
            if each.failed is not None
        ]

    def _told(self) -> list[Told]:
        return [told for told in self.study.told() if told.source == "engine"]

    def _is_up(self, lane: Lane, asked: Asked) -> bool:
        return lane.is_up_for(asked.configuration, self.question.build)

    def _affords(self, lane: Lane, asked: Asked) -> bool:
        question = self.question
        start_s = 0.0 if self._is_up(lane, asked) else question.start_s
        going_s = (len(self._going) + 1) * question.step_s
        return self.bench.spent_s() + start_s + going_s <= question.budget_s

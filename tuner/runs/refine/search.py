"""The search of a space.

The twin ranks every configuration that one engine serves without a restart; the best are replayed.
Then every other argument is tried by itself, and where the budget has room for more, what Optuna's
sampler proposes. What has lost is cut, and trials that share an engine are made together.
"""

from collections.abc import Sequence

from tuner.runs.refine.knobs import (
    LIVE,
    MEMORY,
    Configuration,
    Space,
    contradicts,
    fails_like,
    restart_key,
)
from tuner.runs.refine.scoring import WORTH, Scoring, SearchProblem
from tuner.runs.refine.study import Study
from tuner.runs.refine.surrogate import ALIKE, Surrogate
from tuner.runs.refine.trials import SEARCH, Trials

FIRST = 3
"""Configurations that are replayed of those that the twin ranks first."""

MORE, MISSES = 8, 12
"""Proposals of the sampler that are replayed at most, and that may be known already in a row."""

ROOM = 0.10
"""Gain that an argument of which the twin cannot tell might add to what the twin says of the
others."""


class Search:
    """A search under way."""

    def __init__(self, trials: Trials, study: Study, problem: SearchProblem) -> None:
        self.trials, self.study, self.problem = trials, study, problem
        self.scoring = Scoring(trials, problem)

    async def gather(self) -> bool:
        """Replay what is worth it; return False when the budget ended it early."""
        if (half := self.trials.under_way()) is not None:
            await self._replay(half)
        space = self.problem.space
        if not await self._try(initial_candidates(space, self.problem.surrogate)):
            return False
        if not await self._try(flipped(space, self.scoring.best()[0])):
            return False
        self.tell()
        for _ in range(0 if all(knob.name in LIVE for knob in space.knobs) else MORE):
            one = self._proposal()
            if one is None or not self._affords(one):
                break
            await self._replay(one)
            self.tell()
        return True

    def answer(self) -> Configuration:
        """Return what is worth comparing with the knee: the best of what was replayed, or what the
        twin ranks before it and no replay has spoken against."""
        best, gain = self.scoring.best()
        surrogate = self.problem.surrogate
        if surrogate is None or not surrogate.tells(best):
            return best
        for one in initial_candidates(self.problem.space, surrogate):
            foreseen = surrogate.foresee(one, sure=False)
            if foreseen is None or foreseen.gain < gain + WORTH:
                break
            if foreseen.deficit <= 0 and not self._is_known(one):
                return one
        return best

    def untried(self) -> list[str]:
        """Return the arguments that a replay alone could have told of, and none did."""
        tried = [done.configuration for done, score in self.scoring.each() if score is not None]
        knee = self.problem.space.knee
        return [
            knob.name
            for knob in self.problem.space.knobs
            if knob.name not in LIVE and all(one.get(knob.name) == knee[knob.name] for one in tried)
        ]

    def tell(self) -> None:
        """Tell the study what the journal knows and it does not."""
        for done, score in self.scoring.each():
            gain, lacking = (None, 0.0) if score is None else (score.gain, score.deficit)
            self.study.tell(done.configuration, gain, lacking)

    async def _try(self, ones: Sequence[Configuration]) -> bool:
        """Replay those that are worth it; return False when the budget ended it early."""
        for one in ones:
            if self._is_known(one) or self._has_lost(one):
                continue
            if not self._affords(one):
                return False
            await self._replay(one)
        return True

    def _proposal(self) -> Configuration | None:
        """Return what the sampler would try next; None where it knows of nothing else."""
        for _ in range(MISSES):
            one = self.study.ask()
            if not (contradicts(one) or self._is_known(one) or self._has_lost(one)):
                return one
        return None

    async def _replay(self, one: Configuration) -> None:
        problem = self.problem
        await self.trials.trial(SEARCH, one, problem.workload, problem.build, self.scoring.floors())

    def _is_known(self, one: Configuration) -> bool:
        """Whether it was tried, or no engine starts that needs a restart for the same."""
        done = self.trials.done()
        served = {restart_key(each.configuration) for each in done if each.failed is None}
        failed = [each.configuration for each in done if each.failed is not None]
        return one in [each.configuration for each in done if each.purpose == SEARCH] or (
            restart_key(one) not in served and any(fails_like(one, each) for each in failed)
        )

    def _has_lost(self, one: Configuration) -> bool:
        """Whether by the twin it is like one before, or cannot be the best."""
        surrogate = self.problem.surrogate
        if surrogate is None or (foreseen := surrogate.foresee(one)) is None:
            return False
        tried = [done.configuration for done, score in self.scoring.each() if score is not None]
        if any(surrogate.are_alike(one, other, within=ALIKE) for other in tried):
            return True
        most = foreseen.upper() + (0.0 if foreseen.is_whole else ROOM)
        return most < self.scoring.best()[1] + WORTH

    def _affords(self, one: Configuration) -> bool:
        problem = self.problem
        start_s = 0.0 if self.trials.is_up_for(one, problem.build) else problem.start_s
        return self.trials.evidence.spent_s() + start_s + problem.step_s <= problem.budget_s


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
    found: dict[int, Configuration] = {}
    for one in surrogate.best_first(space.configurations(live=True, at=space.knee)):
        foreseen = surrogate.foresee(one, sure=False)
        if foreseen is not None:  # equal gains: one and the same engine to this traffic
            found.setdefault(round(foreseen.gain / ALIKE), one)
        if len(found) == FIRST:
            break
    return list(found.values())


def flipped(space: Space, best: Configuration) -> Sequence[Configuration]:
    """Return the best so far with one other argument changed, for each that needs a restart; less
    and less memory, as the first that does not start rules out the rest."""
    return [
        {**best, knob.name: value}
        for knob in space.knobs
        if knob.name not in LIVE
        for value in (reversed(knob.values) if knob.name in MEMORY else knob.values)
        if value != best[knob.name]
    ]

"""The trials of a refinement's search, as its result tells them: also those that were cut."""

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.replay.measure import Measurement
from tuner.replay.records import Replay
from tuner.runs.refine.gains.judge import Judge
from tuner.runs.refine.knobs import Configuration
from tuner.runs.refine.objective import Objective, front


@dataclass(frozen=True, slots=True)
class Tried:
    """One trial and what its replays gave."""

    configuration: Configuration
    measured: Measurement
    worker: str
    """Which of several places measured it; empty where there is one."""

    cut: str | None
    """Why it was ended early; None when it was not."""

    gains: tuple[float, ...] | None
    """Over the knee of the same place; 0.01 is 1 %. None of a trial that was ended early."""

    deficit: float | None
    replayed: tuple[float, ...] | None
    """What of the gains the replays alone showed."""

    foreseen: tuple[float, ...] | None
    """What the twin alone says; None where it is not believed or cannot tell."""

    @property
    def keeps_slo(self) -> bool | None:
        """Whether it serves as many within the SLO as the knee; None where that is not known."""
        return None if self.deficit is None else self.deficit <= 0


def tried_by(judge: Judge) -> list[Tried]:
    """Return the trials that served, in the order in which they ended; of several places each has
    one of the knee."""
    return [
        Tried(
            done.configuration,
            done.measured(judge.question.workload),
            done.worker,
            cut_of(done.replays),
            gains=None if judged is None else judged.gains,
            deficit=None if judged is None else judged.deficit,
            replayed=None if judged is None else judged.replayed,
            foreseen=None if judged is None else judged.foreseen,
        )
        for done, judged in judge.each()
    ]


def cut_of(replays: Sequence[Replay]) -> str | None:
    """Return in which of its windows a trial was ended early, and why; None when it was not."""
    for number, replay in enumerate(replays, 1):
        if replay.cut is not None:
            return f"window {number} of {len(replays)}: {replay.cut}"
    return None


def pareto(tried: Sequence[Tried], objectives: Sequence[Objective]) -> list[Tried]:
    """Return those that keep the SLO and that no other beats in both aims; of one aim none."""
    kept: list[tuple[Tried, tuple[float, ...]]] = []
    for one in tried:
        if one.keeps_slo and one.gains is not None:
            known = [each.configuration for each, _ in kept]
            if one.configuration not in known:  # each of several places has the knee
                kept.append((one, one.gains))
    best = front([values for _, values in kept]) if len(objectives) > 1 else []
    return [kept[place][0] for place in best]

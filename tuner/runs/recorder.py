"""Writes down what a run measures, the moment it exists: on disk when a call returns."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tuner.engines.seam import EngineFacts
from tuner.replay.records import ProbeResult, Replay
from tuner.runs.evidence import Evidence, Selection
from tuner.runs.journal import Journal
from tuner.twin.uncertainty import Trial


@dataclass(frozen=True, slots=True)
class Recorder:
    """Writes what whoever measures tells it; ``Evidence`` reads what stands there. Raises RunError
    when nothing can be written."""

    journal: Journal

    def add_start(self, facts: EngineFacts, *, purpose: str, max_num_seqs: int) -> None:
        self.append("start", purpose=purpose, max_num_seqs=max_num_seqs, facts=asdict(facts))

    def add_probes(
        self,
        results: Sequence[ProbeResult],
        flaws: Sequence[str] = (),
        elapsed_s: float = 0.0,
        *,
        purpose: str = "ladder",
    ) -> None:
        """Keep what an idle engine of this purpose does."""
        rows = [asdict(one) for one in results]
        self.append("probe", purpose=purpose, results=rows, flaws=list(flaws), elapsed_s=elapsed_s)

    def add_selection(self, selection: Selection) -> None:
        self.append("choice", **asdict(selection))

    def add_late(self, what: str, why: str, elapsed_s: float) -> None:
        """Note what is measured once more, why, and what it took so far."""
        self.append("late", what=what, why=why, elapsed_s=elapsed_s)

    def add_stall(self, what: str) -> None:
        """Note that the engine has work and does not move."""
        self.append("stall", what=what)

    def begin(self, trial: Trial) -> None:
        """Note what is measured from here on, so that an interrupted run goes on with it."""
        self.append("trial", purpose=trial.purpose, max_num_seqs=trial.max_num_seqs)

    def add_replay(self, result: Replay, purpose: str, *, window: int = 0) -> None:
        """Keep a replay, or a ramp, of the trial under way."""
        self.journal.append_replay(
            result,
            purpose=purpose,
            max_num_seqs=result.max_num_seqs,
            elapsed_s=result.elapsed_s,
            window=window,
            trial=len(Evidence(self.journal).trials()),
            at_s=now_s(),
        )

    def end(self) -> None:
        """Note that everything of the trial under way has been measured."""
        self.append("measured")

    def add_gathered(self, *, complete: bool) -> None:
        """Note that nothing more is measured before the confirming engine. It is noted once, and
        once more where a larger budget then had room for all."""
        if not any(event["complete"] >= complete for event in self.journal.of("gathered")):
            self.append("gathered", complete=complete)

    def append(self, event: str, **content: Any) -> None:  # noqa: ANN401 - JSON content
        self.journal.append(event, **content, at_s=now_s())


def now_s() -> float:
    """Return the time on the clock of all events: the event loop's."""
    return asyncio.get_running_loop().time()

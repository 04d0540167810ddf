"""Where trials of configurations are made, and what they measured so far.

Everything measured is in the journal when a call returns.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from tuner.engines.seam import EngineFacts, Starter
from tuner.errors import EngineError
from tuner.replay.measure import Measurement, measure
from tuner.replay.records import Replay
from tuner.runs.engine_runner import Watcher
from tuner.runs.evidence import Evidence, Selection
from tuner.runs.refine.knobs import TOKENS, Configuration
from tuner.traffic.window import Window
from tuner.traffic.workload import Workload

Vary = Callable[[Configuration], Starter]
"""Returns what starts engines with the profile's arguments and these changed."""

RAMP = "ramp"
"""Purpose of what times every batch size."""

MOST_FAILURES = 3
"""Engines that fail one after the other: then it is the machine and not a configuration."""


@dataclass(frozen=True, slots=True)
class Build:
    """What an engine is built for: the most that will be asked of it."""

    cap: int
    tokens: int
    turn: int = 0
    """Another turn is another engine."""


@dataclass(frozen=True, slots=True)
class Done:
    """A trial of this run that has ended."""

    purpose: str
    configuration: dict[str, Any]
    replays: tuple[Replay, ...]
    failed: str | None
    """Why it could not be measured; None when it was."""

    engine: int
    """Number of the start that it was measured on."""

    worker: str = ""
    """Which of several places measured it; empty where there is one."""

    windows: tuple[Window, ...] = ()
    """What it was to replay."""

    started: bool = True
    """Whether there was an engine for it: one that died, or was late, says nothing of others."""

    def measured(self, workload: Workload) -> Measurement:
        return measure(self.replays, workload.slo)


@dataclass(frozen=True, slots=True)
class Chosen:
    """How a search ended."""

    configuration: dict[str, Any]
    complete: bool
    """Whether nothing but itself ended it."""

    pairs: tuple[tuple[Window, ...], ...]
    """What it is to be compared with the knee in, pair by pair."""


def told(one: Configuration) -> str:
    """Return a configuration in words."""
    return ", ".join(f"{name}={value}" for name, value in one.items() if value is not None)


Floors = Callable[[str], Sequence[float]]
"""Worker → per window the attainment below which a trial has lost for certain."""


def no_floors(_: str) -> Sequence[float]:
    """Let every replay go on to its end."""
    return ()


class Lane(Protocol):
    """A place where one trial at a time is made."""

    def is_up_for(self, one: Configuration, build: Build) -> bool:
        """Whether the engine that is up there serves this without a restart."""
        ...

    async def trial(
        self,
        purpose: str,
        one: Configuration,
        workload: Workload,
        build: Build,
        floors: Floors = no_floors,
    ) -> Done:
        """Replay all windows with a configuration; ``floors`` cut those that have lost.

        A failing engine fails the trial. Raises EngineError when it is one too many.
        """
        ...


class TrialRunner(ABC):
    """Where trials are made, and what was measured so far."""

    width = 1
    """How many trials may be under way at a time."""

    def __init__(
        self, evidence: Evidence, watcher: Watcher, *, most_failures: float = MOST_FAILURES
    ) -> None:
        self.evidence, self.watcher = evidence, watcher
        self._failures, self._most_failures = 0, most_failures

    @abstractmethod
    def begin(self, knee: Configuration, workload: Workload, build: Build) -> None:
        """Take note of what every place replays first, to be compared with."""

    @abstractmethod
    def lane(self) -> AbstractAsyncContextManager[Lane]:
        """Wait for a place that is free, and hold it."""

    @abstractmethod
    async def trial(
        self,
        purpose: str,
        one: Configuration,
        workload: Workload,
        build: Build,
        floors: Floors = no_floors,
    ) -> Done:
        """See Lane; always in the same place. Where that is lost the trial has failed, and the next
        one is in another."""

    @abstractmethod
    async def ramp(self, one: Configuration, workload: Workload, build: Build) -> None:
        """Time every batch size up to what the engine is built for; see ``ramp``. Fails as a trial
        does."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop every engine. Stopping twice is allowed."""

    @abstractmethod
    async def settle(self) -> None:
        """Make sure of the place where the next ``trial`` will be made."""

    @abstractmethod
    def is_here(self, done: Done) -> bool:
        """Whether a trial was measured in that place."""

    def done(self) -> list[Done]:
        """Return every trial that has ended, in order."""
        journal = self.evidence.journal
        ends = list(journal.of("measured"))
        replays: dict[int, list[dict[str, Any]]] = {}
        for event in journal.of("replay"):
            replays.setdefault(event["trial"], []).append(event)
        return [
            Done(
                begun["purpose"],
                begun["configuration"],
                tuple(self.evidence.load(event) for event in replays.get(place, ())),
                end.get("failed"),
                end.get("engine", 0),
                end.get("worker", ""),
                tuple(Window(**window) for window in begun.get("windows", ())),
                started=end.get("started", end.get("failed") is None),
            )
            for place, (begun, end) in enumerate(zip(journal.of("trial"), ends, strict=False))
        ]

    def served(self, *purposes: str) -> list[Done]:
        """Return the trials for one of these purposes that did not fail."""
        return [one for one in self.done() if one.purpose in purposes and one.failed is None]

    def under_way(self) -> dict[str, Any] | None:
        """Return the configuration of a trial that an interruption left half done."""
        begun = list(self.evidence.journal.of("trial"))
        ended = sum(1 for _ in self.evidence.journal.of("measured"))
        return begun[ended]["configuration"] if len(begun) > ended else None

    def chosen(self) -> Chosen | None:
        """Return how the search ended; None while it goes on."""
        for event in self.evidence.journal.of("gathered"):
            pairs = (tuple(Window(**one) for one in pair) for pair in event["pairs"])
            return Chosen(dict(event["chosen"]), bool(event["complete"]), tuple(pairs))
        return None

    def choose(self, chosen: Chosen) -> None:
        """Keep it: a resumed run goes on with the same."""
        pairs = [[asdict(window) for window in pair] for pair in chosen.pairs]
        one = dict(chosen.configuration)
        self._append("gathered", complete=chosen.complete, chosen=one, pairs=pairs)

    def facts_of(
        self, key: tuple[tuple[str, str], ...], *, cap: int | None = None, tokens: int | None = None
    ) -> EngineFacts:
        """Return what the newest engine of these arguments, built for these limits, said of itself;
        of any such engine where none was built for them."""
        starts = [one for one in self.evidence.journal.of("start") if one["key"] == repr(key)]
        exact = [
            one
            for one in starts
            if one["max_num_seqs"] == cap and one["facts"]["arguments"][TOKENS] == tokens
        ]
        return EngineFacts(**(exact or starts)[-1]["facts"])

    def spent_s(self) -> float:
        """Return what counts against the budget."""
        return self.evidence.spent_s()

    def keep_workload(self, workload: Workload) -> None:
        self.evidence.add_choice(Selection(workload.part, workload.windows, workload.step_s))

    def _count(self, failed: str | None, hint: str) -> None:
        """Raise EngineError when a failure is one too many in a row."""
        self._failures = 0 if failed is None else self._failures + 1
        if failed is None:
            return
        self.watcher.warn(f"a trial failed: {failed}")
        if self._failures >= self._most_failures:
            raise EngineError(
                f"{self._failures} trials failed one after the other: {failed}", hint=hint
            )

    def _append(self, event: str, **content: Any) -> None:  # noqa: ANN401 - JSON content
        self.evidence.journal.append(event, **content, at_s=asyncio.get_running_loop().time())

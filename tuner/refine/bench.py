"""Engines for configurations: the one that is up, and trials measured on it.

Everything measured is in the journal when a call returns; a trial that an interruption left half
done goes on with the windows that it lacks.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tuner.engines.seam import Engine, EngineFacts, Starter
from tuner.errors import EngineError
from tuner.evidence import Choice
from tuner.measure import Measurement, measure
from tuner.records import Replay
from tuner.refine.knobs import CAP, TOKENS, Configuration, number, restart_key
from tuner.replay import CutRule
from tuner.rig import Rig
from tuner.workload import Workload

Vary = Callable[[Configuration], Starter]
"""Returns what starts engines with the profile's arguments and these changed."""

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

    def measured(self, workload: Workload) -> Measurement:
        return measure(self.replays, workload.slo)


def told(one: Configuration) -> str:
    """Return a configuration in words."""
    return ", ".join(f"{name}={value}" for name, value in one.items() if value is not None)


class Bench:
    """The engine that is up, and what was measured so far."""

    def __init__(self, rig: Rig, vary: Vary, check: Callable[[EngineFacts], None]) -> None:
        self.rig, self.evidence = rig, rig.evidence
        self._vary, self._check = vary, check
        self._built: tuple[object, ...] | None = None
        self._failures = 0

    def is_up_for(self, one: Configuration, build: Build) -> bool:
        """Whether the engine that is up serves this without a restart."""
        return self.rig.engine is not None and self._built == (build, restart_key(one))

    async def engine_for(self, one: Configuration, build: Build) -> Engine:
        """Return an engine with the configuration's limits set. Raises EngineError."""
        if self.rig.engine is None or not self.is_up_for(one, build):
            await self.stop()
            built_for = told({**one, CAP: build.cap, TOKENS: build.tokens})
            self.rig.watcher.stage(f"starting an engine with {built_for}")
            starter = self._vary({**one, TOKENS: build.tokens})
            self.rig.engine = await starter.start(max_num_seqs=build.cap)
            self._built = (build, restart_key(one))
            facts = self.rig.engine.facts
            self._check(facts)
            self.evidence.check_machine(facts)
            purpose = f"{build.tokens} {build.turn} {restart_key(one)}"
            self._append(
                "start",
                purpose=purpose,
                max_num_seqs=build.cap,
                key=repr(restart_key(one)),
                facts=asdict(facts),
            )
        await self.rig.engine.set_limits(
            max_num_seqs=number(one[CAP]), max_num_batched_tokens=number(one[TOKENS])
        )
        return self.rig.engine

    async def stop(self) -> None:
        self._built = None
        await self.rig.stop()

    async def trial(
        self,
        purpose: str,
        one: Configuration,
        workload: Workload,
        build: Build,
        floors: Sequence[float] = (),
    ) -> Done:
        """Replay all windows with a configuration; ``floors`` cut those that have lost.

        A failing engine fails the trial. Raises EngineError when it is one too many.
        """
        if self.under_way() is None:
            self._append("trial", purpose=purpose, max_num_seqs=one[CAP], configuration=dict(one))
        failed = None
        try:
            before = self.evidence.replayed()
            for place, window in enumerate(workload.windows):
                if place in before:
                    continue
                engine = await self.engine_for(one, build)
                rule = CutRule(workload.slo, floors[place] if floors else 0.0)
                sent = workload.sent_in(window)
                cap = number(one[CAP])
                replay = await self.rig.replay(engine, purpose, cap, sent, window, rule)
                self.evidence.add_replay(replay, purpose, window=place)
            self._failures = 0
        except EngineError as error:
            await self.stop()
            self._failures += 1
            failed = str(error)
            self.rig.watcher.warn(f"a trial failed: {failed}")
            if self._failures == MOST_FAILURES:
                raise EngineError(
                    f"{MOST_FAILURES} trials failed one after the other: {failed}", hint=error.hint
                ) from error
        self._append("measured", failed=failed, engine=len(self.evidence.starts_s()))
        done = self.done()[-1]
        if failed is None:
            self.rig.watcher.measured(f"{purpose} {told(one)}", done.measured(workload))
        return done

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
            )
            for place, (begun, end) in enumerate(zip(journal.of("trial"), ends, strict=False))
        ]

    def under_way(self) -> dict[str, Any] | None:
        """Return the configuration of a trial that an interruption left half done."""
        begun = list(self.evidence.journal.of("trial"))
        ended = sum(1 for _ in self.evidence.journal.of("measured"))
        return begun[ended]["configuration"] if len(begun) > ended else None

    def chosen(self) -> tuple[bool, dict[str, Any]] | None:
        """Return (whether the search was complete, what it found); None while it goes on."""
        for event in self.evidence.journal.of("gathered"):
            return bool(event["complete"]), dict(event["chosen"])
        return None

    def choose(self, one: Configuration, *, complete: bool) -> None:
        self._append("gathered", complete=complete, chosen=dict(one))

    async def climb(self, one: Configuration, workload: Workload, build: Build) -> None:
        """Time every batch size up to what the engine is built for; see ``climb``."""
        if self.under_way() is None:
            self._append("trial", purpose="climb", max_num_seqs=build.cap, configuration=dict(one))
        if not self.evidence.replayed():
            engine = await self.engine_for({**one, CAP: build.cap}, build)
            await self.rig.climb(engine, "climb", build.cap, workload, workload.step_s)
        self._append("measured", failed=None, engine=len(self.evidence.starts_s()))

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
        self.evidence.add_choice(Choice(workload.part, workload.windows, workload.step_s))

    def _append(self, event: str, **content: Any) -> None:  # noqa: ANN401 - JSON content
        self.evidence.journal.append(event, **content, at_s=asyncio.get_running_loop().time())

"""The trials of a refinement: made on the one engine that is up, and read back from the journal.

Everything measured is in the journal when a call returns. A trial that an interruption left half
done is continued with the windows that it lacks.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.engines.sampling import Sampling
from tuner.engines.seam import ArgumentValue, Engine, EngineFacts, Starter
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import EngineError
from tuner.replay.measure import Measurement, measure
from tuner.replay.records import Replay
from tuner.replay.replay import CutRule
from tuner.runs.engine_runner import EngineRunner
from tuner.runs.evidence import Selection
from tuner.runs.recorder import Recorder
from tuner.runs.refine.knobs import CAP, TOKENS, Configuration, Space, number, restart_key
from tuner.traffic.window import Window
from tuner.traffic.workload import Workload

if TYPE_CHECKING:
    from tuner.engines.sim.start import SimStarter

Vary = Callable[[Configuration], Starter]
"""Returns what starts engines with the profile's arguments and these changed."""


@dataclass(frozen=True, slots=True)
class SimVary:
    """See Vary; on one simulated machine."""

    machine: "SimStarter"
    arguments: Mapping[str, ArgumentValue]
    """Those of the profile that a simulated engine has."""

    def __call__(self, one: Configuration) -> Starter:
        return self.machine.varied(_changed(self.arguments, one))


@dataclass(frozen=True, slots=True)
class VllmVary:
    """See Vary."""

    arguments: Mapping[str, ArgumentValue]
    sampling: Sampling = field(default_factory=dict)
    log: list[Path] = field(default_factory=list)
    """Where vLLM speaks to: the last one, once there is one."""

    def __call__(self, one: Configuration) -> Starter:
        return VllmStarter(
            _changed(self.arguments, one),
            log=self.log[-1] if self.log else None,
            sampling=self.sampling,
        )


def _changed(arguments: Mapping[str, ArgumentValue], one: Configuration) -> dict[str, Any]:
    return {k: v for k, v in {**arguments, **one}.items() if k != CAP and v is not None}


RAMP, SEARCH = "ramp", "search"
"""Purposes: of what times every batch size, and of what is compared with the knee."""

MOST_FAILURES = 3
"""Engines that fail one after the other: then it is the machine and not a configuration."""


@dataclass(frozen=True, slots=True)
class Build:
    """The most that will be asked of an engine; it is built for that."""

    cap: int
    tokens: int
    turn: int = 0
    """Another turn is another engine."""


@dataclass(frozen=True, slots=True)
class FinishedTrial:
    """A trial of this run that has ended."""

    purpose: str
    configuration: dict[str, Any]
    replays: tuple[Replay, ...]
    failed: str | None
    """Why it could not be measured; None when it was."""

    engine: int
    """Number of the start that it was measured on."""

    windows: tuple[Window, ...] = ()
    """What it was to replay."""

    def measured(self, workload: Workload) -> Measurement:
        return measure(self.replays, workload.slo)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The end of a search."""

    configuration: dict[str, Any]
    complete: bool
    """Whether nothing but itself ended it."""

    pairs: tuple[tuple[Window, ...], ...]
    """What it is to be compared with the knee in, pair by pair."""


def in_words(one: Configuration) -> str:
    """Return a configuration in words."""
    return ", ".join(f"{name}={value}" for name, value in one.items() if value is not None)


class Trials:
    """Makes trials on the engine that is up, restarted where a configuration needs it."""

    def __init__(self, engines: EngineRunner, vary: Vary) -> None:
        self.engines, self.evidence, self.watcher = engines, engines.evidence, engines.watcher
        self.recorder = Recorder(self.evidence.journal)
        self._vary, self._failures = vary, 0
        self._built: tuple[object, ...] | None = None

    def done(self) -> list[FinishedTrial]:
        """Return every trial that has ended, in order."""
        journal = self.evidence.journal
        ends = list(journal.of("measured"))
        replays: dict[int, list[Replay]] = {}
        for event in journal.of("replay"):
            replays.setdefault(event["trial"], []).append(journal.replay(event))
        return [
            FinishedTrial(
                begun["purpose"],
                begun["configuration"],
                tuple(replays.get(place, ())),
                end.get("failed"),
                end.get("engine", 0),
                tuple(Window(**window) for window in begun.get("windows", ())),
            )
            for place, (begun, end) in enumerate(zip(journal.of("trial"), ends, strict=False))
        ]

    def served(self, *purposes: str) -> list[FinishedTrial]:
        """Return the trials for one of these purposes that did not fail."""
        return [one for one in self.done() if one.purpose in purposes and one.failed is None]

    def under_way(self) -> dict[str, Any] | None:
        """Return the configuration of a trial that an interruption left half done."""
        begun = list(self.evidence.journal.of("trial"))
        ended = sum(1 for _ in self.evidence.journal.of("measured"))
        return begun[ended]["configuration"] if len(begun) > ended else None

    def chosen(self) -> Chosen | None:
        """Return how the search ended; None before it has."""
        for event in self.evidence.journal.of("gathered"):
            pairs = (tuple(Window(**one) for one in pair) for pair in event["pairs"])
            return Chosen(dict(event["chosen"]), bool(event["complete"]), tuple(pairs))
        return None

    def choose(self, chosen: Chosen) -> None:
        """Keep it: a resumed run continues with the same."""
        pairs = [[asdict(window) for window in pair] for pair in chosen.pairs]
        one = dict(chosen.configuration)
        self.recorder.append("gathered", complete=chosen.complete, chosen=one, pairs=pairs)

    def check(self, space: Space) -> None:
        """Read what the journal says of trials. Raises ValueError for one of a configuration that
        is not searched: whoever wrote it could name any engine argument, and it would be started.
        """
        chosen, half_done = self.chosen(), self.under_way()
        found = [one.configuration for one in self.done()]
        found += [half_done] if half_done is not None else []
        found += [chosen.configuration] if chosen is not None else []
        for one in found:
            if not space.holds(one):
                raise ValueError(f"{in_words(one)} is not searched")

    def facts_of(
        self, key: tuple[tuple[str, str], ...], *, cap: int | None = None, tokens: int | None = None
    ) -> EngineFacts:
        """Return the facts of the newest engine of these arguments that was built for these limits;
        of any such engine where none was."""
        starts = [one for one in self.evidence.journal.of("start") if one["key"] == repr(key)]
        exact = [
            one
            for one in starts
            if one["max_num_seqs"] == cap and one["facts"]["arguments"][TOKENS] == tokens
        ]
        return EngineFacts(**(exact or starts)[-1]["facts"])

    def keep_workload(self, workload: Workload) -> None:
        self.recorder.add_selection(Selection(workload.part, workload.windows, workload.step_s))

    def is_up_for(self, one: Configuration, build: Build) -> bool:
        """Whether the engine that is up serves this without a restart."""
        return self.engines.engine is not None and self._built == (build, restart_key(one))

    async def trial(
        self,
        purpose: str,
        one: Configuration,
        workload: Workload,
        build: Build,
        floors: Sequence[float] = (),
    ) -> FinishedTrial:
        """Replay all windows with a configuration; ``floors`` hold, per window, the attainment
        below which it has lost for certain.

        A failing engine fails the trial. Raises EngineError when it is one too many.
        """
        if self.under_way() is None:
            self.recorder.append(
                "trial",
                purpose=purpose,
                max_num_seqs=one[CAP],
                configuration=dict(one),
                windows=[asdict(window) for window in workload.windows],
            )

        async def replay() -> None:
            before = self.evidence.replayed()
            for place, window in enumerate(workload.windows):
                if place in before:
                    continue
                engine = await self._engine_for(one, build)
                rule = CutRule(workload.slo, floors[place] if floors else 0.0)
                sent, cap = workload.sent_in(window), number(one[CAP])
                replay = await self.engines.replay(engine, purpose, cap, sent, window, rule)
                self.recorder.add_replay(replay, purpose, window=place)

        await self._attempt(replay)
        done = self.done()[-1]
        if done.failed is None:
            self.watcher.measured(f"{purpose} {in_words(one)}", done.measured(workload))
        return done

    async def ramp(self, one: Configuration, workload: Workload, build: Build) -> None:
        """Time every batch size up to what the engine is built for. Fails as a trial does."""
        if self.under_way() is None:
            self.recorder.append(
                "trial", purpose=RAMP, max_num_seqs=build.cap, configuration=dict(one)
            )

        async def ramp() -> None:
            if not self.evidence.replayed():
                engine = await self._engine_for({**one, CAP: build.cap}, build)
                await self.engines.ramp(engine, RAMP, build.cap, workload, workload.step_s)

        await self._attempt(ramp)

    async def stop(self) -> None:
        """Stop the engine. Stopping twice is allowed."""
        self._built = None
        await self.engines.stop()

    async def _engine_for(self, one: Configuration, build: Build) -> Engine:
        """Return an engine with the configuration's limits set. Raises EngineError."""
        if self.engines.engine is None or not self.is_up_for(one, build):
            await self.stop()
            built_for = in_words({**one, CAP: build.cap, TOKENS: build.tokens})
            self.watcher.stage(f"starting an engine with {built_for}")
            starter = self._vary({**one, TOKENS: build.tokens})
            self.engines.engine = await starter.start(max_num_seqs=build.cap)
            self._built = build, restart_key(one)
            facts = self.engines.engine.facts
            self.evidence.check_machine(facts)
            self.recorder.append(
                "start",
                purpose=f"{build.tokens} {build.turn} {restart_key(one)}",
                max_num_seqs=build.cap,
                key=repr(restart_key(one)),
                facts=asdict(facts),
            )
        await self.engines.engine.set_limits(
            max_num_seqs=number(one[CAP]), max_num_batched_tokens=number(one[TOKENS])
        )
        return self.engines.engine

    async def _attempt(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do what a trial consists of, and note how it ended."""
        failed, hint = None, ""
        try:
            await work()
        except EngineError as error:
            await self.stop()
            failed, hint = str(error), error.hint
        self._failures = 0 if failed is None else self._failures + 1
        if failed is not None:
            self.watcher.warn(f"a trial failed: {failed}")
        if self._failures >= MOST_FAILURES:
            raise EngineError(
                f"{self._failures} trials failed one after the other: {failed}", hint=hint
            )
        number = len(self.evidence.starts_s())
        self.recorder.append("measured", failed=failed, engine=number)


def is_knee(done: FinishedTrial, knee: Configuration) -> bool:
    """Whether this is a replay of the knee."""
    return done.purpose == SEARCH and done.failed is None and done.configuration == dict(knee)

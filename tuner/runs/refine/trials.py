"""The trials of a refinement: made on the one engine that is up, and read back from the journal.

Everything measured is in the journal when a call returns. A trial that an interruption left half
done is continued with the windows that it lacks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.engines.sampling import Sampling
from tuner.engines.seam import ArgumentValue, EngineFacts, Starter
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import EngineError
from tuner.replay.measure import Measurement, measure
from tuner.replay.records import Replay
from tuner.replay.replay import CutRule
from tuner.runs import bench
from tuner.runs.bench import Bench
from tuner.runs.events import Gathered, Replayed, Selection, TrialEnded
from tuner.runs.measure import Trial, make
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


def in_words(one: Configuration) -> str:
    """Return a configuration in words."""
    return ", ".join(f"{name}={value}" for name, value in one.items() if value is not None)


class Trials:
    """Makes trials on the engine that is up, restarted where a configuration needs it."""

    def __init__(self, bench: Bench, vary: Vary) -> None:
        self.bench, self.evidence, self.watcher = bench, bench.evidence, bench.watcher
        self.journal = bench.journal
        self._vary, self._failures = vary, 0

    def done(self) -> list[FinishedTrial]:
        """Return every trial that has ended, in order."""
        replays: dict[int, list[Replay]] = {}
        for event in self.journal.of(Replayed):
            replays.setdefault(event.trial, []).append(self.journal.replay(event))
        return [
            FinishedTrial(
                begun.purpose,
                begun.configuration,
                tuple(replays.get(place, ())),
                end.failed,
                end.engine,
                begun.windows,
            )
            for place, (begun, end) in enumerate(
                zip(self.evidence.begun(), self.journal.of(TrialEnded), strict=False)
            )
        ]

    def served(self, *purposes: str) -> list[FinishedTrial]:
        """Return the trials for one of these purposes that did not fail."""
        return [one for one in self.done() if one.purpose in purposes and one.failed is None]

    def under_way(self) -> dict[str, Any] | None:
        """Return the configuration of a trial that an interruption left half done."""
        half = self.evidence.under_way()
        return None if half is None else half.configuration

    def chosen(self) -> Gathered | None:
        """Return how the search ended; None before it has."""
        return next(self.journal.of(Gathered), None)

    def check(self, space: Space) -> None:
        """Read what the journal says of trials. Raises ValueError for one of a configuration that
        is not searched: whoever wrote it could name any engine argument, and it would be started.
        """
        chosen, half_done = self.chosen(), self.under_way()
        found = [one.configuration for one in self.done()]
        found += [half_done] if half_done is not None else []
        found += [chosen.chosen] if chosen is not None else []
        for one in found:
            if not space.holds(one):
                raise ValueError(f"{in_words(one)} is not searched")

    def facts_of(
        self, key: tuple[tuple[str, str], ...], *, cap: int | None = None, tokens: int | None = None
    ) -> EngineFacts:
        """Return the facts of the newest engine of these arguments that was built for these limits;
        of any such engine where none was."""
        starts = [one for one in self.evidence.starts() if one.key.endswith(repr(key))]
        exact = [
            one
            for one in starts
            if one.max_num_seqs == cap and one.facts.max_num_batched_tokens == tokens
        ]
        return (exact or starts)[-1].facts

    def keep_workload(self, workload: Workload) -> None:
        self.journal.add(
            Selection(part=workload.part, windows=workload.windows, step_s=workload.step_s)
        )

    def is_up_for(self, one: Configuration, build: Build) -> bool:
        """Whether the engine that is up serves this without a restart."""
        return self.bench.build == self._build(one, build)

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
        trial = Trial(
            purpose=purpose,
            build=self._build(one, build),
            cap=number(one[CAP]),
            tokens=number(one[TOKENS]),
            windows=workload.windows,
            sent=workload.sent_in,
            rule=lambda place, _: (CutRule(workload.slo, floors[place] if floors else 0.0), None),
            slo=workload.slo,
            configuration=dict(one),
            title=f"{purpose} {in_words(one)}",
        )
        await self._attempt(trial)
        return self.done()[-1]

    async def ramp(self, one: Configuration, workload: Workload, build: Build) -> None:
        """Time every batch size up to what the engine is built for. Fails as a trial does."""
        trial = Trial(
            purpose=RAMP,
            build=self._build({**one, CAP: build.cap}, build),
            cap=build.cap,
            workload=workload,
            ramp_s=workload.step_s,
            configuration=dict(one),
        )
        await self._attempt(trial)

    async def stop(self) -> None:
        """Stop the engine. Stopping twice is allowed."""
        await self.bench.stop()

    def _build(self, one: Configuration, build: Build) -> bench.Build:
        """Return the engine of a configuration that is built for these limits."""
        key = f"{build.tokens} {build.turn} {restart_key(one)}"
        built_for = in_words({k: v for k, v in one.items() if k != CAP} | {TOKENS: build.tokens})
        return bench.Build(
            key,
            build.cap,
            self._vary({**one, TOKENS: build.tokens}),
            key,
            f"starting an engine for {built_for}",
        )

    async def _attempt(self, trial: Trial) -> None:
        """Make a trial, and note how it ended."""
        try:
            await make(trial, self.bench)
        except EngineError as error:
            await self.stop()
            self._failures += 1
            self.watcher.warn(f"a trial failed: {error}")
            if self._failures >= MOST_FAILURES:
                raise EngineError(
                    f"{self._failures} trials failed one after the other: {error}", hint=error.hint
                ) from error
            engine = len(self.evidence.starts())
            self.journal.add(TrialEnded(failed=str(error), hint=error.hint, engine=engine))
        else:
            self._failures = 0


def is_knee(done: FinishedTrial, knee: Configuration) -> bool:
    """Whether this is a replay of the knee."""
    return done.purpose == SEARCH and done.failed is None and done.configuration == dict(knee)

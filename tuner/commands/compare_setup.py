"""What the options of ``tuner compare`` mean: settings, the machine, the run directory."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from tuner import journal
from tuner.approaches import chosen
from tuner.approaches.seam import Batching, Site
from tuner.base import engine_arguments
from tuner.compare.evidence import CALIBRATION, Comparing, session_of
from tuner.compare.load_levels import parse_levels
from tuner.compare.run import CompareSettings
from tuner.engines.seam import ArgumentValue, Starter
from tuner.errors import UsageError
from tuner.evidence import Evidence
from tuner.profile import load as load_profile
from tuner.profile_schema import ServingProfile
from tuner.settings import SweepSettings
from tuner.slo import parse_slo
from tuner.trace import Trace
from tuner.window import parse_duration_s, parse_window

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """The command line, as given."""

    trace: Path
    profile: Path | None
    max_num_seqs: int | None
    approaches: str | None
    loads: str
    engine: str
    world: Path | None
    model: str | None
    base: Path | None
    overrides: tuple[str, ...]
    untuned: int
    batch_size: int
    batch_wait: str
    queue_size: int
    slo: str | None
    window: str
    step: str
    repeats: int
    budget: str
    resume: bool
    run_dir: Path | None
    output: Path | None
    seed: int
    json: bool

    @property
    def static(self) -> Batching:
        return Batching(self.batch_size, parse_duration_s(self.batch_wait, option="--batch-wait"))


class Place(Protocol):
    """Where a comparison runs: a machine with vLLM, or a simulated one."""

    def resolve(self) -> dict[str, ArgumentValue]:
        """Return the engine arguments that everything rests on, pinned."""
        ...

    def site(self, comparing: Comparing, settings: CompareSettings) -> Site: ...

    def starter(self, sweep_book: journal.Journal) -> Starter:
        """Return what starts the engines of a sweep."""
        ...

    def execute(self, work: Coroutine[Any, Any, Result], book: journal.Journal) -> Result:
        """Run on real time, or on virtual time from where a journal ends."""
        ...


def settings_of(options: CompareOptions, trace: Trace) -> CompareSettings:
    parse_window(options.window)
    if options.slo is not None:
        parse_slo(options.slo)
    return CompareSettings(
        approaches=chosen(options.approaches, has_profile=options.profile is not None),
        levels=parse_levels(options.loads),
        untuned=options.untuned,
        window=options.window,
        step_s=parse_duration_s(options.step, option="--step"),
        repeats=options.repeats,
        budget_s=parse_duration_s(options.budget, option="--budget"),
        seed=options.seed,
        trace_block_size=trace.header.block_size,
    )


SWEEP_SHARE = 0.2
"""Of the budget, for the sweep that finds the tuned value."""

SWEEP_STEP_S = 60.0


def sweep_settings_of(options: CompareOptions, settings: CompareSettings) -> SweepSettings:
    """Return the settings of that sweep."""
    return SweepSettings(
        ceiling=options.untuned,
        slo=parse_slo(options.slo) if options.slo is not None else None,
        window="all",
        step_s=SWEEP_STEP_S,
        budget_s=SWEEP_SHARE * settings.budget_s,
        headroom=1.0,
        fast=True,
        fresh=False,
        closed_sessions=False,
        seed=settings.seed,
        trace_block_size=settings.trace_block_size,
    )


def place_of(options: CompareOptions, trace: Trace) -> Place:
    """Return where to run. Raises UsageError for options that do not go together."""
    profile = load_profile(options.profile) if options.profile is not None else None
    model = options.model or (profile.model if profile and options.base is None else None)
    if options.engine == "sim":
        if options.world is None:
            raise UsageError("--engine sim needs a world", hint="Give --world FILE.")
        if options.overrides or options.base is not None:
            raise UsageError(
                "--set and --base are for --engine vllm", hint="Write it into the world file."
            )
        return _Simulated(options, options.world, model or trace.header.model, profile)
    if options.engine != "vllm":
        raise UsageError(f"--engine {options.engine!r} is not known", hint="Use vllm or sim.")
    if options.world is not None:
        raise UsageError("--world is for --engine sim", hint="Add --engine sim, or drop --world.")
    arguments = engine_arguments(
        model=model,
        base=options.base,
        header_model=trace.header.model,
        overrides=options.overrides,
    )
    return _Real(options, arguments, profile)


class _Simulated:
    """See Place."""

    def __init__(
        self,
        options: CompareOptions,
        world: Path,
        model: str | None,
        profile: ServingProfile | None,
    ) -> None:
        from tuner.engines.sim import SimStarter  # noqa: PLC0415 - numba
        from tuner.engines.world import read_world  # noqa: PLC0415

        self.options, self.profile = options, profile
        self.world = read_world(world)
        self.new_starter = partial(SimStarter, self.world, model=model)

    def resolve(self) -> dict[str, ArgumentValue]:
        return dict(self.new_starter().resolve(max_num_seqs=self.options.untuned))

    def site(self, comparing: Comparing, settings: CompareSettings) -> Site:
        from tuner.engines.sim_workers import SimSite  # noqa: PLC0415 - numba

        starter = self.new_starter()
        sizes = [int(size) for size in comparing.evidence.engines()]
        starter.go_on_after(sizes, lost=_was_interrupted(comparing, settings))
        tokens = self.profile.engine["max_num_batched_tokens"] if self.profile else None
        assert tokens is None or isinstance(tokens, int)
        return SimSite(
            starter, self.world, queue_size=self.options.queue_size, max_num_batched_tokens=tokens
        )

    def starter(self, sweep_book: journal.Journal) -> Starter:
        starter = self.new_starter()
        starter.go_on_after(Evidence(sweep_book).engines())
        return starter

    def execute(self, work: Coroutine[Any, Any, Result], book: journal.Journal) -> Result:
        from tuner.engines import virtual_time  # noqa: PLC0415 - for sim alone

        return virtual_time.run(work, begin_s=book.clock_s)


def _was_interrupted(comparing: Comparing, settings: CompareSettings) -> bool:
    """Whether the engine that was started last had not done its work."""
    sessions = comparing.sessions()
    if not sessions:
        return False
    if sessions[-1] == CALIBRATION:
        return comparing.rates() is None
    return any(
        sessions[-1] == session_of(approach.name, block)
        and comparing.left(approach.name, block, settings.cells)
        for approach in settings.approaches
        for block in range(settings.repeats)
    )


class _Real:
    """See Place."""

    def __init__(
        self,
        options: CompareOptions,
        arguments: dict[str, ArgumentValue],
        profile: ServingProfile | None,
    ) -> None:
        from tuner.engines.vllm import VllmStarter  # noqa: PLC0415 - for vllm alone

        self.options, self.arguments, self.profile = options, arguments, profile
        self.new_starter: Callable[..., Any] = VllmStarter

    def resolve(self) -> dict[str, ArgumentValue]:
        return dict(self.new_starter(self.arguments).resolve(max_num_seqs=self.options.untuned))

    def site(self, comparing: Comparing, settings: CompareSettings) -> Site:
        from tuner.engines.vllm_workers import VllmSite  # noqa: PLC0415 - for vllm alone

        del settings
        engine = self.profile.engine if self.profile is not None else None
        return VllmSite(
            self.arguments,
            cast("Any", engine),
            queue_size=self.options.queue_size,
            log=comparing.journal.run_dir / "vllm.log",
        )

    def starter(self, sweep_book: journal.Journal) -> Starter:
        starter: Starter = self.new_starter(self.arguments, log=sweep_book.run_dir / "vllm.log")
        return starter

    def execute(self, work: Coroutine[Any, Any, Result], book: journal.Journal) -> Result:
        del book
        return asyncio.run(work)


def plan_of(options: CompareOptions, trace: Trace, place: Place) -> dict[str, Any]:
    """Return what every measurement of this run rests on; a resumed run must have the same."""
    names = (
        *("engine", "approaches", "loads", "max_num_seqs", "untuned", "batch_size", "batch_wait"),
        *("queue_size", "slo", "window", "step", "repeats", "budget", "seed"),
    )
    profile = load_profile(options.profile).digest if options.profile is not None else None
    return {
        "compare": True,
        "trace_digest": trace.digest,
        "profile_digest": profile,
        "engine_arguments": place.resolve(),
        **{name: getattr(options, name) for name in names},
    }


def open_sweep(run_dir: Path, plan: dict[str, Any]) -> journal.Journal:
    """Open the journal of the sweep within a run, one that was begun or a new one."""
    folder = run_dir / "sweep"
    begun = (folder / "journal.jsonl").exists()
    return journal.resume(folder, plan) if begun else journal.create(folder, plan)

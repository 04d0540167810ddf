"""The place of a comparison: a machine with vLLM, or a simulated one."""

from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from tuner.commands.compare.options import CompareOptions
from tuner.commands.shared.dry_run import asked_of
from tuner.commands.shared.engine import world_alone
from tuner.commands.shared.machine import Here, ThisMachine
from tuner.commands.shared.trust import check_arguments
from tuner.engines.engine_arguments import engine_arguments
from tuner.engines.seam import ArgumentValue, Starter
from tuner.engines.workers.seam import Testbed
from tuner.errors import UsageError
from tuner.profile.profile import load as load_profile
from tuner.profile.schema import ServingProfile
from tuner.runs import journal
from tuner.runs.compare.evidence import CALIBRATION, Comparing, session_of
from tuner.runs.compare.settings import CompareSettings
from tuner.runs.evidence import Evidence
from tuner.system import interruption
from tuner.trace.trace import Trace

Returned = TypeVar("Returned")


class ComparePlace(Protocol):
    """The place of a comparison: a machine with vLLM, or a simulated one."""

    profile: ServingProfile | None

    def here(self) -> Here:
        """Return what engines would run on."""
        ...

    def asked(self, *, max_num_seqs: int) -> dict[str, ArgumentValue]:
        """Return the arguments that engines get here. Without vLLM."""
        ...

    def machine(self) -> dict[str, Any]:
        """Return what a run here stands and falls with: ``engine_arguments``, pinned, and more."""
        ...

    def testbed(self, comparing: Comparing, settings: CompareSettings) -> Testbed: ...

    def starter(self, sweep_book: journal.Journal) -> Starter:
        """Return what starts the engines of a sweep."""
        ...

    def execute(self, work: Coroutine[Any, Any, Returned], book: journal.Journal) -> Returned:
        """Run on real time, or on virtual time from where a journal ends."""
        ...


def place_of(options: CompareOptions, trace: Trace) -> ComparePlace:
    """Return where to run. Raises UsageError for options that do not go together."""
    profile = load_profile(options.profile) if options.profile is not None else None
    if profile is not None and options.model not in {None, profile.model}:
        raise UsageError(
            f"--model {options.model}: {options.profile} is a profile of {profile.model}",
            hint="Leave out --model, or sweep that model for a profile of its own.",
        )
    model = options.model or (profile.model if profile and options.base is None else None)
    if (world := world_alone(options)) is not None:
        return _Simulated(options, world, model or trace.header.model, profile)
    arguments = engine_arguments(
        model=model,
        base=options.base,
        header_model=trace.header.model,
        overrides=options.overrides,
    )
    if profile is not None and arguments["model"] != profile.model:
        raise UsageError(
            f"{options.base} is for {arguments['model']}, {options.profile} for {profile.model}",
            hint="Give --base and --profile of one model.",
        )
    if profile is not None and options.profile is not None:
        check_arguments(profile, arguments, source=options.profile)
    return _Real(options, arguments, profile)


class _Simulated:
    """See ComparePlace."""

    def __init__(
        self,
        options: CompareOptions,
        world: Path,
        model: str | None,
        profile: ServingProfile | None,
    ) -> None:
        from tuner.engines.sim.start import SimStarter  # noqa: PLC0415 - numba
        from tuner.engines.sim.world import read_world  # noqa: PLC0415

        self.options, self.profile = options, profile
        self.world = read_world(world)
        self.new_starter = partial(SimStarter, self.world, model=model)

    def here(self) -> Here:
        return self.new_starter()

    def asked(self, *, max_num_seqs: int) -> dict[str, ArgumentValue]:
        return asked_of(self.new_starter(), max_num_seqs=max_num_seqs)

    def machine(self) -> dict[str, Any]:
        arguments = self.new_starter().resolve(max_num_seqs=self.options.untuned)
        return {"engine_arguments": dict(arguments), "world_digest": self.world.digest}

    def testbed(self, comparing: Comparing, settings: CompareSettings) -> Testbed:
        from tuner.engines.workers.sim import SimTestbed  # noqa: PLC0415 - numba

        starter = self.new_starter()
        sizes = [int(size) for size in comparing.evidence.engines()]
        if comparing.sessions() and comparing.sessions()[-1].startswith("two-workers "):
            sizes[-1] *= 2  # one simulated engine is both of them
        starter.go_on_after(sizes, lost=_was_interrupted(comparing, settings))
        engine = self.profile.engine if self.profile is not None else {}
        return SimTestbed(
            starter, self.world, cast("Any", engine), queue_size=self.options.queue_size
        )

    def starter(self, sweep_book: journal.Journal) -> Starter:
        starter = self.new_starter()
        starter.go_on_after(Evidence(sweep_book).engines())
        return starter

    def execute(self, work: Coroutine[Any, Any, Returned], book: journal.Journal) -> Returned:
        from tuner.engines.sim import virtual_time  # noqa: PLC0415 - for sim alone

        return virtual_time.run(work, begin_s=book.clock_s)


def _was_interrupted(comparing: Comparing, settings: CompareSettings) -> bool:
    """Whether the engine that was started last had not done its work."""
    sessions = comparing.sessions()
    if not sessions:
        return False
    if sessions[-1] == CALIBRATION:
        return comparing.reference() is None
    return any(
        sessions[-1] == session_of(approach.name, block)
        and comparing.left(approach.name, block, settings.cells)
        for approach in settings.approaches
        for block in range(settings.repeats)
    )


class _Real:
    """See ComparePlace."""

    def __init__(
        self,
        options: CompareOptions,
        arguments: dict[str, ArgumentValue],
        profile: ServingProfile | None,
    ) -> None:
        from tuner.engines.vllm.start import VllmStarter  # noqa: PLC0415 - for vllm alone

        self.options, self.arguments, self.profile = options, arguments, profile
        sampling = {} if profile is None else profile.sampling
        self.new_starter: Callable[..., Any] = partial(VllmStarter, sampling=sampling)

    def here(self) -> Here:
        return ThisMachine()

    def asked(self, *, max_num_seqs: int) -> dict[str, ArgumentValue]:
        return asked_of(self.new_starter(self.arguments), max_num_seqs=max_num_seqs)

    def machine(self) -> dict[str, Any]:
        arguments = self.new_starter(self.arguments).resolve(max_num_seqs=self.options.untuned)
        return {"engine_arguments": dict(arguments)}

    def testbed(self, comparing: Comparing, settings: CompareSettings) -> Testbed:
        from tuner.engines.workers.vllm import VllmTestbed  # noqa: PLC0415 - for vllm alone

        del settings
        engine = self.profile.engine if self.profile is not None else None
        return VllmTestbed(
            self.arguments,
            cast("Any", engine),
            queue_size=self.options.queue_size,
            sampling={} if self.profile is None else self.profile.sampling,
            log=comparing.journal.run_dir / "vllm.log",
        )

    def starter(self, sweep_book: journal.Journal) -> Starter:
        starter: Starter = self.new_starter(self.arguments, log=sweep_book.run_dir / "vllm.log")
        return starter

    def execute(self, work: Coroutine[Any, Any, Returned], book: journal.Journal) -> Returned:
        del book
        return interruption.run(work)

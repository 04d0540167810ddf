"""The Python API: what ``import tuner`` offers scripts and notebooks; docs/more.md shows it."""

import asyncio
import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tuner.commands.options import SweepOptions
from tuner.commands.root import parsed
from tuner.commands.shared.options import as_typed
from tuner.commands.shared.run_folder import read_run
from tuner.commands.sweep import prepared, swept, written
from tuner.errors import Interrupted, ProfileError, TunerError, UsageError
from tuner.profile import profile as profiles
from tuner.profile.profile import ServingProfile
from tuner.profile.summary import block_of
from tuner.rollout import fit
from tuner.system import interruption
from tuner.traffic.constants import NO_CONFIDENCE
from tuner.views.profile import curve_table
from tuner.views.tables import TABLES

Returned = TypeVar("Returned")
Rows = list[dict[str, Any]]

NOT_HERE = {"trace", "overrides", "json", "dry_run", "ray"}
"""Options of ``tuner sweep`` that print, or that have another form here."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A serving profile: what to run, and what that rests on."""

    path: Path
    sections: ServingProfile = field(repr=False)
    """All of it, as profiles/README.md lists it."""

    @property
    def max_num_seqs(self) -> int:
        return self.sections.decision.max_num_seqs

    @property
    def verdict(self) -> str:
        """knee, plateau, kv_bound, not_reached, overloaded or inconclusive."""
        return self.sections.decision.verdict

    @property
    def confidence(self) -> float:
        """Share of the laws that the measurements allow under which the choice is right."""
        return self.sections.decision.confidence

    @property
    def is_defended(self) -> bool:
        """Whether it may be acted on; the command ends with exit code 5 where not."""
        return self.verdict != "inconclusive" and self.confidence >= NO_CONFIDENCE

    @property
    def reason(self) -> str:
        return self.sections.decision.reason

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(self.sections.provenance.warnings)

    def engine_args(self) -> dict[str, Any]:
        """Return what to start vLLM with: ``AsyncEngineArgs(**profile.engine_args())``. Without
        what a profile may not set."""
        return fit.settings(self.sections)

    def curve(self) -> Rows:
        """Return a record for each step: ``pandas.DataFrame(profile.curve())``."""
        return [dict(row) for row in curve_table(self.sections).records()]

    def __str__(self) -> str:
        return "\n".join(block_of(self.sections).lines())


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run: its profile, and everything that was measured. Times in seconds."""

    run_dir: Path
    profile: Profile

    def replays(self) -> Rows:
        """Return a record for each window that was replayed."""
        return self._table("replays")

    def requests(self) -> Rows:
        """Return a record for each request that was sent."""
        return self._table("requests")

    def iterations(self) -> Rows:
        """Return a record for each iteration of the engine."""
        return self._table("iterations")

    def _table(self, name: str) -> Rows:
        rows: Rows = TABLES[name](read_run(self.run_dir)).to_pylist()
        return rows

    def __str__(self) -> str:
        return str(self.profile)


def sweep(
    trace: str | Path,
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the option's name
    **options: Any,  # noqa: ANN401 - as those of the command
) -> Run:
    """Find the right max_num_seqs for a trace, as ``tuner sweep`` does; return the run.

    ``options`` are those of the command by their names: ``model``, ``base``, ``budget="10m"``,
    ``ceiling=64``, ``output="profile.yaml"``, ``world="machine.yaml"``. ``set`` holds vLLM's engine
    arguments. A run that ``run_dir`` holds continues. Progress goes to stderr. Works inside a
    running event loop. Raises TunerError.
    """
    known = SweepOptions.__dataclass_fields__.keys() - NOT_HERE
    if unknown := sorted(options.keys() - known):
        raise UsageError(
            f"tuner.sweep has no option {unknown[0]!r}", hint=f"It has {', '.join(sorted(known))}."
        )
    arguments = tuple(f"{key}={value}" for key, value in (set or {}).items())
    lists = {name: tuple(each) for name, each in options.items() if isinstance(each, list)}
    typed = SweepOptions(trace=Path(trace), overrides=arguments, **{**options, **lists})
    wanted: SweepOptions = parsed(["sweep", *as_typed(typed)])  # which checks every value
    if wanted.world is None:
        _check_main()

    def work() -> Run:
        ready = prepared(wanted)
        done = swept(ready)
        return Run(done.run_dir, Profile(wanted.output, written(ready.options, done)[0]))

    try:
        return _outside_of_loops(work)
    except Interrupted as problem:
        hint = "Call tuner.sweep again with run_dir as that folder."
        raise Interrupted(str(problem), hint=hint) from None


def load_profile(path: str | Path) -> Profile:
    """Read a serving profile. Raises TunerError for one that was edited or cut short."""
    return Profile(Path(path), profiles.load(Path(path)))


def load_run(run_dir: str | Path) -> Run:
    """Read a finished run: of a sweep or a refinement. Raises TunerError."""
    folder = Path(run_dir)
    read_run(folder)
    path = folder / "profile.yaml"
    if not path.exists():
        raise ProfileError(
            f"{folder}: has no profile: the run was not finished",
            hint="Continue it: tuner resume RUN_DIR.",
        )
    return Run(folder, load_profile(path))


def _outside_of_loops(work: Callable[[], Returned]) -> Returned:
    """Do the work here or, where an event loop runs as in a notebook, in a thread of its own. An
    interruption of this thread ends the work in order."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1, "tuner.sweep") as pool:
        result = pool.submit(work)
        try:
            return result.result()
        except KeyboardInterrupt:
            interruption.cancel()
            return result.result()


def _check_main() -> None:
    """Raise UsageError where the engine's process only imports the main module: without a guard it
    would tune again instead."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UsageError(
            "tuner.sweep runs while the engine's process imports the main module again",
            hint='Put it under: if __name__ == "__main__":',
        )


__all__ = ["Profile", "Run", "TunerError", "load_profile", "load_run", "sweep"]

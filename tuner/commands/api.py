"""The Python API: what ``import tuner`` offers scripts and notebooks; docs/more.md shows it."""

import asyncio
import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import typer
from typer.main import get_command

from tuner.commands.export.tables import TABLES, Row, curve_rows
from tuner.commands.root import app
from tuner.commands.shared.options import as_typed
from tuner.commands.shared.run_folder import read_run
from tuner.commands.sweep.options import SweepOptions
from tuner.commands.sweep.run import prepared, swept, written
from tuner.errors import Interrupted, ProfileError, TunerError, UsageError
from tuner.profile import profile as profiles
from tuner.profile.schema import ServingProfile
from tuner.profile.summary import block_of
from tuner.rollout import fit
from tuner.system import interruption
from tuner.twin.verdict_text import NO_CONFIDENCE

Returned = TypeVar("Returned")

REFUSED: Any = typer.BadParameter.__mro__[1]
"""The base of typer's own errors: all that its parser says of wrong usage."""

NOT_HERE = {"trace", "json", "details", "dry_run", "rescore", "ray", "prices"}
"""Options of ``tuner sweep`` that are not of the API: they print, or are not of one trace here."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A serving profile: what to run, and what that rests on."""

    path: Path
    max_num_seqs: int
    verdict: str
    """knee, plateau, kv_bound, not_reached, overloaded or inconclusive."""

    confidence: float
    """Share of the laws that the measurements allow under which the choice is right."""

    is_defended: bool
    """Whether it may be acted on; the command ends with exit code 5 where not."""

    reason: str
    warnings: tuple[str, ...]
    sections: ServingProfile = field(repr=False)
    """All of it, as profiles/README.md lists it."""

    def engine_args(self) -> dict[str, Any]:
        """Return what vLLM is to be started with: ``AsyncEngineArgs(**profile.engine_args())``.

        What a profile may not set is left out, as by ``tuner apply``.
        """
        return fit.settings(self.sections)

    def curve(self) -> list[Row]:
        """Return a record for each step: ``pandas.DataFrame(profile.curve())``."""
        return curve_rows(self.sections)

    def __str__(self) -> str:
        """Return the verdict block that the command prints, without its last line."""
        return "\n".join(block_of(self.sections, next_="").lines())


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run: its profile, and everything that was measured."""

    run_dir: Path
    profile: Profile

    def replays(self) -> list[Row]:
        """Return a record for each window that was replayed."""
        return self._table("replays")

    def requests(self) -> list[Row]:
        """Return a record for each request that was sent. Times in seconds."""
        return self._table("requests")

    def iterations(self) -> list[Row]:
        """Return a record for each iteration of the engine. Times in seconds."""
        return self._table("iterations")

    def _table(self, name: str) -> list[Row]:
        rows: list[Row] = TABLES[name](read_run(self.run_dir)).to_pylist()
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
    ``ceiling=64``, ``output="profile.yaml"``, ``engine="sim", world="machine.yaml"``, ``resume``.
    ``set`` holds vLLM's engine arguments. Progress goes to stderr. Works inside a running event
    loop. Raises TunerError.
    """
    unknown = sorted(options.keys() - (_names() - NOT_HERE))
    if unknown:
        raise UsageError(
            f"tuner.sweep has no option {unknown[0]!r}",
            hint=f"It has {', '.join(sorted(_names() - NOT_HERE))}.",
        )
    path = Path(trace)
    asked = _typed(path, options, set or {})
    if asked.engine != "sim":
        _check_main()

    def work() -> Run:
        ready = prepared(asked, path)
        done = swept(ready, path)
        return Run(done.run_dir, _profile(written(ready.options, done, keep=True), asked.output))

    try:
        return _outside_of_loops(work)
    except Interrupted as told:
        hint = "Call tuner.sweep again with resume=True, and run_dir as that folder."
        raise Interrupted(str(told), hint=hint) from None


def load_profile(path: str | Path) -> Profile:
    """Read a serving profile. Raises TunerError for one that was edited or cut short."""
    return _profile(profiles.load(Path(path)), Path(path))


def load_run(run_dir: str | Path) -> Run:
    """Read a finished run: of a sweep or a refinement. Raises TunerError."""
    folder = Path(run_dir)
    read_run(folder)
    path = folder / "profile.yaml"
    if not path.exists():
        raise ProfileError(
            f"{folder}: has no profile: the run was not finished",
            hint="Go on with it: resume=True, or tuner sweep --resume.",
        )
    return Run(folder, load_profile(path))


def _names() -> frozenset[str]:
    return frozenset(SweepOptions.__dataclass_fields__) - {"overrides"}


def _typed(trace: Path, options: Mapping[str, Any], arguments: Mapping[str, Any]) -> SweepOptions:
    """Return the options as the command line would, which checks every value. Raises UsageError."""
    texts = tuple(f"{key}={value}" for key, value in arguments.items())
    several = {name: tuple(one) for name, one in options.items() if isinstance(one, list)}
    words = as_typed(SweepOptions(trace=trace, overrides=texts, **{**options, **several}))
    parser: Any = get_command(app)
    try:
        found = parser.commands["sweep"].make_context("sweep", words).params
    except REFUSED as problem:
        raise UsageError(
            f"tuner.sweep: {problem.format_message()}", hint="docs/cli.md says what it may be."
        ) from None
    values: dict[str, Any] = {
        name: tuple(one) if isinstance(one, list) else one for name, one in found.items()
    }
    return SweepOptions(**values)


def _profile(one: ServingProfile, path: Path) -> Profile:
    decision = one.decision
    return Profile(
        path=path,
        max_num_seqs=decision.max_num_seqs,
        verdict=decision.verdict,
        confidence=decision.confidence,
        is_defended=decision.verdict != "inconclusive" and decision.confidence >= NO_CONFIDENCE,
        reason=decision.reason,
        warnings=tuple(one.provenance.warnings),
        sections=one,
    )


def _outside_of_loops(work: Callable[[], Returned]) -> Returned:
    """Do the work here or, where an event loop runs as in a notebook, in a thread of its own. An
    interruption of this thread ends the work in order."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1, "tuner.sweep") as pool:
        found = pool.submit(work)
        try:
            return found.result()
        except KeyboardInterrupt:
            interruption.cancel()
            return found.result()


def _check_main() -> None:
    """Raise UsageError where the engine's process only imports the main module: without a guard it
    would tune again instead."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UsageError(
            "tuner.sweep runs while the engine's process imports the main module again",
            hint='Put it under: if __name__ == "__main__":',
        )


__all__ = ["Profile", "Run", "TunerError", "load_profile", "load_run", "sweep"]

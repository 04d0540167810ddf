"""The Python API: what ``import tuner`` offers scripts and notebooks; docs/more.md shows it."""

import asyncio
import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tuner.commands.options import SweepOptions
from tuner.commands.root import parsed
from tuner.commands.shared.options import as_typed
from tuner.commands.shared.run_folder import read_run
from tuner.commands.sweep import prepared, swept, written
from tuner.errors import TunerError, UsageError
from tuner.profile import profile as profiles
from tuner.profile.profile import ServingProfile
from tuner.profile.summary import block_of
from tuner.rollout import fit
from tuner.system import interruption
from tuner.views.profile import curve_table

Rows = list[dict[str, Any]]

NOT_HERE = {"trace", "overrides", "json", "dry_run", "ray"}
"""Options of ``tuner sweep`` that print, or that have another form here."""


def sweep(
    trace: str | Path,
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the option's name
    **options: Any,  # noqa: ANN401 - as those of the command
) -> ServingProfile:
    """Find the right max_num_seqs for a trace, as ``tuner sweep`` does; return the profile that it
    writes.

    ``options`` are those of the command by their names: ``model``, ``base``, ``budget="10m"``,
    ``ceiling=64``, ``output="profile.yaml"``, ``world="machine.yaml"``. ``set`` holds vLLM's engine
    arguments. A run that ``run_dir`` holds continues. Progress goes to stderr. Works inside a
    running event loop. Raises TunerError.
    """
    known = {*SweepOptions.__struct_fields__} - NOT_HERE
    if unknown := sorted(options.keys() - known):
        raise UsageError(
            f"tuner.sweep has no option {unknown[0]!r}", hint=f"It has {', '.join(sorted(known))}."
        )
    arguments = tuple(f"{key}={value}" for key, value in (set or {}).items())
    lists = {name: tuple(each) for name, each in options.items() if isinstance(each, list)}
    given = SweepOptions(trace=Path(trace), overrides=arguments, **{**options, **lists})
    wanted: SweepOptions = parsed(["sweep", *as_typed(given)])  # which checks every value
    if wanted.world is None and getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UsageError(  # without a guard the engine's process would tune again
            "tuner.sweep runs while the engine's process imports the main module again",
            hint='Put it under: if __name__ == "__main__":',
        )

    def work() -> ServingProfile:
        return written(wanted, swept(prepared(wanted)))[0]

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1, "tuner.sweep") as pool:  # a loop runs already, as in a notebook
        result = pool.submit(work)
        try:
            return result.result()
        except KeyboardInterrupt:
            interruption.cancel()
            return result.result()


def load_profile(path: str | Path) -> ServingProfile:
    """Read a serving profile. Raises TunerError for one that was edited or cut short."""
    return profiles.load(Path(path))


def summary(profile: ServingProfile) -> str:
    """Return the answer, and what it rests on."""
    return "\n".join(block_of(profile).lines())


def engine_args(profile: ServingProfile) -> dict[str, Any]:
    """Return what to start vLLM with: ``AsyncEngineArgs(**tuner.engine_args(profile))``. Without
    what a profile may not set."""
    return fit.settings(profile)


def curve(profile: ServingProfile) -> Rows:
    """Return a record for each step: ``pandas.DataFrame(tuner.curve(profile))``. Times in
    seconds."""
    return [dict(row) for row in curve_table(profile).records()]


def table(run_dir: str | Path, name: str) -> Rows:
    """Return the rows of a run's ``replays`` (the windows that were replayed), ``requests`` (those
    sent) or ``iterations`` (the engine's). Times in seconds."""
    from tuner.views.tables import of_run  # noqa: PLC0415 - pyarrow

    rows: Rows = of_run(read_run(Path(run_dir)), name).to_pylist()
    return rows


__all__ = [
    "TunerError", "curve", "engine_args", "load_profile", "summary", "sweep", "table",
]  # fmt: skip

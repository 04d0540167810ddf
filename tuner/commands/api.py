"""The Python API: what ``import tuner`` offers scripts and notebooks; docs/more.md shows it."""

import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.commands.root import parsed
from tuner.commands.shared.run_folder import read_run
from tuner.commands.sweep import prepared, swept
from tuner.errors import TunerError, UsageError
from tuner.profile import profile as profiles
from tuner.profile.profile import ServingProfile
from tuner.profile.summary import block_of
from tuner.rollout import fit
from tuner.runs.journal import Replayed
from tuner.system import interruption
from tuner.views.profile import curve_table


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
    words = [f"--set={name}={value}" for name, value in (set or {}).items()]
    for name, given in {"trace": trace, **options}.items():
        flag = f"--{name.replace('_', '-')}"
        for value in given if isinstance(given, list) else [given]:
            if value is True:
                words.append(flag)
            elif value is not None and value is not False:
                words.append(f"{flag}={value}")
    wanted = parsed(["sweep", *words])  # which checks every value
    if wanted.dry_run or wanted.ray is not None:
        hint = "Leave out dry_run and ray, or use the command."
        raise UsageError("tuner.sweep makes a whole sweep on this machine", hint=hint)
    if wanted.world is None and getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UsageError(  # without a guard the engine's process would tune again
            "tuner.sweep runs while the engine's process imports the main module again",
            hint='Put it under: if __name__ == "__main__":',
        )

    with ThreadPoolExecutor(1, "tuner.sweep") as pool:  # a loop may run here, as in a notebook
        result = pool.submit(lambda: swept(prepared(wanted)).profile)
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


def curve(profile: ServingProfile) -> list[dict[str, Any]]:
    """Return a record for each step: ``pandas.DataFrame(tuner.curve(profile))``. Times in
    seconds."""
    return [dict(row) for row in curve_table(profile).records()]


def table(run_dir: str | Path, name: str) -> NDArray[Any]:
    """Return the ``requests`` that a run has sent, the engine's ``iterations``, or the ``device``'s
    readings: ``pandas.DataFrame(tuner.table("run", "requests"))``. Times in seconds."""
    book = read_run(Path(run_dir))
    return np.concatenate([getattr(book.replay(event), name) for event in book.of(Replayed)])


__all__ = [
    "TunerError", "curve", "engine_args", "load_profile", "summary", "sweep", "table",
]  # fmt: skip

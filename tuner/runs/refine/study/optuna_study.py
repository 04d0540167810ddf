"""A study as Optuna keeps it: what proposes its trials, and the SLO as a constraint."""

import time
import warnings
from collections.abc import Callable
from typing import Any

import optuna
from optuna.samplers import TPESampler
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from tuner.runs.refine.knobs import Configuration
from tuner.runs.refine.study.parameters import BEGUN, CONFIGURATION, MACHINE, RUN, deficits_of

STARTUP = 4
"""Trials before the sampler trusts what it has seen."""


def opened(storage: BaseStorage, name: str, *, aims: int, seed: int) -> optuna.Study:
    """Return the study of this name; a new one where there is none. Raises what storages raise."""
    how: dict[str, Any] = {"seed": seed, "multivariate": True, "constant_liar": True}
    if not hasattr(Trial, "set_constraint"):  # which Optuna 5 has in its place, and warns
        how["constraints_func"] = deficits_of
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is experimental is Optuna's affair
        sampler = TPESampler(n_startup_trials=STARTUP, **how)
    return optuna.create_study(
        storage=storage,
        study_name=name,
        directions=["maximize"] * aims,
        sampler=sampler,
        load_if_exists=True,
    )


def joined(
    open_: Callable[[BaseStorage], optuna.Study], storage: BaseStorage, machine: str
) -> tuple[optuna.Study, list[FrozenTrial]]:
    """Return the study and its trials; a new one is this machine's from now on."""
    study = open_(storage)
    trials = study.get_trials(deepcopy=False)
    if MACHINE not in study.user_attrs:
        study.set_user_attr(MACHINE, machine)
    return study, trials


def begun_by_others(
    study: optuna.Study, *, one: Configuration, run: str, within_s: float
) -> list[tuple[float, int]]:
    """Return when (by the wall clock) other runs began trials with this configuration that are
    under way, at most so long ago, and their numbers: what is only asked for is nobody's yet."""
    since = _now()
    return [
        (begun, other.number)
        for other in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        for begun in [other.user_attrs.get(BEGUN, 0.0)]
        if begun > since - within_s
        and other.user_attrs.get(RUN) != run
        and other.user_attrs.get(CONFIGURATION) == one
    ]


def claimed(
    study: optuna.Study, *, trial: Trial, one: Configuration, run: str, within_s: float
) -> bool:
    """Note that a trial begins; return False where another run's with the same configuration did so
    before."""
    if trial.study is not study:  # the storage that knew it is lost
        return True
    begun = _now()
    trial.set_user_attr(BEGUN, begun)
    others = begun_by_others(study, one=one, run=run, within_s=within_s)
    return all(other > (begun, trial.number) for other in others)


def _now() -> float:
    return time.time()  # noqa: TID251 - the one clock that processes share

"""A study as Optuna keeps it: what proposes its trials, and the SLO as a constraint."""

import warnings
from datetime import datetime, timedelta
from typing import Any

import optuna
from optuna.samplers import TPESampler
from optuna.storages import BaseStorage
from optuna.trial import Trial, TrialState

from tuner.refine.knobs import Configuration
from tuner.refine.parameters import CONFIGURATION, RUN, deficits_of

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


def is_begun(
    study: optuna.Study, number: int, one: Configuration, *, not_by: str, within_s: float
) -> bool:
    """Return whether an earlier trial of another run than ``not_by`` has the same configuration, is
    under way and not older than this."""
    since = datetime.now() - timedelta(seconds=within_s)  # noqa: DTZ005 - as Optuna has it
    return any(
        other.number < number
        and other.user_attrs.get(RUN) not in {None, not_by}
        and other.user_attrs.get(CONFIGURATION) == one
        and (other.datetime_start or since) >= since
        for other in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    )

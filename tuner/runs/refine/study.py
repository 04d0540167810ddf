"""What a search has tried, in an Optuna study that others may look at or share: ``--storage``.

The journal is the record. A storage that fails is given up, and the study continues in memory.
"""

import warnings
from collections.abc import Callable
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import TPESampler
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from tuner.errors import RunError
from tuner.runs.refine.knobs import Configuration, Knob, Space
from tuner.system.passwords import without_passwords

RUN, CONFIGURATION, DEFICIT = "run", "configuration", "deficit"
"""User attributes of a trial: whose it is, what it tried, and the SLO's deficit."""


class Study:
    """A study in memory, in a file, or behind an address."""

    def __init__(self, storage: str | None, space: Space, *, run: str) -> None:
        """``run`` names whose trials are ours. Raises RunError when the storage cannot be used."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space, self._run = space, run
        self.lost: str | None = None
        """Why the storage was given up; None while it serves."""

        try:
            self._study = self._made(_opened(storage))
            known = [one for one in self._study.trials if one.user_attrs.get(RUN) == run]
        except Exception as problem:  # of any driver
            raise RunError(
                f"--storage {without_passwords(str(storage))}: cannot be used "
                f"({type(problem).__name__})",
                hint="Give a file, or an address that SQLAlchemy takes: postgresql://..., "
                "sqlite:///...",
            ) from problem
        self._told = {str(one.user_attrs.get(CONFIGURATION)) for one in known}

    def tell(self, one: Configuration, gain: float | None, deficit: float) -> None:
        """Add what was tried, once; without a ``gain`` it failed or was cut."""
        params = {knob.name: _param(knob, one.get(knob.name)) for knob in self._space.knobs}
        if str(dict(one)) in self._told or None in params.values():
            return
        self._told.add(str(dict(one)))
        trial = create_trial(
            state=TrialState.FAIL if gain is None else TrialState.COMPLETE,
            value=gain,
            params=params,
            distributions=self._distributions,
            user_attrs={RUN: self._run, CONFIGURATION: str(dict(one)), DEFICIT: deficit},
            system_attrs={"constraints": [deficit]},
        )
        self._do(lambda study: study.add_trial(trial))

    def ask(self) -> dict[str, Any]:
        """Return what the sampler would try next."""
        asked = self._do(lambda study: study.ask(self._distributions))
        self._do(lambda study: study.tell(asked, state=TrialState.FAIL))  # told when it is measured
        chosen = {knob.name: _value(knob, asked.params[knob.name]) for knob in self._space.knobs}
        return {**self._space.knee, **chosen}

    @property
    def _distributions(self) -> dict[str, BaseDistribution]:
        return {knob.name: _distribution(knob) for knob in self._space.knobs}

    def _do(self, action: Callable[[optuna.Study], Any]) -> Any:  # noqa: ANN401 - Optuna's
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what is new in Optuna
                return action(self._study)
        except Exception as problem:  # noqa: BLE001 - of any driver
            self.lost = f"the storage failed ({type(problem).__name__}): the search did without"
            self._study = self._made(InMemoryStorage())
            return action(self._study)

    def _made(self, storage: BaseStorage) -> optuna.Study:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is new in Optuna
            return optuna.create_study(
                storage=storage,
                sampler=TPESampler(seed=0, constraints_func=_constraints, n_startup_trials=4),
                study_name=f"tuner-refine {in_names(self._space)}",
                direction="maximize",
                load_if_exists=True,
            )


def in_names(space: Space) -> str:
    """Return the name of what is searched: runs that search the same share a study."""
    values = (f"{knob.name}={','.join(map(str, knob.values))}" for knob in space.knobs)
    return "; ".join([*values, f"knee {dict(space.knee)}"])[:400]


def _opened(storage: str | None) -> BaseStorage:
    if storage is None:
        return InMemoryStorage()
    return RDBStorage(storage) if "://" in storage else JournalStorage(JournalFileBackend(storage))


def _constraints(trial: FrozenTrial) -> list[float]:
    return [float(trial.user_attrs.get(DEFICIT, 0.0))]


def _distribution(knob: Knob) -> BaseDistribution:
    """Numbers stand for their place among the values, so that the sampler knows what lies between
    however they are spaced."""
    if knob.is_ordered:
        return IntDistribution(0, len(knob.values) - 1)
    return CategoricalDistribution([str(one) for one in knob.values])


def _param(knob: Knob, value: object) -> object:
    if value not in knob.values:
        return None
    return knob.values.index(value) if knob.is_ordered else str(value)


def _value(knob: Knob, param: Any) -> object:  # noqa: ANN401 - what _param gave
    return knob.values[param if knob.is_ordered else [str(one) for one in knob.values].index(param)]

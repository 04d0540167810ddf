"""Optuna around the knee: what to try next, what became of it, and what each knob is worth.

The study is an opinion, the run's journal is the record: everything measured is in the journal
before the study is told, and can be told again to another storage.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.samplers import TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalRedisBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from tuner.errors import RunError
from tuner.refine.knobs import Configuration, Knob, Space
from tuner.refine.objective import Told

STARTUP = 4
"""Trials before the sampler trusts what it has seen."""

FEWEST = 10
"""Trials below which nobody can say which knob matters."""

BOOTSTRAPS = 50

_CONFIGURATION, _DEFICIT, _SOURCE, _RUN = "configuration", "deficit", "source", "run"


@dataclass(frozen=True, slots=True)
class Asked:
    """A trial under way."""

    configuration: dict[str, Any]
    trial: Trial


@dataclass(frozen=True, slots=True)
class Importance:
    """What share of the differences a knob explains, with the 95 % interval of bootstraps."""

    name: str
    share: float
    low: float
    high: float


class Study:
    """A study in some storage, which others may share."""

    def __init__(  # noqa: PLR0913 - what is searched, and where it is kept
        self,
        storage: str,
        name: str,
        space: Space,
        *,
        aims: int,
        seed: int,
        run: str,
        machine: str,
    ) -> None:
        """Open the study, or make it; ``run`` names whose trials are ours, ``machine`` where they
        are measured. Raises RunError when the storage cannot be used."""
        self._where, self._space, self._run = _without_password(storage), space, run
        self._distributions = {knob.name: _distribution(knob) for knob in space.knobs}
        # Optuna 5 has set_constraint, and warns of what Optuna 4 has in its place
        self._constrains = hasattr(Trial, "set_constraint")
        how: dict[str, Any] = {"seed": seed, "multivariate": True, "constant_liar": True}
        if not self._constrains:
            how["constraints_func"] = _deficits
        with self._asking():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what is experimental is Optuna's affair
                sampler = TPESampler(n_startup_trials=STARTUP, **how)
            optuna.logging.set_verbosity(optuna.logging.ERROR)
            self._storage = _opened(storage)
            self._study = optuna.create_study(
                storage=self._storage,
                study_name=name,
                directions=["maximize"] * aims,
                sampler=sampler,
                load_if_exists=True,
            )
            self.is_new = not self._study.get_trials(deepcopy=False)
            if (theirs := self._study.user_attrs.get("machine")) is None:
                self._study.set_user_attr("machine", machine)
        if theirs not in (None, machine):
            raise RunError(
                f"{self._where}: this study was measured on {theirs}, here it is {machine}",
                hint="Gains on two machines make no study: give another --storage.",
            )

    def close(self) -> None:
        """Let go of a database's connections."""
        if isinstance(self._storage, RDBStorage):
            self._storage.remove_session()
            self._storage.engine.dispose()

    def add(self, told: Told) -> None:
        """Add what was measured elsewhere: the profile's curve, or a run's journal."""
        if (params := self._params(told.configuration)) is None:
            return
        with self._asking():
            self._study.add_trial(
                optuna.trial.create_trial(
                    values=list(told.gains),
                    params=params,
                    distributions=self._distributions,
                    user_attrs={
                        _CONFIGURATION: told.configuration,
                        _DEFICIT: told.deficit,
                        _SOURCE: told.source,
                    },
                    system_attrs={"constraints": [told.deficit]},
                )
            )

    def first(self, configuration: Configuration) -> None:
        """Have this tried before what the sampler has in mind."""
        if (params := self._params(configuration)) is not None:
            with self._asking():
                self._study.enqueue_trial(params)

    def ask(self) -> Asked:
        """Return what to try next, as a trial that counts as running."""
        with self._asking():
            trial = self._study.ask(self._distributions)
            configuration = {**self._space.knee, **self._values(trial.params)}
            trial.set_user_attr(_CONFIGURATION, configuration)
            trial.set_user_attr(_RUN, self._run)
        return Asked(configuration, trial)

    def tell(self, asked: Asked, gains: Sequence[float], deficit: float) -> None:
        with self._asking():
            trial = asked.trial
            trial.set_user_attr(_DEFICIT, deficit)
            trial.set_user_attr(_SOURCE, "engine")
            if self._constrains:
                trial.set_constraint("slo", deficit)
            self._study.tell(asked.trial, list(gains))

    def prune(self, asked: Asked, gain: float, why: str) -> None:
        """End a trial that has lost for certain: its first gain is at most this."""
        if len(self._study.directions) > 1:  # Optuna prunes where there is one aim
            self.fail(asked, why)
            return
        with self._asking():
            asked.trial.set_user_attr("why", why)
            asked.trial.report(gain, 0)
            self._study.tell(asked.trial, state=TrialState.PRUNED)

    def fail(self, asked: Asked, why: str) -> None:
        """End a trial that says nothing: its engine failed, or it was tried before."""
        with self._asking():
            asked.trial.set_user_attr("why", why)
            self._study.tell(asked.trial, state=TrialState.FAIL)

    def told(self) -> list[Told]:
        """Return all that ended with numbers, of everybody who shares the study."""
        with self._asking():
            trials = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            return [
                Told(
                    one.user_attrs[_CONFIGURATION],
                    tuple(one.values),
                    one.user_attrs[_DEFICIT],
                    one.user_attrs[_SOURCE],
                )
                for one in trials
            ]

    def pruned(self) -> int:
        """Return how many trials were ended before they cost a whole replay."""
        with self._asking():
            return len(self._study.get_trials(deepcopy=False, states=(TrialState.PRUNED,)))

    def abandon(self) -> None:
        """End this run's trials that an interruption left running: the journal knows of them."""
        with self._asking():
            for one in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                if one.user_attrs.get(_RUN) == self._run:
                    self._study.tell(one.number, state=TrialState.FAIL)

    def importances(self, aim: int) -> list[Importance]:
        """Return what each knob is worth for an aim (PED-ANOVA over bootstraps of the trials, as
        likely ones), the most important first; empty where there are too few trials to say."""
        with self._asking():
            done = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if len(done) < FEWEST or len(self._distributions) < 2:
            return []
        whole = _shares(done, aim)
        places = np.random.default_rng(0).integers(0, len(done), (BOOTSTRAPS, len(done)))
        drawn = [_shares([done[place] for place in row], aim) for row in places.tolist()]
        found = []
        for name, share in whole.items():
            shares = [one[name] for one in drawn if name in one] or [share]
            low, high = np.quantile(shares, (0.025, 0.975)).tolist()
            found.append(Importance(name, share, min(low, share), max(high, share)))
        return sorted(found, key=lambda one: -one.share)

    def _params(self, configuration: Configuration) -> dict[str, Any] | None:
        """Return a configuration as the study knows it; None where it lies outside the space."""
        found: dict[str, Any] = {}
        for knob in self._space.knobs:
            value = configuration.get(knob.name)
            if value not in knob.values:
                return None
            place = knob.values.index(value)
            found[knob.name] = place if knob.is_ordered else _choices(knob)[place]
        return found

    def _values(self, params: dict[str, Any]) -> dict[str, Any]:
        return {
            knob.name: knob.values[
                params[knob.name] if knob.is_ordered else _choices(knob).index(params[knob.name])
            ]
            for knob in self._space.knobs
        }

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Turn whatever a storage or its driver raises into one line."""
        try:
            yield
        except RunError:
            raise
        except ImportError as error:
            raise RunError(
                f"{self._where}: its driver is missing ({_first_line(error)})",
                hint="For PostgreSQL: pip install 'tuner[postgresql]'.",
            ) from error
        except Exception as error:  # drivers raise what they like
            raise RunError(
                f"{self._where}: the study's storage cannot be used ({_first_line(error)})",
                hint="Bring it up or give another --storage; with --resume nothing is measured "
                "twice.",
            ) from error


def _opened(storage: str) -> BaseStorage:
    """Return the storage of a URL; anything else is a file of Optuna's journal."""
    if storage.startswith("redis"):
        return JournalStorage(JournalRedisBackend(storage))
    if "://" in storage:
        return RDBStorage(storage, engine_kwargs={"pool_pre_ping": True})
    Path(storage).parent.mkdir(parents=True, exist_ok=True)
    return JournalStorage(JournalFileBackend(storage))


def _without_password(storage: str) -> str:
    scheme, found, rest = storage.partition("://")
    user, at, host = rest.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}{at}{host}" if found else storage


def _distribution(knob: Knob) -> BaseDistribution:
    """Numbers are told by their place in the knob's values, so that the sampler knows what is
    between what however they are spaced."""
    if knob.is_ordered:
        return IntDistribution(0, len(knob.values) - 1)
    return CategoricalDistribution(_choices(knob))


def _choices(knob: Knob) -> list[Any]:
    return [
        one if one is None or isinstance(one, bool | int | float | str) else repr(one)
        for one in knob.values
    ]


def _deficits(trial: FrozenTrial) -> Sequence[float]:
    return [trial.user_attrs.get(_DEFICIT, 0.0)]


def _shares(trials: Iterable[FrozenTrial], aim: int) -> dict[str, float]:
    """Return knob → share; empty where all trials are alike."""
    study = optuna.create_study(direction="maximize")
    for one in trials:
        study.add_trial(
            optuna.trial.create_trial(
                value=one.values[aim], params=one.params, distributions=one.distributions
            )
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is experimental is Optuna's affair
        found = PedAnovaImportanceEvaluator().evaluate(study)
    total = sum(found.values())
    return {name: value / total for name, value in found.items()} if total > 0 else {}


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]

"""What the twin says of configurations, and the Optuna study of all that was tried. Pure, but for
the study's storage.

Of the admission cap, the token budget and the number of KV blocks the twin tells for free, for the
whole of the traffic; of anything else only a replay can tell. What it tells is the mean over the
speeds that the machine has at times: a configuration that just serves all at machine speed does not
in a slower minute, and is no match for one that has room to spare.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import TPESampler
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState, create_trial

from tuner.errors import RunError
from tuner.replay.measure import Spread, spread
from tuner.runs.refine.aims import Aim, gain_over
from tuner.runs.refine.space import (
    BLOCKS,
    CAP,
    MODELED,
    TOKENS,
    Configuration,
    Space,
    number,
    smallest,
)
from tuner.system.passwords import without_passwords
from tuner.twin.forecast import Forecast
from tuner.twin.objective import EQUAL_ATTAINMENT
from tuner.twin.simulation import met, simulate

FREE = 300
"""Trials on the twin at most: each takes some milliseconds."""

BEST = 3
"""Configurations that are replayed of those that the twin ranks first."""

ALIKE = 0.002
"""Gains so close by the twin are those of configurations between which nothing is to choose."""

MOST_REQUESTS = 20_000
"""Requests that the twin replays, the busiest stretch of so many."""

LEAST_SPEED_SD = 0.01
"""Standard deviation of log slowdown below which a machine is steady."""


@dataclass(frozen=True, slots=True)
class ModelNumbers:
    """The twin's numbers of one configuration, as far as aims look at them."""

    attainment: float
    output_tokens_per_s: float
    ttft_s: Spread | None
    tpot_s: Spread | None
    e2el_s: Spread | None


@dataclass(slots=True)
class Model:
    """The twin, asked about configurations."""

    view: Forecast
    aim: Aim
    knee: Configuration
    known: dict[tuple[int, int, int], ModelNumbers] = field(default_factory=dict)

    def tells(self, one: Configuration) -> bool:
        """Whether the configuration differs from the knee in nothing that the twin cannot tell."""
        return all(one[name] == self.knee.get(name) for name in one if name not in MODELED)

    def numbers(self, one: Configuration) -> ModelNumbers:
        """Return what a replay of the traffic would measure, as a mean over the slowdowns."""
        view, cap, tokens = self.view, number(one[CAP]), number(one[TOKENS])
        blocks = number(one.get(BLOCKS) or view.shape.kv_blocks)
        key = (cap, tokens, blocks)
        if key not in self.known:
            shape = replace(view.shape, max_num_batched_tokens=tokens, kv_blocks=blocks)
            traffic, law = view.traffic.busiest(MOST_REQUESTS), view.fitted.law
            parts = [
                (simulate(traffic, law.slowed(factor), shape, max_num_seqs=cap), weight)
                for factor, weight in slowdowns_of(view.speed_sd)
            ]
            heavy = np.concatenate([np.full(len(traffic), weight) for _, weight in parts])

            def over(name: str) -> Spread | None:
                values = np.concatenate([getattr(each, name) for each, _ in parts])
                is_known = ~np.isnan(values)
                return spread(values[is_known], heavy[is_known])

            good = sum(weight * float(met(traffic, each, view.slo).sum()) for each, weight in parts)
            tokens_per_s = sum(
                weight * each.output_tokens / max(1e-9, each.duration_s) for each, weight in parts
            )
            self.known[key] = ModelNumbers(
                good / max(1e-9, float(heavy.sum())), tokens_per_s, over("ttft_s"), over("tpot_s"),
                over("e2el_s"),
            )  # fmt: skip
        return self.known[key]

    def gain(self, one: Configuration) -> float | None:
        return gain_over(self.aim, self.numbers(one), self.numbers(self.knee))

    def deficit(self, one: Configuration) -> float:
        """Return how much of the knee's attainment is missing; at most 0 keeps the constraint."""
        return deficit(self.numbers(one).attainment, self.numbers(self.knee).attainment)


def slowdowns_of(speed_sd: float) -> Sequence[tuple[float, float]]:
    """Return the slowdowns, each with its share of the time, that stand for all of a machine whose
    log slowdown has this standard deviation: the three of Gauss and Hermite, by which means of
    smooth curves are exact.

    >>> [(round(factor, 2), round(share, 2)) for factor, share in slowdowns_of(0.1)]
    [(0.84, 0.17), (1.0, 0.67), (1.19, 0.17)]
    """
    if speed_sd < LEAST_SPEED_SD:
        return ((1.0, 1.0),)
    far = math.exp(math.sqrt(3) * speed_sd)
    return ((1 / far, 1 / 6), (1.0, 2 / 3), (far, 1 / 6))


def deficit(share: float, of_knee: float) -> float:
    """Return how much of the knee's attainment is missing; at most 0 keeps the constraint."""
    return of_knee - EQUAL_ATTAINMENT - share


class Study:
    """An Optuna study of all that was tried, on the twin and in replays: in memory, in a file, or
    behind an address, where ``optuna-dashboard`` shows it. The journal is the record: a storage
    that fails is given up, and the study continues in memory."""

    def __init__(self, storage: str | None, space: Space) -> None:
        """Raises RunError when the storage cannot be used."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.space = space
        self.lost: str | None = None
        """Why the storage was given up; None while it serves."""

        self.distributions: dict[str, BaseDistribution] = {
            knob.name: CategoricalDistribution([str(value) for value in knob.values])
            for knob in space.knobs
        }
        try:
            self._study = self._made(_opened(storage))
            self._told = {str(one.user_attrs.get("configuration")) for one in self._study.trials}
        except Exception as problem:  # of any driver
            raise RunError(
                f"--storage {without_passwords(str(storage))}: cannot be used "
                f"({type(problem).__name__})",
                hint="Give a file, or an address that SQLAlchemy takes: postgresql://..., "
                "sqlite:///...",
            ) from problem

    def best_by(self, model: Model) -> list[Configuration]:
        """Search what the twin can tell of by free trials; return the best few, no two alike."""
        names = {knob.name for knob in self.space.knobs} & set(MODELED)
        grid = self.space.combined(names)
        seen: dict[str, tuple[Configuration, float]] = {}
        for place in range(min(FREE, len(grid))):
            # all of a small space, else what the sampler proposes
            one = grid[place] if len(grid) <= FREE else self._proposed(names)
            gain, lacking = model.gain(one), model.deficit(one)
            if gain is not None:
                seen[str(one)] = (one, gain if lacking <= 0 else -math.inf)
                self.tell(one, gain, lacking, fidelity="twin")

        def rank(row: tuple[Configuration, float]) -> tuple[float, ...]:
            tokens = abs(math.log(number(row[0][TOKENS]) / number(model.knee[TOKENS])))
            return (-round(row[1], 4), *smallest(row[0]), tokens)

        best: dict[int, Configuration] = {}
        for one, gain in sorted(seen.values(), key=rank):
            if gain > -math.inf:
                best.setdefault(round(gain / ALIKE), one)
            if len(best) == BEST:
                break
        return list(best.values())

    def tell(self, one: Configuration, gain: float | None, lacking: float, fidelity: str) -> None:
        """Add what was tried, once; without a gain it failed or was cut."""
        label = f"{fidelity}: {dict(one)}" if fidelity == "twin" else str(dict(one))
        if label in self._told:
            return
        self._told.add(label)
        params = {knob.name: str(one.get(knob.name)) for knob in self.space.knobs}
        trial = create_trial(
            state=TrialState.FAIL if gain is None else TrialState.COMPLETE,
            value=gain,
            params=params,
            distributions=dict(self.distributions),
            user_attrs={"configuration": label, "fidelity": fidelity, "deficit": lacking},
            system_attrs={"constraints": [lacking]},
        )
        self._do(lambda study: study.add_trial(trial))

    def _proposed(self, names: set[str]) -> Configuration:
        distributions = {name: self.distributions[name] for name in names}
        asked = self._do(lambda study: study.ask(distributions))
        self._do(lambda study: study.tell(asked, state=TrialState.FAIL))  # told with its gain
        values = {knob.name: {str(v): v for v in knob.values} for knob in self.space.knobs}
        return {**self.space.knee, **{n: values[n][asked.params[n]] for n in names}}

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
        values = (f"{knob.name}={','.join(map(str, knob.values))}" for knob in self.space.knobs)
        name = "; ".join([*values, f"knee {dict(self.space.knee)}"])[:400]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is new in Optuna
            return optuna.create_study(
                storage=storage,
                sampler=TPESampler(seed=0, constraints_func=_constraints),
                study_name=f"tuner-refine {name}",
                direction="maximize",
                load_if_exists=True,
            )


def _opened(storage: str | None) -> BaseStorage:
    if storage is None:
        return InMemoryStorage()
    return RDBStorage(storage) if "://" in storage else JournalStorage(JournalFileBackend(storage))


def _constraints(trial: optuna.trial.FrozenTrial) -> list[float]:
    return [float(trial.user_attrs.get("deficit", 0.0))]

"""What the twin predicts of configurations, and the Optuna study of all that was tried.

Of the admission cap, the token budget and the number of KV blocks the twin predicts the effect for
free, for all of the traffic; of anything else only a replay can tell. It predicts the mean over the
speeds that the machine has at times: a configuration that just serves all at machine speed does not
in a slower minute, and is no match for one that has room to spare.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState, create_trial

from tuner.errors import RunError
from tuner.replay.numbers import Spread, spread
from tuner.runs.events import Configuration
from tuner.runs.refine.aims import Aim, gain_over
from tuner.runs.refine.space import BLOCKS, CAP, MODELED, TOKENS, Space, number, smallest
from tuner.system.passwords import without_passwords
from tuner.traffic.constants import EQUAL_ATTAINMENT
from tuner.twin.forecast import Forecast
from tuner.twin.simulation import met, simulate

FREE = 300
"""Trials on the twin at most: each takes some milliseconds."""

BEST = 3
"""Configurations that are replayed of those that the twin ranks first."""

ALIKE = 0.002
"""Gains so close by the twin are those of configurations between which nothing is to choose."""

MOST_REQUESTS = 20_000
"""Requests that the twin replays, the busiest stretch of so many."""

STEADY_SD = 0.01
"""Standard deviation of log slowdown below which a machine is steady."""


class ModelNumbers(NamedTuple):
    """The twin's numbers of one configuration, as far as aims compare them."""

    attainment: float
    output_tokens_per_s: float
    ttft_s: Spread | None
    tpot_s: Spread | None
    e2el_s: Spread | None


@dataclass(slots=True)
class Model:
    """The twin, as a function of configurations."""

    view: Forecast
    aim: Aim
    knee: Configuration
    known: dict[tuple[int, int, int], ModelNumbers] = field(default_factory=dict)

    def predicts(self, configuration: Configuration) -> bool:
        """Whether it differs from the knee in nothing that the twin cannot predict."""
        return all(v == self.knee.get(k) for k, v in configuration.items() if k not in MODELED)

    def numbers(self, configuration: Configuration) -> ModelNumbers:
        """Return what a replay of the traffic would measure, as a mean over the slowdowns."""
        view, cap, tokens = self.view, number(configuration[CAP]), number(configuration[TOKENS])
        blocks = number(configuration.get(BLOCKS) or view.shape.kv_blocks)
        key = (cap, tokens, blocks)
        if key not in self.known:
            shape = replace(view.shape, max_num_batched_tokens=tokens, kv_blocks=blocks)
            traffic, law = view.traffic.busiest(MOST_REQUESTS), view.fitted.law
            speeds = slowdowns_of(view.speed_sd)
            parts = [simulate(traffic, law.slowed(s), shape, max_num_seqs=cap) for s, _ in speeds]
            shares = np.array([share for _, share in speeds])
            weights = np.repeat(shares, len(traffic))

            def over(name: str) -> Spread | None:
                values = np.concatenate([getattr(part, name) for part in parts])
                return spread(values[~np.isnan(values)], weights[~np.isnan(values)])

            good = [met(traffic, part, view.slo).mean() for part in parts]
            rates = [part.output_tokens / max(1e-9, part.duration_s) for part in parts]
            self.known[key] = ModelNumbers(
                float(shares @ good), float(shares @ rates), over("ttft_s"), over("tpot_s"),
                over("e2el_s"),
            )  # fmt: skip
        return self.known[key]

    def gain(self, configuration: Configuration) -> float | None:
        return gain_over(self.aim, self.numbers(configuration), self.numbers(self.knee))

    def deficit(self, configuration: Configuration) -> float:
        return deficit(self.numbers(configuration).attainment, self.numbers(self.knee).attainment)

    def best(self, space: Space, study: "Study") -> list[Configuration]:
        """Search what the twin predicts by free trials; return the best few, no two alike."""
        names = {knob.name for knob in space.knobs} & set(MODELED)
        grid = {str(each): each for each in space.combined(names)}
        sampler = optuna.create_study(
            sampler=optuna.samplers.TPESampler(seed=0), direction="maximize"
        )
        gains: dict[str, float] = {}
        for place in range(min(FREE, len(grid))):
            # all of a small space, else what the sampler proposes
            wanted = None
            key = list(grid)[place]
            if len(grid) > FREE:
                wanted = sampler.ask({"configuration": CategoricalDistribution(list(grid))})
                key = wanted.params["configuration"]
            gain, lacking = self.gain(grid[key]), self.deficit(grid[key])
            kept = -math.inf if gain is None or lacking > 0 else gain
            if wanted is not None:
                sampler.tell(wanted, max(kept, -1e3))
            gains[key] = kept
            study.tell(grid[key], gain, lacking, fidelity="twin")

        def rank(key: str) -> tuple[float, ...]:
            tokens = abs(math.log(number(grid[key][TOKENS]) / number(self.knee[TOKENS])))
            return (-round(gains[key], 4), *smallest(grid[key]), tokens)

        best: dict[int, Configuration] = {}
        for key in sorted((key for key in gains if gains[key] > -math.inf), key=rank):
            best.setdefault(round(gains[key] / ALIKE), grid[key])
        return list(best.values())[:BEST]


def slowdowns_of(speed_sd: float) -> Sequence[tuple[float, float]]:
    """Return the slowdowns, each with its share of the time, that stand for all of a machine whose
    log slowdown has this standard deviation: the three of Gauss and Hermite, by which means of
    smooth curves are exact.

    >>> [(round(factor, 2), round(share, 2)) for factor, share in slowdowns_of(0.1)]
    [(0.84, 0.17), (1.0, 0.67), (1.19, 0.17)]
    """
    if speed_sd < STEADY_SD:
        return ((1.0, 1.0),)
    far = math.exp(math.sqrt(3) * speed_sd)
    return ((1 / far, 1 / 6), (1.0, 2 / 3), (far, 1 / 6))


def deficit(share: float, of_knee: float) -> float:
    """Return how much of the knee's attainment is missing; at most 0 keeps the constraint."""
    return of_knee - EQUAL_ATTAINMENT - share


class Study:
    """An Optuna study of all that was tried, on the twin and in replays: in memory, in a file, or
    behind an address, where ``optuna-dashboard`` shows it. The journal is the record: a storage
    that fails is given up."""

    def __init__(self, storage: str | None, space: Space) -> None:
        """Raises RunError when the storage cannot be used."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        self.lost: str | None = None
        """Why the storage was given up; None while it serves."""

        self._distributions = {
            knob.name: CategoricalDistribution([str(value) for value in knob.values])
            for knob in space.knobs
        }
        name = "; ".join(f"{k.name}={','.join(map(str, k.values))}" for k in space.knobs)
        try:
            self._study = optuna.create_study(
                storage=_opened(storage),
                study_name=f"tuner-refine {name}; knee {dict(space.knee)}"[:400],
                direction="maximize",
                load_if_exists=True,
            )
            self._known = {each.user_attrs.get("configuration") for each in self._study.trials}
        except Exception as problem:  # of any driver
            raise RunError(
                f"--storage {without_passwords(str(storage))}: cannot be used "
                f"({type(problem).__name__})",
                hint="Give a file, or an address that SQLAlchemy takes: postgresql://..., "
                "sqlite:///...",
            ) from problem

    def tell(self, tried: Configuration, gain: float | None, lacking: float, fidelity: str) -> None:
        """Add what was tried, once; without a gain it failed or was cut."""
        label = f"{fidelity}: {dict(tried)}" if fidelity == "twin" else str(dict(tried))
        if label in self._known or self.lost is not None:
            return
        self._known.add(label)
        trial = create_trial(
            state=TrialState.FAIL if gain is None else TrialState.COMPLETE,
            value=gain,
            params={name: str(tried.get(name)) for name in self._distributions},
            distributions=dict(self._distributions),
            user_attrs={"configuration": label, "fidelity": fidelity, "deficit": lacking},
        )
        try:
            self._study.add_trial(trial)
        except Exception as problem:  # noqa: BLE001 - of any driver
            self.lost = f"the storage failed ({type(problem).__name__}): the search did without"


def _opened(storage: str | None) -> BaseStorage | None:
    if storage is None:
        return None
    return RDBStorage(storage) if "://" in storage else JournalStorage(JournalFileBackend(storage))

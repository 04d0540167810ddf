"""What each knob is worth: its share of the differences between trials, and how sure that is."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import optuna
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import FrozenTrial

FEWEST = 10
"""Trials below which nobody can say which knob matters."""

BOOTSTRAPS = 50


@dataclass(frozen=True, slots=True)
class Importance:
    """What share of the differences a knob explains, with the 95 % interval of bootstraps."""

    name: str
    share: float
    low: float
    high: float


def importances(done: Sequence[FrozenTrial], aim: int) -> list[Importance]:
    """Return what each knob is worth for an aim (PED-ANOVA over bootstraps of the trials, as
    likely ones), the most important first; empty where there are too few trials, or one knob."""
    if len(done) < FEWEST or len(done[0].distributions) < 2:
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

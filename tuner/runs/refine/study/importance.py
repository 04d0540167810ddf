"""The worth of each knob: its share of the differences between trials, and how sure that is."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import optuna
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import FrozenTrial

from tuner.engines.scheduler.state import Floats

FEWEST = 10
"""Trials below which nobody can say which knob matters."""

BOOTSTRAPS = 50
SHUFFLES = 100

CHANCE = 0.95
"""Quantile of what a knob's values explain of gains that were shuffled among the trials. Up to that
it is chance, which is large where trials are few."""

ENOUGH = 4
"""Differences between trials that differ in one knob alone, from which on these tell."""

LITTLE = 0.1
"""Share of the variance of all gains below which a knob that alone was changed changed nothing."""


@dataclass(frozen=True, slots=True)
class Importance:
    """The share of the differences that a knob explains, with the 95 % interval of bootstraps."""

    name: str
    share: float
    low: float
    high: float


def importances(done: Sequence[FrozenTrial], aim: int) -> list[Importance]:
    """Return what each knob is worth for an aim (PED-ANOVA over bootstraps of the trials, as
    likely ones), the most important first.

    Knobs whose values explain no more than they do of shuffled gains (a permutation test) are left
    out, and those that changed nothing where they alone were changed: a search tries the good
    values of some beside the good ones of others. It is empty where there are too few trials, or
    one knob.
    """
    if len(done) < FEWEST or len(done[0].distributions) < 2:
        return []
    gains = np.array([one.values[aim] for one in done])
    rng = np.random.default_rng(0)
    drawn = [
        _shares([done[place] for place in row], gains[row])
        for row in rng.integers(0, len(done), (BOOTSTRAPS, len(done)))
    ]
    shuffled = [gains, *(rng.permutation(gains) for _ in range(SHUFFLES))]
    found = []
    for name, share in _shares(done, gains).items():
        own, *chance = (_explained(done, each, name) for each in shuffled)
        if own <= np.quantile(chance, CHANCE) or _changed_nothing(done, gains, name):
            continue
        shares = [one[name] for one in drawn if name in one] or [share]
        low, high = np.quantile(shares, (0.025, 0.975)).tolist()
        found.append(Importance(name, share, min(low, share), max(high, share)))
    return sorted(found, key=lambda one: -one.share)


def _explained(trials: Sequence[FrozenTrial], gains: Floats, name: str) -> float:
    """Return the share of the variance of gains that lies between the values of a knob: the
    correlation ratio, eta squared."""
    groups = _groups(gains, [one.params[name] for one in trials])
    between = sum(len(group) * (group.mean() - gains.mean()) ** 2 for group in groups)
    whole = float(((gains - gains.mean()) ** 2).sum())
    return float(between) / whole if whole > 0 else 0.0


def _changed_nothing(trials: Sequence[FrozenTrial], gains: Floats, name: str) -> bool:
    """Whether the gains of trials that differ in one knob alone hardly differ, beside those of
    all; False where there are too few of them to tell."""
    others = [
        tuple(sorted((key, value) for key, value in one.params.items() if key != name))
        for one in trials
    ]
    groups = _groups(gains, others)
    freedom, whole = sum(len(group) - 1 for group in groups), float(np.var(gains, ddof=1))
    alone = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
    return freedom >= ENOUGH and alone < LITTLE * whole * freedom


def _groups(gains: Floats, keys: Sequence[object]) -> list[Floats]:
    places: dict[object, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    return [gains[group] for group in places.values()]


def _shares(trials: Sequence[FrozenTrial], gains: Floats) -> dict[str, float]:
    """Return knob → share; empty where all trials are alike."""
    study = optuna.create_study(direction="maximize")
    for one, gain in zip(trials, gains.tolist(), strict=True):
        study.add_trial(
            optuna.trial.create_trial(
                value=gain, params=one.params, distributions=one.distributions
            )
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is experimental is Optuna's affair
        found = PedAnovaImportanceEvaluator().evaluate(study)
    total = sum(found.values())
    return {name: value / total for name, value in found.items()} if total > 0 else {}

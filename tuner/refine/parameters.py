"""A space's knobs as Optuna's parameters, there and back."""

from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from tuner.refine.knobs import Configuration, Knob, Space


def distributions_of(space: Space) -> dict[str, BaseDistribution]:
    return {knob.name: _distribution(knob) for knob in space.knobs}


def params_of(space: Space, configuration: Configuration) -> dict[str, Any] | None:
    """Return a configuration as the study knows it; None where it lies outside the space."""
    found: dict[str, Any] = {}
    for knob in space.knobs:
        value = configuration.get(knob.name)
        if value not in knob.values:
            return None
        place = knob.values.index(value)
        found[knob.name] = place if knob.is_ordered else _choices(knob)[place]
    return found


def configuration_of(space: Space, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the study's parameters mean, the knee's values where it has none."""
    chosen = {
        knob.name: knob.values[
            params[knob.name] if knob.is_ordered else _choices(knob).index(params[knob.name])
        ]
        for knob in space.knobs
    }
    return {**space.knee, **chosen}


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

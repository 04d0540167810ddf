"""A space's knobs as Optuna's parameters, and what was measured as its trials, there and back."""

from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, create_trial

from tuner.runs.refine.knobs import Configuration, Knob, Space
from tuner.runs.refine.objective import KnownTrial

CONFIGURATION, DEFICIT, SOURCE, RUN = "configuration", "deficit", "source", "run"
ENDED_BY, BEGUN, HAS_ROOM = "ended_by", "begun", "has_room"
"""What a trial says of itself beside Optuna's own numbers."""

MACHINE = "machine"
"""What a study says of itself."""


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


def trial_of(
    space: Space,
    configuration: Configuration,
    attrs: Mapping[str, Any],
    **ended: Any,  # noqa: ANN401 - Optuna's numbers
) -> FrozenTrial | None:
    """Return what was measured as a trial; None where it lies outside the space."""
    if (params := params_of(space, configuration)) is None:
        return None
    return create_trial(
        params=params,
        distributions=distributions_of(space),
        user_attrs={CONFIGURATION: dict(configuration), **attrs},
        system_attrs={"constraints": [attrs.get(DEFICIT, 0.0)]},
        **ended,
    )


def told_of(one: FrozenTrial) -> KnownTrial:
    """Return what a trial that has ended with numbers measured."""
    attrs = one.user_attrs
    room = attrs.get(HAS_ROOM, True)
    return KnownTrial(attrs[CONFIGURATION], tuple(one.values), attrs[DEFICIT], attrs[SOURCE], room)


def attributes_of(told: KnownTrial) -> dict[str, Any]:
    """Return what such a trial says of itself, but for its configuration and whose it is."""
    return {DEFICIT: told.deficit, SOURCE: told.source, HAS_ROOM: told.has_room}


def deficits_of(trial: FrozenTrial) -> Sequence[float]:
    """Return the constraint: at most 0 where the SLO is kept."""
    return [trial.user_attrs.get(DEFICIT, 0.0)]


def _distribution(knob: Knob) -> BaseDistribution:
    """AimNumbers are told by their place in the knob's values, so that the sampler knows what is
    between what however they are spaced."""
    if knob.is_ordered:
        return IntDistribution(0, len(knob.values) - 1)
    return CategoricalDistribution(_choices(knob))


def _choices(knob: Knob) -> list[Any]:
    return [
        one if one is None or isinstance(one, bool | int | float | str) else repr(one)
        for one in knob.values
    ]

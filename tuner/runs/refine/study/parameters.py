"""A space's knobs as Optuna's parameters, and what was measured as its trials, there and back."""

from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, create_trial

from tuner.runs.refine.knobs import Configuration, Knob, Space
from tuner.runs.refine.objective import KnownTrial

CONFIGURATION, DEFICIT, SOURCE, RUN = "configuration", "deficit", "source", "run"
ENDED_BY, BEGUN, HELD, HAS_ROOM = "ended_by", "begun", "held", "has_room"
"""Names under which a trial says something of itself beside Optuna's own numbers."""

MOST = 1e6
"""No gain and no deficit is larger: gains are logarithms."""

MACHINE = "machine"
"""Name under which a study says what machine it is of."""


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


def tried_of(space: Space, trial: FrozenTrial) -> dict[str, Any] | None:
    """Return what a trial of a study says that it tried, in the space's own values; None where that
    is no configuration of it: whoever writes to a storage could name any engine argument."""
    said = trial.user_attrs.get(CONFIGURATION)
    if not isinstance(said, dict) or said.keys() != space.knee.keys():
        return None
    params = params_of(space, said)
    return None if params is None else configuration_of(space, params)


def told_of(space: Space, trial: FrozenTrial, *, aims: int) -> KnownTrial | None:
    """Return what a trial that has ended with numbers measured; None where it has none of ours."""
    attrs, gains = trial.user_attrs, tuple(trial.values or ())
    configuration, source = tried_of(space, trial), attrs.get(SOURCE)
    deficit, room = attrs.get(DEFICIT), attrs.get(HAS_ROOM, True)
    if configuration is None or len(gains) != aims or source not in ("engine", "profile"):
        return None
    if not all(map(_is_number, (*gains, deficit))) or not isinstance(room, bool):
        return None
    return KnownTrial(configuration, gains, float(deficit or 0), source, room)


def _is_number(value: Any) -> bool:  # noqa: ANN401 - whatever JSON holds
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return is_one and abs(value) <= MOST  # which NaN is not


def attributes_of(told: KnownTrial) -> dict[str, Any]:
    """Return what such a trial says of itself, but for its configuration and whose it is."""
    return {DEFICIT: told.deficit, SOURCE: told.source, HAS_ROOM: told.has_room}


def deficits_of(trial: FrozenTrial) -> Sequence[float]:
    """Return the constraint: at most 0 where the SLO is kept."""
    return [trial.user_attrs.get(DEFICIT, 0.0)]


def _distribution(knob: Knob) -> BaseDistribution:
    """Return the distribution of a knob's values. Numbers are told by their place among the values,
    so that the sampler knows what lies between however they are spaced."""
    if knob.is_ordered:
        return IntDistribution(0, len(knob.values) - 1)
    return CategoricalDistribution(_choices(knob))


def _choices(knob: Knob) -> list[Any]:
    return [
        one if one is None or isinstance(one, bool | int | float | str) else repr(one)
        for one in knob.values
    ]

"""What is worth a trial without the sampler's word: how a search begins, and may end. Pure."""

from tuner.runs.refine.gains.screen import ALIKE, Screen
from tuner.runs.refine.knobs import LIVE, MEMORY, Configuration, Space

FIRST = 3
"""How many of the configurations that the twin likes best."""


def likely(space: Space, screen: Screen | None) -> list[Configuration]:
    """Return live configurations that are worth a trial, the likeliest first: by the twin, or else
    the knee's neighbours."""
    if screen is None:
        return [
            {**space.knee, knob.name: knob.values[place]}
            for knob in space.knobs
            if knob.name in LIVE
            for centre in [knob.values.index(space.knee[knob.name])]
            for place in (centre - 1, centre + 1)
            if 0 <= place < len(knob.values)
        ]
    found: dict[tuple[int, ...], Configuration] = {}
    for one in screen.best_first(space.configurations(live=True, at=space.knee)):
        foreseen = screen.foresee(one, sure=False)
        if foreseen is not None:  # equal gains: one and the same engine to this traffic
            effect = tuple(round(gain / ALIKE) for gain in foreseen.gains)
            found.setdefault(effect, one)
        if len(found) == FIRST:
            break
    return list(found.values())


def flipped(space: Space, best: Configuration) -> list[Configuration]:
    """Return the best so far with one other argument changed, for each that needs a restart; less
    and less memory, as the first that does not start rules out the rest."""
    return [
        {**best, knob.name: value}
        for knob in space.knobs
        if knob.name not in LIVE
        for value in (reversed(knob.values) if knob.name in MEMORY else knob.values)
        if value != best[knob.name]
    ]

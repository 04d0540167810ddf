"""Requirements by a stored twin, of every replica of a fleet. Pure, and seeded."""

from collections.abc import Sequence

from tuner.profile.plan import MOST_REPLICAS, FleetRouter, least, parts_of
from tuner.profile.stored_twin import StoredTwin
from tuner.traffic.requirements import Requirement
from tuner.traffic.slo import Slo
from tuner.twin.choice import DRAWS, Question
from tuner.twin.load import Loads
from tuner.twin.required import Bounds

MOST_MORE = 64
"""Times the replicas that the load needs: what those do not keep, none do."""


def bounds_of(  # noqa: PLR0913 - what is asked of the twin
    twin: StoredTwin,
    slo: Slo,
    caps: Sequence[int],
    requirements: Sequence[Requirement],
    *,
    headroom: float,
    load: float,
    replicas: int,
    router: FleetRouter,
    seed: int,
) -> Bounds:
    """Return how far each cap is sure to keep what is required at ``load`` times the stored
    traffic, on each of the replicas that are asked; with headroom at so many times of that."""
    if not requirements:
        return Bounds()
    today, raised = (
        parts_of(twin, load=times * load, replicas=replicas, router=router, seed=seed)
        for times in (1.0, headroom)
    )
    drawn = []
    for one, more in zip(today, raised, strict=True):
        if not len(one):
            continue
        loads = Loads(one, (more,) if headroom > 1 else (), headroom)
        rate_rps = len(one) / twin.length_s
        asked = Question(loads, twin.shape, slo, tuple(requirements), rate_rps, twin.front_end)
        drawn += [asked.drawn(0, law, caps, raise_all=True).required for law in twin.laws[:DRAWS]]
    return Bounds.of(requirements, drawn)


def replicas_that_keep(  # noqa: PLR0913 - what is asked of the twin
    twin: StoredTwin,
    slo: Slo,
    cap: int,
    requirements: Sequence[Requirement],
    *,
    headroom: float,
    load: float,
    guess: int,
    router: FleetRouter,
    seed: int,
) -> int | None:
    """Return the fewest replicas on which a cap keeps all that is required; None when
    MOST_MORE times the guess do not."""

    def enough(replicas: int) -> bool:
        found = bounds_of(
            twin,
            slo,
            (cap,),
            requirements,
            headroom=headroom,
            load=load,
            replicas=replicas,
            router=router,
            seed=seed,
        )
        return bool(found.of_cap) and not found.broken(cap)

    return least(enough, guess, min(MOST_REPLICAS, MOST_MORE * guess))

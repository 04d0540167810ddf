"""Does a profile's verdict follow from what the profile holds? Gates without any replay. Pure.

The twin that a profile stores is asked the question of the sweep once more: the same loads, the
same objective and requirements, under every law that it keeps. A profile that was put together by
hand does not pass, nor one that another version of tuner would judge otherwise.
"""

from tuner.profile.schema import ServingProfile
from tuner.profile.stored_twin import MOST_STORED, StoredTwin
from tuner.profile.tolerances import ATTAINMENT_TOLERANCE
from tuner.runs.verify.gates import Gate
from tuner.traffic.requirements import parse_requirement
from tuner.twin.choice import Weighed

LEAST_RIGHT = 0.5
"""Of the laws that a profile keeps: the choice is right under so many."""


def offline_gates(profile: ServingProfile, twin: StoredTwin) -> list[Gate]:
    """Return every gate on the profile by itself."""
    cap, decision = profile.decision.max_num_seqs, profile.decision
    weighed = _weighed(profile, twin)
    right = weighed.rightness.get(cap, 0.0)
    bound = "half of the stored laws"
    return [
        Gate("choice", right, decision.confidence, LEAST_RIGHT, right >= LEAST_RIGHT, bound),
        *_promised(profile, twin, weighed),
        *_required(profile, weighed),
    ]


def _weighed(profile: ServingProfile, twin: StoredTwin) -> Weighed:
    caps = {one.max_num_seqs for one in profile.curve} | {profile.decision.max_num_seqs}
    return twin.weighed(
        twin.traffic,
        profile.decision.slo.slo,
        list(caps),
        headroom=profile.promise.headroom,
        seed=profile.provenance.seed,
        requirements=[parse_requirement(one.text) for one in profile.decision.requirements],
    )


def _promised(profile: ServingProfile, twin: StoredTwin, weighed: Weighed) -> list[Gate]:
    """Gate on the shares that the twin foresaw at each load; of a trace so long that the profile
    keeps a stretch of it, they are of other requests."""
    if len(twin.traffic) >= MOST_STORED:
        return []
    cap, found = profile.decision.max_num_seqs, []
    bound = f"its 95 % bound less {100 * ATTAINMENT_TOLERANCE:g} points"
    for one in profile.promise.predicted:
        low, _ = one.intervals.get("attainment", (one.attainment, one.attainment))
        floor = max(0.0, min(low, one.attainment) - ATTAINMENT_TOLERANCE)
        share = weighed.values[cap][0] if one.load == 1.0 else weighed.raised.get(cap)
        if share is not None:
            name = "attainment" if one.load == 1.0 else "headroom"
            found.append(Gate(name, share, one.attainment, floor, share >= floor, bound))
    return found


def _required(profile: ServingProfile, weighed: Weighed) -> list[Gate]:
    """Gate on what is required of the choice, as far as the twin can tell."""
    found = []
    checks = weighed.bounds.checks(profile.decision.max_num_seqs)
    for section, check in zip(profile.decision.requirements, checks, strict=False):
        if check.bound is not None:
            limit = check.requirement.limit
            before = check.bound if section.at_worst is None else section.at_worst
            bound = "required of 95 % of laws"
            found.append(Gate(section.text, check.bound, before, limit, check.is_kept, bound))
    return found

"""What a refinement says of its choice, in sentences. Pure."""

import math
from collections.abc import Mapping

from tuner.engines.seam import ArgumentValue
from tuner.profile.schema import ServingProfile
from tuner.runs.refine.gains.proof import MEMORY, Paired, proving
from tuner.runs.refine.gains.ratio import NOT_LOST
from tuner.runs.refine.knobs import CAP, Configuration
from tuner.runs.refine.objective import GOODPUT, Objective
from tuner.traffic.workload import Workload

REFINED = "; refined: "
"""Between the reason of a knee and what a refinement said of it."""

TOLD_LUCK = 0.01
"""Luck (log ratio) that a sentence mentions."""

SAME_LOAD = 0.1
"""Log ratio of arrival rates that a router's choice of whom to give a request makes."""

NO_ROOM = (
    "with the load raised the KV cache reaches its limit: more memory than this leaves room to grow"
)


def reason_of(
    profile: ServingProfile,
    one: Configuration,
    knee: Configuration,
    paired: Paired | None,
    aim: Objective = GOODPUT,
) -> str:
    """Return the sentence that says what was gained, with its intervals, or why nothing was."""
    before, _, _ = profile.decision.reason.partition(REFINED)
    changed = ", ".join(
        f"{name} {_shown(knee.get(name))} -> {_shown(value)}"
        for name, value in one.items()
        if value != knee.get(name)
    )
    if paired is None:
        return f"{before}{REFINED}nothing better was found"
    numbers = ", ".join(map(str, paired.ratios.values()))
    if paired.proven is not None:
        what = "serves as well with less memory" if paired.proven.of == MEMORY else "against it"
        return (
            f"refined from the {profile.decision.verdict} at {profile.decision.max_num_seqs}: "
            f"{changed}; {what} over {paired.pairs} pairs of "
            f"replays in turns: {numbers}{_luck(paired)}"
        )
    goodput = paired.ratios.get(GOODPUT.name)
    ratios = paired.ratios
    better = [each for each in proving(aim) if each.name in ratios and ratios[each.name].is_better]
    if better and goodput is not None and goodput.low < NOT_LOST:
        why = (
            f"{changed} gains in {better[0].text}, but may lose over {1 - NOT_LOST:.0%} of goodput "
            f"({goodput.low - 1:+.2%} at worst)"
        )
    else:
        why = f"no gain of {changed} is proven"
    over = f"over {paired.pairs} pairs of replays in turns: {numbers}{_luck(paired)}"
    return f"{before}{REFINED}{why} {over}"


def changed_besides(
    profile: ServingProfile, one: Configuration, arguments: Mapping[str, ArgumentValue]
) -> str | None:
    """Say what differs from the profile besides the choice, as an engine resolved it."""
    changed = [
        f"{name} {_shown(was)} -> {_shown(arguments[name])}"
        for name, was in profile.engine.items()
        if name not in {CAP, *one} and name in arguments and arguments[name] != was
    ]
    return (
        f"the engine differs from the profile in more than was chosen: {', '.join(changed)}"
        if changed
        else None
    )


def unlike(profile: ServingProfile, workload: Workload) -> str | None:
    """Say that a trace brings another load here than where it was tuned for; None where it is the
    same, or the windows are not."""
    here, there = len(workload.judged) / workload.judged_s, profile.validity.arrival_rate_rps
    if str(workload.part) != profile.validity.window or abs(math.log(here / there)) < SAME_LOAD:
        return None
    return (
        f"{here:.2f} requests/s of this trace arrive here, {there:.2f} where the profile was "
        "tuned: give the --replicas and --router of its sweep"
    )


def _luck(paired: Paired) -> str:
    """Say how much of the goodput that is stated the twin took for luck, where that is much."""
    goodput = paired.ratios.get(GOODPUT.name)
    if goodput is None or abs(math.log(goodput.value / goodput.replayed)) < TOLD_LUCK:
        return ""
    return (
        f"; goodput as replayed was {goodput.replayed - 1:+.1%}: the rest is what the twin says of "
        "these windows against all of the traffic"
    )


def _shown(value: object) -> str:
    return "default" if value is None else str(value)

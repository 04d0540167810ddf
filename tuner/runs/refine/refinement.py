"""A refinement: what is asked of it, what it found, and the sentences that say so."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.engines.seam import ArgumentValue
from tuner.profile.schema import ServingProfile
from tuner.replay.measure import Measurement
from tuner.replay.records import Replay
from tuner.runs.outcome import SweepOutcome
from tuner.runs.refine.acceptance import MEMORY, NOT_LOST, PairedResult, proving
from tuner.runs.refine.knobs import CAP, Configuration, Space
from tuner.runs.refine.objective import GOODPUT, Objective
from tuner.runs.refine.scoring import Scoring
from tuner.runs.settings import SweepSettings
from tuner.traffic.window import Window
from tuner.traffic.workload import Workload

REFINED = "; refined: "
"""Between the reason of a knee and what a refinement said of it."""

SAME_LOAD = 0.1
"""Log ratio of arrival rates that a router's choice of whom to give a request makes."""

NO_ROOM = (
    "with the load raised the KV cache reaches its limit: more memory than this leaves room to grow"
)


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial and what its replays gave."""

    configuration: Configuration
    measured: Measurement
    cut: str | None
    """Why it was ended early; None when it was not."""

    gain: float | None
    """Over the knee; 0.01 is 1 %. None of a trial that was ended early."""

    deficit: float | None
    replayed: float | None
    """The gain that the replays alone showed."""

    foreseen: float | None
    """What the twin alone says; None where it is not believed or cannot tell."""

    @property
    def keeps_slo(self) -> bool | None:
        """Whether it serves as many within the SLO as the knee; None where that is not known."""
        return None if self.deficit is None else self.deficit <= 0


@dataclass(frozen=True, slots=True)
class RefinePlan:
    """The plan of a refinement: what is refined, and how."""

    profile: ServingProfile
    space: Space
    aim: Objective
    settings: SweepSettings
    start_s: float
    """How long an engine start takes, by the profile."""

    max_model_len: int
    is_same_trace: bool
    """Whether it is the trace that the profile was tuned for."""

    warnings: Sequence[str] = ()
    """What is said before it begins."""


@dataclass(frozen=True, slots=True)
class Refinement:
    """The findings of the run."""

    chosen: Configuration
    """The knee where nothing seemed better."""

    paired: PairedResult | None
    pairs: tuple[tuple[Window, ...], ...]
    """What each pair replayed; none where nothing was compared."""

    outcome: SweepOutcome | None
    """For a profile of the refined engine; None where the knee is kept."""

    reason: str
    trials: tuple[TrialRow, ...]
    workload: Workload
    complete: bool
    starts_s: tuple[float, ...]
    replay_s: float
    failed: tuple[str, ...]
    warnings: tuple[str, ...]


def trial_table(scoring: Scoring) -> list[TrialRow]:
    """Return the trials that served, in the order in which they ended."""
    return [
        TrialRow(
            done.configuration,
            done.measured(scoring.problem.workload),
            cut_of(done.replays),
            gain=None if score is None else score.gain,
            deficit=None if score is None else score.deficit,
            replayed=None if score is None else score.replayed,
            foreseen=None if score is None else score.foreseen,
        )
        for done, score in scoring.each()
    ]


def cut_of(replays: Sequence[Replay]) -> str | None:
    """Return in which of its windows a trial was ended early, and why; None when it was not."""
    for number, replay in enumerate(replays, 1):
        if replay.cut is not None:
            return f"window {number} of {len(replays)}: {replay.cut}"
    return None


def reason_of(
    profile: ServingProfile,
    one: Configuration,
    knee: Configuration,
    paired: PairedResult | None,
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
    if paired.accepted is not None:
        what = "serves as well with less memory" if paired.accepted.of == MEMORY else "against it"
        return (
            f"refined from the {profile.decision.verdict} at {profile.decision.max_num_seqs}: "
            f"{changed}; {what} over {paired.pairs} pairs of "
            f"replays in turns: {numbers}"
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
    over = f"over {paired.pairs} pairs of replays in turns: {numbers}"
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
    here, there = workload.arrival_rate_rps, profile.validity.arrival_rate_rps
    if str(workload.part) != profile.validity.window or abs(math.log(here / there)) < SAME_LOAD:
        return None
    return (
        f"{here:.2f} requests/s of this trace arrive here, {there:.2f} where the profile was "
        "tuned: give the --replicas and --router of its sweep"
    )


def _shown(value: object) -> str:
    return "default" if value is None else str(value)

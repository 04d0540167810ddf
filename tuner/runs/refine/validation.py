"""The refined engine by itself: what a profile promises of it, at the captured load and above."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from tuner.profile.schema import ServingProfile
from tuner.runs.conclusion import at_load
from tuner.runs.outcome import SweepOutcome
from tuner.runs.refine.bench import RAMP, Build, Done, TrialRunner
from tuner.runs.refine.gains.judge import SEARCH
from tuner.runs.refine.gains.paired import is_live
from tuner.runs.refine.knobs import CAP, LIVE, TOKENS, Configuration, number, restart_key
from tuner.runs.refine.outcome import at, caps_of, outcome_of, view_of
from tuner.runs.settings import SweepSettings
from tuner.traffic.scaling import scale_load
from tuner.traffic.workload import Workload
from tuner.twin.forecast import Forecast

ALONE, RAISED = "alone", "raised"
"""Purposes: the refined engine by itself in the search's windows, of which the promise is; and with
the load of the validation."""


async def validate(  # noqa: PLR0913 - the choice, and all that its profile tells
    bench: TrialRunner,
    one: Configuration,
    profile: ServingProfile,
    *,
    knee: Configuration,
    pairs: int,
    workload: Workload,
    settings: SweepSettings,
    searched: Build,
    reason: str,
    confidence: float,
    dropped: int,
) -> SweepOutcome:
    """Measure what is missing of an engine built for exactly the choice, and tell it as a sweep.

    Raises EngineError when such engines keep failing.
    """
    build = Build(number(one[CAP]), number(one[TOKENS]), turn=_turn(one, knee, pairs))
    while not bench.served(ALONE):  # the bench ends it when too many fail
        await bench.trial(ALONE, one, workload, build)
    if settings.headroom > 1 and not bench.served(RAISED):
        raised = scale_load(workload.requests, settings.headroom, seed=settings.seed)
        await bench.trial(RAISED, one, replace(workload, requests=tuple(raised)), build)
    if not is_live(one, knee) and not any(
        is_live(done.configuration, one) for done in bench.served(RAMP)
    ):  # where it fails, there are the replays
        await bench.ramp(one, workload, replace(searched, turn=2 * pairs + 1))
    tried = {
        number(done.configuration[CAP])
        for done in bench.served(SEARCH)
        if is_live(done.configuration, one)
    }
    view = twin_of(bench, one, bench.done(), workload, settings, tried=tried)
    cap = number(one[CAP])
    return outcome_of(
        profile,
        cap=cap,
        facts=bench.facts_of(restart_key(one), cap=cap, tokens=number(one[TOKENS])),
        view=view,
        raised=_raised(view, workload, settings, cap),
        workload=workload,
        confirmed=[replay for done in bench.served(ALONE) for replay in done.replays],
        with_headroom=[replay for done in bench.served(RAISED) for replay in done.replays],
        headroom=settings.headroom,
        reason=reason,
        confidence=confidence,
        starts_s=bench.evidence.starts_s(),
        replay_s=bench.evidence.replay_s(),
        dropped=dropped,
    )


def _turn(one: Configuration, knee: Configuration, pairs: int) -> int:
    """Return the engine that is up after the pairs where it was built for the choice and no more,
    else another."""
    shared = is_live(one, knee) and all(number(one[name]) >= number(knee[name]) for name in LIVE)
    return 1 if shared else 2 * pairs


def twin_of(  # noqa: PLR0913 - what was measured, and what is asked of it
    bench: TrialRunner,
    one: Configuration,
    done: Sequence[Done],
    workload: Workload,
    settings: SweepSettings,
    *,
    tried: Collection[int] = (),
) -> Forecast | None:
    """Return the twin of the engines that share what needs a restart with a configuration, asked
    about the caps of a curve and those that were ``tried`` besides."""
    alike = [each for each in done if not each.failed and is_live(each.configuration, one)]
    sent = [
        (workload.sent_in(window), replay)
        for each in alike
        if each.purpose not in {RAMP, RAISED}
        for window, replay in zip(each.windows, each.replays, strict=False)
        if replay.cut is None
    ]
    return view_of(
        [
            (replay, each.engine, number(each.configuration[TOKENS]))
            for each in alike
            for replay in each.replays
        ],
        sent,
        workload,
        settings=settings,
        facts=at(bench.facts_of(restart_key(one)), one),
        caps=caps_of(settings.ceiling, number(one[CAP]), *tried),
    )


def _raised(
    view: Forecast | None, workload: Workload, settings: SweepSettings, cap: int
) -> Forecast | None:
    if view is None or settings.headroom <= 1:
        return None
    return at_load(view, workload.judged, settings, settings.headroom, cap)

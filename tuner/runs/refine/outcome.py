"""The refined engine by itself: what a profile promises of it, at the captured load and above."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise

from tuner.engines.seam import EngineFacts
from tuner.profile.schema import ServingProfile
from tuner.replay.measure import Measurement, measure
from tuner.replay.records import Replay
from tuner.runs.ladder import doubling
from tuner.runs.outcome import Conclusion, CurvePoint, SweepOutcome, predictions_of, with_measured
from tuner.runs.refine.comparison import is_live
from tuner.runs.refine.knobs import CAP, LIVE, TOKENS, Configuration, number, restart_key
from tuner.runs.refine.trials import RAMP, SEARCH, Build, FinishedTrial, Trials
from tuner.runs.settings import SweepSettings
from tuner.trace.trace import TraceRequest
from tuner.traffic.requirements import Requirement, RequirementCheck
from tuner.traffic.scaling import scale_load
from tuner.traffic.slo import Unloaded
from tuner.traffic.workload import Workload
from tuner.twin.check import observed
from tuner.twin.forecast import Forecast, forecast
from tuner.twin.law import Segment
from tuner.twin.simulation import hit_share, shape_of
from tuner.twin.verdict_text import Verdict

ALONE, RAISED = "alone", "raised"
"""Purposes of replays of the refined engine by itself: in the search's windows, of which the
promise is, and with the load of the validation."""


def unloaded_of(profile: ServingProfile) -> Unloaded:
    """Return what an idle engine did, as far as the profile tells: how long windows drain."""
    step = profile.curve[0]
    numbers = step.measured or step
    ttft, tpot = numbers.ttft_ms, numbers.tpot_ms
    return Unloaded(
        ttft_s=0.0 if ttft is None or tpot is None else min(ttft.p50, 5 * tpot.p50) / 1e3,
        ttft_s_per_input_token=0.0,
        tpot_s=0.0 if tpot is None else tpot.p50 / 1e3,
    )


def view_of(  # noqa: PLR0913 - what was measured on which engine, and what is asked
    replays: Sequence[tuple[Replay, int, int]],
    sent: Sequence[tuple[Sequence[TraceRequest], Replay]],
    workload: Workload,
    *,
    settings: SweepSettings,
    facts: EngineFacts,
    caps: Sequence[int],
    printed: bool = False,
) -> Forecast | None:
    """Return the twin of the engines that these (replay, number of its engine, token budget) were
    made on; None without any iteration. ``sent`` holds what the windows that were replayed whole
    sent. Only what is ``printed`` is weighed at every cap."""
    segments, free_s = list[Segment](), 0.0
    for replay, engine, _ in replays:
        start_s = max(free_s, replay.start_s)
        free_s = start_s + replay.elapsed_s
        if len(replay.iterations):
            segments.append(Segment(replay.iterations, start_s, engine))
    if not segments:
        return None
    return forecast(
        segments,
        [
            observed(replay, max_num_batched_tokens=tokens)
            for replay, _, tokens in replays
            if len(replay.requests) and not replay.ruled_out
        ],
        requests=workload.twin_requests,
        length_s=workload.twin_length_s,
        hash_block_size=settings.trace_block_size,
        facts=facts,
        unloaded=workload.unloaded,
        slo=workload.slo,
        caps=caps,
        requirements=settings.requirements,
        headroom=settings.headroom,
        seed=settings.seed,
        hit_share=hit_share(
            sent,
            hash_block_size=settings.trace_block_size,
            kv_tokens=shape_of(facts).kv_tokens,
        ),
        everywhere=printed,
    )


def at(facts: EngineFacts, one: Configuration) -> EngineFacts:
    """Return the facts of an engine whose token budget changes live, at one budget."""
    return replace(facts, arguments={**facts.arguments, TOKENS: one[TOKENS]})


def caps_of(ceiling: int, *caps: int) -> tuple[int, ...]:
    """Return the steps of the refined curve: the doublings, and others among them."""
    return tuple(sorted({*doubling(ceiling), *caps}))


def outcome_of(  # noqa: PLR0913 - everything that a profile tells
    profile: ServingProfile,
    *,
    cap: int,
    facts: EngineFacts,
    view: Forecast | None,
    workload: Workload,
    confirmed: Sequence[Replay],
    with_headroom: Sequence[Replay],
    requirements: Sequence[Requirement],
    reason: str,
    confidence: float,
    starts_s: tuple[float, ...],
    replay_s: float,
    dropped: int,
) -> SweepOutcome:
    """Return the refined choice as a sweep would have found it."""
    measured = measure(confirmed, workload.slo)
    by_twin = view is not None and view.is_believed
    interval = (cap, cap)
    if by_twin and view is not None:
        low, high = view.weighed.interval
        interval = (min(low, cap), max(high, cap))
    raised = measure(with_headroom, workload.slo) if with_headroom else None
    checks = tuple(RequirementCheck(one, None) for one in requirements)
    if by_twin and view is not None:
        checks = view.weighed.bounds.checks(cap)
    verdict = Verdict(
        profile.decision.verdict, cap, interval, confidence, reason, requirements=checks
    )
    verdict = with_measured(verdict, measured, raised)
    return SweepOutcome(
        conclusion=Conclusion(verdict, _curve(view, measured), view, by_twin=by_twin),
        slo=workload.slo,
        part=workload.part,
        windows=workload.windows,
        arrival_rate_rps=workload.arrival_rate_rps,
        confirmed=measured,
        with_headroom=raised,
        predictions=predictions_of(view, cap) if view is not None and by_twin else (),
        checked=None,
        facts=facts,
        ladder_engine=facts.engine,
        starts_s=starts_s,
        replay_s=replay_s,
        dropped={"over_max_model_len": dropped} if dropped else {},
        warnings=(),
    )


def _curve(view: Forecast | None, measured: Measurement) -> tuple[CurvePoint, ...]:
    """Return the curve of max_num_seqs at the refined arguments: the twin's, or where it is not
    believed the one step that was replayed."""
    cap = measured.max_num_seqs
    if view is None or not view.is_believed:
        return (CurvePoint(measured, measured, "measured", {}, {}),)
    caps = list(view.weighed.samples)
    below = {high: low for low, high in pairwise(caps)}
    return tuple(
        CurvePoint(
            numbers=view.measurement(one),
            measured=measured if one == cap else None,
            source="both" if one == cap else "twin",
            intervals=view.intervals(one),
            changes=view.changes(below[one], one) if one in below else {},
        )
        for one in caps
    )


async def validate(  # noqa: PLR0913 - the choice, and all that its profile tells
    trials: Trials,
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
    while not trials.served(ALONE):  # the runner ends it when too many fail
        await trials.trial(ALONE, one, workload, build)
    if settings.headroom > 1 and not trials.served(RAISED):
        raised = scale_load(workload.requests, settings.headroom, seed=settings.seed)
        await trials.trial(RAISED, one, replace(workload, requests=tuple(raised)), build)
    if not is_live(one, knee) and not any(
        is_live(done.configuration, one) for done in trials.served(RAMP)
    ):  # where it fails, there are the replays
        await trials.ramp(one, workload, replace(searched, turn=2 * pairs + 1))
    tried = {
        number(done.configuration[CAP])
        for done in trials.served(SEARCH)
        if is_live(done.configuration, one)
    }
    view = twin_of(trials, one, trials.done(), workload, settings, tried=tried, printed=True)
    cap = number(one[CAP])
    return outcome_of(
        profile,
        cap=cap,
        facts=trials.facts_of(restart_key(one), cap=cap, tokens=number(one[TOKENS])),
        view=view,
        workload=workload,
        confirmed=[replay for done in trials.served(ALONE) for replay in done.replays],
        with_headroom=[replay for done in trials.served(RAISED) for replay in done.replays],
        requirements=settings.requirements,
        reason=reason,
        confidence=confidence,
        starts_s=trials.evidence.starts_s(),
        replay_s=trials.evidence.replay_s(),
        dropped=dropped,
    )


def _turn(one: Configuration, knee: Configuration, pairs: int) -> int:
    """Return the engine that is up after the pairs where it was built for the choice and no more,
    else another."""
    shared = is_live(one, knee) and all(number(one[name]) >= number(knee[name]) for name in LIVE)
    return 1 if shared else 2 * pairs


def twin_of(  # noqa: PLR0913 - what was measured, and what is asked of it
    trials: Trials,
    one: Configuration,
    done: Sequence[FinishedTrial],
    workload: Workload,
    settings: SweepSettings,
    *,
    tried: Collection[int] = (),
    printed: bool = False,
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
        facts=at(trials.facts_of(restart_key(one)), one),
        caps=caps_of(settings.ceiling, number(one[CAP]), *tried),
        printed=printed,
    )

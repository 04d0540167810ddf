"""What a refinement's trials come to: the twin of an engine, and the sweep's outcome anew. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tuner.engines.seam import EngineFacts
from tuner.profile.numbers import CurveStep, SpreadSection
from tuner.profile.schema import ServingProfile
from tuner.replay.measure import Measurement, Spread, measure
from tuner.replay.records import Replay
from tuner.runs.ladder import doubling
from tuner.runs.outcome import Conclusion, CurvePoint, Prediction, SweepOutcome
from tuner.runs.refine.knobs import CAP, TOKENS, Configuration
from tuner.runs.refine.objective import Objective, Told, deficit, gains
from tuner.runs.settings import SweepSettings
from tuner.trace.trace import TraceRequest
from tuner.traffic.slo import Unloaded
from tuner.traffic.workload import Workload
from tuner.twin.check import observed
from tuner.twin.forecast import Forecast, forecast
from tuner.twin.law import Segment
from tuner.twin.simulation import traffic_of
from tuner.twin.verdict_text import Verdict


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


@dataclass(frozen=True, slots=True)
class _Numbers:
    """A step of a profile's curve in seconds, as far as aims look at it."""

    attainment: float
    output_tokens_per_s: float
    ttft_s: Spread | None
    tpot_s: Spread | None
    e2el_s: Spread | None


def curve_of(
    profile: ServingProfile, knee: Configuration, objectives: Sequence[Objective]
) -> list[Told]:
    """Return what the profile's curve says of each cap against its own: a study begins with it."""
    steps = {step.max_num_seqs: _in_seconds(step) for step in profile.curve if not step.cut}
    chosen = steps.get(profile.decision.max_num_seqs)
    if chosen is None:
        return []
    found = []
    for cap, one in steps.items():
        values = gains(objectives, one, chosen)
        if values is not None:
            missing = deficit(one.attainment, chosen.attainment)
            found.append(Told({**knee, CAP: cap}, values, missing, source="profile"))
    return found


def _in_seconds(step: CurveStep) -> _Numbers:
    def seconds(one: SpreadSection | None) -> Spread | None:
        if one is None:
            return None
        return Spread(*(ms / 1e3 for ms in (one.mean, one.p50, one.p90, one.p95, one.p99)))

    return _Numbers(
        step.attainment,
        step.output_tokens_per_s,
        seconds(step.ttft_ms),
        seconds(step.tpot_ms),
        seconds(step.e2el_ms),
    )


def view_of(  # noqa: PLR0913 - what was measured on which engine, and what is asked
    replays: Sequence[tuple[Replay, int, int]],
    sent: Sequence[tuple[Sequence[TraceRequest], Replay]],
    workload: Workload,
    *,
    settings: SweepSettings,
    facts: EngineFacts,
    caps: Sequence[int],
) -> Forecast | None:
    """Return the twin of the engines that these (replay, number of its engine, token budget) were
    made on; None without any iteration. ``sent`` holds what the windows that were replayed whole
    sent."""
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
            if replay.records and not replay.ruled_out
        ],
        requests=workload.judged,
        length_s=workload.judged_s,
        hash_block_size=settings.trace_block_size,
        facts=facts,
        unloaded=workload.unloaded,
        slo=workload.slo,
        caps=caps,
        hit_share=_hit_share(sent, settings.trace_block_size),
        everywhere=True,
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
    raised: Forecast | None,
    workload: Workload,
    confirmed: Sequence[Replay],
    with_headroom: Sequence[Replay],
    headroom: float,
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
    verdict = Verdict(profile.decision.verdict, cap, interval, confidence, reason)
    return SweepOutcome(
        conclusion=Conclusion(verdict, _curve(view, measured), view, by_twin=by_twin),
        slo=workload.slo,
        part=workload.part,
        windows=workload.windows,
        arrival_rate_rps=len(workload.judged) / workload.judged_s,
        confirmed=measured,
        with_headroom=measure(with_headroom, workload.slo) if with_headroom else None,
        aa_check=None,
        predictions=tuple(
            Prediction(load, one.measurement(cap), one.intervals(cap))
            for load, one in ((1.0, view), (headroom, raised))
            if one is not None and by_twin
        ),
        facts=facts,
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


def _hit_share(sent: Sequence[tuple[Sequence[TraceRequest], Replay]], block: int) -> float:
    """Return what the prefix cache gave of what an endless one would have given."""
    had = could = 0
    for requests, replay in sent:
        endless = traffic_of(requests, hash_block_size=block, hit_share=1.0)
        could += int(endless.cached_length.sum())
        had += sum(record.cached_tokens for record in replay.records)
    return min(1.0, had / could) if could else 0.0

"""The curve of a profile: goodput and latencies by cap, today and with headroom. Pure."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.commands.report.drawing import axes
from tuner.commands.report.drawing.chart import (
    Area,
    Chart,
    Dots,
    Item,
    Line,
    Mark,
    Stretch,
    heights,
)
from tuner.commands.report.drawing.page import Cell, Figure, File, PageSection, Table, csv_file
from tuner.engines.scheduler.state import StepLaw
from tuner.profile.numbers import CapNumbers, CurveStep, FrontEndSection
from tuner.profile.schema import ServingProfile
from tuner.profile.stored_twin import MOST_STORED, StoredTwin, restored
from tuner.profile.summary import milliseconds, percent, waits_for
from tuner.traffic.slo import Slo
from tuner.twin.choice import DRAWS
from tuner.twin.load import scaled
from tuner.twin.simulation import Traffic, attainment

ASKED = ("goodput_rps", "ttft_p99_s", "tpot_p95_s", "e2el_p99_s")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number by the law itself, and between which ends 95 % of the laws as likely have it."""

    middle: float
    low: float
    high: float


LoadCurve = Mapping[int, Mapping[str, Estimate]]
"""Cap → name of a statistic → what it is; NaN where no request has one."""


def asked(twin: StoredTwin, slo: Slo, caps: Sequence[int], *, load: float, seed: int) -> LoadCurve:
    """Return what each cap gives at ``load`` times the stored traffic."""
    traffic = twin.traffic
    if load != 1.0:
        traffic = scaled(traffic, load, np.random.default_rng(seed))
    rate_rps = len(traffic) / twin.length_s
    return {cap: _estimates(traffic, twin, slo, cap, rate_rps) for cap in caps}


def _estimates(
    traffic: Traffic, twin: StoredTwin, slo: Slo, cap: int, rate_rps: float
) -> dict[str, Estimate]:
    def of(law: StepLaw) -> tuple[float, ...]:
        replay = twin.replayed(traffic, law, max_num_seqs=cap)
        return (
            attainment(traffic, replay, slo) * rate_rps,
            _quantile(replay.ttft_s, 0.99),
            _quantile(replay.tpot_s, 0.95),
            _quantile(replay.e2el_s, 0.99),
        )

    middle = of(twin.law)
    samples = np.array([of(law) for law in twin.laws[:DRAWS]] or [middle])
    found = {}
    for number, name in enumerate(ASKED):
        known = samples[:, number][np.isfinite(samples[:, number])]
        low, high = np.quantile(known, (0.025, 0.975)) if len(known) else (np.nan, np.nan)
        value = middle[number]
        found[name] = Estimate(value, float(min(low, value)), float(max(high, value)))
    return found


def _quantile(values: NDArray[np.float64], share: float) -> float:
    known = values[np.isfinite(values)]
    return float(np.quantile(known, share)) if len(known) else np.nan


@dataclass(frozen=True, slots=True)
class _Statistic:
    """One chart of the curve."""

    name: str
    title: str
    of: Callable[[CapNumbers], float | None]
    interval: str | None
    """The name of its interval in a profile; times there are in milliseconds."""

    limit: Callable[[Slo], float | None] = lambda _: None

    @property
    def is_time(self) -> bool:
        return self.name.endswith("_s")


def _of_spread(name: str, statistic: str) -> Callable[[CapNumbers], float | None]:
    def of(one: CapNumbers) -> float | None:
        spread = getattr(one, name)
        return None if spread is None else float(getattr(spread, statistic)) / 1e3

    return of


def _ttft_limit_s(slo: Slo) -> float | None:
    return None if slo.ttft_s_per_input_token else slo.ttft_s


STATISTICS = (
    _Statistic("goodput_rps", "Goodput, requests a second", lambda one: one.goodput_rps,
               "goodput_rps"),
    _Statistic("ttft_p99_s", "p99 TTFT", _of_spread("ttft_ms", "p99"), None, _ttft_limit_s),
    _Statistic("tpot_p95_s", "p95 TPOT", _of_spread("tpot_ms", "p95"), "tpot_p95_ms",
               lambda slo: slo.tpot_s),
    _Statistic("e2el_p99_s", "p99 E2EL", _of_spread("e2el_ms", "p99"), "e2el_p99_ms",
               lambda slo: slo.e2el_s),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Curves:
    """A profile, and what its twin says of every cap at both loads."""

    profile: ServingProfile
    twin: StoredTwin | None
    today: LoadCurve
    raised: LoadCurve
    """Empty without headroom, or without a twin."""

    @classmethod
    def of(cls, profile: ServingProfile, *, source: str) -> "Curves":
        """Ask a profile's twin at both loads. Raises ProfileError when the twin makes no sense."""
        if profile.twin is None:
            return cls(profile, None, {}, {})
        twin = restored(profile.twin, source=source, front_end=profile.front_end)
        slo, seed = profile.decision.slo.slo, profile.provenance.seed
        caps = [one.max_num_seqs for one in profile.curve]
        load = profile.promise.headroom
        raised = asked(twin, slo, caps, load=load, seed=seed) if load > 1 else {}
        return cls(profile, twin, asked(twin, slo, caps, load=1.0, seed=seed), raised)

    @property
    def headroom(self) -> float:
        return self.profile.promise.headroom


def curve_section(curves: Curves) -> PageSection:
    """Return goodput and latencies by cap, with the choice, today and with headroom."""
    profile = curves.profile
    note = (
        f"max_num_seqs {profile.decision.max_num_seqs} is the choice. Bands are 95 % "
        "intervals, grey dots what was measured in the windows. The axis of max_num_seqs is "
        "logarithmic, as is that of times that differ by orders."
    )
    if curves.raised:
        note += f" The dashed line is {curves.headroom:g} times the load, by the twin."
        if len(curves.twin.traffic if curves.twin else ()) == MOST_STORED:
            note += (
                f" It is asked about the busiest {MOST_STORED:,} requests, which a profile keeps."
            )
    return PageSection("Curve", note, [curve_figures(curves), curve_table(profile)])


def curve_figures(curves: Curves) -> list[Figure]:
    return [curve_figure(curves, one) for one in STATISTICS]


def curve_figure(curves: Curves, what: _Statistic) -> Figure:
    """Return one number of every step, today and with headroom, with the choice."""
    profile, told = curves.profile, axes.seconds if what.is_time else axes.whole
    chosen = profile.decision.max_num_seqs
    steps = [one for one in profile.curve if not (one.cut and one.source == "measured")]
    caps = [one.max_num_seqs for one in steps]
    values = [_known(what.of(one)) for one in steps]
    items = [*_today(curves, what, steps), *_raised(curves, what, caps), *_replayed(what, steps)]
    shown = [one for item in items for one in heights(item)]
    y = axes.linear(shown, told)
    if what.is_time:
        limit_s = what.limit(profile.decision.slo.slo)
        if limit_s is not None:
            items.append(Mark(limit_s, f"SLO {told(limit_s)}", "y", is_dashed=True))
            shown.append(limit_s)
        y = axes.times(shown, told)
    items += _choice_marks(profile, caps)
    listed = "; ".join(f"{cap}: {told(one)}" for cap, one in zip(caps, values, strict=True))
    said = f"{what.title} by max_num_seqs, {chosen} is chosen. {listed}."
    x = axes.caps(caps or [chosen], chosen=chosen, label="max_num_seqs")
    return Figure(what.title, Chart(said, x, y, items))


def _today(curves: Curves, what: _Statistic, steps: Sequence[CurveStep]) -> Iterator[Item]:
    """Yield the curve of the profile, with its interval."""
    caps = [one.max_num_seqs for one in steps]
    values = [_known(what.of(one)) for one in steps]
    ends = [_ends(what, one, curves.today) for one in steps]
    yield Area(caps, [low for low, _ in ends], [high for _, high in ends], look="accent")
    yield Line(caps, values, label="today" if curves.raised else "", look="accent")
    told = axes.seconds if what.is_time else axes.whole
    texts = [
        f"{cap}: {told(value)}" + f" ({told(low)} to {told(high)})" * math.isfinite(low)
        for cap, value, (low, high) in zip(caps, values, ends, strict=True)
    ]
    yield Dots(caps, values, texts, look="accent", is_hollow=True)


def _raised(curves: Curves, what: _Statistic, caps: Sequence[int]) -> Iterator[Item]:
    """Yield the same with headroom, where the twin was asked about it."""
    if curves.raised:
        found = [curves.raised[cap][what.name] for cap in caps]
        yield Area(caps, [one.low for one in found], [one.high for one in found])
        label = f"{curves.headroom:g}x load"
        yield Line(caps, [one.middle for one in found], label=label, is_dashed=True)


def _replayed(what: _Statistic, steps: Sequence[CurveStep]) -> Iterator[Item]:
    """Yield what was measured in the windows, beside the twin's numbers."""
    told = axes.seconds if what.is_time else axes.whole
    found = [
        (one.max_num_seqs, _known(what.of(one.measured)))
        for one in steps
        if one.measured is not None and not one.measured.cut and one.source == "both"
    ]
    caps, values = [cap for cap, _ in found], [value for _, value in found]
    yield Dots(caps, values, [f"{cap}, as replayed: {told(value)}" for cap, value in found])


def _choice_marks(profile: ServingProfile, caps: Sequence[int]) -> Iterator[Item]:
    """Yield where the choice is, how sure that is, and what is set now."""
    chosen, (low, high) = profile.decision.max_num_seqs, profile.decision.interval
    if low < high:
        yield Stretch(low, high, look="plain")
    yield Mark(chosen, f"{chosen:,}", look="accent")
    now = profile.baseline
    if (
        now is not None
        and now.max_num_seqs != chosen
        and caps
        and caps[0] <= now.max_num_seqs <= caps[-1]
    ):
        yield Mark(now.max_num_seqs, f"now {now.max_num_seqs:,}", is_dashed=True)


def _ends(what: _Statistic, step: CurveStep, today: LoadCurve) -> tuple[float, float]:
    """Return the interval of a step's number; of what a profile does not keep, the twin's."""
    if what.interval in step.intervals:
        low, high = step.intervals[str(what.interval)]
        scale = 1e-3 if what.is_time else 1.0
        return low * scale, high * scale
    if step.max_num_seqs in today and what.interval is None:
        one = today[step.max_num_seqs][what.name]
        middle = what.of(step)
        if middle and one.middle:  # around the step's own number, which is of all of the traffic
            return one.low / one.middle * middle, one.high / one.middle * middle
    return math.nan, math.nan


def _known(value: float | None) -> float:
    return math.nan if value is None else value


CURVE_HEADINGS = (
    "max_num_seqs", "in SLO", "goodput req/s", "output tok/s", "TTFT p99", "TPOT p95", "E2EL p99",
    "KV peak", "preempted", "waits for",
)  # fmt: skip


def curve_table(profile: ServingProfile) -> Table:
    caps = [one.max_num_seqs for one in profile.curve]
    cap = profile.decision.max_num_seqs
    return Table(
        "Every step; a step with an asterisk is by the twin alone, no replay stands behind it.",
        CURVE_HEADINGS,
        [_curve_row(one, profile.front_end) for one in profile.curve],
        chosen=caps.index(cap) if cap in caps else None,
    )


def _curve_row(one: CurveStep, front_end: FrontEndSection | None) -> list[Cell]:
    is_cut = one.cut and one.source == "measured"
    waits = waits_for(one.binds, front_end)
    share = "" if not is_cut else "at least "
    return [
        f"{one.max_num_seqs:,}{'*' if one.source == 'twin' else ''}",
        share + percent(one.attainment),
        "cut" if is_cut else f"{one.goodput_rps:,.2f}",
        f"{one.output_tokens_per_s:,.0f}",
        *(
            "-" if spread is None else milliseconds(float(getattr(spread, statistic)))
            for spread, statistic in (
                (one.ttft_ms, "p99"),
                (one.tpot_ms, "p95"),
                (one.e2el_ms, "p99"),
            )
        ),
        "-" if one.kv_cache_usage is None else f"{100 * one.kv_cache_usage.peak:.0f} %",
        f"{one.preemptions:,}",
        "nothing" if waits is None else f"{waits[0]} {100 * waits[1]:.0f} %",
    ]


def curve_files(curves: Curves) -> list[File]:
    """Return the curve, and the same with headroom."""
    steps = curves.profile.curve
    intervals = sorted({name for one in steps for name in one.intervals})
    rows = [
        [
            *(one.max_num_seqs, one.source, one.attainment, one.goodput_rps),
            *(one.output_tokens_per_s, *(_in_ms(what.of(one)) for what in STATISTICS[1:])),
            *(end for name in intervals for end in one.intervals.get(name, (None, None))),
        ]
        for one in steps
    ]
    headings = [
        *("max_num_seqs", "source", "attainment", "goodput_rps", "output_tokens_per_s"),
        *("ttft_p99_ms", "tpot_p95_ms", "e2el_p99_ms"),
        *(f"{name}_{end}" for name in intervals for end in ("low", "high")),
    ]
    said = "every step of the curve, with its intervals"
    found = [csv_file("curve.csv", said, headings, rows)]
    if curves.raised:
        raised = [
            [cap, *(end for at in one.values() for end in (at.middle, at.low, at.high))]
            for cap, one in curves.raised.items()
        ]
        names = [f"{what.name}{end}" for what in STATISTICS for end in ("", "_low", "_high")]
        said = f"the same at {curves.headroom:g} times the load"
        found.append(csv_file("headroom.csv", said, ["max_num_seqs", *names], raised))
    return found


def _in_ms(value_s: float | None) -> float | None:
    return None if value_s is None else 1e3 * value_s

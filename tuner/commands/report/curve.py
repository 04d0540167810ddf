"""The curve of a profile: goodput and latencies by cap, as recorded and with headroom. Pure."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

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
from tuner.commands.report.drawing.page import Cell, Figure, PageSection, Table
from tuner.engines.scheduler.state import Floats
from tuner.profile.numbers import CapNumbers, CurveStep, FrontEndSection
from tuner.profile.schema import ServingProfile
from tuner.profile.stored_twin import StoredTwin, restored
from tuner.profile.summary import milliseconds, percent, waits_for
from tuner.traffic.slo import Slo
from tuner.twin.load import scaled
from tuner.twin.simulation import attainment


@dataclass(frozen=True, slots=True)
class _Statistic:
    """One chart of the curve; times are in seconds here, in milliseconds in a profile."""

    name: str
    title: str
    of: Callable[[CapNumbers], float | None]
    interval: str | None
    limit: Callable[[Slo], float | None] = lambda _: None

    @property
    def is_time(self) -> bool:
        return self.name.endswith("_s")

    @property
    def told(self) -> axes.Told:
        return axes.seconds if self.is_time else axes.whole


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
    """A profile, and what its twin predicts for every cap with headroom."""

    profile: ServingProfile
    twin: StoredTwin | None
    raised: Mapping[int, Mapping[str, float]]
    """Cap → name of a statistic; empty without headroom, or without a twin."""

    @classmethod
    def of(cls, profile: ServingProfile, *, source: str) -> "Curves":
        """Ask a profile's twin about its headroom. Raises ProfileError when the twin makes no
        sense."""
        if profile.twin is None:
            return cls(profile, None, {})
        twin = restored(profile.twin, source=source, front_end=profile.front_end)
        load = profile.promise.headroom
        if load <= 1:
            return cls(profile, twin, {})
        traffic = scaled(twin.traffic, load, np.random.default_rng(profile.provenance.seed))
        raised = {}
        for step in profile.curve:
            replay = twin.replayed(traffic, twin.law, max_num_seqs=step.max_num_seqs)
            share = attainment(traffic, replay, profile.decision.slo.slo)
            raised[step.max_num_seqs] = {
                "goodput_rps": share * len(traffic) / twin.length_s,
                "ttft_p99_s": _quantile(replay.ttft_s, 0.99),
                "tpot_p95_s": _quantile(replay.tpot_s, 0.95),
                "e2el_p99_s": _quantile(replay.e2el_s, 0.99),
            }
        return cls(profile, twin, raised)


def _quantile(values: Floats, share: float) -> float:
    known = values[np.isfinite(values)]
    return float(np.quantile(known, share)) if len(known) else math.nan


def curve_section(curves: Curves) -> PageSection:
    """Return goodput and latencies by cap, with the choice."""
    profile = curves.profile
    note = (
        f"max_num_seqs {profile.decision.max_num_seqs} is the choice. Bands are 95 % intervals, "
        "grey dots what was measured in the windows."
    )
    if curves.raised:
        load = profile.promise.headroom
        note += f" The dashed line is the prediction for {load:g} times the recorded load."
    figures = [curve_figure(curves, one) for one in STATISTICS]
    return PageSection("Curve", note, [figures, curve_table(profile)])


def curve_figure(curves: Curves, what: _Statistic) -> Figure:
    """Return one number of every step, as recorded and with headroom, with the choice."""
    profile = curves.profile
    chosen = profile.decision.max_num_seqs
    steps = [one for one in profile.curve if not (one.cut and one.source == "measured")]
    caps = [one.max_num_seqs for one in steps]
    values = [_known(what.of(one)) for one in steps]
    items = [*_recorded(curves, what, steps), *_replayed(what, steps)]
    if curves.raised:
        raised = [curves.raised[cap][what.name] for cap in caps]
        label = f"{profile.promise.headroom:g}x load"
        items.append(Line(caps, raised, label=label, is_dashed=True))
    shown = [one for item in items for one in heights(item)]
    y = axes.linear(shown, what.told)
    if what.is_time:
        limit_s = what.limit(profile.decision.slo.slo)
        if limit_s is not None:
            items.append(Mark(limit_s, f"SLO {what.told(limit_s)}", "y", is_dashed=True))
            shown.append(limit_s)
        y = axes.times(shown, what.told)
    items += _choice_marks(profile, caps)
    listed = "; ".join(f"{cap}: {what.told(one)}" for cap, one in zip(caps, values, strict=True))
    text = f"{what.title} by max_num_seqs, {chosen} is chosen. {listed}."
    x = axes.caps(caps or [chosen], chosen=chosen, label="max_num_seqs")
    return Figure(what.title, Chart(text, x, y, items))


def _recorded(curves: Curves, what: _Statistic, steps: Sequence[CurveStep]) -> Iterator[Item]:
    """Yield the curve of the profile, with its intervals."""
    caps = [one.max_num_seqs for one in steps]
    values = [_known(what.of(one)) for one in steps]
    scale = 1e-3 if what.is_time else 1.0
    nothing = (math.nan, math.nan)
    ends = [one.intervals.get(what.interval or "", nothing) for one in steps]
    lows, highs = [scale * low for low, _ in ends], [scale * high for _, high in ends]
    yield Area(caps, lows, highs, look="accent")
    yield Line(caps, values, label="recorded" if curves.raised else "", look="accent")
    texts = [
        f"{cap}: {what.told(value)}"
        + f" ({what.told(low)} to {what.told(high)})" * math.isfinite(low)
        for cap, value, low, high in zip(caps, values, lows, highs, strict=True)
    ]
    yield Dots(caps, values, texts, look="accent", is_hollow=True)


def _replayed(what: _Statistic, steps: Sequence[CurveStep]) -> Iterator[Item]:
    """Yield what was measured in the windows, beside the twin's numbers."""
    points = [
        (one.max_num_seqs, _known(what.of(one.measured)))
        for one in steps
        if one.measured is not None and not one.measured.cut and one.source == "both"
    ]
    texts = [f"{cap}, as replayed: {what.told(value)}" for cap, value in points]
    yield Dots([cap for cap, _ in points], [value for _, value in points], texts)


def _choice_marks(profile: ServingProfile, caps: Sequence[int]) -> Iterator[Item]:
    """Yield where the choice is, how sure that is, and what is set now."""
    chosen, (low, high) = profile.decision.max_num_seqs, profile.decision.interval
    if low < high:
        yield Stretch(low, high, look="plain")
    yield Mark(chosen, f"{chosen:,}", look="accent")
    now = None if profile.baseline is None else profile.baseline.max_num_seqs
    if now not in {None, chosen} and caps and caps[0] <= (now or 0) <= caps[-1]:
        yield Mark(now or 0, f"now {now:,}", is_dashed=True)


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
        "Every step; a step with an asterisk is predicted, no replay stands behind it.",
        CURVE_HEADINGS,
        [_curve_row(one, profile.front_end) for one in profile.curve],
        chosen=caps.index(cap) if cap in caps else None,
    )


def _curve_row(one: CurveStep, front_end: FrontEndSection | None) -> list[Cell]:
    is_cut = one.cut and one.source == "measured"
    waits = waits_for(one.binds, front_end)
    spreads = ((one.ttft_ms, "p99"), (one.tpot_ms, "p95"), (one.e2el_ms, "p99"))
    return [
        f"{one.max_num_seqs:,}{'*' if one.source == 'twin' else ''}",
        "at least " * is_cut + percent(one.attainment),
        "cut" if is_cut else f"{one.goodput_rps:,.2f}",
        f"{one.output_tokens_per_s:,.0f}",
        *(
            "-" if spread is None else milliseconds(float(getattr(spread, statistic)))
            for spread, statistic in spreads
        ),
        "-" if one.kv_cache_usage is None else f"{100 * one.kv_cache_usage.peak:.0f} %",
        f"{one.preemptions:,}",
        "nothing" if waits is None else f"{waits[0]} {100 * waits[1]:.0f} %",
    ]

"""The sections of a report that the replays of a run fill: every step over time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.commands.report.drawing import axes
from tuner.commands.report.drawing.chart import LOW_HEIGHT, Chart, Item, Line, Look, Mark, heights
from tuner.commands.report.drawing.page import (
    Cell,
    Figure,
    Folded,
    PageSection,
    Table,
)
from tuner.commands.report.drawing.thin import MOST_POINTS, steps, thinned
from tuner.errors import RunError
from tuner.profile.summary import milliseconds, percent
from tuner.replay.iterations import BatchTime, batch_times, joined
from tuner.replay.measure import Measurement, Spread, measure
from tuner.replay.records import Replay
from tuner.runs.journal import Event, Journal
from tuner.traffic.slo import Slo

Floats = NDArray[np.float64]

GAP_S = 1e-4
"""Between two iterations: a longer one is a time in which the engine had nothing to do."""

POINTS = 25_000
"""Of all lines over time of a page together."""

BINS = 200
"""Of the tokens a second of one step."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a run: its replays, one after the other."""

    title: str
    max_num_seqs: int
    replays: Sequence[Replay]


def read_back(book: Journal, events: Iterable[Event], lost: list[str]) -> list[Replay]:
    """Return the replays of these events; what cannot be read back is added to ``lost``."""
    found = []
    for event in events:
        try:
            found.append(book.replay(event))
        except RunError as problem:
            lost.append(str(problem))
    return found


@dataclass(frozen=True, slots=True)
class _Series:
    """One line over time."""

    name: str
    t_s: Floats
    values: Floats


def series_of(replays: Sequence[Replay]) -> list[_Series]:
    """Return what a step did over time, its replays one after the other."""
    parts: dict[str, list[tuple[Floats, Floats]]] = {}
    begin_s = 0.0
    for one in replays:
        for name, (t_s, values) in _of_replay(one).items():
            gap = np.array([np.nan])
            parts.setdefault(name, []).append(
                (np.append(t_s + begin_s, gap), np.append(values, gap))
            )
        begin_s += one.elapsed_s
    return [
        _Series(name, np.concatenate([t for t, _ in found]), np.concatenate([v for _, v in found]))
        for name, found in parts.items()
    ]


def _of_replay(one: Replay) -> dict[str, tuple[Floats, Floats]]:
    found: dict[str, tuple[Floats, Floats]] = {}
    if len(one.requests):
        found["in flight"] = _in_flight(one)
    log = one.iterations
    if len(log):
        t_s, rows = _with_idle(log["start_s"], log["duration_s"])
        for name in ("running", "waiting"):
            found[name] = (t_s, np.where(rows >= 0, log[name][rows], 0).astype(float))
        if one.kv_blocks:
            used = np.where(rows >= 0, log["kv_blocks_used"][rows], 0) / one.kv_blocks
            found["KV cache"] = (t_s, used.astype(float))
        found["tokens/s"] = _tokens(one)
    if len(one.device):
        readings = np.arange(1, len(one.device) + 1, dtype=float)
        found["device"] = (readings, one.device["utilisation"].astype(float))
    return found


def _in_flight(one: Replay) -> tuple[Floats, Floats]:
    begins, ends = one.requests["planned_s"], one.requests["end_s"]
    t_s = np.concatenate((begins, ends))
    change = np.concatenate((np.ones(len(begins)), -np.ones(len(ends))))
    order = np.lexsort((change, t_s))
    return t_s[order], np.cumsum(change[order])


def _with_idle(start_s: Floats, duration_s: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Return when something changed, and the row that holds from then on; -1 for none."""
    ends_s = start_s + duration_s
    idle = np.append(start_s[1:] - ends_s[:-1] > GAP_S, True)
    t_s = np.concatenate((start_s, ends_s[idle]))
    rows = np.concatenate((np.arange(len(start_s)), np.full(int(idle.sum()), -1)))
    order = np.argsort(t_s, kind="stable")
    return t_s[order], rows[order]


def _tokens(one: Replay) -> tuple[Floats, Floats]:
    """Return output tokens a second: of every sequence that decoded, and every first token."""
    log = one.iterations
    ends_s = log["start_s"] + log["duration_s"]
    first_s = one.requests["first_s"]
    first_s = first_s[~np.isnan(first_s)]
    width_s = max(0.25, one.elapsed_s / BINS)
    edges = np.arange(0.0, one.elapsed_s + width_s, width_s)
    if len(edges) < 2:
        edges = np.array([0.0, width_s])
    count = np.histogram(ends_s, edges, weights=log["decode_seqs"].astype(float))[0]
    count += np.histogram(first_s, edges)[0]
    return (edges[:-1] + edges[1:]) / 2, count / width_s


def replay_section(found: Sequence[Step], slo: Slo | None, *, opened: int | None) -> PageSection:
    """Return every step over time, ``opened`` unfolded. All lines together have at most POINTS
    points, so that a page stays small."""
    points = max(24, min(MOST_POINTS, POINTS // (len(LINES) * max(1, len(found)))))
    note = (
        "What each step did while it was replayed, its windows one after the other. In flight: "
        "between arrival and last token; running and waiting: as the scheduler had them. Lines "
        f"keep the highest and lowest value of each stretch, at most {points:,} points each."
    )
    numbers = [None if slo is None else measure(one.replays, slo) for one in found]
    rows = [_step_row(one, each) for one, each in zip(found, numbers, strict=True) if each]
    parts: list[Table | Folded] = []
    if rows:
        parts.append(Table("Every step as measured", STEP_HEADINGS, rows, chosen=opened))
    parts += [
        Folded(one.title, _said(one, each), [_figures(one, points)], is_open=number == opened)
        for number, (one, each) in enumerate(zip(found, numbers, strict=True))
    ]
    return PageSection("Replays over time", note, parts)


def _said(one: Step, numbers: Measurement | None) -> str:
    length_s = sum(each.elapsed_s for each in one.replays)
    cut = next((f", cut: {each.cut}" for each in one.replays if each.cut), "")
    served = ""
    if numbers is not None and any(len(each.requests) for each in one.replays):
        served = f", {attained(numbers)} in SLO"
    return f"{length_s:,.0f} s{served}{cut}"


def attained(one: Measurement) -> str:
    """Return the share within the SLO; of a cut replay the most that it could have been."""
    if one.cut:
        return f"at most {percent(one.attainment_bound)}"
    return percent(one.attainment)


LINES: dict[str, tuple[Look, bool]] = {
    "in flight": ("plain", True),
    "waiting": ("plain", True),
    "running": ("accent", True),
    "KV cache": ("accent", True),
    "tokens/s": ("accent", False),
    "device": ("accent", False),
}
"""Name of a line → how it looks, and whether it keeps a value until the next."""

CHARTS: tuple[tuple[str, tuple[str, ...], axes.Told], ...] = (
    ("Requests", ("in flight", "waiting", "running"), axes.whole),
    ("KV cache in use", ("KV cache",), axes.share),
    ("Output tokens a second", ("tokens/s",), axes.whole),
    ("Device busy", ("device",), axes.share),
)
"""Title of a chart, its lines, and how their values are told."""

CAP_NEAR = 1.6
"""A cap that is so many times what was reached would flatten the lines: it is left out."""


def _figures(one: Step, points: int) -> list[Figure]:
    lines = {each.name: each for each in series_of(one.replays)}
    return [
        Figure(title, _chart(one, title, found, told, points))
        for title, names, told in CHARTS
        if (found := [lines[name] for name in names if name in lines])
    ]


def _chart(step: Step, title: str, found: Sequence[_Series], told: axes.Told, points: int) -> Chart:
    """Return lines over the time of a step, a mark between its windows."""
    ends_s = np.cumsum([each.elapsed_s for each in step.replays])
    items: list[Item] = [Mark(at, "", is_dashed=True) for at in ends_s[:-1].tolist()]
    said = []
    for one in found:
        look, is_stepped = LINES[one.name]
        t_s, values = _drawn(one, points, is_stepped=is_stepped)
        label = one.name if len(found) > 1 else ""
        items.append(Line(t_s, values, label=label, look=look))
        said.append(f"{one.name} at most {told(float(np.nanmax(values, initial=0.0)))}")
    shown = [each for item in items for each in heights(item)]
    reached = max((each for each in shown if np.isfinite(each)), default=0.0)
    if title == "Requests" and step.max_num_seqs <= CAP_NEAR * reached:
        items.append(
            Mark(step.max_num_seqs, f"max_num_seqs {step.max_num_seqs}", "y", is_dashed=True)
        )
        shown.append(step.max_num_seqs)
    x = axes.time([0.0, float(ends_s[-1])], label="seconds")
    return Chart(f"{title}: {'; '.join(said)}.", x, axes.linear(shown, told), items, LOW_HEIGHT)


def _drawn(one: _Series, points: int, *, is_stepped: bool) -> tuple[Floats, Floats]:
    """Return a line thinned replay by replay, so that it still parts between them."""
    ends = np.flatnonzero(np.isnan(one.t_s))
    share = max(4, points // max(1, len(ends)) // (2 if is_stepped else 1))
    t_parts, v_parts = [], []
    begin = 0
    for end in ends.tolist():
        t_s, v = thinned(one.t_s[begin:end], one.values[begin:end], most=share)
        if is_stepped and len(t_s):
            t_s, v = steps(t_s, v)
        t_parts += [t_s, np.array([np.nan])]
        v_parts += [v, np.array([np.nan])]
        begin = end + 1
    return np.concatenate(t_parts)[:-1], np.concatenate(v_parts)[:-1]


STEP_HEADINGS = (
    "step", "seconds", "in SLO", "goodput req/s", "TTFT p99", "TPOT p95", "E2EL p99", "running",
    "in flight", "KV peak", "preempted",
)  # fmt: skip


def _step_row(one: Step, numbers: Measurement) -> list[Cell]:
    length_s = f"{sum(each.elapsed_s for each in one.replays):,.0f}"
    running = f"{numbers.running_peak:,}" if numbers.is_logged else "-"
    if not any(len(each.requests) for each in one.replays):
        return [one.title, length_s, *["-"] * 5, running, "-", _kv(numbers), "-"]
    return [
        one.title,
        length_s,
        attained(numbers),
        "cut" if numbers.cut else f"{numbers.goodput_rps:,.2f}",
        _time(numbers.ttft_s, "p99"),
        _time(numbers.tpot_s, "p95"),
        _time(numbers.e2el_s, "p99"),
        running,
        f"{numbers.in_flight_peak:,}",
        _kv(numbers),
        f"{numbers.preemptions:,}" if numbers.is_logged else "-",
    ]


def _kv(one: Measurement) -> str:
    return "-" if one.kv_cache_usage is None else f"{100 * one.kv_cache_usage.peak:.0f} %"


def _time(spread: Spread | None, statistic: str) -> str:
    return "-" if spread is None else milliseconds(1e3 * float(getattr(spread, statistic)))


def seen_batches(found: Sequence[Step]) -> tuple[BatchTime, ...]:
    """Return the decode time at each batch size, over all replays."""
    logs = [each.iterations for one in found for each in one.replays if len(each.iterations)]
    return batch_times(joined(logs)) if logs else ()

"""The page of a serving profile: its verdict, and what every max_num_seqs gives. Pure."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from tuner.engines.devices import gpus_of
from tuner.profile.profile import CapNumbers, CurveStep, ServingProfile
from tuner.profile.summary import block_of, facts_of, percent, promised, with_share
from tuner.runs.cluster.prices import per_million_tokens
from tuner.traffic.slo import Slo
from tuner.views.numbers import COLUMNS
from tuner.views.page import Cell, Chart, Column, Mark, Page, Section, Series, Table


class Statistic(NamedTuple):
    """One number of a cap: its column, its chart, and where the profile has it."""

    name: str
    """In COLUMNS."""
    of: Callable[[CapNumbers], float | None]
    interval: str = ""
    """Its name among the intervals of a step."""
    limit: Callable[[Slo], float | None] = lambda _: None


def _field(path: str, scale: float = 1.0) -> Callable[[CapNumbers], float | None]:
    """Return what reads a number of a cap; None where a part of the path is not known."""
    name, _, statistic = path.partition(".")

    def of(numbers: CapNumbers) -> float | None:
        spread = getattr(numbers, name)
        return None if spread is None else round(scale * getattr(spread, statistic), 9)

    return of


def _ttft_limit_s(slo: Slo) -> float | None:
    return None if slo.ttft_s_per_input_token else slo.ttft_s


STATISTICS = (
    Statistic("attainment", attrgetter("attainment"), "attainment"),
    Statistic("goodput_rps", attrgetter("goodput_rps"), "goodput_rps"),
    Statistic("output_tokens_per_s", attrgetter("output_tokens_per_s")),
    Statistic("ttft_p99_s", _field("ttft_ms.p99", 1e-3), "", _ttft_limit_s),
    Statistic("tpot_p95_s", _field("tpot_ms.p95", 1e-3), "tpot_p95_ms", attrgetter("tpot_s")),
    Statistic("e2el_p99_s", _field("e2el_ms.p99", 1e-3), "e2el_p99_ms", attrgetter("e2el_s")),
    Statistic("kv_peak", _field("kv_cache_usage.peak")),
    Statistic("preemptions", attrgetter("preemptions")),
)
REPLAYED = ("attainment", "goodput_rps", "ttft_p99_s", "tpot_p95_s", "e2el_p99_s", "kv_peak")
DRAWN = ("goodput_rps", "ttft_p99_s", "tpot_p95_s", "e2el_p99_s")
CHANGES = {
    "goodput_rps": "goodput",
    "tpot_p95_ms": "TPOT p95",
    "e2el_p99_ms": "E2EL p99",
    "kv_cache_usage_peak": "KV peak",
}


def profile_page(profile: ServingProfile, *, subject: str, next_: str) -> Page:
    """Return the page of a profile; ``next_`` is the command to run."""
    block = block_of(profile)
    charts = [_chart(profile, each) for each in STATISTICS if each.name in DRAWN]
    tables = [curve_table(profile), *_replayed(profile), *_changes(profile)]
    note = "Bands are 95% intervals, grey dots what was measured in the windows."
    return Page(
        subject=subject,
        title=block.title,
        aside=block.aside,
        facts=list(block.rows),
        sections=[Section("Curve", note, charts, tables)],
        details=[
            profile.decision.reason,
            *(" ".join(line.split()) for line in facts_of(profile)),
            *(f"tune again when {reason}" for reason in profile.validity.retune_when),
        ],
        warnings=list(profile.provenance.warnings),
        next=next_,
    )


def several_page(
    profiles: Mapping[str, ServingProfile], prices: Mapping[str, float], *, subject: str
) -> Page:
    """Return profiles side by side, the one first that serves most in time or, with ``prices`` of
    each per GPU and hour, for the least money."""
    rows: dict[str, list[Cell]] = {}
    worth: dict[str, float] = {}
    for name, profile in profiles.items():
        numbers, decision = promised(profile), profile.decision
        rate = numbers.output_tokens_per_s * numbers.attainment
        rows[name] = [
            name, str(profile.provenance.device.get("name")), decision.verdict,
            decision.max_num_seqs, numbers.attainment, rate,
        ]  # fmt: skip
        worth[name] = numbers.attainment
        if prices:
            gpus = gpus_of({k: v for k, v in profile.engine.items() if isinstance(v, int)})
            cost = per_million_tokens(prices[name] * gpus, rate)
            rows[name] += [prices[name] * gpus, cost]
            worth[name] = -cost
    best = max(worth, key=lambda name: worth[name])
    share = promised(profiles[best]).attainment
    title = f"{best} with max_num_seqs {profiles[best].decision.max_num_seqs}"
    columns = [
        Column("profile", "profile"), Column("device", "device"), Column("verdict", "verdict"),
        COLUMNS["max_num_seqs"], COLUMNS["attainment"],
        Column("tokens_per_s", "tok/s within SLO", "count"),
    ]  # fmt: skip
    facts = [("gives", f"{percent(share)} meet the SLO")]
    if prices:
        columns += [
            Column("per_hour", "an hour", "number"), Column("per_million", "1M tokens", "number"),
        ]  # fmt: skip
        cost_text = f"{-worth[best]:#.3g} for a million output tokens within the SLO"
        facts.append(("costs", f"{cost_text}, in the currency of --prices"))
    table = Table(columns, list(rows.values()), chosen=list(rows).index(best))
    return Page(
        subject=subject,
        title=with_share(share, title),
        aside="the cheapest" if prices else "serves most in time",
        facts=facts,
        sections=[Section("Side by side", tables=[table])],
    )


def curve_table(profile: ServingProfile) -> Table:
    """Return the curve, a row a step: what each gives, predicted for the whole trace or, where
    the windows decided, measured in them. The row of the choice is what the profile promises."""
    columns = [COLUMNS["max_num_seqs"]]
    for each in STATISTICS:
        columns.append(COLUMNS[each.name])
        if each.interval:
            columns += [Column(f"{each.name}_{end}") for end in ("low", "high")]
    choice, now = profile.decision.max_num_seqs, profile.baseline
    steps = {step.max_num_seqs: step for step in profile.curve}
    by_cap: dict[int, CapNumbers] = {}
    if now is not None and now.numbers is not None:
        by_cap[now.numbers_at] = now.numbers
    by_cap |= {**steps, choice: promised(profile)}
    caps = sorted(by_cap)
    notes = [f"{now.max_num_seqs} is set now"] if now and now.max_num_seqs in by_cap else []
    if profile.promise.predicted:
        notes.append("predicted for the whole trace, from measured step times")
        if by_cap[choice] is profile.promise:
            notes.append(f"{choice} as a fresh server gave it")
    return Table(
        [*columns, Column("source"), Column("chosen")],
        [[cap, *_row(by_cap[cap], steps.get(cap)), cap == choice] for cap in caps],
        caption="; ".join(notes),
        chosen=caps.index(choice),
    )


def _replayed(profile: ServingProfile) -> list[Table]:
    """Return what the replays behind a predicted curve gave, each as it was measured."""
    if not profile.promise.predicted:
        return []
    rows: list[list[Cell]] = [
        [step.max_num_seqs, "ladder", *(_of(name, step.measured) for name in REPLAYED)]
        for step in profile.curve
        if step.source == "both" and step.measured is not None and not step.measured.cut
    ]
    if profile.promise.source == "confirming run":
        measured = (_of(name, profile.promise) for name in REPLAYED)
        rows.append([profile.decision.max_num_seqs, "fresh server", *measured])
    columns = [
        COLUMNS["max_num_seqs"], Column("engine", "engine"), *(COLUMNS[name] for name in REPLAYED)
    ]  # fmt: skip
    caption = "as replayed, in parts of the trace that are busier than the whole"
    return [Table(columns, rows, caption)] if rows else []


def _of(name: str, numbers: CapNumbers) -> float | None:
    return next(each.of(numbers) for each in STATISTICS if each.name == name)


def _row(numbers: CapNumbers, step: CurveStep | None) -> list[Cell]:
    """Return the row of a cap; of a step that was cut short only the most that it could attain."""
    row: list[Cell] = []
    for each in STATISTICS:
        value: Cell = each.of(numbers)
        if step is not None and numbers is step and step.cut and step.source == "measured":
            if each.name == "attainment":
                value = f"<={100 * step.intervals['attainment'][1]:.1f}%"
            elif each.name == "goodput_rps":
                value = "cut"
        row.append(value)
        if each.interval:
            row += _ends(step, each)
    return [*row, None if step is None else step.source]


def _ends(step: CurveStep | None, statistic: Statistic) -> tuple[float | None, float | None]:
    ends = None if step is None else step.intervals.get(statistic.interval)
    if ends is None:
        return None, None
    scale = 1e-3 if COLUMNS[statistic.name].kind == "time" else 1.0
    return round(scale * ends[0], 9), round(scale * ends[1], 9)


def _chart(profile: ServingProfile, what: Statistic) -> Chart:
    """Return one number of every step, with its limit and the choice."""
    steps = [step for step in profile.curve if not (step.cut and step.source == "measured")]
    caps = [float(step.max_num_seqs) for step in steps]
    ends = [_ends(step, what) for step in steps]
    low, high = ([each[place] for each in ends] for place in (0, 1))
    y = [what.of(step) for step in steps]
    series = [Series(caps, y, low=low, high=high, is_accent=True, has_dots=True)]
    replayed = [
        (float(step.max_num_seqs), what.of(step.measured))
        for step in steps
        if step.measured is not None and not step.measured.cut and step.source == "both"
    ]
    if replayed and what.name != "goodput_rps":  # the windows are busier: they have another rate
        at, measured = map(list, zip(*replayed, strict=True))
        series.append(Series(at, measured, has_dots=True, has_line=False))
    choice, now = profile.decision.max_num_seqs, profile.baseline
    marks = [Mark(choice, f"{choice:,}", is_accent=True)]
    if now is not None and now.max_num_seqs != choice and now.max_num_seqs in caps:
        marks.append(Mark(now.max_num_seqs, f"now {now.max_num_seqs:,}"))
    limit_s = what.limit(profile.decision.slo.slo)
    if limit_s is not None:
        marks.append(Mark(limit_s, "SLO", axis="y"))
    low_cap, high_cap = profile.decision.interval
    return Chart(
        COLUMNS[what.name].heading,
        series,
        COLUMNS[what.name].kind,
        x_label="max_num_seqs",
        by_cap=True,
        marks=marks,
        shades=[(low_cap, high_cap)] if low_cap < high_cap else [],
    )


def _changes(profile: ServingProfile) -> list[Table]:
    """Return what each step up the ladder changes, with its interval."""
    names = [name for name in CHANGES if any(name in step.changes for step in profile.curve)]
    rows: list[list[Cell]] = []
    for below, step in pairwise(profile.curve) if names else ():
        row: list[Cell] = [f"{below.max_num_seqs} to {step.max_num_seqs}"]
        for name in names:
            change = step.changes.get(name)
            ends = "" if change is None else f"({change.low:+.0%} to {change.high:+.0%})"
            row.append(None if change is None else f"{change.value:+.0%} {ends}")
        rows.append(row)
    columns = [Column("step", "step"), *(Column(name, CHANGES[name]) for name in names)]
    title = "what each step changes, with its 95% interval"
    return [Table(columns, rows, title, is_detail=True)] * bool(rows)

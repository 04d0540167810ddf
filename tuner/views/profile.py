"""The page of a serving profile: its verdict, and what every max_num_seqs gives. Pure."""

from collections.abc import Callable
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from tuner.profile.numbers import CapNumbers, ChangeSection, CurveStep
from tuner.profile.schema import ServingProfile
from tuner.profile.summary import block_of, facts_of, predicted_caps, promised
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


def _quantile(name: str, statistic: str) -> Callable[[CapNumbers], float | None]:
    def of(numbers: CapNumbers) -> float | None:
        spread = getattr(numbers, name)
        return None if spread is None else round(float(getattr(spread, statistic)) / 1e3, 9)

    return of


def _kv_peak(numbers: CapNumbers) -> float | None:
    return None if numbers.kv_cache_usage is None else numbers.kv_cache_usage.peak


def _ttft_limit_s(slo: Slo) -> float | None:
    return None if slo.ttft_s_per_input_token else slo.ttft_s


STATISTICS = (
    Statistic("attainment", attrgetter("attainment"), "attainment"),
    Statistic("goodput_rps", attrgetter("goodput_rps"), "goodput_rps"),
    Statistic("output_tokens_per_s", attrgetter("output_tokens_per_s")),
    Statistic("ttft_p99_s", _quantile("ttft_ms", "p99"), "", _ttft_limit_s),
    Statistic("tpot_p95_s", _quantile("tpot_ms", "p95"), "tpot_p95_ms", attrgetter("tpot_s")),
    Statistic("e2el_p99_s", _quantile("e2el_ms", "p99"), "e2el_p99_ms", attrgetter("e2el_s")),
    Statistic("kv_peak", _kv_peak),
    Statistic("preemptions", attrgetter("preemptions")),
)
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
    tables = [curve_table(profile), *_changes(profile)]
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


def curve_table(profile: ServingProfile) -> Table:
    """Return the curve, a row a step. The row of the choice is what a fresh server gives, as the
    verdict has it."""
    columns = [COLUMNS["max_num_seqs"]]
    for each in STATISTICS:
        columns.append(COLUMNS[each.name])
        if each.interval:
            columns += [Column(f"{each.name}_{end}") for end in ("low", "high")]
    choice, now = profile.decision.max_num_seqs, profile.baseline
    steps = {step.max_num_seqs: step for step in profile.curve}
    by_cap: dict[int, CapNumbers] = {**steps}
    if now is not None and now.numbers is not None:
        by_cap[now.numbers_at] = now.numbers
    by_cap[choice] = promised(profile)
    rows = [
        [*_row(cap, numbers, steps.get(cap)), cap == choice]
        for cap, numbers in sorted(by_cap.items())
    ]
    notes = [f"{now.max_num_seqs} is set now"] if now and now.max_num_seqs in by_cap else []
    if predicted := predicted_caps(profile):
        caps = ", ".join(map(str, predicted))
        notes.append(f"predicted from measured step times, not replayed: {caps}")
    return Table(
        [*columns, Column("source"), Column("chosen")],
        rows,
        caption="; ".join(notes),
        chosen=next((n for n, row in enumerate(rows) if row[0] == choice), None),
    )


def _row(cap: int, numbers: CapNumbers, step: CurveStep | None) -> list[Cell]:
    """Return the row of a cap; of a step that was cut short only the most that it could attain."""
    is_bound = numbers is step and numbers.cut and numbers.source == "measured"
    row: list[Cell] = [cap]
    for each in STATISTICS:
        value: Cell = each.of(numbers)
        if is_bound and step is not None and each.name == "attainment":
            value = f"<={100 * step.intervals['attainment'][1]:.1f}%"
        elif is_bound and each.name == "goodput_rps":
            value = "cut"
        row.append(value)
        if each.interval:
            row += (None, None) if step is None else _ends(step, each)
    return [*row, None if step is None else step.source]


def _ends(step: CurveStep, statistic: Statistic) -> tuple[float | None, float | None]:
    scale = 1e-3 if COLUMNS[statistic.name].kind == "time" else 1.0
    ends = step.intervals.get(statistic.interval)
    return (None, None) if ends is None else (round(scale * ends[0], 9), round(scale * ends[1], 9))


def _chart(profile: ServingProfile, what: Statistic) -> Chart:
    """Return one number of every step, with its limit and the choice."""
    steps = [step for step in profile.curve if not (step.cut and step.source == "measured")]
    caps = [float(step.max_num_seqs) for step in steps]
    ends = [_ends(step, what) for step in steps]
    series = [
        Series(
            caps, [what.of(step) for step in steps],
            low=[low for low, _ in ends], high=[high for _, high in ends],
            is_accent=True, has_dots=True,
        )
    ]  # fmt: skip
    replayed = [
        (float(step.max_num_seqs), what.of(step.measured))
        for step in steps
        if step.measured is not None and not step.measured.cut and step.source == "both"
    ]
    if replayed:
        x, y = zip(*replayed, strict=True)
        series.append(Series(list(x), list(y), has_dots=True, has_line=False))
    choice, now = profile.decision.max_num_seqs, profile.baseline
    marks = [Mark(choice, f"{choice:,}", is_accent=True)]
    if now is not None and now.max_num_seqs != choice and now.max_num_seqs in caps:
        marks.append(Mark(now.max_num_seqs, f"now {now.max_num_seqs:,}"))
    limit_s = what.limit(profile.decision.slo.slo)
    if limit_s is not None:
        marks.append(Mark(limit_s, "SLO", axis="y"))
    low, high = profile.decision.interval
    return Chart(
        COLUMNS[what.name].heading,
        series,
        COLUMNS[what.name].kind,
        x_label="max_num_seqs",
        by_cap=True,
        marks=marks,
        shades=[(low, high)] if low < high else [],
    )


def _changes(profile: ServingProfile) -> list[Table]:
    """Return what each step up the ladder changes, with its interval."""
    names = [name for name in CHANGES if any(name in step.changes for step in profile.curve)]
    if not names:
        return []
    rows: list[list[Cell]] = []
    for below, step in pairwise(profile.curve):
        row: list[Cell] = [f"{below.max_num_seqs} to {step.max_num_seqs}"]
        for name in names:
            change = step.changes.get(name)
            row.append(None if change is None else _change(change))
        rows.append(row)
    columns = [Column("step", "step"), *(Column(name, CHANGES[name]) for name in names)]
    return [Table(columns, rows, "what each step changes, with its 95% interval", is_detail=True)]


def _change(change: ChangeSection) -> str:
    return f"{change.value:+.0%} ({change.low:+.0%} to {change.high:+.0%})"

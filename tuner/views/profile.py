"""The page of a serving profile: its verdict, and what every max_num_seqs gives. Pure."""

from collections.abc import Mapping

from tuner.engines.devices import gpus_of
from tuner.profile.profile import CapNumbers, CurveStep, ServingProfile
from tuner.profile.summary import block_of, facts_of, percent, promised, with_share
from tuner.runs.cluster.prices import per_million_tokens
from tuner.traffic.slo import Slo
from tuner.views.numbers import COLUMNS
from tuner.views.page import Cell, Chart, Column, Mark, Page, Section, Series, Table

PLACES = {
    "attainment": "attainment",
    "goodput_rps": "goodput_rps",
    "output_tokens_per_s": "output_tokens_per_s",
    "ttft_p99_s": "ttft_ms.p99",
    "tpot_p95_s": "tpot_ms.p95",
    "e2el_p99_s": "e2el_ms.p99",
    "kv_peak": "kv_cache_usage.peak",
    "preemptions": "preemptions",
}
"""Column of the curve → where a profile has its number."""
INTERVALS = {
    "attainment": "attainment",
    "goodput_rps": "goodput_rps",
    "tpot_p95_s": "tpot_p95_ms",
    "e2el_p99_s": "e2el_p99_ms",
}
"""Column → its name among the intervals of a step."""
REPLAYED = ("attainment", "goodput_rps", "ttft_p99_s", "tpot_p95_s", "e2el_p99_s", "kv_peak")
DRAWN = ("goodput_rps", "ttft_p99_s", "tpot_p95_s", "e2el_p99_s")


def profile_page(profile: ServingProfile, *, subject: str, next_: str) -> Page:
    """Return the page of a profile; ``next_`` is the command to run."""
    block = block_of(profile)
    note = "Bands are 95% intervals, grey dots what was measured in the windows."
    charts = [_chart(profile, name) for name in DRAWN]
    tables = [curve_table(profile), *_replayed(profile)]
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
    """Return profiles side by side. Of those that keep what is required, the one is chosen that
    serves most in time or, with ``prices`` of each per GPU and hour, for the least money."""
    columns = [
        Column("profile", "profile"),
        Column("device", "device"),
        Column("verdict", "verdict"),
        COLUMNS["max_num_seqs"],
        COLUMNS["attainment"],
        Column("tokens_per_s", "tok/s within SLO", "count"),
    ]
    rows: list[list[Cell]] = []
    worth: list[float] = []
    broken: list[str] = []
    for name, profile in profiles.items():
        numbers, decision = promised(profile), profile.decision
        rate = numbers.output_tokens_per_s * numbers.attainment
        device = str(profile.provenance.device.get("name"))
        cap, share = decision.max_num_seqs, numbers.attainment
        broken.append(", ".join(each.text for each in decision.requirements if not each.kept))
        rows.append([name, device, decision.verdict, cap, share, rate])
        worth.append(share)
        if prices:
            gpus = gpus_of({k: v for k, v in profile.engine.items() if isinstance(v, int)})
            cost = per_million_tokens(prices[name] * gpus, rate)
            rows[-1] += [prices[name] * gpus, cost]
            worth[-1] = -cost
    best = max(range(len(rows)), key=lambda place: (not broken[place], worth[place]))
    name, profile = list(profiles.items())[best]
    share = promised(profile).attainment
    facts = [("gives", f"{percent(share)} meet the SLO")]
    if prices:
        columns.append(Column("per_hour", "an hour", "number"))
        columns.append(Column("per_million", "1M tokens", "number"))
        words = f"{-worth[best]:#.3g} for a million output tokens within the SLO"
        facts.append(("costs", f"{words}, in the currency of --prices"))
    return Page(
        subject=subject,
        title=with_share(share, f"{name} with max_num_seqs {profile.decision.max_num_seqs}"),
        aside="the cheapest" if prices else "serves most in time",
        facts=facts,
        sections=[Section("Side by side", tables=[Table(columns, rows, chosen=best)])],
        warnings=[
            f"{name} breaks {texts}" for name, texts in zip(profiles, broken, strict=True) if texts
        ],
    )


def curve_table(profile: ServingProfile) -> Table:
    """Return the curve, a row a step: what each gives, predicted for the whole trace or, where
    the windows decided, measured in them. The row of the choice is what the profile promises."""
    columns = [COLUMNS["max_num_seqs"]]
    for name in PLACES:
        ends = ("low", "high") if name in INTERVALS else ()
        columns += [COLUMNS[name], *(Column(f"{name}_{end}") for end in ends)]
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


def _row(numbers: CapNumbers, step: CurveStep | None) -> list[Cell]:
    """Return the row of a cap; of a step that was cut short only the most that it could attain."""
    row: list[Cell] = []
    is_cut = step is not None and numbers is step and step.cut and step.source == "measured"
    for name in PLACES:
        value: Cell = _value(numbers, name)
        if step is not None and is_cut and name == "attainment":
            value = f"<={100 * step.intervals['attainment'][1]:.1f}%"
        elif is_cut and name == "goodput_rps":
            value = "cut"
        row += [value, *_ends(step, name)] if name in INTERVALS else [value]
    return [*row, None if step is None else step.source]


def _value(numbers: CapNumbers, name: str) -> float | None:
    """Return a number of a cap by its column; None where it is not known."""
    section, _, statistic = PLACES[name].partition(".")
    value = getattr(numbers, section)
    if value is None:
        return None
    result = float(getattr(value, statistic) if statistic else value)
    return round(1e-3 * result, 9) if section.endswith("_ms") else result


def _ends(step: CurveStep | None, name: str) -> tuple[float | None, float | None]:
    ends = None if step is None else step.intervals.get(INTERVALS.get(name, ""))
    if ends is None:
        return None, None
    scale = 1e-3 if name.endswith("_s") else 1.0
    return round(scale * ends[0], 9), round(scale * ends[1], 9)


def _replayed(profile: ServingProfile) -> list[Table]:
    """Return what the replays behind a predicted curve gave, each as it was measured."""
    if not profile.promise.predicted:
        return []
    replays: list[tuple[int, str, CapNumbers]] = [
        (step.max_num_seqs, "ladder", step.measured)
        for step in profile.curve
        if step.source == "both" and step.measured is not None and not step.cut
    ]
    if profile.promise.source == "confirming run":
        replays.append((profile.decision.max_num_seqs, "fresh server", profile.promise))
    names = ("max_num_seqs", *REPLAYED)
    columns = [COLUMNS[name] for name in names]
    columns.insert(1, Column("engine", "engine"))
    rows: list[list[Cell]] = [
        [cap, engine, *(_value(numbers, name) for name in REPLAYED)]
        for cap, engine, numbers in replays
    ]
    caption = "as replayed, in parts of the trace that are busier than the whole"
    return [Table(columns, rows, caption)] if rows else []


def _chart(profile: ServingProfile, name: str) -> Chart:
    """Return one number of every step, with its limit and the choice."""
    steps = [step for step in profile.curve if not (step.cut and step.source == "measured")]
    caps = [float(step.max_num_seqs) for step in steps]
    ends = [_ends(step, name) for step in steps]
    low, high = [each[0] for each in ends], [each[1] for each in ends]
    y = [_value(step, name) for step in steps]
    series = [Series(caps, y, low=low, high=high, is_accent=True, has_dots=True)]
    replayed = {
        float(step.max_num_seqs): _value(step.measured, name)
        for step in steps
        if step.measured is not None and not step.cut and step.source == "both"
    }
    if replayed and name != "goodput_rps":  # the windows are busier: they have another rate
        series.append(Series([*replayed], [*replayed.values()], has_dots=True, has_line=False))
    choice, now = profile.decision.max_num_seqs, profile.baseline
    marks = [Mark(choice, f"{choice:,}", is_accent=True)]
    if now is not None and now.max_num_seqs != choice and now.max_num_seqs in caps:
        marks.append(Mark(now.max_num_seqs, f"now {now.max_num_seqs:,}"))
    if (limit_s := _limit_s(profile.decision.slo.slo, name)) is not None:
        marks.append(Mark(limit_s, "SLO", axis="y"))
    low_cap, high_cap = profile.decision.interval
    return Chart(
        COLUMNS[name].heading,
        series,
        COLUMNS[name].kind,
        x_label="max_num_seqs",
        by_cap=True,
        marks=marks,
        shades=[(low_cap, high_cap)] if low_cap < high_cap else [],
    )


def _limit_s(slo: Slo, name: str) -> float | None:
    limits = {"tpot_p95_s": slo.tpot_s, "e2el_p99_s": slo.e2el_s}
    if not slo.ttft_s_per_input_token:
        limits["ttft_p99_s"] = slo.ttft_s
    return limits.get(name)

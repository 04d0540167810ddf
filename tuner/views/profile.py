"""The page of a serving profile: its verdict, and what every max_num_seqs gives. Pure."""

from collections.abc import Mapping

from tuner.engines.devices import gpus_of
from tuner.profile.profile import CapNumbers, CurveStep, ServingProfile
from tuner.profile.summary import block_of, facts_of, percent, promised
from tuner.replay.numbers import Measurement
from tuner.runs.cluster.nodes import per_million_tokens
from tuner.views.page import Cell, Chart, Column, Mark, Page, Section, Table

COLUMNS = {
    column.name: column
    for column in (
        Column("max_num_seqs", "max_num_seqs", "count"),
        Column("attainment", "met SLO", "share"),
        Column("goodput_rps", "goodput req/s", "number"),
        Column("output_tokens_per_s", "output tok/s", "count"),
        Column("ttft_p99_s", "TTFT p99", "time"),
        Column("tpot_p95_s", "TPOT p95", "time"),
        Column("e2el_p99_s", "E2EL p99", "time"),
        Column("kv_peak", "KV peak", "share"),
        Column("preemptions", "preempted", "count"),
    )
}

BOUNDED = ("attainment", "goodput_rps")
"""Numbers of which a replay that was cut short has only a bound."""
CURVE = tuple(name for name in COLUMNS if name != "max_num_seqs")
INTERVALS = ("attainment", "goodput_rps", "tpot_p95_s", "e2el_p99_s")
"""Numbers of which a step has an interval."""
REPLAYED = ("attainment", "goodput_rps", "ttft_p99_s", "tpot_p95_s", "e2el_p99_s", "kv_peak")
DRAWN = ("goodput_rps", "ttft_p99_s", "tpot_p95_s", "e2el_p99_s")


def profile_page(profile: ServingProfile, *, subject: str, next_: str) -> Page:
    """Return the page of a profile; ``next_`` is the command to run."""
    block = block_of(profile)
    note = "Bands are 95% intervals."
    charts = [_chart(profile, name) for name in DRAWN]
    return Page(
        subject=subject,
        title=block.title,
        aside=block.aside,
        facts=list(block.rows),
        sections=[Section("Curve", note, charts, [curve_table(profile), *_replayed(profile)])],
        details=[
            profile.decision.reason,
            *map(str.strip, facts_of(profile)),
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
        *(Column(name, name) for name in ("profile", "device", "verdict")),
        *(COLUMNS[name] for name in ("max_num_seqs", "attainment")),
        Column("tokens_per_s", "tok/s within SLO", "count"),
    ]
    if prices:
        columns.append(Column("per_hour", "an hour", "number"))
        columns.append(Column("per_million", "1M tokens", "number"))
    rows, ranks, warnings = list[list[Cell]](), list[tuple[bool, float]](), list[str]()
    for name, profile in profiles.items():
        numbers, decision = promised(profile), profile.decision
        rate, device = numbers.output_tokens_per_s * numbers.attainment, profile.provenance.device
        rows.append([name, str(device.get("name")), decision.verdict, decision.max_num_seqs])
        rows[-1] += [numbers.attainment, rate]
        rank = -numbers.attainment
        if prices:
            gpus = gpus_of({k: v for k, v in profile.engine.items() if isinstance(v, int)})
            rank = per_million_tokens(prices[name] * gpus, rate)
            rows[-1] += [prices[name] * gpus, rank]
        ranks.append((bool(decision.broken), rank))
        warnings += [f"{name} breaks {each.text}" for each in decision.broken]
    best = ranks.index(min(ranks))
    name, profile = list(profiles.items())[best]
    share, cap = promised(profile).attainment, profile.decision.max_num_seqs
    caption = "prices in the currency of --prices" if prices else ""
    return Page(
        subject=subject,
        title=f"{name} with max_num_seqs {cap}",
        aside="the cheapest" if prices else "serves most in time",
        facts=[("gives", f"{percent(share)} meet the SLO")],
        sections=[Section("Side by side", tables=[Table(columns, rows, caption, best)])],
        warnings=warnings,
    )


def curve_table(profile: ServingProfile) -> Table:
    """Return the curve, a row a step: what each gives, predicted for the whole trace or, where
    the windows decided, measured in them. The row of the choice is what the profile promises."""
    columns = [COLUMNS["max_num_seqs"]]
    for name in CURVE:
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
    return Table(
        [*columns, Column("source"), Column("chosen")],
        [[cap, *_row(by_cap[cap], steps.get(cap)), cap == choice] for cap in caps],
        caption="; ".join(notes),
        chosen=caps.index(choice),
    )


def _row(numbers: CapNumbers, step: CurveStep | None) -> list[Cell]:
    """Return the row of a cap; of a step that was cut short not what only has a bound."""
    row, is_cut = list[Cell](), step is not None and step is numbers and _is_bound(step)
    for name in CURVE:
        row.append("cut" if is_cut and name in BOUNDED else value(numbers, name))
        if name in INTERVALS:
            row += _ends(step, name)
    return [*row, None if step is None else step.source]


def _is_bound(step: CurveStep) -> bool:
    return step.cut and step.source == "measured"


def _ends(step: CurveStep | None, name: str) -> tuple[float | None, float | None]:
    is_time = name.endswith("_s")
    key = f"{name.removesuffix('_s')}_ms" if is_time else name
    if step is None or key not in step.intervals:
        return None, None
    low, high = (round((1e-3 if is_time else 1.0) * end, 9) for end in step.intervals[key])
    return low, high


def _replayed(profile: ServingProfile) -> list[Table]:
    """Return what the replays behind a predicted curve gave, each as it was measured."""
    replays = [
        (step.max_num_seqs, "ladder", step.measured)
        for step in profile.curve
        if step.measured is not None and step.source == "both" and not step.cut
    ]
    if profile.promise.source == "confirming run":
        replays.append((profile.decision.max_num_seqs, "fresh server", profile.promise))
    if not replays or not profile.promise.predicted:
        return []
    columns = [COLUMNS["max_num_seqs"], Column("engine", "engine")]
    columns += [COLUMNS[name] for name in REPLAYED]
    rows: list[list[Cell]] = [
        [cap, engine, *(value(numbers, name) for name in REPLAYED)]
        for cap, engine, numbers in replays
    ]
    caption = "as replayed, in parts of the trace that are busier than the whole"
    return [Table(columns, rows, caption)]


def _chart(profile: ServingProfile, name: str) -> Chart:
    """Return one number of every step, with its limit and the choice."""
    steps = [step for step in profile.curve if not _is_bound(step)]
    ends = [_ends(step, name) for step in steps]
    choice, now, slo = profile.decision.max_num_seqs, profile.baseline, profile.decision.slo.slo
    marks = [Mark(choice, f"{choice:,}", is_accent=True)]
    caps = [float(step.max_num_seqs) for step in steps]
    if now is not None and now.max_num_seqs != choice and now.max_num_seqs in caps:
        marks.append(Mark(now.max_num_seqs, f"now {now.max_num_seqs:,}"))
    ttft_s = None if slo.ttft_s_per_input_token else slo.ttft_s
    limits = {"ttft_p99_s": ttft_s, "tpot_p95_s": slo.tpot_s, "e2el_p99_s": slo.e2el_s}
    return Chart(
        COLUMNS[name].heading,
        caps,
        [value(step, name) for step in steps],
        COLUMNS[name].kind,
        low=[low for low, _ in ends],
        high=[high for _, high in ends],
        by_cap=True,
        marks=marks,
        limit=limits.get(name),
    )


# Numbers


def value(numbers: Measurement | CapNumbers, name: str) -> float | None:
    """Return a number by the name of its column; None where it is not known."""
    if name == "kv_peak":
        usage = numbers.kv_cache_usage
        return None if usage is None else float(usage.peak)
    stem, _, quantile = name.removesuffix("_s").rpartition("_")
    if not quantile.startswith("p9"):
        return getattr(numbers, name)  # type: ignore[no-any-return]
    unit, times = ("ms", 1e-3) if isinstance(numbers, CapNumbers) else ("s", 1.0)
    spread = getattr(numbers, f"{stem}_{unit}")
    return None if spread is None else round(times * getattr(spread, quantile), 9)


def cells(numbers: Measurement, *names: str) -> list[Cell]:
    """Return what was measured, by the names of columns."""
    return ["cut" if numbers.cut and n in BOUNDED else value(numbers, n) for n in names]

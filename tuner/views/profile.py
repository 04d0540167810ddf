"""The page of a serving profile: its verdict, and what every max_num_seqs gives. Pure."""

from collections.abc import Mapping

from tuner.engines.devices import gpus_of
from tuner.profile.profile import CapNumbers, CurveStep, ServingProfile
from tuner.profile.summary import block_of, facts_of, percent, promised, with_share
from tuner.runs.cluster.prices import per_million_tokens
from tuner.views.numbers import COLUMNS, value
from tuner.views.page import Cell, Chart, Column, Mark, Page, Section, Table, text

CURVE = tuple(name for name in COLUMNS if name != "max_num_seqs")
INTERVALS = ("attainment", "goodput_rps", "tpot_p95_s", "e2el_p99_s")
"""Numbers of which a step has an interval."""
REPLAYED = ("attainment", "goodput_rps", "ttft_p99_s", "tpot_p95_s", "e2el_p99_s", "kv_peak")
DRAWN = ("goodput_rps", "ttft_p99_s", "tpot_p95_s", "e2el_p99_s")


def profile_page(profile: ServingProfile, *, subject: str, next_: str) -> Page:
    """Return the page of a profile; ``next_`` is the command to run."""
    block = block_of(profile)
    note = "Bands are 95% intervals, grey dots what was measured in the windows."
    charts = [_chart(profile, name) for name in DRAWN]
    return Page(
        subject=subject,
        title=block.title,
        aside=block.aside,
        facts=list(block.rows),
        sections=[Section("Curve", note, charts, [curve_table(profile), *_replayed(profile)])],
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
        *(Column(name, name) for name in ("profile", "device", "verdict")),
        *(COLUMNS[name] for name in ("max_num_seqs", "attainment")),
        Column("tokens_per_s", "tok/s within SLO", "count"),
    ]
    if prices:
        columns.append(Column("per_hour", "an hour", "number"))
        columns.append(Column("per_million", "1M tokens", "number"))
    rows, ranks = list[list[Cell]](), list[tuple[bool, float]]()
    for name, profile in profiles.items():
        numbers, decision = promised(profile), profile.decision
        rate, device = numbers.output_tokens_per_s * numbers.attainment, profile.provenance.device
        about = (name, str(device.get("name")), decision.verdict, decision.max_num_seqs)
        rows.append([*about, numbers.attainment, rate])
        rank = -numbers.attainment
        if prices:
            gpus = gpus_of({k: v for k, v in profile.engine.items() if isinstance(v, int)})
            rank = per_million_tokens(prices[name] * gpus, rate)
            rows[-1] += [prices[name] * gpus, rank]
        ranks.append((bool(decision.broken), rank))
    best = ranks.index(min(ranks))
    name, profile = list(profiles.items())[best]
    share = promised(profile).attainment
    facts = [("gives", f"{percent(share)} meet the SLO")]
    if prices:
        words = f"{text('number', ranks[best][1])} for a million output tokens within the SLO"
        facts.append(("costs", f"{words}, in the currency of --prices"))
    return Page(
        subject=subject,
        title=with_share(share, f"{name} with max_num_seqs {profile.decision.max_num_seqs}"),
        aside="the cheapest" if prices else "serves most in time",
        facts=facts,
        sections=[Section("Side by side", tables=[Table(columns, rows, chosen=best)])],
        warnings=[
            f"{name} breaks {', '.join(each.text for each in profile.decision.broken)}"
            for name, profile in profiles.items()
            if profile.decision.broken
        ],
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
    row, bounds = list[Cell](), dict[str, Cell]()
    if step is not None and numbers is step and step.cut and step.source == "measured":
        most = percent(step.intervals["attainment"][1])
        bounds = {"attainment": f"<={most}", "goodput_rps": "cut"}
    for name in CURVE:
        row.append(bounds.get(name, value(numbers, name)))
        if name in INTERVALS:
            row += _ends(step, name)
    return [*row, None if step is None else step.source]


def _ends(step: CurveStep | None, name: str) -> tuple[float | None, float | None]:
    is_time = name.endswith("_s")
    key = f"{name.removesuffix('_s')}_ms" if is_time else name
    if step is None or key not in step.intervals:
        return None, None
    low, high = (round((1e-3 if is_time else 1.0) * end, 9) for end in step.intervals[key])
    return low, high


def _replays(profile: ServingProfile) -> list[tuple[int, CapNumbers]]:
    """Return cap and measurement of each step of a predicted curve that was also replayed."""
    return [
        (step.max_num_seqs, step.measured)
        for step in profile.curve
        if step.measured is not None and step.source == "both" and not step.cut
    ]


def _replayed(profile: ServingProfile) -> list[Table]:
    """Return what the replays behind a predicted curve gave, each as it was measured."""
    replays = [(cap, "ladder", numbers) for cap, numbers in _replays(profile)]
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
    steps = [step for step in profile.curve if not (step.cut and step.source == "measured")]
    ends = [_ends(step, name) for step in steps]
    points = [(float(cap), value(numbers, name)) for cap, numbers in _replays(profile)]
    choice, now, slo = profile.decision.max_num_seqs, profile.baseline, profile.decision.slo.slo
    marks = [Mark(choice, f"{choice:,}", is_accent=True)]
    caps = [float(step.max_num_seqs) for step in steps]
    if now is not None and now.max_num_seqs != choice and now.max_num_seqs in caps:
        marks.append(Mark(now.max_num_seqs, f"now {now.max_num_seqs:,}"))
    limits = {"tpot_p95_s": slo.tpot_s, "e2el_p99_s": slo.e2el_s}
    if not slo.ttft_s_per_input_token:
        limits["ttft_p99_s"] = slo.ttft_s
    low_cap, high_cap = profile.decision.interval
    return Chart(
        COLUMNS[name].heading,
        caps,
        [value(step, name) for step in steps],
        COLUMNS[name].kind,
        low=[low for low, _ in ends],
        high=[high for _, high in ends],
        points=points if name != "goodput_rps" else [],  # the windows have another rate
        x_label="max_num_seqs",
        by_cap=True,
        marks=marks,
        limit=limits.get(name),
        shades=[(low_cap, high_cap)] if low_cap < high_cap else [],
    )

"""What the twin said against what was measured. Pure."""

from collections.abc import Callable

from tuner.commands.report.drawing import axes
from tuner.commands.report.drawing.chart import Chart, Dots, Item, Look, Mark
from tuner.commands.report.drawing.page import Cell, Figure, Part, Section, Table
from tuner.profile.schema import ServingProfile
from tuner.profile.summary import milliseconds, percent

ERRORS = {"throughput": "throughput", "tpot": "mean TPOT", "e2el_p95": "p95 E2EL"}
LOOKS: dict[str, tuple[Look, bool]] = {
    "throughput": ("faint", False),
    "tpot": ("accent", False),
    "e2el_p95": ("accent", True),
}
"""Name of an error → how its dots look, and whether they are rings."""

LEAST_SPAN = 0.1
"""Of the axis of errors: smaller ones are drawn as small."""

MOST_SAID = 20


def predicted_section(profile: ServingProfile) -> Section | None:
    """Return what the twin said against what was measured; None where nothing was compared."""
    if profile.twin is None:
        return None
    parts: list[Part] = []
    errors, source = profile.twin.errors, profile.promise.source
    if errors:
        rows: list[list[Cell]] = [
            [f"{one.max_num_seqs:,}", *(_signed(getattr(one, name)) for name in ERRORS)]
            for one in errors
        ]
        caption = "Predicted / measured - 1, a row for each window that was replayed"
        parts += [
            [_error_figure(profile)],
            Table(caption, ("max_num_seqs", *ERRORS.values()), rows),
        ]
    if pairs := _promise_rows(profile):
        caption = f"The choice, by the {source}, and what the twin says of all of the traffic"
        parts.append(Table(caption, ("", "predicted", "95 %", "measured"), pairs))
    if facts := _fresh_engine(profile):
        caption = "The fresh engine, which the law was not fitted to"
        parts.append(Table(caption, (), facts, is_facts=True))
    note = "The twin replays each window that the engine replayed: this is how far it was off."
    return Section("Predicted against measured", note, parts) if parts else None


def _fresh_engine(profile: ServingProfile) -> list[list[Cell]]:
    found = profile.promise.agreement
    if found is None:
        return []
    speed = f"{_signed(found.slower)}; the machine explains {100 * found.slower_limit:.0f} %"
    share = f"{_signed(found.attainment)}; noise explains {100 * found.attainment_limit:.1f} %"
    return [
        ["its iterations against the law", speed],
        ["share in SLO against the ladder's, at equal speed", share],
    ]


def _error_figure(profile: ServingProfile) -> Figure:
    assert profile.twin is not None
    errors, chosen = profile.twin.errors, profile.decision.max_num_seqs
    caps = sorted({one.max_num_seqs for one in errors})
    items: list[Item] = [Mark(0.0, "", "y")]
    values: list[float] = []
    for name, (look, is_hollow) in LOOKS.items():
        known = [
            (one.max_num_seqs, float(value))
            for one in errors
            if (value := getattr(one, name)) is not None
        ]
        here = [value for _, value in known]
        told = [f"{ERRORS[name]} at {cap}: {_signed(value)}" for cap, value in known]
        items.append(Dots([cap for cap, _ in known], here, told, look=look, is_hollow=is_hollow))
        values += here
    most = max([LEAST_SPAN, *map(abs, values)])
    listed = "; ".join(f"{one.max_num_seqs}: {_signed(one.tpot)}" for one in errors[:MOST_SAID])
    chart = Chart(
        said=f"Errors of the twin's mean TPOT by max_num_seqs: {listed}.",
        x=axes.caps(caps, chosen=chosen if chosen in caps else caps[0], label="max_num_seqs"),
        y=axes.linear([-most, most], axes.share),
        items=items,
    )
    error = profile.provenance.twin_error
    median = "" if error is None else f"{_signed(error)[1:]} in the median; "
    note = f"{median}blue: mean TPOT, ring: p95 E2EL, grey: throughput"
    return Figure("The twin's error", chart, note)


def _promise_rows(profile: ServingProfile) -> list[list[Cell]]:
    promise = profile.promise
    said = next((one for one in promise.predicted if one.load == 1.0), None)
    if said is None or promise.source == "twin":
        return []
    rows: list[list[Cell]] = []

    def row(name: str, predicted: str, ends: str, measured: str) -> None:
        rows.append([name, predicted, ends, measured])

    share = said.intervals.get("attainment")
    row("in SLO", percent(said.attainment), _told(share, percent), percent(promise.attainment))
    for name, key, statistic in (
        ("p95 TPOT", "tpot_ms", "p95"),
        ("p99 E2EL", "e2el_ms", "p99"),
        ("p99 TTFT", "ttft_ms", "p99"),
    ):
        one, other = getattr(said, key), getattr(promise, key)
        if one is not None and other is not None:
            ends = said.intervals.get(f"{key.removesuffix('_ms')}_{statistic}_ms")
            row(
                name,
                milliseconds(getattr(one, statistic)),
                _told(ends, milliseconds),
                milliseconds(getattr(other, statistic)),
            )
    return rows


def _told(ends: tuple[float, float] | None, told: Callable[[float], str]) -> str:
    return "-" if ends is None else f"{told(ends[0])} to {told(ends[1])}"


def _signed(value: float | None) -> str:
    """Return an error for people.

    >>> _signed(0.0339), _signed(-0.0002), _signed(None)
    ('+3.4 %', '0.0 %', '-')
    """
    if value is None:
        return "-"
    text = f"{100 * value:+.1f} %"
    return "0.0 %" if text[1:] == "0.0 %" else text

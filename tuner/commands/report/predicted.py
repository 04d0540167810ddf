"""The section of a report that holds predicted against measured. Pure."""

from collections.abc import Callable

from tuner.commands.report.drawing.page import Cell, PageSection, Part, Table
from tuner.profile.schema import ServingProfile
from tuner.profile.summary import confirmed_text, milliseconds, percent


def predicted_section(profile: ServingProfile) -> PageSection | None:
    """Return what the twin said against what was measured; None where nothing was compared."""
    if profile.twin is None:
        return None
    parts: list[Part] = []
    source, record = profile.promise.source, profile.promise.record
    if record is not None:
        for numbers, caption in (
            (
                record.foretold,
                f"The confirming replay against its prediction: {confirmed_text(record)}",
            ),
            (record.paced, "The same by the twin at the speed that the engine had"),
        ):
            if numbers:
                rows = [_checked_row(name, *values) for name, values in numbers.items()]
                parts.append(Table(caption, ("", "predicted", "95 %", "measured", ""), rows))
    if pairs := _promise_rows(profile):
        caption = f"The choice, by the {source}, and what the twin says of all of the traffic"
        heads = ("", "predicted", "95 % again", "95 % another day", "measured")
        parts.append(Table(caption, heads, pairs))
    note = "What the twin said of replays, and what they were."
    return PageSection("Predicted against measured", note, parts) if parts else None


def _checked_row(
    name: str, predicted: float, low: float, high: float, measured: float
) -> list[Cell]:
    held = "held" if low <= measured <= high else "outside"
    values = [_number(name, value) for value in (predicted, low, high, measured)]
    return [_in_words(name), values[0], f"{values[1]} to {values[2]}", values[3], held]


def _in_words(name: str) -> str:
    """Return the name of a number that was checked, for people.

    >>> _in_words("ttft_p95_ms"), _in_words("kv_blocks_mean"), _in_words("attainment")
    ('p95 TTFT', 'KV blocks, mean', 'in SLO')
    """
    if name.endswith("_ms"):
        time, share, _ = name.split("_")
        return f"{share} {time.upper()}"
    named = {"attainment": "in SLO", "kv_blocks_mean": "KV blocks, mean"}
    return named.get(name, name.replace("_mean", ", mean"))


def _number(name: str, value: float) -> str:
    if name == "attainment":
        return percent(min(1.0, value))
    return milliseconds(value) if name.endswith("_ms") else f"{value:,.1f}"


def _promise_rows(profile: ServingProfile) -> list[list[Cell]]:
    promise = profile.promise
    said = next((one for one in promise.predicted if one.load == 1.0), None)
    if said is None or promise.source == "twin":
        return []
    rows: list[list[Cell]] = []

    def row(
        name: str, key: str, told: Callable[[float], str], predicted: float, measured: float
    ) -> None:
        again = _told(said.intervals.get(key), told)
        other = "not claimed"
        if said.another_day is not None:
            other = _told(said.another_day.get(key), told)
        rows.append([name, told(predicted), again, other, told(measured)])

    row("in SLO", "attainment", percent, said.attainment, promise.attainment)
    for name, key, statistic in (
        ("p95 TPOT", "tpot_ms", "p95"),
        ("p99 E2EL", "e2el_ms", "p99"),
        ("p99 TTFT", "ttft_ms", "p99"),
    ):
        one, other = getattr(said, key), getattr(promise, key)
        if one is not None and other is not None:
            ends = f"{key.removesuffix('_ms')}_{statistic}_ms"
            row(name, ends, milliseconds, getattr(one, statistic), getattr(other, statistic))
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

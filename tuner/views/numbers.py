"""The numbers that tables have in common: one heading and one unit each. Pure."""

from tuner.profile.profile import CapNumbers
from tuner.profile.summary import percent
from tuner.replay.numbers import Measurement
from tuner.views.page import Cell, Column

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
    """Return what was measured, by the names of columns. Of a replay that was cut short some
    numbers have only a bound."""
    bounds: dict[str, Cell] = {}
    if numbers.cut:
        bounds = {"attainment": f"<={percent(numbers.attainment_bound)}", "goodput_rps": "cut"}
    return [bounds.get(name, value(numbers, name)) for name in names]

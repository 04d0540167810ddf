"""The numbers that tables have in common: one heading and one unit each. Pure."""

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
        Column("queue_p95_s", "queue p95", "time"),
        Column("running_peak", "running peak", "count"),
        Column("in_flight_peak", "in flight", "count"),
        Column("kv_peak", "KV peak", "share"),
        Column("preemptions", "preempted", "count"),
    )
}
BOUNDED = ("attainment", "goodput_rps")
"""Numbers of which a replay that was cut short has only a bound."""


def cells(numbers: Measurement, *names: str) -> list[Cell]:
    """Return what was measured, by the names of columns; None where it is not known."""
    return [_cell(numbers, name) for name in names]


def _cell(numbers: Measurement, name: str) -> Cell:
    if numbers.cut and name in BOUNDED:
        return f"<={100 * numbers.attainment_bound:.1f}%" if name == "attainment" else "cut"
    if name in {"running_peak", "preemptions"} and not numbers.is_logged:
        return None
    if name == "kv_peak":
        usage = numbers.kv_cache_usage
        return None if usage is None else float(usage.peak)
    if name.endswith("_s"):
        stem, quantile, _ = name.rsplit("_", 2)
        spread = getattr(numbers, f"{stem}_s")
        return None if spread is None else float(getattr(spread, quantile))
    value: Cell = getattr(numbers, name)
    return value

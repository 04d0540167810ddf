"""Local times that show an hour twice, and times of day of two days, in every kind of table."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from tuner.errors import TraceError
from tuner.trace.formats.opening import open_trace
from tuner.trace.formats.reading.record import Row, Tally
from tuner.trace.tables import reader

TWICE = ["2026-10-25 02:40:00", "2026-10-25 02:59:00", "2026-10-25 02:01:00", "2026-10-25 02:20:00"]
"""In Europe clocks went back from 3 to 2 on Sunday, 25 October 2026."""

MIDNIGHT = ["23:58:00", "23:59:00", "00:01:00", "00:02:00"]

Write = Callable[[Path, Sequence[str]], None]


def rows_of(times: Sequence[str], heading: str = "ts") -> list[dict[str, object]]:
    return [{heading: at, "prompt_tokens": 3, "completion_tokens": 5} for at in times]


def as_csv(path: Path, times: Sequence[str]) -> None:
    path.write_text("ts,prompt_tokens,completion_tokens\n" + "".join(f"{at},3,5\n" for at in times))


def as_lines(path: Path, times: Sequence[str]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows_of(times)))


def as_array(path: Path, times: Sequence[str]) -> None:
    path.write_text(json.dumps(rows_of(times), indent=1))


def as_document(path: Path, times: Sequence[str]) -> None:
    path.write_text(json.dumps({"data": rows_of(times), "page": 1}))


def as_objects_over_lines(path: Path, times: Sequence[str]) -> None:
    path.write_text("\n".join(json.dumps(row, indent=1) for row in rows_of(times)))


def arrow_table(values: pa.Array) -> pa.Table:
    counts = {
        name: [number] * len(values) for name, number in (("tokens_in", 3), ("tokens_out", 5))
    }
    return pa.table({"ts": values} | counts)


def stamps(times: Sequence[str], unit: str = "us", zone: str | None = None) -> pa.Array:
    return pa.array([datetime.fromisoformat(at) for at in times], pa.timestamp(unit, zone))


def as_parquet(path: Path, times: Sequence[str]) -> None:
    is_day = len(times[0]) == len("00:00:00")
    of_day = [time.fromisoformat(at) for at in times] if is_day else []
    values = pa.array(of_day, pa.time64("us")) if is_day else stamps(times)
    parquet.write_table(arrow_table(values), path)


def as_feather(path: Path, times: Sequence[str]) -> None:
    table = arrow_table(pa.array(times) if len(times[0]) == len("00:00:00") else stamps(times))
    with ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)


def as_text_in_parquet(path: Path, times: Sequence[str]) -> None:
    parquet.write_table(arrow_table(pa.array(times)), path)


def as_names_in_parquet(path: Path, times: Sequence[str]) -> None:
    table = arrow_table(stamps(times).dictionary_encode())
    with ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)


KINDS: list[Write] = [
    as_csv, as_lines, as_array, as_document, as_objects_over_lines, as_parquet, as_feather,
    as_text_in_parquet,
]  # fmt: skip


def opened(path: Path) -> tuple[list[Row], Tally]:
    source, tally = open_trace(path)
    return list(source.rows), tally


@pytest.mark.parametrize("write", [*KINDS, as_names_in_parquet])
def test_an_hour_that_is_there_twice_is_refused_in_any_file(tmp_path: Path, write: Write) -> None:
    write(tmp_path / "t", TWICE)
    with pytest.raises(TraceError, match=r"'ts' goes back from 2026-10-25 02:59:00 by 58 min: clo"):
        opened(tmp_path / "t")
    write(tmp_path / "t", [at.replace("10-25", "10-20") for at in TWICE])  # a Tuesday
    assert len(opened(tmp_path / "t")[0]) == 4


@pytest.mark.parametrize("write", KINDS)
def test_times_of_day_of_two_days_are_refused_in_any_file(tmp_path: Path, write: Write) -> None:
    write(tmp_path / "t", MIDNIGHT)
    with pytest.raises(TraceError, match="'ts' goes back as if it passed midnight"):
        opened(tmp_path / "t")


def test_the_place_is_a_line_or_a_row_as_the_file_has_it(tmp_path: Path) -> None:
    for write, place in ((as_lines, "line 1"), (as_array, "line 2"), (as_parquet, "row 1")):
        write(tmp_path / "t", TWICE)
        with pytest.raises(TraceError, match=f"from {place} on"):
            opened(tmp_path / "t")


def test_an_hour_twice_is_seen_from_one_batch_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "ROWS", 2)
    as_array(tmp_path / "t", TWICE)
    with pytest.raises(TraceError, match="clocks were set back"):
        opened(tmp_path / "t")


@pytest.mark.parametrize("write", [as_parquet, as_feather])
def test_times_without_a_zone_in_columns_are_said_to_be_taken_for_utc(
    tmp_path: Path, write: Write
) -> None:
    write(tmp_path / "t", ["2026-11-21 10:00:00", "2026-11-21 10:00:01.5"])
    rows, tally = opened(tmp_path / "t")
    assert [row.timestamp for row in rows] == [1_795_255_200_000, 1_795_255_201_500]
    assert "timestamp from 'ts', dates without a zone, taken for UTC" in tally.said


def test_times_of_a_zone_in_columns_may_have_an_hour_twice(tmp_path: Path) -> None:
    begin = datetime(2026, 10, 25, 0, 40, tzinfo=UTC)
    times = [begin + timedelta(minutes=20 * row) for row in range(4)]
    parquet.write_table(
        arrow_table(pa.array(times, pa.timestamp("us", "Europe/Berlin"))), tmp_path / "t"
    )
    rows, tally = opened(tmp_path / "t")
    assert [row.timestamp - rows[0].timestamp for row in rows] == [0, 1.2e6, 2.4e6, 3.6e6]
    assert "taken for UTC" not in str(tally.said)


def test_times_in_a_struct_keep_that_they_have_no_zone(tmp_path: Path) -> None:
    held = pa.StructArray.from_arrays([stamps(TWICE)], ["start_time"])
    table = pa.table({"meta": held, "tokens_in": [3] * 4, "tokens_out": [5] * 4})
    parquet.write_table(table, tmp_path / "t")
    with pytest.raises(TraceError, match=r"'meta\.start_time' goes back from 2026-10-25 02:59:00"):
        opened(tmp_path / "t")


@pytest.mark.parametrize("packed", [False, True], ids=["csv", "parquet"])
def test_ends_without_a_begin_show_an_hour_twice_too(tmp_path: Path, packed: bool) -> None:
    text = "end_time,duration_ms,tokens_in,tokens_out\n" + "".join(
        f"{at},{took_ms},3,5\n" for at, took_ms in zip(TWICE, (1000, 60, 2000, 70), strict=True)
    )
    (tmp_path / "t").write_text(text)
    if packed:
        table = pa.table({"end_time": stamps(TWICE), "duration_ms": [1000, 60, 2000, 70]})
        counts = arrow_table(stamps(TWICE)).drop_columns(["ts"])
        for name in counts.column_names:
            table = table.append_column(name, counts[name])
        parquet.write_table(table, tmp_path / "t")
    with pytest.raises(TraceError, match="'end_time' goes back from 2026-10-25 02:59:00 by 58 min"):
        opened(tmp_path / "t")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("2026-04-04 23:59:00", "2026-04-04 23:01:00", id="Chile, on Saturday"),
        pytest.param("2026-10-24 23:58:00", "2026-10-24 23:02:00", id="Lebanon, on Saturday"),
        pytest.param("2026-10-29 23:59:30", "2026-10-29 23:00:10", id="Egypt, on Thursday"),
        pytest.param("2026-10-24 01:59:00", "2026-10-24 01:02:00", id="Palestine, on Saturday"),
        pytest.param("2026-11-01 00:59:00", "2026-11-01 00:01:00", id="Cuba"),
        pytest.param("2026-11-01 01:59:00", "2026-11-01 01:01:00", id="New York"),
        pytest.param("2026-04-05 01:59:00", "2026-04-05 01:31:00", id="Lord Howe, by half an hour"),
    ],
)
def test_clocks_are_set_back_in_other_nights_and_at_midnight(
    tmp_path: Path, before: str, after: str
) -> None:
    as_csv(tmp_path / "t", [before[:-5] + "58:00", before, after, after[:-2] + "40"])
    with pytest.raises(TraceError, match=f"goes back from {before} by"):
        opened(tmp_path / "t")


def test_in_the_night_to_thursday_no_clock_is_set_back(tmp_path: Path) -> None:
    as_csv(tmp_path / "t", [f"2026-10-29 {at}" for at in ("00:58:00", "00:59:00", "00:01:00")])
    assert len(opened(tmp_path / "t")[0]) == 3


def test_a_table_in_no_order_shows_no_hour_twice(tmp_path: Path) -> None:
    begin = datetime(2026, 10, 25, 1, 0, tzinfo=UTC)
    at_s = [(7919 * row) % 3600 for row in range(200)]
    times = [f"{begin + timedelta(seconds=second):%Y-%m-%d %H:%M:%S}" for second in at_s]
    for write in (as_csv, as_parquet):
        write(tmp_path / "t", times)
        assert len(opened(tmp_path / "t")[0]) == 200

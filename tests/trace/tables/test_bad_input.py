"""Tables with something wrong in them: read rightly, or refused with row and column."""

import json
import lzma
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv, ipc, parquet

from tests.support.format_examples import read
from tuner.errors import TraceError, UsageError
from tuner.trace import stream
from tuner.trace.formats.opening import open_trace
from tuner.trace.formats.reading.header import TimeUnit
from tuner.trace.formats.reading.record import Row, Tally
from tuner.trace.formats.reading.trace_file import TableOptions, columns_asked, delimiter_asked
from tuner.trace.tables import arrow_files, nested

HEAD = "ts,prompt_tokens,completion_tokens\n"
NOTHING_ASKED = TableOptions()
AT_S = 1_795_255_200  # 2026-11-21 10:00:00


def opened(
    path: Path, content: str | bytes, asked: TableOptions = NOTHING_ASKED
) -> tuple[list[Row], Tally]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    source, tally = open_trace(path, asked=asked, time_unit=asked.time_unit)
    rows = list(source.rows)
    assert tally.rows_read == len(rows) + sum(tally.dropped.values())
    return rows, tally


def refusal(path: Path, content: str | bytes, asked: TableOptions = NOTHING_ASKED) -> TraceError:
    with pytest.raises(TraceError) as caught:
        opened(path, content, asked)
    return caught.value


def stamped(*cells: str) -> str:
    return HEAD + "".join(
        f"2026-11-21 10:00:{second:02d},{cell}\n" for second, cell in enumerate(cells)
    )


@pytest.mark.parametrize(
    ("cells", "prompts"),
    [
        (("1.0,5", "12.0,5"), [1, 12]),
        (("1.234,5", "57,5"), [1234, 57]),
        (('"1,234",5', "57,5"), [1234, 57]),
        (("1 234,5", "57,5"), [1234, 57]),
        (("1'234,5", "57,5"), [1234, 57]),
        (('"1,234,567",5', "57,5"), [1_234_567, 57]),
        (("1.000,5", "2.500,5"), [1000, 2500]),
    ],
)
def test_counts_are_read_as_their_column_writes_them(
    tmp_path: Path, cells: tuple[str, ...], prompts: list[int]
) -> None:
    rows, tally = opened(tmp_path / "t", stamped(*cells))
    assert [row.input_length for row in rows] == prompts
    assert tally.dropped == {}


def test_a_comma_and_three_zeros_may_be_either_and_are_refused(tmp_path: Path) -> None:
    found = refusal(tmp_path / "t", stamped('"1,000",5', '"2,000",5'))
    assert "prompt_tokens: 1,000 may be 1 or 1000" in str(found)


@pytest.mark.parametrize(
    ("cell", "reason", "column"),
    [
        (",5", "no_tokens", "prompt_tokens"),
        (r"\N,5", "no_tokens", "prompt_tokens"),
        ("-3,5", "negative", "prompt_tokens"),
        ("3.5,5", "not_integer", "prompt_tokens"),
        ("many,5", "not_integer", "prompt_tokens"),
        ("3,0", "zero_tokens", "completion_tokens"),
        ("3,99999999999", "out_of_range", "completion_tokens"),
        ("3,5,7", "malformed", None),
        ("3", "malformed", None),
    ],
)
def test_a_bad_cell_drops_its_row_and_names_row_and_column(
    tmp_path: Path, cell: str, reason: str, column: str | None
) -> None:
    rows, tally = opened(tmp_path / "t", stamped("1,5", "2,5", cell, "4,5"))
    assert [row.input_length for row in rows] == [1, 2, 4]
    assert tally.dropped == {reason: 1}
    place = f"{tmp_path / 't'}:4" + (f", column {column!r}" if column else "")
    assert tally.first_place(*tally.dropped) == place


@pytest.mark.parametrize(
    ("stamp", "reason"),
    [
        ("", "no_timestamp"),
        ("NaT", "bad_timestamp"),
        ("2026-13-45 10:00:00", "bad_timestamp"),
        ("2026-11-21 10:00:02+00:00", "other_unit"),
        (str(AT_S), "other_unit"),
        ("soon", "bad_timestamp"),
    ],
)
def test_a_time_unlike_the_others_drops_its_row(tmp_path: Path, stamp: str, reason: str) -> None:
    text = stamped("1,5", "2,5", "3,5", "4,5", "5,5") + f"{stamp},6,5\n"
    rows, tally = opened(tmp_path / "t", text)
    assert len(rows) == 5
    assert (tally.dropped, tally.first_column) == ({reason: 1}, {reason: "ts"})


def test_a_time_of_another_unit_is_dropped_with_its_row(tmp_path: Path) -> None:
    times = [AT_S * 1000, AT_S * 1000 + 500, AT_S + 1, *(AT_S * 1000 + 1000 * i for i in range(9))]
    rows, tally = opened(tmp_path / "t", HEAD + "".join(f"{at},1,5\n" for at in times))
    assert len(rows) == 11
    assert tally.first_place("other_unit") == f"{tmp_path / 't'}:4, column 'ts'"


def test_a_column_half_in_seconds_and_half_in_milliseconds_is_refused(tmp_path: Path) -> None:
    text = HEAD + f"{AT_S},1,5\n{AT_S + 1},1,5\n{AT_S * 1000},1,5\n{AT_S * 1000},1,5\n"
    found = refusal(tmp_path / "t", text)
    assert f"times of several units stand in it, {AT_S} and {AT_S * 1000} (row 3)" in str(found)
    assert found.hint == f"tuner trace import {tmp_path / 't'} --time-unit s -o trace.jsonl"
    rows, tally = opened(tmp_path / "t", text, asked=TableOptions(time_unit="s"))
    assert (len(rows), tally.dropped) == (2, {"other_unit": 2})


def test_a_column_of_ids_is_never_guessed_to_hold_tokens(tmp_path: Path) -> None:
    found = refusal(tmp_path / "t", "id,created_at,req_u,res_u\n7,2026-11-21,60,5\n")
    assert "input_length=req_u,output_length=res_u" in found.hint


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("2026-11-21 10:00 CST,5,5\n", "timestamp: ts has '2026-11-21 10:00 CST'"),
        ("2026-11-21 10:00,5%,5\n", "input_length: prompt_tokens has '5%'"),
        ("2026-11-21 10:00,,5\n", "input_length: prompt_tokens is empty"),
        ("2026-11-21 10:00,many,5\n", "input_length: prompt_tokens has no number and no date"),
        ("", "timestamp, input_length, output_length: no rows"),
    ],
)
def test_a_heading_whose_values_cannot_be_read_is_shown_with_one(
    tmp_path: Path, row: str, why: str
) -> None:
    assert f"no column for {why}; seen:" in str(refusal(tmp_path / "t", HEAD + row))


@pytest.mark.attack
def test_a_row_wrapped_up_as_text_is_not_unpacked_for_each_of_its_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked = list[str]()
    decode = nested._decode

    def counted(text: str) -> object:
        unpacked.append(text)
        return decode(text)

    monkeypatch.setattr(nested, "_decode", counted)
    inner = {"prompt_tokens": 5, "completion_tokens": 6, **{f"k{i}": i for i in range(100)}}
    wrapped = ({"ts": AT_S + i, "line": json.dumps({**inner, "k0": i})} for i in range(20))
    rows, _ = opened(tmp_path / "t", "".join(json.dumps(one) + "\n" for one in wrapped))
    assert len(rows) == 20
    assert len(unpacked) < 10 * len(rows)  # its columns are a hundred


@pytest.mark.parametrize("asked", ["s", "ms"])
def test_times_from_some_start_need_their_unit(tmp_path: Path, asked: str) -> None:
    text = HEAD + "0,1,5\n1.5,2,5\n"
    found = refusal(tmp_path / "t", text)
    assert "times from 0 to 1.5 count from some start, in seconds or in milliseconds" in str(found)
    command = f"tuner trace import {tmp_path / 't'} --time-unit s -o trace.jsonl"
    assert found.hint == f"--time-unit s or ms: {command}"
    rows, _ = opened(tmp_path / "t", text, TableOptions(time_unit=asked))  # type: ignore[arg-type]
    assert [row.timestamp for row in rows] == [0, 1500 if asked == "s" else 1.5]


def test_a_day_as_spreadsheets_number_it_is_no_time_from_some_start(tmp_path: Path) -> None:
    found = refusal(tmp_path / "t", HEAD + "46347.416666,1,5\n46347.417,2,5\n")
    assert "46347.416666 may be a spreadsheet's number for 2026-11-21 09:59: show" in str(found)
    rows, _ = opened(tmp_path / "t", HEAD + "46347.5,1,5\n46348,2,5\n", TableOptions(time_unit="s"))
    assert rows[1].timestamp - rows[0].timestamp == 500


def test_names_of_zones_tell_the_two_hours_of_a_night_apart(tmp_path: Path) -> None:
    times = ("2026-10-25 02:59:00 CEST", "2026-10-25 02:01:00 CET", "2026-10-25 02:02:00 CET")
    rows, _ = opened(tmp_path / "t", HEAD + "".join(f"{at},1,5\n" for at in times))
    assert [row.timestamp - rows[0].timestamp for row in rows] == [0, 120_000, 180_000]


def test_a_heading_says_the_unit(tmp_path: Path) -> None:
    rows, _ = opened(tmp_path / "t", HEAD.replace("ts", "start_ms") + "0,1,5\n1500,2,5\n")
    assert [row.timestamp for row in rows] == [0, 1500]


def test_a_heading_that_denies_its_values_is_refused(tmp_path: Path) -> None:
    found = refusal(tmp_path / "t", HEAD.replace("ts", "start_ms") + f"{AT_S},1,5\n{AT_S},2,5\n")
    assert "is a time since 1970 in seconds, and the heading says milliseconds" in str(found)


@pytest.mark.parametrize(("asked", "days"), [("dmy", 1), ("mdy", 31)])
def test_a_day_that_may_be_a_month_is_refused(tmp_path: Path, asked: str, days: int) -> None:
    text = HEAD + "05/10/2026 10:00:00,1,5\n06/10/2026 10:00:00,2,5\n"
    found = refusal(tmp_path / "t", text)
    assert "05/10/2026 may have the day first, or the month" in str(found)
    assert "--time-unit dmy or mdy: tuner trace import" in found.hint
    rows, _ = opened(tmp_path / "t", text, TableOptions(time_unit=asked))  # type: ignore[arg-type]
    assert rows[1].timestamp - rows[0].timestamp == days * 86_400_000


@pytest.mark.parametrize(("asked", "days"), [("dmy", 365), ("ymd", 1), ("mdy", None)])
def test_a_day_that_may_be_a_year_of_two_digits_is_refused(
    tmp_path: Path, asked: str, days: int | None
) -> None:
    text = HEAD + "26-01-30 10:00:00,1,5\n26-01-31 10:00:00,2,5\n"
    assert "26-01-30 may have the day first, or the year" in str(refusal(tmp_path / "t", text))
    asking = TableOptions(time_unit=asked)  # type: ignore[arg-type]
    if days is None:  # there is no month 26
        found = refusal(tmp_path / "t", text, asking)
        assert "no column for timestamp: ts has '26-01-30 10:00:00'" in str(found)
        return
    rows, _ = opened(tmp_path / "t", text, asking)
    assert rows[1].timestamp - rows[0].timestamp == days * 86_400_000


def test_a_year_above_thirty_one_is_no_day(tmp_path: Path) -> None:
    rows, _ = opened(tmp_path / "t", HEAD + "32-01-30 10:00:00,1,5\n32-01-31 10:00:00,2,5\n")
    assert rows[1].timestamp - rows[0].timestamp == 86_400_000


def test_a_number_above_twelve_says_which_is_the_day(tmp_path: Path) -> None:
    rows, _ = opened(tmp_path / "t", HEAD + "05/10/2026 10:00:00,1,5\n06/13/2026 10:00:00,2,5\n")
    assert rows[1].timestamp - rows[0].timestamp == 34 * 86_400_000


def test_two_columns_of_one_heading_are_refused_with_their_numbers(tmp_path: Path) -> None:
    text = "ts,tokens_in,tokens_in,tokens_out\n2026-11-21 10:00:00,1,2,5\n"
    found = refusal(tmp_path / "t", text)
    assert "both 'tokens_in' (#2) and 'tokens_in' (#3) may be input_length" in str(found)
    assert "--columns 'input_length=#2'" in found.hint
    rows, _ = opened(tmp_path / "t", text, TableOptions({"input_length": "#3"}))
    assert [row.input_length for row in rows] == [2]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("as_struct", [False, True])
def test_two_columns_of_one_heading_are_refused_in_columns_too(
    tmp_path: Path, kind: str, as_struct: bool
) -> None:
    names = ["ts", "u.tokens_in", "u.tokens_in", "tokens_out"]
    arrays = [pa.array([AT_S, AT_S + 1]), pa.array([1, 2]), pa.array([3, 4]), pa.array([5, 6])]
    if as_struct:
        names[2], arrays[2] = "u", pa.StructArray.from_arrays([arrays[2]], ["tokens_in"])
    table, path = pa.Table.from_arrays(arrays, names), tmp_path / "t"
    if kind == "parquet":
        parquet.write_table(table, path)
    else:
        with ipc.new_file(str(path), table.schema) as file:
            file.write_table(table)
    content = path.read_bytes()
    found = refusal(path, content)
    assert "both 'u.tokens_in' (#2) and 'u.tokens_in' (#3) may be input_length" in str(found)
    assert "--columns 'input_length=#2'" in found.hint
    for place, lengths in ((2, [1, 2]), (3, [3, 4])):
        rows, _ = opened(path, content, TableOptions({"input_length": f"#{place}"}))
        assert [row.input_length for row in rows] == lengths
        assert [row.output_length for row in rows] == [5, 6]


def test_a_point_in_the_name_of_an_arrow_files_column_is_no_path(tmp_path: Path) -> None:
    table = pa.table({"ts": [AT_S, AT_S + 1], "u.tokens_in": [1, 2], "u.tokens_out": [5, 6]})
    with ipc.new_file(str(tmp_path / "t"), table.schema) as file:
        file.write_table(table)
    rows, _ = opened(tmp_path / "t", (tmp_path / "t").read_bytes())
    assert [row.input_length for row in rows] == [1, 2]


@pytest.mark.parametrize(
    ("heading", "cells"),
    [("status", ("ok", "error")), ("error", ("timeout", "refused")), ("cache_hit", ("0", "1"))],
)
def test_two_columns_of_one_heading_that_decide_over_rows_are_refused(
    tmp_path: Path, heading: str, cells: tuple[str, str]
) -> None:
    text = HEAD[:-1] + f",{heading},{heading}\n"
    found = refusal(tmp_path / "t", text + f"2026-11-21 10:00:00,3,5,{','.join(cells)}\n")
    assert f"both '{heading}' (#4) and '{heading}' (#5) may be {heading}" in str(found)
    assert f"--columns '{heading}=#4'" in found.hint
    alike = text + f"2026-11-21 10:00:00,3,5,{cells[0]},{cells[0]}\n" * 2
    assert "may be" not in str(opened(tmp_path / "t", alike)[1].said)


@pytest.mark.parametrize(
    ("heading", "role"),
    [("model", "model"), ("tenant", "request_class"), ("session_id", "session_id")],
)
def test_two_columns_of_one_heading_that_name_things_are_left_out_and_that_is_said(
    tmp_path: Path, heading: str, role: str
) -> None:
    text = HEAD[:-1] + f",{heading},{heading}\n2026-11-21 10:00:00,3,5,a,b\n"
    rows, tally = opened(tmp_path / "t", text)
    assert getattr(rows[0], role) is None
    said = f"{role} is left out: both '{heading}' (#4) and '{heading}' (#5) may be {role}"
    assert said in tally.said
    rows, _ = opened(tmp_path / "t", text.replace("a,b", "a,a"))
    assert getattr(rows[0], role) is not None
    rows, _ = opened(tmp_path / "t", text, TableOptions({role: "#5"}))
    assert getattr(rows[0], role) is not None


def test_two_columns_that_say_the_same_are_one(tmp_path: Path) -> None:
    text = "ts,prompt_tokens,input_tokens,tokens_out\n2026-11-21 10:00:00,7,7,5\n"
    rows, _ = opened(tmp_path / "t", text)
    assert [row.input_length for row in rows] == [7]


def test_headings_may_stand_below_a_title(tmp_path: Path) -> None:
    text = "Requests of November\nall times in UTC, as exported\n" + stamped("1,5", "x,5", "3,5")
    rows, tally = opened(tmp_path / "t", text)
    assert [row.input_length for row in rows] == [1, 3]
    assert tally.first_line == {"not_integer": 5}


def test_a_cell_in_quotes_may_run_over_lines(tmp_path: Path) -> None:
    text = "ts,note,prompt_tokens,completion_tokens\n" + "".join(
        f'2026-11-21 10:00:{i:02d},"a, ""b""\nc\n",{prompt},5\n'
        for i, prompt in enumerate(("1", "2", "bad", "4"))
    )
    rows, tally = opened(tmp_path / "t", text)
    assert [row.input_length for row in rows] == [1, 2, 4]
    assert tally.first_line == {"not_integer": 8}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "latin-1"])
def test_a_table_is_read_in_the_encodings_of_spreadsheets(tmp_path: Path, encoding: str) -> None:
    mark = "\ufeff" if encoding == "utf-16-le" else ""
    text = mark + stamped("1,5", "2,5").replace("ts,", "ts,Größe,").replace(
        ":00,", ":00,é,"
    ).replace(":01,", ":01,é,")
    rows, _ = opened(tmp_path / "t", text.encode(encoding))
    assert [row.input_length for row in rows] == [1, 2]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_any_machine_ends_them(tmp_path: Path, end: str) -> None:
    rows, _ = opened(tmp_path / "t", stamped("1,5", "2,5").replace("\n", end))
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("headings", "row", "column"),
    [
        ("start_time,end_time", "2026-11-21 10:00:05,2026-11-21 10:00:04", "end_time"),
        ("ts,latency_ms", "2026-11-21 10:00:05,-1", "latency_ms"),
        ("ts,ttft_ms", "2026-11-21 10:00:05,-1", "ttft_ms"),
    ],
)
def test_a_time_that_goes_back_drops_its_row(
    tmp_path: Path, headings: str, row: str, column: str
) -> None:
    good = row.replace(",-1", ",100").replace("10:00:04", "10:00:06")
    text = f"{headings},tokens_in,tokens_out\n{good},3,5\n{row},3,5\n{good},3,5\n"
    rows, tally = opened(tmp_path / "t", text)
    assert len(rows) == 2
    assert tally.first_place("negative_time") == f"{tmp_path / 't'}:3, column {column!r}"


def test_an_hour_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    """In Europe clocks went back from 3 to 2 on Sunday, 25 October 2026."""
    times = [*(f"02:{minute}:00" for minute in (40, 50, 59)), "02:00:30", "02:10:00"]
    text = HEAD + "".join(f"2026-10-25 {at},1,5\n" for at in times)
    found = refusal(tmp_path / "t", text)
    assert "goes back from 2026-10-25 02:59:00 by 58 min: clocks were set back" in str(found)
    assert len(opened(tmp_path / "t", text.replace("10-25", "10-20"))[0]) == 5  # any other day
    assert (
        len(opened(tmp_path / "t", text.replace(":00,", ":00Z,").replace(":30,", ":30Z,"))[0]) == 5
    )


def test_times_of_day_that_pass_midnight_are_refused(tmp_path: Path) -> None:
    assert len(opened(tmp_path / "t", HEAD + "10:00:01,1,5\n10:00:00,1,5\n")[0]) == 2
    found = refusal(tmp_path / "t", HEAD + "23:59:59,1,5\n00:00:01,1,5\n")
    assert "from line 1 on, 'ts' goes back as if it passed midnight, and no column" in str(found)


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_quiet_day_passes_no_midnight_and_a_quiet_night_does(
    tmp_path: Path, newest_first: bool
) -> None:
    def table(*times: str) -> str:
        ordered = times[::-1] if newest_first else times
        return HEAD + "".join(f"{time},1,5\n" for time in ordered)

    day = ("06:00:00", "06:00:01", "06:00:02", "19:30:00", "19:30:01")
    assert len(opened(tmp_path / "t", table(*day))[0]) == 5
    nights = ("19:00:00", "19:00:01", "19:00:02", "09:00:00", "09:00:01")
    assert "passed midnight" in str(refusal(tmp_path / "t", table(*nights)))


def test_a_failed_request_needs_no_lengths_and_is_not_served(tmp_path: Path) -> None:
    text = "ts,tokens_in,tokens_out,status\n" + "".join(
        f"2026-11-21 10:00:00,{cells}\n" for cells in ("3,5,200", ",,500", "3,0,429", "3,2,499")
    )
    rows, _ = opened(tmp_path / "t", text)
    assert [row.status for row in rows] == ["ok", "error", "rejected", "aborted"]


@pytest.mark.parametrize("packed", [False, True], ids=["csv", "parquet"])
def test_one_odd_word_among_the_statuses_hides_no_abort(tmp_path: Path, packed: bool) -> None:
    path, times = tmp_path / "t", [f"2026-11-21 10:00:0{second}" for second in range(3)]
    statuses = ["ok", "aborted", "odd"]
    table = pa.table({"ts": times, "tokens_in": [3] * 3, "tokens_out": [5] * 3, "status": statuses})
    (parquet.write_table if packed else csv.write_csv)(table, path)
    rows, tally = opened(path, path.read_bytes())
    assert [row.status for row in rows] == ["ok", "aborted", "ok"]
    assert tally.notes == ["status 'odd' is not known: such requests count as served"]


def test_a_row_that_sums_up_several_requests_is_none(tmp_path: Path) -> None:
    text = "start_time,end_time,num_model_requests,input_tokens,output_tokens\n" + "".join(
        f"{AT_S + 60 * i},{AT_S + 60 * i + 60},{n},10,5\n" for i, n in enumerate((1, 3, 1))
    )
    rows, tally = opened(tmp_path / "t", text)
    assert tally.dropped == {"several_requests": 1}
    assert [row.e2e_ms for row in rows] == [None, None]  # a minute is of the sum, not the request's


def test_a_span_without_a_unit_is_told_by_its_tokens_or_refused(tmp_path: Path) -> None:
    def latencies(*values: str) -> str:
        rows = "".join(f"2026-11-21 10:00:00,10,100,{value}\n" for value in values)
        return "ts,tokens_in,tokens_out,latency\n" + rows

    assert opened(tmp_path / "t", latencies("2", "2.5"))[0][0].e2e_ms == 2000
    assert opened(tmp_path / "t", latencies("2000", "2500"))[0][0].e2e_ms == 2000
    found = refusal(tmp_path / "t", latencies("50", "60"))  # 0.5 s a token, or 0.5 ms
    assert "latency: it may be in seconds or milliseconds" in str(found)
    asked = TableOptions({"duration_ms": "latency"})
    assert opened(tmp_path / "t", latencies("50", "60"), asked)[0][0].e2e_ms == 50


@pytest.mark.parametrize("time_unit", [None, "s"])
def test_a_unit_is_not_asked_for_where_that_would_not_do(
    tmp_path: Path, time_unit: TimeUnit | None
) -> None:
    text = json.dumps({"timestamp": 1, "prompt": "sesame", "completion": "x"})
    found = refusal(tmp_path / "t.jsonl", text + "\n", TableOptions(time_unit=time_unit))
    assert "no column for input_length, output_length" in str(found)
    assert "--time-unit" not in found.hint
    assert "sesame" not in f"{found} {found.hint}"


def timed(*each: tuple[int, str]) -> str:
    """Return a table of output tokens and durations whose unit only they tell."""
    rows = "".join(f"2026-11-21 10:00:00,10,{n},{value}\n" for n, value in each)
    return "ts,tokens_in,tokens_out,latency\n" + rows


@pytest.mark.parametrize(
    ("usual", "odd"), [("1500", "1.5"), ("1.5", "1500"), ("2000.25", "2.0"), ("2.0", "2000.25")]
)
@pytest.mark.parametrize("count", [9, 5000])
def test_a_duration_in_another_unit_than_its_column_is_dropped(
    tmp_path: Path, usual: str, odd: str, count: int
) -> None:
    """In the first rows, and far below them, where columns are read at once."""
    for place in (4, count - 2):
        each = [(100, usual)] * count
        each[place] = (100, odd)
        rows, tally = opened(tmp_path / "t", timed(*each))
        assert tally.dropped == {"other_unit": 1}
        assert len({row.e2e_ms for row in rows}) == 1


def test_short_answers_cached_ones_and_an_overloaded_server_are_no_other_unit(
    tmp_path: Path,
) -> None:
    """A prompt may take all of the time of a few tokens, the queue a hundred times that of many."""
    usual = [(100, "3000")] * 20
    for odd in ((1, "9000"), (31, "4"), (100, "16"), (60, "120000"), (100, "0")):
        rows, tally = opened(tmp_path / "t", timed(*usual, odd))
        assert (tally.dropped, rows[-1].e2e_ms) == ({}, float(odd[1]))


def test_durations_of_two_units_by_turns_are_refused_and_read_as_is_said(tmp_path: Path) -> None:
    text = timed(*[(100, "1500"), (100, "1800"), (100, "1.5")] * 4)
    assert "latency: durations of several units stand in it, 1500 and 1.5" in str(
        refusal(tmp_path / "t", text)
    )
    rows, tally = opened(tmp_path / "t", text, TableOptions({"duration_ms": "latency"}))
    assert (tally.dropped, rows[2].e2e_ms) == ({}, 1.5)


def test_a_column_is_kept_as_a_class_under_another_name(tmp_path: Path) -> None:
    text = "ts,tokens_in,tokens_out,customer\n" + "".join(
        f"2026-11-21 10:00:00,3,5,{name}\n"
        for name in ("Acme, Inc".replace(", ", " "), "b", "b", "")
    )
    rows, _ = opened(tmp_path / "t", text)
    assert [row.request_class for row in rows] == ["c0", "c1", "c1", None]
    assert "Acme" not in "".join(map(repr, rows))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("ts,prompt,tokens_in,tokens_out\n2026-11-21 10:00:00,hello,3,5\n", "prompt"),
        ("ts,messages,tokens_in,tokens_out\n" + "2026-11-21 10:00:00,,3,5\n" * 3000
         + "2026-11-21 10:00:00,late,3,5\n", "messages"),
        (json.dumps({"ts": "2026-11-21T10:00:00Z", "tokens_in": 3, "tokens_out": 5,
                     "request": {"messages": [{"role": "user", "content": "hi"}]}}),
         "request.messages"),
    ],
)  # fmt: skip
def test_a_table_that_holds_text_is_refused_unless_that_is_allowed(
    tmp_path: Path, text: str, key: str
) -> None:
    assert f"holds text ({key})" in str(refusal(tmp_path / "t", text))
    rows, _ = read(tmp_path / "t", text, None, allow_text=True)
    assert rows[0].input_length == 3


@pytest.mark.parametrize(
    ("text", "message", "command"),
    [
        (
            "when_it_came,prompt_tok,gen\n2026-11-21 10:00:00,3,5\n",
            (
                "no column for timestamp; seen: when_it_came, prompt_tok, gen; "
                "taken: input_length=prompt_tok, output_length=gen"
            ),
            "--columns input_length=prompt_tok,output_length=gen,timestamp=when_it_came",
        ),
        (
            "ts,in_words,b\n2026-11-21 10:00:00,3,5\n",
            "no column for input_length, output_length; seen: ts, in_words, b; taken: timestamp=ts",
            "--columns timestamp=ts,input_length=in_words,output_length=b",
        ),
        (
            "2026-11-21 10:00:00,3,5\n2026-11-21 10:00:01,4,5\n",
            "no column for timestamp, input_length, output_length; seen: #1, #2, #3",
            "--columns 'timestamp=#1,input_length=#2,output_length=#3'",
        ),
    ],
)
def test_an_unknown_table_gets_the_command_that_would_do_and_it_does(
    tmp_path: Path, text: str, message: str, command: str
) -> None:
    found = refusal(tmp_path / "t", text)
    assert message in str(found)
    assert command in found.hint
    named = found.hint.split("--columns ")[1].split(" -o")[0].strip("'")
    rows, _ = opened(tmp_path / "t", text, TableOptions(columns_asked(named)))
    assert (rows[0].input_length, rows[0].output_length) == (3, 5)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("created_at,user,region\n2026-11-21 10:00:00,ann,eu\n", "created_at, user, region"),
        ("user;region\nann;eu\nbob;us\n", "user, region"),
        (",user,region\n0,ann,eu\n1,bob,us\n", "#1, user, region"),
        ('{"user": "ann", "region": "eu"}\n{"user": "bob", "region": "us"}\n', "user, region"),
        ('[{"user": "ann", "region": "eu"}]', "user, region"),
    ],
)
def test_a_table_of_something_else_is_refused_with_its_headings(
    tmp_path: Path, text: str, seen: str
) -> None:
    found = refusal(tmp_path / "t", text)
    assert f"no column for {'' if 'created_at' in seen else 'timestamp, '}input_length" in str(
        found
    )
    assert f"; seen: {seen}" in str(found)
    assert found.hint.endswith("tuner trace import --list shows what else is read.")


@pytest.mark.parametrize(
    "text", ["hello, world\n", "a line\nand, another\n", f"{'a' * 61},b\n1,2\n"]
)
def test_what_is_no_table_is_not_called_one(tmp_path: Path, text: str) -> None:
    assert "not a trace format that tuner knows" in str(refusal(tmp_path / "t", text))


def test_what_nothing_can_cure_says_what_to_export(tmp_path: Path) -> None:
    found = refusal(tmp_path / "t", "created_at,prompt_tokens,user\n2026-11-21 10:00:00,3,ann\n")
    assert "no column for output_length" in str(found)
    assert found.hint.startswith("Export it with")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("timestamp", "cannot read 'timestamp'"),
        ("=x", "cannot read '=x'"),
    ],
)
def test_columns_that_cannot_be_read_are_a_usage_error(columns: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        columns_asked(columns)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"input_length": "nope"}, "no column is headed 'nope'"),
        ({"inputlength": "prompt_tokens"}, "'inputlength' is nothing that a column can be"),
        ({"timestamp": "completion_tokens"}, "count from some start"),
        ({"input_length": "ts"}, "ts cannot be input_length: it holds '2026-11-21 10:00:00'"),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    tmp_path: Path, columns: dict[str, str], message: str
) -> None:
    assert message in str(refusal(tmp_path / "t", stamped("1,5"), TableOptions(columns)))


def test_headings_with_commas_and_paths_with_dots_can_be_named(tmp_path: Path) -> None:
    assert columns_asked(r"timestamp=a\,b, input_length=x.y") == {
        "timestamp": "a,b", "input_length": "x.y",
    }  # fmt: skip
    text = json.dumps({"meta": {"t": AT_S}, "u.v": {"a": 3}, "w": 5})
    asked = TableOptions({"timestamp": "meta.t", "input_length": "u.v.a", "output_length": "w"})
    rows, _ = opened(tmp_path / "t", text, asked)
    assert (rows[0].input_length, rows[0].output_length) == (3, 5)


def test_a_delimiter_is_one_character() -> None:
    assert (delimiter_asked("tab"), delimiter_asked("^")) == ("\t", "^")
    with pytest.raises(UsageError, match="is not one character"):
        delimiter_asked(";;")


def test_a_delimiter_of_ones_own_is_taken(tmp_path: Path) -> None:
    rows, _ = opened(tmp_path / "t", stamped("1,5").replace(",", "^"), TableOptions(delimiter="^"))
    assert rows[0].input_length == 1


@pytest.mark.parametrize(
    ("cells", "e2e_ms"),
    [
        (("0,800", "1,200"), [800, 1200]),  # no thousand begins with 0
        (("1,250", "2,500"), [1250, 2500]),  # as thousands a token would take minutes
        (("1,250,000", "2,500,000"), [1_250_000_000, 2_500_000_000]),
    ],
)
def test_a_comma_in_a_duration_parts_what_leaves_a_token_its_time(
    tmp_path: Path, cells: tuple[str, str], e2e_ms: list[float]
) -> None:
    text = "ts;prompt_tokens;completion_tokens;duration_s\n" + "".join(
        f"{AT_S + place};10;50;{cell}\n" for place, cell in enumerate(cells)
    )
    rows, _ = opened(tmp_path / "t", text)
    assert [row.e2e_ms for row in rows] == e2e_ms


def test_a_comma_that_could_part_either_is_refused(tmp_path: Path) -> None:
    text = f"ts;prompt_tokens;completion_tokens;duration_ms\n{AT_S};10;50;25,000\n"
    refused = refusal(tmp_path / "t", text)
    assert "duration_ms: 25,000 may be 25000 or 25.000" in str(refused)


def test_a_unit_in_a_heading_holds_where_its_other_words_say_nothing(tmp_path: Path) -> None:
    content = "offset_s,prompt_tokens,completion_tokens\n0.0,5,6\n1.5,7,8\n"
    error = refusal(tmp_path / "t", content)
    assert ",timestamp=offset_s -o" in str(error.hint)
    asked = TableOptions(columns={"timestamp": "offset_s"})
    rows, _ = opened(tmp_path / "t", content, asked)
    assert [row.timestamp for row in rows] == [0, 1500]


def test_a_time_that_lost_its_digits_is_refused(tmp_path: Path) -> None:
    found = refusal(tmp_path / "t", HEAD + "1.79526E+12,1,5\n1.79526E+12,2,5\n")
    assert "ts: 1.79526E+12 lost its last digits: a spreadsheet wrote it so" in str(found)
    exact = HEAD + f"{AT_S / 10**9!r}e9,1,5\n{(AT_S + 1) / 10**9!r}e9,2,5\n"
    rows, _ = opened(tmp_path / "t", exact)
    assert rows[1].timestamp - rows[0].timestamp == 1000


def test_a_comma_in_a_time_parts_its_seconds_unless_it_could_part_thousands(
    tmp_path: Path,
) -> None:
    text = HEAD.replace(",", ";").replace("ts", "offset_s start")
    rows, _ = opened(tmp_path / "t", text + "0,500;1;5\n1,250;2;5\n")
    assert [row.timestamp for row in rows] == [500, 1250]
    rows, _ = opened(tmp_path / "t", text + "0,5;1;5\n1.234,5;2;5\n2.345;3;5\n")
    assert [row.timestamp for row in rows] == [500, 1_234_500, 2_345_000]
    found = refusal(tmp_path / "t", text + "1,500;1;5\n2,250;2;5\n")
    assert "1,500 may be 1500 or 1.500" in str(found)


def test_headings_in_an_encoding_that_nobody_names_say_how_to_convert_them(tmp_path: Path) -> None:
    text = "请求时间,输入Token,输出Token\n2026-11-21 10:00:00,3,5\n"
    found = refusal(tmp_path / "t", text.encode("gb18030"))
    assert "headings are not UTF-8" in str(found)
    assert "iconv -f GB18030 -t UTF-8" in found.hint
    assert opened(tmp_path / "t", text)[0][0].output_length == 5


def test_an_hour_that_is_there_twice_is_refused_with_the_newest_first_too(tmp_path: Path) -> None:
    times = ["02:20:00", "02:10:00", "02:00:30", "02:59:00", "02:50:00", "02:40:00"]
    text = HEAD + "".join(f"2026-10-25 {at},1,5\n" for at in times)
    found = refusal(tmp_path / "t", text)
    assert "goes back from 2026-10-25 02:59:00 by 58 min: clocks were set back" in str(found)


@pytest.mark.parametrize("packed", [False, True], ids=["csv", "parquet"])
def test_what_a_cache_answered_is_dropped_by_name(tmp_path: Path, packed: bool) -> None:
    path, times = tmp_path / "t", [f"2026-11-21 10:00:0{second}" for second in range(4)]
    cached = ["MISS", "HIT", "SEMANTIC HIT", "DISABLED"]
    table = pa.table(
        {"ts": times, "tokens_in": [3] * 4, "tokens_out": [5] * 4, "cache_status": cached}
    )
    (parquet.write_table if packed else csv.write_csv)(table, path)
    rows, tally = opened(path, path.read_bytes())
    assert [row.timestamp % 10_000 for row in rows] == [0, 3000]
    assert (tally.dropped, tally.first_column) == ({"cache_hit": 2}, {"cache_hit": "cache_status"})


@pytest.mark.parametrize("packed", [False, True], ids=["csv", "parquet"])
def test_a_link_that_sums_up_calls_is_dropped_by_name(tmp_path: Path, packed: bool) -> None:
    path, times = tmp_path / "t", [f"2026-11-21 10:00:0{second}" for second in range(4)]
    kinds = ["chain", "llm", "llm", "tool"]
    table = pa.table({"ts": times, "tokens_in": [6, 3, 3, 6], "tokens_out": [5] * 4})
    table = table.append_column("run_type", [kinds])
    (parquet.write_table if packed else csv.write_csv)(table, path)
    rows, tally = opened(path, path.read_bytes())
    assert [row.input_length for row in rows] == [3, 3]
    assert tally.dropped == {"not_generation": 2}
    assert tally.first_column == {"not_generation": "run_type"}


@pytest.mark.parametrize("order", [1, -1])
def test_a_better_heading_with_two_readings_is_refused_wherever_it_stands(
    tmp_path: Path, order: int
) -> None:
    columns = {"created_at": "05/10/2026", "start_time": "06/10/2026", "ts": "2026-11-21"}
    names = [*columns][::order]
    text = ",".join([*names, "tokens_in,tokens_out"]) + "\n"
    text += "".join(",".join([*(columns[name] for name in names), f"{n},5"]) + "\n" for n in (1, 2))
    assert "start_time: 06/10/2026 may have the day first" in str(refusal(tmp_path / "t", text))


@pytest.mark.parametrize("heading", ["inter_arrival_s", "arrival_delta_ms", "Gap since last (s)"])
def test_what_passed_since_the_row_above_is_no_time(tmp_path: Path, heading: str) -> None:
    text = f"{heading},tokens_in,tokens_out\n1.75,3,5\n0.5,4,6\n"
    found = refusal(tmp_path / "t", text)
    assert "no column for timestamp" in str(found)
    assert "--columns" not in found.hint


def test_another_table_with_its_columns_in_another_order_is_refused(tmp_path: Path) -> None:
    cells = "2026-11-21 10:00:00,3,5\n"
    assert len(opened(tmp_path / "t", HEAD + cells + HEAD + cells)[0]) == 2
    found = refusal(tmp_path / "t", HEAD + cells + "ts,completion_tokens,prompt_tokens\n" + cells)
    assert f"{tmp_path / 't'}:3: headings in another order than above" in str(found)


def test_a_total_that_is_more_than_both_lengths_is_said(tmp_path: Path) -> None:
    text = HEAD.replace("\n", ",total_tokens\n")
    text += "2026-11-21 10:00:00,3,5,20\n2026-11-21 10:00:01,4,6,30\n"
    rows, tally = opened(tmp_path / "t", text)
    assert [row.output_length for row in rows] == [5, 6]
    assert any("'total_tokens' is more than both lengths" in one for one in tally.said)
    rows, _ = opened(tmp_path / "t", text, TableOptions(columns={"output_length": ""}))
    assert [row.output_length for row in rows] == [17, 26]
    even = text.replace(",20", ",8").replace(",30", ",10")
    assert not any("more than both" in one for one in opened(tmp_path / "t", even)[1].said)


def test_counts_in_thousands_are_no_counts(tmp_path: Path) -> None:
    text = "ts,Input tokens (k),Output tokens\n2026-11-21 10:00:00,3,5\n"
    assert "no column for input_length" in str(refusal(tmp_path / "t", text))


def test_counts_that_are_cached_say_nothing_of_a_hit(tmp_path: Path) -> None:
    cells = "2026-11-21 10:00:00,9,5,8\n2026-11-21 10:00:01,9,5,0\n"
    rows, tally = opened(tmp_path / "t", HEAD.replace("\n", ",cached\n") + cells)
    assert (len(rows), tally.dropped) == (2, {})


def test_a_time_that_is_the_same_in_all_rows_is_no_arrival(tmp_path: Path) -> None:
    text = "start_time,end_time,time,prompt_tokens,completion_tokens\n" + "".join(
        f"2026-11-21,2026-11-22,2026-11-21 10:00:0{second},3,5\n" for second in range(3)
    )
    rows, _ = opened(tmp_path / "t", text)
    assert [row.timestamp - rows[0].timestamp for row in rows] == [0, 1000, 2000]
    assert rows[0].e2e_ms is None


def test_what_is_not_clear_of_a_column_that_nobody_needs_is_left_out_and_said(
    tmp_path: Path,
) -> None:
    text = "ts,tokens_in,tokens_out,cached_tokens,tokens_cached\n2026-11-21 10:00:00,9,5,1,2\n"
    rows, tally = opened(tmp_path / "t", text)
    assert rows[0].cached_tokens is None
    assert "cached_tokens is left out: both 'cached_tokens' and 'tokens_cached' may be" in str(
        tally.said
    )


@pytest.mark.parametrize(
    ("cell", "status"),
    [
        ("200 OK", "ok"), ("HTTP/1.1 499 Client Closed Request", "aborted"),
        ("429: slow down", "rejected"), ("RESOURCE_EXHAUSTED", "rejected"),
        ("DEADLINE_EXCEEDED", "error"), ("tool_calls", "ok"),
    ],
)  # fmt: skip
def test_a_status_is_read_with_words_around_it(tmp_path: Path, cell: str, status: str) -> None:
    rows, tally = opened(tmp_path / "t", HEAD[:-1] + f",status\n2026-11-21 10:00:00,3,5,{cell}\n")
    assert (rows[0].status, tally.notes) == (status, [])


def test_a_key_may_hold_a_value_in_one_row_and_an_object_in_another(tmp_path: Path) -> None:
    row = {"ts": AT_S, "prompt_tokens": 3, "completion_tokens": 5}
    text = "".join(json.dumps(row | {"status": one}) + "\n" for one in ("ok", {"code": "429"}))
    asked = TableOptions({"status": "status", "error": "status.code"})
    rows, tally = opened(tmp_path / "t", text, asked)
    assert ([one.status for one in rows], tally.dropped) == (["ok", "error"], {})


def test_a_row_of_marks_alone_is_counted_and_a_drawn_line_is_not(tmp_path: Path) -> None:
    text = HEAD + "----,---,---\n2026-11-21 10:00:00,3,5\n-,-,-\n2026-11-21 10:00:01,4,5\n"
    rows, tally = opened(tmp_path / "t", text)
    assert [row.input_length for row in rows] == [3, 4]
    assert tally.rows_read == 3


def test_a_cell_that_holds_a_prompt_as_json_is_text(tmp_path: Path) -> None:
    message = json.dumps({"prompt_tokens": 3, "completion_tokens": 5, "prompt": "hello"})
    (tmp_path / "csv").write_text("")
    table = pa.table({"ts": ["2026-11-21 10:00:00"], "@message": [message]})
    csv.write_csv(table, tmp_path / "csv")
    content = (tmp_path / "csv").read_bytes()
    assert "holds text (@message.prompt)" in str(refusal(tmp_path / "t", content))
    rows, _ = read(tmp_path / "t", content, None, allow_text=True)
    assert rows[0].input_length == 3


@pytest.mark.parametrize(("gap_s", "ends"), [(20, [None] * 3), (1, [1500, 2500, 3500])])
def test_a_span_that_grows_as_the_time_does_is_no_request(
    tmp_path: Path, gap_s: int, ends: list[float | None]
) -> None:
    text = "_timestamp,_runtime,prompt_tokens,completion_tokens\n" + "".join(
        f"{AT_S + gap_s * row},{1.5 + gap_s * row},3,100\n" for row in range(3)
    )
    rows, _ = opened(tmp_path / "t", text)
    assert [row.e2e_ms for row in rows] == ends


def test_tokens_a_second_are_no_count_of_tokens(tmp_path: Path) -> None:
    text = "ts,prompt_tokens/s,prompt tokens,eval_count\n2026-11-21 10:00:00,500,3,5\n"
    rows, _ = opened(tmp_path / "t", text)
    assert (rows[0].input_length, rows[0].output_length) == (3, 5)


def test_a_time_since_1970_is_no_span_and_nothing_is_said_of_it(tmp_path: Path) -> None:
    text = f"ts,first_token_time,queued_time,tokens_in,tokens_out\n{AT_S},{AT_S + 1},{AT_S},3,5\n"
    rows, tally = opened(tmp_path / "t", text)
    assert (rows[0].ttft_ms, rows[0].queue_ms) == (1000, None)
    assert "left out" not in str(tally.said)


@pytest.mark.parametrize("name", ["timestamp", "timestamp_s"])
def test_a_column_that_the_user_names_is_taken_though_another_is_earlier(
    tmp_path: Path, name: str
) -> None:
    text = "created_at,started_at,tokens_in,tokens_out\n" + "".join(
        f"{AT_S + row},{AT_S + row + 3},3,5\n" for row in range(3)
    )
    asked = TableOptions({name: "started_at"})
    assert opened(tmp_path / "t", text)[0][0].timestamp == AT_S * 1000
    assert opened(tmp_path / "t", text, asked)[0][0].timestamp == (AT_S + 3) * 1000


@pytest.mark.attack
@pytest.mark.timeout(60)
@pytest.mark.parametrize("rows_before", [0, 3])
def test_a_cell_that_is_nearly_a_type_takes_a_moment(tmp_path: Path, rows_before: int) -> None:
    """The first row of a sample, and any later one, is held against the types of ClickHouse."""
    good = "2026-11-21 10:00:00,5,5\n"
    nearly = f'"Decimal{")" * 300_000}\nx",5,5\n'
    content = HEAD + good * rows_before + nearly + good * 3
    rows, tally = opened(tmp_path / "t", content)
    assert (len(rows), sum(tally.dropped.values())) == (rows_before + 3, 1)


NOT_TEXT = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.array([0, 1, 2], pa.int32()).buffers()[1], pa.py_buffer(b"\xff\xff")]
)
ODD_COLUMNS: dict[str, dict[str, pa.Array]] = {
    "beyond all calendars": {"ts": pa.array([10**15] * 2, pa.timestamp("s"))},
    "longer than a clock runs": {"took": pa.array([2**62] * 2, pa.duration("s"))},
    "text that is none": {"status": NOT_TEXT},
    "text that is none, for a count": {"prompt_tokens": NOT_TEXT},
    "text that is none, of no use": {"other": NOT_TEXT},
    "more than a count holds": {"prompt_tokens": pa.array([2**64 - 1] * 2, pa.uint64())},
}


@pytest.mark.parametrize("heading", ["prompt_tokens", "model"])
def test_text_that_is_none_is_refused_far_below_the_first_rows_too(
    tmp_path: Path, heading: str
) -> None:
    size = 5000
    ends = pa.array(range(size + 1), pa.int32()).buffers()[1]
    digits = pa.py_buffer(b"5" * (size - 1) + b"\xff")
    plain = {
        "ts": pa.array([AT_S + row for row in range(size)], pa.timestamp("s")),
        "prompt_tokens": pa.array([5] * size),
        "completion_tokens": pa.array([5] * size),
    }
    odd = {heading: pa.Array.from_buffers(pa.string(), size, [None, ends, digits])}
    parquet.write_table(pa.table(plain | odd), tmp_path / "t")
    source, _ = open_trace(tmp_path / "t")
    with pytest.raises(TraceError, match="a broken Parquet or Arrow file"):
        list(source.rows)


@pytest.mark.attack
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("what", ODD_COLUMNS)
def test_what_arrow_makes_no_value_of_is_refused(tmp_path: Path, what: str, kind: str) -> None:
    plain = {
        "ts": pa.array([AT_S, AT_S + 1], pa.timestamp("s")),
        "prompt_tokens": pa.array([5, 5]),
        "completion_tokens": pa.array([5, 5]),
    }
    table, path = pa.table(plain | ODD_COLUMNS[what]), tmp_path / f"t.{kind}"
    if kind == "parquet":
        parquet.write_table(table, path)
    else:
        with ipc.new_file(str(path), table.schema) as file:
            file.write_table(table)
    with pytest.raises(TraceError, match="a broken Parquet or Arrow file"):
        list(open_trace(path)[0].rows)


@pytest.mark.attack
@pytest.mark.parametrize("kind", ["parquet", "parquet, as names", "arrow"])
def test_a_small_file_that_unpacks_to_gigabytes_is_refused(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,000 rows with a note of a million letters, which stands in the file once."""
    monkeypatch.setattr(arrow_files, "STEP_BYTES", 2**26)
    notes = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), ["a" * 10**6])
    plain = [pa.array([AT_S + i for i in range(2000)]), *[pa.array([5] * 2000)] * 2]
    table = pa.table([*plain, notes], ["ts", "prompt_tokens", "completion_tokens", "note"])
    path = tmp_path / "t"
    if kind == "arrow":
        with ipc.new_file(str(path), table.schema) as file:
            file.write_table(table)
    else:
        named = kind.endswith("names")
        limit = {"dictionary_pagesize_limit": 2**28, "compression": "zstd"}
        parquet.write_table(table, path, store_schema=named, **limit)
    assert path.stat().st_size < 2**21
    with pytest.raises(TraceError, match=r"some of its rows unpack to more than \d\d MiB"):
        open_trace(path)


@pytest.mark.attack
def test_a_packed_file_that_asks_for_gigabytes_to_unpack_it_is_refused(tmp_path: Path) -> None:
    packed = bytearray(lzma.compress(stamped("1,5", "2,5").encode()))
    header = slice(12, 12 + 4 * packed[12])
    assert packed[14:16] == b"\x21\x01"  # LZMA2, and the size of its dictionary in the next byte
    packed[16] = 40
    packed[header.stop : header.stop + 4] = zlib.crc32(packed[header]).to_bytes(4, "little")
    assert "unpacking it takes more than 512 MiB" in str(refusal(tmp_path / "t", bytes(packed)))


@pytest.mark.attack
def test_more_rows_than_are_held_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MOST_ROWS", 10**4)
    times = pa.array([AT_S * 1000] * 10**5, pa.timestamp("ms"))
    five = pa.array([5] * 10**5)
    parquet.write_table(pa.table({"ts": times, "prompt_tokens": five, "completion_tokens": five}),
                        tmp_path / "t", compression="zstd")  # fmt: skip
    assert (tmp_path / "t").stat().st_size < 10**4
    with pytest.raises(TraceError, match="more than 10,000 rows"):
        stream.scan(stream.Input(tmp_path / "t"), lambda _: None)

from pathlib import Path

import pytest

from tests.support.format_examples import EXAMPLES, read
from tuner.errors import TraceError, UsageError
from tuner.trace.formats.reading.record import Row

COLUMNS_2024 = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
COLUMNS_LMM = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"


def test_2024_has_a_zone_and_some_rows_no_fraction(tmp_path: Path) -> None:
    text = COLUMNS_2024 + (
        "1970-01-01 00:01:00.001163+00:00,1452,3\n"
        "1970-01-01 00:01:01+00:00,10,5\n"
        "1970-01-01 02:01:02.5+02:00,7,1\n"
    )
    rows, tally = read(tmp_path / "t", text, None)
    assert rows == [Row(60_001.163, 1452, 3), Row(61_000, 10, 5), Row(62_500, 7, 1)]
    assert tally.dropped == {}


def test_images_are_counted_beside_the_tokens(tmp_path: Path) -> None:
    text = COLUMNS_LMM + "1970-01-01T00:01:00.269Z,2,1452,30\n1970-01-01T00:01:01.000Z,0,10,5\n"
    rows, _ = read(tmp_path / "t", text, None)
    assert rows == [Row(60_269, 1452, 30, num_images=2), Row(61_000, 10, 5, num_images=0)]


@pytest.mark.parametrize(
    ("columns", "line", "reason"),
    [
        (COLUMNS_2024, "1970-01-01 00:01:00.0,10,5", "other_unit"),
        (COLUMNS_2024, "1970-01-01 00:01:00.0+99:00,10,5", "bad_timestamp"),
        (COLUMNS_2024, "1969-12-31 23:59:00.0+00:00,10,5", "bad_timestamp"),
        (COLUMNS_2024, "1970-01-01 00:01:00.0+00:00,10,0", "zero_tokens"),
        (COLUMNS_LMM, "1970-01-01T00:01:00.269Z,-1,10,5", "bad_field"),
        (COLUMNS_LMM, "1970-01-01T00:01:00.269Z,10,5", "malformed"),
        (COLUMNS_LMM, "1970-01-01T00:01:00.269Z,1,,5", "no_tokens"),
    ],
)
def test_a_row_that_cannot_be_used_is_counted_under_its_reason(
    tmp_path: Path, columns: str, line: str, reason: str
) -> None:
    good = EXAMPLES["azure2024" if columns == COLUMNS_2024 else "azure_lmm2025"].splitlines()[1]
    rows, tally = read(tmp_path / "t", f"{columns}{good}\n{line}\n{good}\n", None)
    assert len(rows) == 2
    assert tally.dropped == {reason: 1}
    assert tally.first_line == {reason: 3}


@pytest.mark.parametrize("name", ["azure2024", "azure_lmm2025"])
def test_dates_have_no_unit(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="the stamps are dates"):
        read(tmp_path / "t", EXAMPLES[name], name, time_unit="s")


@pytest.mark.parametrize(
    "text",
    [
        '"TIMESTAMP","ContextTokens","GeneratedTokens"\n"1970-01-01 00:01:00.5","10","5"\n',
        "timestamp;contexttokens;generatedtokens\n1970-01-01 00:01:00.5;10;5\n",
        ",TIMESTAMP,ContextTokens,GeneratedTokens\n0,1970-01-01 00:01:00.5,10.0,5.0\n",
        "GeneratedTokens,ContextTokens,TIMESTAMP\r\n5, 10, 1970-01-01T00:01:00.5\r\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n1970-01-01T00:01:00.5Z,10,5\n",
    ],
)
def test_a_table_that_another_program_wrote_anew_is_read_by_its_headings(
    tmp_path: Path, text: str
) -> None:
    rows, tally = read(tmp_path / "t", text, None)
    assert rows == [Row(60_500, 10, 5)]
    assert tally.dropped == {}


def test_the_year_is_told_by_the_first_date_there_is(tmp_path: Path) -> None:
    text = COLUMNS_2024 + "NaT,1,1\n1970-01-01 00:01:00+00:00,10,5\n"
    rows, tally = read(tmp_path / "t", text, None)
    assert rows == [Row(60_000, 10, 5)]
    assert tally.dropped == {"bad_timestamp": 1}


def test_headings_alone_are_a_trace_without_rows(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no rows"):
        read(tmp_path / "t", COLUMNS_2024, None)

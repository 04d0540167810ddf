from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.traces import SLICES, needs_slices
from tuner.errors import UsageError
from tuner.trace.formats.opening import open_trace
from tuner.trace.formats.reading.record import REASONS, Row, Tally

COLUMNS = "TIMESTAMP,ContextTokens,GeneratedTokens"
FIRST = "1970-01-01 00:01:00.0000000,10,5"


def read(path: Path, *lines: str, end: str = "\r\n") -> tuple[list[Row], Tally]:
    path.write_bytes((end.join([COLUMNS, *lines])).encode(errors="surrogateescape"))
    source, tally = open_trace(path, format_name="azure2023")
    assert source.absolute
    return list(source.rows), tally


def test_seven_digits_are_read_and_no_zone_is_assumed_but_utc(tmp_path: Path) -> None:
    rows, _ = read(tmp_path / "t", FIRST, "1970-01-02 00:00:01.2345678,4808,1")
    assert rows == [Row(60_000, 10, 5), Row(pytest.approx(86_401_234.5678), 4808, 1)]  # type: ignore[arg-type]


@pytest.mark.parametrize("stamp", ["1970-01-01 00:01:00", "1970-01-01 00:01:00.0"])
def test_the_fraction_may_be_short_or_absent(tmp_path: Path, stamp: str) -> None:
    assert read(tmp_path / "t", f"{stamp},10,5")[0] == [Row(60_000, 10, 5)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1970-01-01 00:01:00.0,10", "malformed"),
        ("1970-01-01 00:01:00.0,10,5,1", "malformed"),
        (",10,5", "no_timestamp"),
        ("60.5,10,5", "other_unit"),
        ("1970-13-01 00:00:00.0,10,5", "bad_timestamp"),
        ("1970-01-01 00:00:61.0,10,5", "bad_timestamp"),
        ("1970-01-01 00:01:00.0,,5", "no_tokens"),
        ("1970-01-01 00:01:00.0,10,null", "no_tokens"),
        ("1970-01-01 00:01:00.0,nan,5", "not_finite"),
        ("1970-01-01 00:01:00.0,10,-inf", "not_finite"),
        ("1970-01-01 00:01:00.0,-10,5", "negative"),
        ("1970-01-01 00:01:00.0,10.5,5", "not_integer"),
        ("1970-01-01 00:01:00.0,1_0,5", "not_integer"),
        ("1970-01-01 00:01:00.0,10,0", "zero_tokens"),
        ("1970-01-01 00:01:00.0,99999999999,5", "out_of_range"),
    ],
)
def test_a_row_that_cannot_be_used_is_counted_under_its_reason(
    tmp_path: Path, line: str, reason: str
) -> None:
    rows, tally = read(tmp_path / "t", FIRST, line, FIRST)
    assert len(rows) == 2
    assert tally.dropped == {reason: 1}
    assert tally.first_line == {reason: 3}


def test_a_last_row_that_breaks_off_is_named_as_such(tmp_path: Path) -> None:
    _, tally = read(tmp_path / "t", FIRST, "1970-01-01 00:01:00.0,1")
    assert tally.dropped == {"truncated": 1}


def test_dates_have_no_unit(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(f"{COLUMNS}\n{FIRST}\n")
    with pytest.raises(UsageError, match="the stamps are dates"):
        open_trace(tmp_path / "t", time_unit="s")


def test_dates_with_a_zone_are_another_format(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(f"{COLUMNS}\n2024-05-12 00:00:00.001163+00:00,1452,3\n")
    assert open_trace(tmp_path / "t")[0].header.source == "azure2024"


@given(
    lines=st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=40)
        | st.from_regex(
            r"197\d-\d\d-\d\d \d\d:\d\d:\d\d\.\d{1,9},-?\d{1,12},\d{0,3}", fullmatch=True
        ),
        max_size=8,
    )
)
def test_whatever_stands_in_the_file_the_counts_reconcile(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    rows, tally = read(tmp_path_factory.mktemp("fuzz") / "t", FIRST, *lines, end="\n")
    assert len(rows) == tally.rows_kept
    assert tally.rows_read == tally.rows_kept + sum(tally.dropped.values())
    assert set(tally.dropped) <= set(REASONS)


@needs_slices
@pytest.mark.parametrize(("name", "rows"), [("code", 4409), ("conv", 9683)])
def test_public_slices_are_read_whole(name: str, rows: int) -> None:
    source, tally = open_trace(SLICES / f"azure2023_{name}.csv")
    assert len(list(source.rows)) == rows
    assert tally.warnings() == []

"""Points and commas in the numbers of a table: of thousands or of fractions, or refused."""

from pathlib import Path

import pytest

from tests.trace.tables.test_bad_input import AT_S, HEAD, opened, refusal, stamped
from tuner.trace.formats.reading.trace_file import TableOptions, columns_asked


@pytest.mark.parametrize("cells", [("1.000", "2.000"), ("1.000", "250"), ("60.000", "128.000")])
def test_a_point_and_three_zeros_may_be_either_and_are_refused(
    tmp_path: Path, cells: tuple[str, ...]
) -> None:
    found = refusal(tmp_path / "t", stamped(*(f"{cell},5" for cell in cells)))
    whole, _, zeros = cells[0].partition(".")
    assert f"prompt_tokens: {cells[0]} may be {whole} or {whole}{zeros}" in str(found)


@pytest.mark.parametrize(
    ("cells", "prompts"),
    [
        (("60.0", "5.0"), [60, 5]),  # pandas, of whole numbers that may be missing
        (("1.000", "5.0"), [1, 5]),
        (("1.000", "1500"), [1, 1500]),  # with a mark it would be 1.500
        (("1024.000", "1.000"), [1024, 1]),
        (("0.000", "1.000", "2.000"), [1, 2]),  # no thousand begins with 0
        (("1.000", "250", "1.234"), [1000, 250, 1234]),
        (("1.000.000", "1.000"), [1_000_000, 1000]),
        (('"1,000"', "1500"), [1, 1500]),
        (('"1234,000"', '"1,000"'), [1234, 1]),
    ],
)
def test_other_counts_of_a_column_tell_what_three_zeros_are(
    tmp_path: Path, cells: tuple[str, ...], prompts: list[int]
) -> None:
    rows, tally = opened(tmp_path / "t", stamped(*(f"{cell},5" for cell in cells)))
    assert [row.input_length for row in rows] == prompts
    assert sum(tally.dropped.values()) == len(cells) - len(prompts)


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_the_first_count_with_a_mark_far_below_is_no_small_one(tmp_path: Path, kind: str) -> None:
    cells = ["250"] * 1100 + ["1.000", "60.0"]
    rows = [(AT_S + place, cell) for place, cell in enumerate(cells)]
    text = HEAD + "".join(f"{at},{cell},5\n" for at, cell in rows)
    if kind == "json":
        text = "".join(
            f'{{"ts":{at},"prompt_tokens":"{cell}","completion_tokens":5}}\n' for at, cell in rows
        )
    found, tally = opened(tmp_path / "t", text)
    assert [row.input_length for row in found[-2:]] == [250, 60]
    assert (tally.dropped, tally.first_column) == (
        {"not_integer": 1}, {"not_integer": "prompt_tokens"},
    )  # fmt: skip


def durations(heading: str, *cells: str, tokens: int = 50) -> str:
    rows = (f"{AT_S + place};10;{tokens};{cell}\n" for place, cell in enumerate(cells))
    return f"ts;prompt_tokens;completion_tokens;{heading}\n" + "".join(rows)


@pytest.mark.parametrize(
    ("heading", "cells", "e2e_ms", "thousands"),
    [
        ("Dauer (ms)", ("1.234", "987"), [1234, 987], True),  # in 1.234 ms there are no 50 tokens
        ("Dauer (ms)", ("1.234", "2.345", "12.345"), [1234, 2345, 12_345], True),
        ("Dauer (ms)", ("1.234.567", "987"), [1_234_567, 987], True),
        ("Dauer (s)", ("1.234", "2"), [1234, 2000], False),
        ("Dauer (s)", ("1.234", "2.345"), [1234, 2345], False),  # or else a token takes minutes
        ("Dauer (s)", ("1.234", "0.987"), [1234, 987], False),
        ("Dauer (ms)", ("1.234", "987.5"), [1.234, 987.5], False),
        ("Dauer (ms)", ("1.234", "1987"), [1.234, 1987], False),  # with a mark it would be 1.987
        ("latency", ("1.234", "2.345"), [1234, 2345], False),
        ("latency", ("1.234", "2"), [1234, 2000], False),
        ("latency", ("1.234", "987"), [1234, 987], True),
    ],
)
def test_a_point_in_a_duration_parts_what_leaves_a_token_its_time(
    tmp_path: Path, heading: str, cells: tuple[str, ...], e2e_ms: list[float], *, thousands: bool
) -> None:
    rows, tally = opened(tmp_path / "t", durations(heading, *cells))
    assert [row.e2e_ms for row in rows] == e2e_ms
    assert ("with '.' between thousands" in str(tally.said)) is thousands


def test_a_duration_of_three_decimals_stays_one_where_both_leave_a_token_its_time(
    tmp_path: Path,
) -> None:
    rows, _ = opened(tmp_path / "t", durations("duration_ms", "12.345", "25.125", tokens=30))
    assert [row.e2e_ms for row in rows] == [12.345, 25.125]


def test_a_point_that_could_part_either_is_refused_with_a_command_that_does(
    tmp_path: Path,
) -> None:
    text = durations("duration_ms", "25.125", "980")
    found = refusal(tmp_path / "t", text)
    assert "duration_ms: 25.125 may be 25125 or 25.125" in str(found)
    assert "--columns duration= -o trace.jsonl" in found.hint
    rows, _ = opened(tmp_path / "t", text, TableOptions(columns_asked("duration=")))
    assert [row.e2e_ms for row in rows] == [None, None]
    asked = TableOptions({"duration_ms": "duration_ms"})
    assert "--columns duration= -o" in refusal(tmp_path / "t", text, asked).hint


def test_a_time_to_the_first_token_that_could_be_either_is_left_out_and_said(
    tmp_path: Path,
) -> None:
    rows, tally = opened(tmp_path / "t", durations("ttft_ms", "1.234", "987"))
    assert [row.ttft_ms for row in rows] == [None, None]
    assert "ttft_ms is left out, 1.234 may be 1234 or 1.234" in str(tally.said)


def test_a_point_in_a_time_parts_its_seconds_unless_it_could_part_thousands(
    tmp_path: Path,
) -> None:
    text = HEAD.replace("ts", "offset_s start")
    for times, ms in (
        (("0.500", "1.250"), [500, 1250]),
        (("1.250", "12.500"), [1250, 12_500]),
        (("1.250", "1250"), [1250, 1_250_000]),
        (("987", "1.234.567"), [987_000, 1_234_567_000]),
    ):
        rows, _ = opened(tmp_path / "t", text + "".join(f"{at},1,5\n" for at in times))
        assert [row.timestamp for row in rows] == ms
    found = refusal(tmp_path / "t", text + "987,1,5\n1.250,2,5\n")
    assert "offset_s start: 1.250 may be 1250 or 1.250" in str(found)

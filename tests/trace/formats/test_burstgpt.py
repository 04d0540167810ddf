from pathlib import Path

import pytest

from tests.support.format_examples import EXAMPLES, read
from tests.support.traces import SLICES, needs_slices
from tuner.errors import UsageError
from tuner.trace.formats.opening import open_trace
from tuner.trace.trace import load

OLD = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
NEW = EXAMPLES["burstgpt"].splitlines()[0] + "\n"


def test_cells_are_found_by_their_headings_in_both_layouts(tmp_path: Path) -> None:
    (old,), _ = read(tmp_path / "old", OLD + "5,ChatGPT,472,18,490,Conversation log\n", None)
    assert (old.timestamp, old.input_length, old.output_length) == (5000, 472, 18)
    assert (old.model, old.session_id, old.e2e_ms) == ("ChatGPT", None, None)
    (new, failed), _ = read(tmp_path / "new", EXAMPLES["burstgpt"], None)
    assert (new.timestamp, new.input_length, new.output_length) == (19_440_110_000, 906, 446)
    assert (new.model, new.session_id, new.e2e_ms) == ("GPT-4", "s0", 43_000)
    assert (failed.session_id, failed.e2e_ms) == (None, 7000)


def test_a_response_of_no_tokens_is_a_failure_and_kept_as_one(tmp_path: Path) -> None:
    rows, tally = read(tmp_path / "t", OLD + "5,GPT-4,0,0,0,API log\n6,GPT-4,9,0,9,API log\n", None)
    assert [row.status for row in rows] == ["error", "error"]
    assert tally.dropped == {}


def test_sessions_are_renumbered_and_stay_together(tmp_path: Path) -> None:
    lines = [f"{at},{name},1,GPT-4,5,5,10,x\n" for at, name in enumerate(["u-b", "u-a", "u-b"])]
    rows, _ = read(tmp_path / "t", NEW + "".join(lines), None)
    assert [row.session_id for row in rows] == ["s0", "s1", "s0"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("5,GPT-4,10,5,15", "malformed"),
        (",GPT-4,10,5,15,x", "no_timestamp"),
        ("noon,GPT-4,10,5,15,x", "bad_timestamp"),
        ("-5,GPT-4,10,5,15,x", "before_origin"),
        ("nan,GPT-4,10,5,15,x", "not_finite"),
        ("1e30,GPT-4,10,5,15,x", "out_of_range"),
        ("5,GPT-4,,5,15,x", "no_tokens"),
        ("5,GPT-4,10,-5,15,x", "negative"),
        ("5,GPT-4,10.5,5,15,x", "not_integer"),
        ("5,GPT-4,0,5,15,x", "zero_tokens"),
        ("5,GPT-4,10,9999999999,15,x", "out_of_range"),
        ("5,\udcff,10,5,15,x", "encoding"),
    ],
)
def test_a_row_that_cannot_be_used_is_counted_under_its_reason(
    tmp_path: Path, line: str, reason: str
) -> None:
    text = OLD + f"1,GPT-4,1,1,2,x\n{line}\n2,GPT-4,1,1,2,x\n"
    rows, tally = read(tmp_path / "t", text.encode(errors="surrogateescape"), None)
    assert len(rows) == 2
    assert tally.dropped == {reason: 1}


def test_elapsed_that_is_no_time_drops_the_row(tmp_path: Path) -> None:
    text = NEW + "1,,,GPT-4,1,1,2,x\n2,,soon,GPT-4,1,1,2,x\n"
    rows, tally = read(tmp_path / "t", text, None)
    assert [row.e2e_ms for row in rows] == [None]
    assert tally.dropped == {"bad_field": 1}


def test_stamps_count_from_no_date_and_begin_at_0(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(EXAMPLES["burstgpt"])
    trace = load(tmp_path / "t")
    assert [one.arrival_s for one in trace.requests] == [0, 10]
    assert trace.header.time_origin is None


def test_the_unit_is_no_question(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="in s"):
        read(tmp_path / "t", EXAMPLES["burstgpt"], None, time_unit="s")


@needs_slices
@pytest.mark.parametrize(("name", "failed"), [("burstgpt1", 9), ("burstgpt3", 1)])
def test_public_slices_are_read_whole(name: str, failed: int) -> None:
    source, tally = open_trace(SLICES / f"{name}.csv")
    rows = list(source.rows)
    assert (tally.rows_read, tally.rows_kept) == (200, 200)
    assert sum(row.status == "error" for row in rows) == failed
    assert all((row.e2e_ms is not None) == (name == "burstgpt3") for row in rows)


@pytest.mark.parametrize(
    "text",
    [
        OLD + "5.0,ChatGPT,472.0,18.0,490.0,Conversation log\n",
        OLD.replace(",", ";") + "5;ChatGPT;472;18;490;Conversation log\n",
        "," + OLD + '0,"5","ChatGPT","472","18","490","Conversation, log"\n',
    ],
)
def test_a_table_that_another_program_wrote_anew_is_read_by_its_headings(
    tmp_path: Path, text: str
) -> None:
    (row,), _ = read(tmp_path / "t", text, None)
    assert (row.timestamp, row.input_length, row.output_length) == (5000, 472, 18)

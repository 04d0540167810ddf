import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.traces import HEADER, row, write_lines
from tuner.errors import TraceError, UsageError
from tuner.trace.formats.opening import open_trace
from tuner.trace.formats.reading.header import TimeUnit
from tuner.trace.formats.reading.record import REASONS, Row, Tally

FULL = row(
    192104.5,
    output_lengths=[57, 40, 12],
    n=3,
    max_tokens=256,
    hash_ids=[0],
    request_id="r1",
    session_id="s0",
    turn=1,
    parent_id="r0",
    e2e_ms=43000,
    ttft_ms=52.5,
    queue_ms=0.03,
    status="aborted",
    finish_reason="abort",
    priority=-1,
    lora="a0",
    model="m",
    replica=2,
    stream=True,
    cached_tokens=128,
    num_images=0,
    row=7,
)


def read(
    path: Path,
    *lines: object,
    format_name: str | None = None,
    time_unit: TimeUnit | None = None,
) -> tuple[list[Row], Tally]:
    path = write_lines(path, *lines)
    source, tally = open_trace(path, format_name=format_name, time_unit=time_unit)
    return list(source.rows), tally


def test_every_field_is_read(tmp_path: Path) -> None:
    (found,), tally = read(tmp_path / "t", HEADER, FULL)
    assert {key: getattr(found, key) for key in FULL} == {
        key: tuple(value) if isinstance(value, list) else value for key, value in FULL.items()
    }
    assert tally.warnings() == []


def test_null_is_absent(tmp_path: Path) -> None:
    optional = FULL.keys() - {"timestamp", "input_length", "output_length"}
    (found,), _ = read(tmp_path / "t", HEADER, row(1, **dict.fromkeys(optional)))
    assert found == Row(1, 10, 5)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("{", "malformed"),
        ("[1, 2]", "malformed"),
        ("17", "malformed"),
        ("[" * 100_000, "malformed"),
        ('{"timestamp": ' + "9" * 5000 + "}", "malformed"),
        (b'{"timestamp": 1, "model": "\xff", "input_length": 1, "output_length": 1}', "encoding"),
        (
            '{"timestamp": 1, "timestamp": 2, "input_length": 1, "output_length": 1}',
            "duplicate_key",
        ),
        (
            '{"timestamp": 1, "time\\u0073tamp": 2, "input_length": 1, "output_length": 1}',
            "duplicate_key",
        ),
        ('{"timestamp" :1,"timestamp":2,"input_length":1,"output_length":1}', "duplicate_key"),
        (
            '{"timestamp":1,"input_length":1,"output_length":1,"x":{"a":1,"a":2}}',
            "duplicate_key",
        ),
        (row(float("nan")), "not_finite"),
        (row(float("inf")), "not_finite"),
        (row(1, e2e_ms=float("-inf")), "not_finite"),
        ({"input_length": 1, "output_length": 1}, "no_timestamp"),
        (row(None), "no_timestamp"),
        (row("1"), "bad_timestamp"),
        (row(True), "bad_timestamp"),
        (row(-0.001), "before_origin"),
        (row(10**30), "out_of_range"),
        ('{"timestamp": 1e400, "input_length": 1, "output_length": 1}', "out_of_range"),
        (row(1, input_length=None), "no_tokens"),
        ({"timestamp": 1, "input_length": 1}, "no_tokens"),
        (row(1, input_length=1.5), "not_integer"),
        (row(1, output_length="5"), "not_integer"),
        (row(1, output_length=True), "not_integer"),
        (row(1, input_length=-1), "negative"),
        (row(1, output_length=-5), "negative"),
        (row(1, input_length=0), "zero_tokens"),
        (row(1, output_length=0), "zero_tokens"),
        (row(1, input_length=2**31), "out_of_range"),
        (row(1, hash_ids=[1, 2]), "bad_hash_ids"),
        (
            '{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": "\\ud800"}',
            "encoding",
        ),
        (row(1, hash_ids=[-1]), "bad_hash_ids"),
        (row(1, hash_ids=[1.5]), "bad_hash_ids"),
        (row(1, hash_ids=[2**63]), "bad_hash_ids"),
        (row(1, status="done"), "bad_field"),
        (row(1, n=0), "bad_field"),
        (row(1, e2e_ms=-1), "bad_field"),
        (row(1, stream="yes"), "bad_field"),
    ],
)
def test_a_row_that_cannot_be_used_is_counted_under_its_reason(
    tmp_path: Path, bad: object, reason: str
) -> None:
    rows, tally = read(tmp_path / "t", HEADER, row(0), bad, row(2))
    assert [one.timestamp for one in rows] == [0, 2]
    assert tally.dropped == {reason: 1}
    assert tally.first_line == {reason: 3}
    assert (tally.rows_read, tally.rows_kept) == (3, 2)
    (warning,) = tally.warnings()
    assert "1 of 3 rows dropped" in warning
    assert f"{tmp_path / 't'}:3" in warning


@pytest.mark.parametrize(
    "fine",
    [
        row(1, status="rejected", input_length=None, output_length=None),
        row(1, status="error", input_length=0, output_length=0),
        row(1, status="aborted", output_length=0),
        row(1, hash_ids=[1]),
        row(1, request_id="a:b", session_id=5),
        row(0.0),
        row(3000),
    ],
)
def test_what_the_format_allows_is_kept(tmp_path: Path, fine: object) -> None:
    rows, tally = read(tmp_path / "t", HEADER, fine)
    assert len(rows) == 1
    assert tally.warnings() == []


def test_equal_rows_are_all_kept(tmp_path: Path) -> None:
    assert len(read(tmp_path / "t", HEADER, row(1), row(1), row(1))[0]) == 3


def test_unknown_keys_are_ignored_and_counted(tmp_path: Path) -> None:
    rows, tally = read(
        tmp_path / "t", HEADER, row(1, colour="red"), row(2), row(3, colour=None, size={"a": 1})
    )
    assert len(rows) == 3
    assert tally.unknown_keys == {"colour": 2, "size": 1}
    assert tally.warnings() == ["unknown keys ignored: 'colour' (2), 'size' (1)"]


def test_a_new_key_in_every_row_does_not_fill_the_memory(tmp_path: Path) -> None:
    rows, tally = read(tmp_path / "t", HEADER, *(row(i, **{f"k{i}": 1}) for i in range(2000)))
    assert len(rows) == 2000
    assert tally.unknown_keys["(other keys)"] == 1980
    assert len(tally.unknown_keys) == 21


def test_a_last_line_that_breaks_off_is_named_as_such(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", HEADER, row(1), row(2))
    path.write_bytes(path.read_bytes()[:-20])
    source, tally = open_trace(path)
    assert [one.timestamp for one in source.rows] == [1]
    assert tally.dropped == {"truncated": 1}
    assert tally.first_line == {"truncated": 3}


def test_a_whole_last_line_needs_no_line_end(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", HEADER, row(1))
    path.write_bytes(path.read_bytes().rstrip())
    assert len(list(open_trace(path)[0].rows)) == 1


def test_a_byte_order_mark_and_windows_line_ends_are_no_fault(tmp_path: Path) -> None:
    lines = [json.dumps(HEADER), json.dumps(row(1))]
    (tmp_path / "t").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert len(list(open_trace(tmp_path / "t")[0].rows)) == 1


def test_a_file_of_which_no_row_can_be_used_names_the_reason_and_the_first_place(
    tmp_path: Path,
) -> None:
    with pytest.raises(TraceError) as caught:
        read(tmp_path / "t", HEADER, row(-1), row(-2), row(None))
    assert str(caught.value) == (
        f"{tmp_path / 't'}:2: none of 3 rows can be used; 2 of them before_origin: "
        "the arrival time lies before the trace's origin"
    )


def test_a_header_alone_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no rows"):
        read(tmp_path / "t", HEADER)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"tuner_trace": 2}, "tuner_trace is 2, this tuner reads 1"),
        ({"tuner_trace": "1"}, "tuner_trace is '1'"),
        ({"tuner_trace": 1, "time_unit": "s"}, "time_unit is 's'"),
        ({"tuner_trace": 1, "block_size": 0}, r"\$\.block_size"),
        ({"tuner_trace": 1, "block_size": "16"}, r"\$\.block_size"),
        ({"tuner_trace": 1, "model": 5}, r"\$\.model"),
        ({"tuner_trace": 1, "dropped": {"x": -1}}, r"\$\.dropped"),
        ('{"tuner_trace": 1, "model": "a", "model": "b"}', "a key stands twice"),
        ('{"tuner_trace": 1, "model": ', "header"),
    ],
)
def test_a_bad_header_is_refused_with_its_place(
    tmp_path: Path, header: object, message: str
) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        read(tmp_path / "t", header, row(1), format_name="canonical")
    assert str(caught.value).startswith(f"{tmp_path / 't'}:1: ")


def test_keys_of_a_later_header_are_told_and_do_no_harm(tmp_path: Path) -> None:
    _, tally = read(tmp_path / "t", {**HEADER, "region": "eu"}, row(1))
    assert tally.warnings() == ["unknown keys ignored: 'region in the header' (1)"]


def test_a_second_header_is_two_traces_in_one_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"t:3: a second header"):
        read(tmp_path / "t", HEADER, row(1), HEADER, row(1))


def test_a_line_that_only_names_the_header_is_dropped(tmp_path: Path) -> None:
    rows, tally = read(tmp_path / "t", HEADER, row(1), b'"tuner_trace"', row(2))
    assert rows == [Row(1, 10, 5), Row(2, 10, 5)]
    assert sum(tally.dropped.values()) == 1


def test_without_a_header_the_format_must_be_named(tmp_path: Path) -> None:
    rows, _ = read(tmp_path / "t", row(1.5), format_name="canonical")
    assert rows == [Row(1.5, 10, 5)]


def test_the_canonical_format_has_one_unit_of_time(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="in ms"):
        read(tmp_path / "t", HEADER, row(1), time_unit="s")
    assert read(tmp_path / "t", HEADER, row(1), time_unit="ms")[0] == [Row(1, 10, 5)]


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**20),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(-1, 10), max_size=3),
)
ROWS = st.dictionaries(st.sampled_from([*FULL, "unknown"]), VALUES, max_size=6) | st.builds(
    lambda more: {**row(1), **more}, st.dictionaries(st.sampled_from([*FULL]), VALUES)
)
LINES = st.one_of(ROWS.map(json.dumps), st.text(max_size=30).filter(lambda t: "\n" not in t))


@given(lines=st.lists(LINES.map(str.encode) | st.binary(max_size=40), max_size=8))
def test_whatever_stands_in_the_file_the_counts_reconcile(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    path = write_lines(tmp_path_factory.mktemp("fuzz") / "t", HEADER, row(0), *lines)
    source, tally = open_trace(path)
    rows = list(source.rows)
    assert len(rows) == tally.rows_kept
    assert tally.rows_read == tally.rows_kept + sum(tally.dropped.values())
    assert set(tally.dropped) <= set(REASONS)
    for one in rows:
        assert one.timestamp >= 0
        assert one.status in ("error", "rejected") or (one.input_length or 0) >= 1

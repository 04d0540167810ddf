import gzip
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.traces import HEADER, row, write_lines
from tuner.errors import TraceError, UsageError
from tuner.trace.formats.opening import open_trace
from tuner.trace.formats.reading.trace_file import MAX_LINE_BYTES
from tuner.trace.formats.registry import FORMATS

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"


def test_formats_have_distinct_names_and_say_what_they_are() -> None:
    assert len({known.NAME for known in FORMATS}) == len(FORMATS)
    assert all(known.DESCRIPTION for known in FORMATS)


@pytest.mark.parametrize(
    ("content", "source"),
    [
        ('{"tuner_trace": 1, "source": "s"}', "s"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]}', "mooncake"),
        (AZURE, "azure2023"),
        ("\ufeff" + AZURE, "azure2023"),
    ],
)
def test_the_format_is_found_out(tmp_path: Path, content: str, source: str) -> None:
    (tmp_path / "t").write_text(content)
    assert open_trace(tmp_path / "t")[0].header.source == source


@pytest.mark.parametrize("known", FORMATS, ids=lambda known: known.NAME)
@pytest.mark.parametrize(
    "head", [b"", b"\n", b"{", b"{}", b"[]", b"\xff\xff", b"a,b,c\n1,2,3", b'"x"', b"[" * 10_000]
)
def test_no_format_claims_what_is_not_its_own(known: SimpleNamespace, head: bytes) -> None:
    assert not known.sniff(head)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b" \r\n\n", "empty"),
        (b"\x7fELF\x02\x01\x01\x00\x00", "binary"),
        (gzip.compress(b"{}", mtime=0), "not a trace format that tuner knows"),
        (gzip.compress(b"", mtime=0), "empty"),
        (b"hello\n", "not a trace format that tuner knows"),
        (b'{"a": 1}\n', "not a trace format that tuner knows"),
        (b'[{"timestamp": 0}' + b" " * 6_000_000 + b"]\n", "t:1: longer than 4 MiB"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_a_cure(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(TraceError, match=message) as caught:
        open_trace(tmp_path / "t")
    assert str(caught.value).startswith(str(tmp_path / "t"))
    assert caught.value.hint


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file or directory"):
        open_trace(tmp_path / "nope")


@pytest.mark.parametrize("path", ["/dev/null", "/"])
def test_what_is_no_regular_file_is_refused(path: str) -> None:
    with pytest.raises(TraceError, match="not a regular file"):
        open_trace(Path(path))


def test_a_pipe_is_refused_rather_than_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "t")
    with pytest.raises(TraceError, match="not a regular file"):
        open_trace(tmp_path / "t")


def test_a_hole_in_the_middle_of_a_file_costs_its_rows_only(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", HEADER, row(0), b"\x00" * 1000, row(1))
    source, tally = open_trace(path)
    assert len(list(source.rows)) == 2
    assert tally.dropped == {"malformed": 1}


def test_an_array_of_rows_may_be_one_line_of_any_length(tmp_path: Path) -> None:
    """120,000 rows of some 45 bytes are more than any line may be long."""
    rows = ", ".join(json.dumps(row(at)) for at in range(120_000))
    (tmp_path / "t").write_text(f"[{rows}]")
    assert (tmp_path / "t").stat().st_size > MAX_LINE_BYTES
    source, tally = open_trace(tmp_path / "t")
    assert sum(1 for _ in source.rows) == 120_000
    assert tally.dropped == {}


def test_an_array_that_breaks_off_is_read_up_to_there(tmp_path: Path) -> None:
    text = json.dumps([row(at) for at in range(3)], indent=1)
    (tmp_path / "t").write_text(text[:-30])
    source, tally = open_trace(tmp_path / "t")
    assert [one.timestamp for one in source.rows] == [0, 1]
    assert tally.dropped == {"truncated": 1}
    assert tally.first_line == {"truncated": 12}


def test_a_format_that_nobody_knows_is_wrong_usage(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", HEADER, row(0))
    with pytest.raises(UsageError, match="no trace format 'x'") as caught:
        open_trace(path, format_name="x")
    assert caught.value.hint.startswith("Known: canonical, azure2023, ")


def test_a_format_is_named_with_hyphens_or_without(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", row(1.5))
    assert len(list(open_trace(path, format_name="Timed-Trace")[0].rows)) == 1


def test_a_file_that_vanishes_is_an_error_with_its_place(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", {"timestamp": 0, "input_length": 1, "output_length": 1})
    source, _ = open_trace(path)
    path.unlink()
    with pytest.raises(TraceError, match="t: no such file"):
        list(source.rows)

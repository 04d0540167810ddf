from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.trace.formats.reading import byte_chunks
from tuner.trace.formats.reading import trace_file as lines_module
from tuner.trace.formats.reading.record import Tally
from tuner.trace.formats.reading.trace_file import MAX_LINE_BYTES, TraceFile


def read(path: Path, content: bytes) -> tuple[list[tuple[int, bytes]], TraceFile]:
    path.write_bytes(content)
    lines = TraceFile(path, Tally(str(path)))
    return list(lines), lines


def test_lines_are_numbered_as_an_editor_numbers_them(tmp_path: Path) -> None:
    found, _ = read(tmp_path / "t", b"a\n\n  \r\nb\r\n")
    assert found == [(1, b"a"), (4, b"b")]


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    assert read(tmp_path / "t", b"\xef\xbb\xbfa\nb\n")[0] == [(1, b"a"), (2, b"b")]
    assert read(tmp_path / "t", b"ab")[0] == [(1, b"ab")]


def test_a_last_line_without_an_end_is_read_and_known(tmp_path: Path) -> None:
    found, lines = read(tmp_path / "t", b"a\nb")
    assert found == [(1, b"a"), (2, b"b")]
    assert lines.unterminated == 2


def test_a_last_line_with_an_end_is_not_unterminated(tmp_path: Path) -> None:
    assert read(tmp_path / "t", b"a\nb\n")[1].unterminated is None


@pytest.mark.parametrize("end", [b"\nlast\n", b"\nlast", b"\n", b""])
def test_a_huge_line_is_counted_with_its_place_and_the_rest_is_read(
    tmp_path: Path, end: bytes
) -> None:
    found, lines = read(tmp_path / "t", b"first\n" + b"x" * (3 * MAX_LINE_BYTES) + end)
    assert found == [(1, b"first")] + ([(3, b"last")] if b"last" in end else [])
    assert lines.tally.dropped == {"line_too_long": 1}
    assert lines.tally.first_line == {"line_too_long": 2}


def test_a_line_of_the_greatest_length_is_read(tmp_path: Path) -> None:
    found, lines = read(tmp_path / "t", b"x" * MAX_LINE_BYTES + b"\ny\n")
    assert [len(line) for _, line in found] == [MAX_LINE_BYTES, 1]
    assert not lines.tally.dropped


def test_one_byte_more_is_too_long(tmp_path: Path) -> None:
    found, lines = read(tmp_path / "t", b"x" * (MAX_LINE_BYTES + 1) + b"\ny\n")
    assert found == [(2, b"y")]
    assert lines.tally.dropped == {"line_too_long": 1}


@given(
    content=st.lists(st.sampled_from([b"a", b"bb", b"\n", b"\n\n", b" ", b"\r\n", b"xxxxxxxxx"])),
    chunk=st.integers(1, 5),
)
def test_where_the_chunks_break_does_not_matter(
    tmp_path_factory: pytest.TempPathFactory, content: list[bytes], chunk: int
) -> None:
    text = b"".join(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(byte_chunks, "CHUNK_BYTES", chunk)
        patch.setattr(lines_module, "MAX_LINE_BYTES", 8)
        found, lines = read(tmp_path_factory.mktemp("lines") / "t", text)
    whole = list(enumerate(text.split(b"\n"), start=1))
    assert found == [(n, line.strip()) for n, line in whole if line.strip() and len(line) <= 8]
    assert lines.tally.rows_read == sum(len(line) > 8 for _, line in whole)

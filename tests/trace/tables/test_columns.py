"""A reading by columns gives what a reading row by row gives: rows, counts, reasons, places."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support import exports, products
from tests.support.format_examples import CLOCKS_SET_BACK, EXAMPLES, TABLES
from tests.support.mutations import mutated
from tuner.errors import TraceError
from tuner.trace.formats.columnar import arrow, canonical_rows
from tuner.trace.formats.columnar.number_lines import numbers_in
from tuner.trace.formats.opening import open_trace
from tuner.trace.formats.reading.record import Row
from tuner.trace.tables import columns
from tuner.trace.trace import load

FORMATS = ("canonical", "mooncake", "azure2023", "azure2024", "azure_lmm2025", "burstgpt", "table")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("columns") / "t"


def numbered(rows: list[Row]) -> Iterator[Row]:
    """Yield rows with their pseudonyms numbered by first sight among those that were kept."""
    known: dict[str, str] = {}
    for row in rows:
        changed: dict[str, Any] = {
            key: known.setdefault(name, f"{name[:1]}{len(known)}")
            for key in ("session_id", "model", "request_class")
            if isinstance(name := getattr(row, key), str)
        }
        if row.replica is not None:
            changed["replica"] = len(known.setdefault(f"r{row.replica}", f"r{len(known)}"))
        yield type(row)(**{**{k: getattr(row, k) for k in row.__struct_fields__}, **changed})


def told(path: Path, name: str | None) -> tuple[Any, ...]:
    """Return all that a reading tells, or how it was refused."""
    try:
        source, tally = open_trace(path, format_name=name, allow_text=True)
        rows = list(source.rows)
    except TraceError as error:
        return (str(error),)
    assert tally.rows_read == tally.rows_kept + sum(tally.dropped.values())
    assert tally.rows_kept == len(rows)
    near = [(round(row.timestamp, 3), row) for row in numbered(rows)]
    rest = [
        (at, *(getattr(row, key) for key in row.__struct_fields__ if key != "timestamp"))
        for at, row in near
    ]
    return rest, tally.rows_read, tally.dropped, tally.first_line, tally.first_column


def both(path: Path, content: bytes, name: str | None, *, compiled: bool = False) -> None:
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        if compiled:
            patch.setattr(canonical_rows, "COMPILED_FROM", 0)
        by_columns = told(path, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canonical_rows, "json_table", lambda *_, **__: None)
        patch.setattr(columns, "json_table", lambda *_, **__: None)
        patch.setattr(columns, "csv_table", lambda *_, **__: None)
        one_by_one = told(path, name)
    assert by_columns == one_by_one


@pytest.mark.parametrize("name", FORMATS)
@example(seed=3048844, times=40)  # a model whose name begins with what Python takes for a space
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), times=st.sampled_from((1, 1, 5, 40)))
def test_damage_is_told_alike(path: Path, name: str, seed: int, times: int) -> None:
    head, _, rows = EXAMPLES[name].encode().partition(b"\n")
    rows = rows.rstrip() + b"\n"
    both(path, mutated(head + b"\n" + rows * times, random.Random(seed)), name)


NUMBERS = b"".join(
    b'{"timestamp":%d.%d,"input_length":%d,"output_length":7,"e2e_ms":%d}\n' % (i, i, 10 * i, i)
    for i in range(1, 13)
)


@settings(max_examples=50)
@given(seed=st.integers(0, 2**32))
def test_damage_to_rows_of_digits_alone_is_told_alike(path: Path, seed: int) -> None:
    both(path, mutated(NUMBERS, random.Random(seed)), "canonical", compiled=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"e2e_ms":3', b'"e2e_ms":03'), (b"3.3", b"03.3"), (b"1.1", b"00.1"), (b"3.3", b".3"),
        (b"3.3", b"3."), (b"1.1", b".1"), (b"3.3", b"3.3.3"), (b"3.3", b""), (b"10}", b"10.}"),
        (b"30", b"30.0"), (b"30", b"99999999999999999999"), (b"3.3", b"3e3"), (b"30", b"-30"),
        (b'"input_length":30', b'"input_1length":30'), (b'"e2e_ms":3', b'"ee_ms":23'),
        (b'"e2e_ms":3}', b'"e2e_ms":3} '), (b'"output_length":7,"e2e_ms":3}', b'"e2e_ms":3}'),
        (b'"timestamp":3.3,', b'"timestamp":3.3,"timestamp":3.3,'), (b"3.3", b"0"),
        (b"\n", b"\r\n"),
        (b'"output_length":7', b'"output_length":7,"model":5'),
        (b'"output_length":7', b'"output_length":7,"session_id":5'),
        (b'"output_length":7', b'"output_length":7,"stream":1'),
        (b'"e2e_ms"', b'"input_length"'), (b"}\n", b"}\n\n"), (b"30,", b'"30",'),
    ],
)  # fmt: skip
def test_what_is_no_row_of_digits_alone_is_read_as_json(path: Path, old: bytes, new: bytes) -> None:
    assert old in NUMBERS
    both(path, NUMBERS.replace(old, new), "canonical", compiled=True)
    both(path, NUMBERS.replace(old, new, 1), "canonical", compiled=True)


def test_rows_of_digits_alone_are_read_without_a_reader_of_json(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(NUMBERS)
    monkeypatch.setattr(canonical_rows, "COMPILED_FROM", 0)
    monkeypatch.setattr(canonical_rows, "json_table", None)
    requests = load(path, format_name="canonical").requests
    assert [one.input_length for one in requests] == [10 * i for i in range(1, 13)]
    assert requests[2].e2e_s == 0.003


@settings(max_examples=100)
@example(whole=0, behind=1, digits="0")
@example(whole=9007199254740992, behind=0, digits="")
@example(whole=1795255200125, behind=3, digits="0625")
@given(whole=st.integers(0, 10**18), behind=st.integers(0, 18), digits=st.text("0123456789"))
def test_a_compiled_loop_reads_numbers_as_python_does(whole: int, behind: int, digits: str) -> None:
    number = f"{whole}.{digits[:behind]}" if behind and digits else str(whole)
    line = b'{"timestamp":%s,"input_length":1}' % number.encode()
    found = numbers_in(line, {"timestamp": True, "input_length": False}, needed=["timestamp"])
    assert found is None or found["timestamp"].tolist() == [float(number)]
    assert found is not None or len(number) > 15


@pytest.mark.parametrize("name", ["azure2023", "burstgpt", "table"])
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32))
def test_damage_to_a_spreadsheet_is_told_alike(path: Path, name: str, seed: int) -> None:
    both(path, mutated(TABLES[name].encode(), random.Random(seed)), None)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_damage_to_local_times_is_told_alike(path: Path, seed: int) -> None:
    both(path, mutated(CLOCKS_SET_BACK.encode(), random.Random(seed)), None)


TEXTS = exports.TEXTS | products.TEXTS


@pytest.mark.parametrize("name", TEXTS)
@example(seed=411)  # an integer that no column holds
@example(seed=22480)  # a count of tokens as text, with an exponent
@example(seed=396)  # a byte that is not UTF-8, in a document
@example(seed=15560)
@settings(max_examples=1)
@given(seed=st.integers(0, 2**32))
def test_damage_to_an_export_is_told_alike_and_its_counts_reconcile(
    path: Path, name: str, seed: int
) -> None:
    text = TEXTS[name]
    content = text.encode() if isinstance(text, str) else text
    both(path, mutated(content, random.Random(seed)), None)


def test_a_bad_row_among_many_leaves_the_others_to_the_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [f"2026-11-21 10:{i // 60:02d}:{i % 60:02d},{i + 1},5,acme" for i in range(3000)]
    rows[1500] = "2026-11-21 10:25:00,,5,zeta"
    (tmp_path / "t").write_text("ts,tokens_in,tokens_out,tenant\n" + "\n".join(rows))
    slow: list[int] = []

    def converted(_self: object, _cells: object, number: int) -> Iterator[tuple[int, Row]]:
        slow.append(number)
        return iter(())

    monkeypatch.setattr("tuner.trace.tables.reader.TableReader.converted", converted)
    trace = load(tmp_path / "t")
    assert slow == [1502]
    assert [one.input_length for one in trace.requests] == [i + 1 for i in range(3000) if i != 1500]


def test_one_unreadable_line_costs_its_part_of_the_block_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow, "SMALL_BYTES", 1000)
    monkeypatch.setattr("tuner.trace.tables.reader.SMALL_BYTES", 1000)
    rows = [f"2026-11-21 10:00:00,{i + 1},5" for i in range(1000)]
    rows[500] += ",one too many"
    (tmp_path / "t").write_text("ts,tokens_in,tokens_out\n" + "\n".join(rows))
    source, tally = open_trace(tmp_path / "t")
    sizes = [len(batch) for batch in source.by_columns()]
    assert sum(sizes) == 999
    assert len(sizes) > 10
    assert tally.first_line == {"malformed": 502}

"""Any damage to a file of any format: one clear refusal, or rows and counts that reconcile."""

import random
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from tests.support.format_examples import CLOCKS_SET_BACK, EXAMPLES, TABLES, check_reconciled
from tests.support.mutations import mutated
from tuner.trace import stream
from tuner.trace.formats.registry import FORMATS
from tuner.trace.trace import load

pytestmark = pytest.mark.attack


NAMES = [known.NAME for known in FORMATS]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "t"


def test_every_format_has_an_example() -> None:
    assert sorted(EXAMPLES) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_read_whole_and_found_out(path: Path, name: str) -> None:
    found = check_reconciled(path, EXAMPLES[name].encode(), name)
    assert found is not None
    rows_read, rows_kept = found
    assert rows_read == rows_kept > 0
    claims = [known.NAME for known in FORMATS if known.sniff(EXAMPLES[name].encode())]
    assert claims[:1] == ([] if name in ("guidellm", "timed_trace") else [name]) or (
        name in ("guidellm", "timed_trace") and claims == ["mooncake"]
    )


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_the_same_traffic_once_imported(tmp_path: Path, name: str) -> None:
    (tmp_path / "t").write_text(EXAMPLES[name])
    file = stream.Input(tmp_path / "t", name)
    with (tmp_path / "out").open("wb") as out, (tmp_path / "draft").open("wb+") as beside:
        draft = stream.Draft(beside)
        scanned = stream.scan(file, lambda _: None, draft=draft)
        stream.convert(file, scanned, out, lambda _: None, spread=None, draft=draft)
    before, after = load(tmp_path / "t", format_name=name), load(tmp_path / "out")
    assert after.requests == before.requests
    assert after.digest == before.digest
    assert after.header == before.header


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_whatever_happens_to_a_file_the_counts_reconcile(path: Path, name: str, seed: int) -> None:
    content = mutated(EXAMPLES[name].encode(), random.Random(seed))
    check_reconciled(path, content, name)


@pytest.mark.parametrize("name", TABLES)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_whatever_happens_to_a_table_the_counts_reconcile(path: Path, name: str, seed: int) -> None:
    content = mutated(TABLES[name].encode(), random.Random(seed))
    check_reconciled(path, content, name, allow_text=True)


def in_parquet() -> bytes:
    naive = [datetime.fromisoformat(f"2026-10-25T02:{minute}:00") for minute in (40, 59, 10, 30)]
    table = pa.table(
        {
            "ts": pa.array(naive, pa.timestamp("us")),
            "usage": [{"prompt_tokens": 3, "completion_tokens": 5}] * 4,
            "model": pa.array(["a", "b", None, "a"]).dictionary_encode(),
        }
    )
    out = pa.BufferOutputStream()
    parquet.write_table(table, out)
    return bytes(out.getvalue())


SEEDS = {"clocks set back": CLOCKS_SET_BACK.encode(), "Parquet": in_parquet()}


@pytest.mark.parametrize("name", SEEDS)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_whatever_happens_to_local_times_the_counts_reconcile(
    path: Path, name: str, seed: int
) -> None:
    content = mutated(SEEDS[name], random.Random(seed))
    check_reconciled(path, content, None)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_a_damaged_file_is_found_out_or_refused(path: Path, name: str, seed: int) -> None:
    content = mutated(EXAMPLES[name].encode(), random.Random(seed))
    check_reconciled(path, content, None)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10)
@given(content=st.binary(max_size=200))
def test_any_bytes_at_all_are_refused_or_counted(path: Path, name: str, content: bytes) -> None:
    check_reconciled(path, content, name)

"""Tables as people's tools and products export them, each read by its file alone."""

import bz2
import gzip
import json
import lzma
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support import exports, products
from tests.support.exports import BEGIN, REQUESTS
from tuner.trace import stream
from tuner.trace.formats.opening import open_trace
from tuner.trace.trace import load

ALL = [*exports.TEXTS, "Parquet", "Feather", *products.TEXTS]
WITH_ENDS = exports.WITH_ENDS | products.WITH_ENDS


@pytest.mark.parametrize("name", ALL)
def test_it_is_read_by_its_file_alone(tmp_path: Path, name: str) -> None:
    if name in products.TEXTS:
        text = products.TEXTS[name]
        (tmp_path / "t").write_bytes(text.encode() if isinstance(text, str) else text)
    else:
        exports.write(tmp_path / "t", name)
    source, tally = open_trace(tmp_path / "t")
    rows = sorted(source.rows, key=lambda row: row.timestamp)
    assert tally.dropped == {}
    assert tally.rows_read == len(rows)
    begin_ms = BEGIN.timestamp() * 1000
    assert [round(row.timestamp - begin_ms, 3) for row in rows] == [
        1000 * one.at_s for one in REQUESTS
    ]
    assert [row.input_length for row in rows] == [one.prompt for one in REQUESTS]
    assert [row.output_length for row in rows] == [one.output for one in REQUESTS]
    ends = [1000 * one.took_s if name in WITH_ENDS else None for one in REQUESTS]
    assert [row.e2e_ms for row in rows] == ends


@pytest.mark.parametrize("name", ["pandas to_csv", "BigQuery json", "Excel, Unicode text"])
@pytest.mark.parametrize("pack", ["gzip", "bz2", "lzma", "zstd", "lz4"])
def test_a_packed_file_is_read_as_it_is(tmp_path: Path, name: str, pack: str) -> None:
    exports.write(tmp_path / "t", name)
    plain = (tmp_path / "t").read_bytes()
    python = {"gzip": gzip, "bz2": bz2, "lzma": lzma}.get(pack)
    if python is not None:
        (tmp_path / "packed").write_bytes(python.compress(plain))
    else:
        with pa.CompressedOutputStream(str(tmp_path / "packed"), pack) as out:
            out.write(plain)
    assert load(tmp_path / "packed").digest == load(tmp_path / "t").digest


def test_what_was_decided_is_said_and_why(tmp_path: Path) -> None:
    exports.write(tmp_path / "t", "Excel, American")
    header = stream.scan(stream.Input(tmp_path / "t"), lambda _: None).header
    assert header.notes == (
        "timestamp from 'Start Time', dates without a zone, taken for UTC, month first",
        "input_length from 'Input Tokens', with ',' between thousands",
        "output_length from 'Output Tokens'",
        "duration from 'Latency (ms)', in milliseconds, because the heading says so",
    )


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("epoch seconds", "epoch seconds, because 1795255200.125 then is 2026-11-21 10:00:00"),
        ("pandas to_json lines", "epoch milliseconds, because 1795255200125 then is 2026-11-21"),
        ("Datadog", "in nanoseconds, because an output token then takes 22.7 ms"),
        ("BigQuery csv", "dates with their zone"),
        ("Anthropic usage", "cached prompt tokens are added to the others"),
    ],
)
def test_each_rule_names_its_reason(tmp_path: Path, name: str, why: str) -> None:
    exports.write(tmp_path / "t", name)
    header = stream.scan(stream.Input(tmp_path / "t"), lambda _: None).header
    assert any(why in note for note in header.notes), header.notes


@pytest.mark.parametrize("encoding", ["cp1252", "utf-8"])
def test_a_spreadsheet_of_the_west_is_read_in_the_encoding_of_its_machine(
    tmp_path: Path, encoding: str
) -> None:
    text = "Horodatage;Jetons d'entrée;Jetons de sortie\n" + "".join(
        f"21/11/2026 10:00:0{second};1\u00a0{second}00;5\n" for second in range(3)
    )
    (tmp_path / "t").write_bytes(text.encode(encoding))
    source, tally = open_trace(tmp_path / "t")
    assert [row.input_length for row in source.rows] == [1000, 1100, 1200]
    assert tally.dropped == {}


def test_counts_in_json_are_found_in_parquet_too(tmp_path: Path) -> None:
    usage = [
        json.dumps({"prompt_tokens": one.prompt, "completion_tokens": one.output})
        for one in REQUESTS
    ]
    table = pa.table({"created_at": [one.start for one in REQUESTS], "usage": usage})
    parquet.write_table(table, tmp_path / "t")
    rows = load(tmp_path / "t").requests
    assert [row.input_length for row in rows] == [one.prompt for one in REQUESTS]


def test_a_date_and_a_time_apart_are_joined_in_parquet_too(tmp_path: Path) -> None:
    table = pa.table(
        {
            "date": pa.array([one.start.date() for one in REQUESTS]),
            "time": pa.array([one.start.time() for one in REQUESTS]),
            "prompt_tokens": [one.prompt for one in REQUESTS],
            "completion_tokens": [one.output for one in REQUESTS],
        }
    )
    parquet.write_table(table, tmp_path / "t")
    rows = load(tmp_path / "t").requests
    assert [row.arrival_s for row in rows] == [one.at_s for one in REQUESTS]

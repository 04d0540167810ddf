"""A concurrency schedule, made a trace with the lengths of another's requests."""

from pathlib import Path

import numpy as np
import pytest

from tests.outside.table import BAD_INPUT, OK, USAGE, run
from tests.support.traces import HEADER, jsonl, row, write_lines
from tuner.trace.columns import columns_of
from tuner.trace.trace import load
from tuner.traffic.description import concurrency
from tuner.traffic.schedule import Tick, holding

TICKS = (Tick(0, 2), Tick(10, 4), Tick(20, 0))
TWO_SECONDS = (5000, 50)
"""Prompt and output tokens, at 0.2 ms and 20 ms each."""


def schedule(path: Path) -> Path:
    path.write_text(
        jsonl(*({"time_sec": tick.at_s, "concurrency": tick.concurrency} for tick in TICKS))
    )
    return path


def test_the_concurrency_is_that_of_the_schedule(tmp_path: Path) -> None:
    lengths = write_lines(tmp_path / "l", HEADER, row(0, input_length=5000, output_length=50))
    source = schedule(tmp_path / "s")
    done = run(tmp_path, "trace import", source, "--lengths", lengths, "-o", "t.jsonl")
    assert done.code == OK
    assert "synthetic: lengths of l" in done.stdout
    result = load(tmp_path / "t.jsonl")
    assert result.header.source == "concurrency_schedule"
    assert len(result.requests) == 2 * 5 + 4 * 5
    columns = columns_of(result.requests, block_size=16)
    for begin_s, in_flight in ((0.0, 2), (10.0, 4)):
        begins_s, ends_s = columns.arrival_s, np.sort(columns.arrival_s + columns.e2e_s)
        held = concurrency(begins_s, ends_s, start_s=begin_s, end_s=begin_s + 10)
        assert held is not None
        assert held.mean == held.max == in_flight


def test_a_place_is_held_while_it_is_there_and_lengths_begin_again() -> None:
    turns = holding((Tick(0, 1), Tick(1, 0), Tick(1.5, 1), Tick(3, 0)), [TWO_SECONDS, (1, 1)])
    made = [(each.arrival_s, each.e2e_s, each.input_length, each.turn) for each in turns]
    assert made[:3] == [(0, 1, 5000, 0), (1.5, 0.0202, 1, 1), (1.5202, 1.4798, 5000, 2)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (jsonl({"time_sec": 0, "concurrency": 4}), "no concurrency above 0"),
        (jsonl({"time_sec": 0, "concurrency": 0}, {"time_sec": 5, "concurrency": 0}), "above 0"),
        (
            jsonl({"time_sec": 5, "concurrency": 4}, {"time_sec": 5, "concurrency": 0}),
            ":2: no tick",
        ),
        (jsonl({"time_sec": -1, "concurrency": 4}), ":1: no tick"),
        (jsonl({"time_sec": 0, "concurrency": 1.5}), ":1: no tick"),
        (jsonl({"time_sec": 0, "concurrency": 10**9}), ":1: no tick"),
        (jsonl({"time_sec": 0}), ":1: no tick"),
        ('{"time_sec": 0, "concurrency": 4}\n{"time', ":2: no tick"),
        ("time_sec,concurrency\n0,2\n10.0,4\n20,0\n", ":1: no tick"),
    ],
)
def test_a_schedule_that_cannot_be_used_is_refused_with_nothing_written(
    tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "s").write_text(text)
    lengths = write_lines(tmp_path / "l", HEADER, row(0))
    done = run(tmp_path, "trace import", "s", "--lengths", lengths, "-o", "t")
    assert done.code == BAD_INPUT
    assert says in done.error
    assert not (tmp_path / "t").exists()


def test_without_lengths_the_refusal_names_the_option(tmp_path: Path) -> None:
    wanted = (schedule(tmp_path / "s"), "-o", "t")
    assert "tuner trace import --lengths TRACE" in run(tmp_path, "trace import", *wanted).error
    done = run(tmp_path, "trace import", *wanted, "--lengths", "s", "--format", "table")
    assert done.code == USAGE

"""The shipped samples are what traces/README.md and the article say, and the script makes them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.traces import SAMPLES
from tuner.trace.columns import columns_of
from tuner.trace.trace import load
from tuner.traffic.summary import TrafficSummary, describe

ROOT = SAMPLES.parent


def traffic(name: str) -> TrafficSummary:
    trace = load(SAMPLES / name)
    return describe(columns_of(trace.requests, block_size=trace.header.block_size))


def test_the_script_makes_the_same_bytes_again(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, ROOT / "scripts" / "make_traces.py", tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
    )
    for name in ("translation.jsonl", "translation-uniform.jsonl"):
        assert (tmp_path / name).read_bytes() == (SAMPLES / name).read_bytes()
    exported = ROOT / "examples" / "walk" / "requests.csv"
    assert (tmp_path / "requests.csv").read_bytes() == exported.read_bytes()


def test_the_sample_is_the_articles_traffic() -> None:
    found = traffic("translation.jsonl")
    assert found.recorded is not None
    assert found.levels is not None
    assert found.input_tokens is not None
    assert found.output_tokens is not None
    assert found.duration_s == pytest.approx(300, abs=1)
    assert 10 <= found.recorded.mean <= 12
    assert 20 <= found.recorded.max <= 25
    assert found.levels.held().share_above(20) < 0.05
    assert found.levels.held().share_above(1) > 0.99
    assert found.input_tokens.max == found.output_tokens.max == 200
    assert found.tick_ms is None


def test_input_and_output_grow_together_and_some_clients_give_up() -> None:
    requests = load(SAMPLES / "translation.jsonl").requests
    assert all(10 <= one.input_length <= 200 for one in requests)
    assert all(one.output_length <= 200 for one in requests)
    served = [one for one in requests if one.status == "ok"]
    assert all(0.4 < one.output_length / one.input_length < 2.5 for one in served)
    assert 0.02 < 1 - len(served) / len(requests) < 0.04


def test_the_uniform_sample_has_the_same_arrivals_and_one_length() -> None:
    real, uniform = (
        load(SAMPLES / name).requests for name in ("translation.jsonl", "translation-uniform.jsonl")
    )
    assert [one.arrival_s for one in real] == [one.arrival_s for one in uniform]
    assert len({(one.input_length, one.output_length) for one in uniform}) == 1
    assert sum(one.output_length for one in uniform) == pytest.approx(
        sum(one.output_length for one in real), rel=0.05
    )


def test_the_readme_counts_what_is_there() -> None:
    count = len(load(SAMPLES / "translation.jsonl").requests)
    assert f"{count:,} requests" in (SAMPLES / "README.md").read_text()

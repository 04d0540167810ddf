"""The report of ``tuner trace show`` beyond what a trace of arrivals and lengths can say."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.commands.trace.test_trace import Run
from tests.support.traces import HEADER, row, write_lines
from tuner.traffic.summary import dispersion


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(monkeypatch, capsys)


# -- in flight and running


def queued() -> list[dict[str, object]]:
    """Return a request every second that waits for 2 s and is served for 3 s."""
    return [row(i * 1000, e2e_ms=5000, queue_ms=2000) for i in range(101)]


def test_waiting_and_running_are_kept_apart(tuner: Run, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", HEADER, *queued())
    result = json.loads(tuner("trace", "show", path, "--json").out)
    assert result["in_flight"]["mean"] == result["in_flight"]["max"] == 5
    assert result["running"]["mean"] == result["running"]["max"] == 3
    assert result["concurrency"]["mean"] == 5
    assert result["littles_mean"] == pytest.approx(5, rel=0.02)
    out = tuner("trace", "show", path).out
    assert "running (recorded)" in out
    assert "Little" in out


# -- burstiness


def test_counts_of_even_arrivals_do_not_vary_and_bursts_do() -> None:
    assert dispersion(np.array([i / 2 for i in range(100)]), 1.0) == 0.0
    bursts = np.array([10.0 * (i // 10) + 0.5 for i in range(100)])
    assert dispersion(bursts, 1.0) == pytest.approx(9, rel=0.1)  # 10 in one of ten seconds


# -- the part, the plot, the replicas


def test_the_busiest_part_is_shown_beside_the_whole(tuner: Run, tmp_path: Path) -> None:
    calm = [row(i * 1000) for i in range(600)]
    burst = [row(300_000 + i * 100) for i in range(600)]
    path = write_lines(tmp_path / "t", HEADER, *calm, *burst)
    result = json.loads(tuner("trace", "show", path, "--json").out)["window"]
    assert result["start_s"] == pytest.approx(300, abs=1)
    assert result["length_s"] == 60
    assert result["load"] == pytest.approx(11 / 2, rel=0.02)
    out = tuner("trace", "show", path).out
    assert "^^^^^" in out


def test_a_part_of_ones_choice_is_held_against_the_whole(tuner: Run, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", HEADER, *(row(i * 1000) for i in range(100)))
    result = json.loads(tuner("trace", "show", path, "--window", "10s+5s", "--json").out)["window"]
    assert (result["start_s"], result["length_s"], result["requests"]) == (10, 5, 5)
    ended = tuner("trace", "show", path, "--window", "busiest+90s", "--json")
    assert json.loads(ended.out)["window"]["length_s"] == 90


def test_a_part_without_requests_is_refused(tuner: Run, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", HEADER, row(0), row(9000))
    ended = tuner("trace", "show", path, "--window", "2s+3s")
    assert ended.code == 3
    assert "no request was served in 2s+3s" in ended.err


def test_replicas_that_the_trace_knows_are_shown(tuner: Run, tmp_path: Path) -> None:
    lines = [row(i * 1000, e2e_ms=1500, replica=2_000_000_000 * (i % 3 == 0)) for i in range(99)]
    path = write_lines(tmp_path / "t", HEADER, *lines)
    result = json.loads(tuner("trace", "show", path, "--json").out)["per_replica"]
    assert (result["router"], result["requests"]) == ("as recorded", [66, 33])
    assert "2 replicas, router as recorded" in tuner("trace", "show", path).text


def test_a_trace_of_failures_is_shown(tuner: Run, tmp_path: Path) -> None:
    lines = [{"timestamp": i * 1000, "status": "rejected", "replica": i % 2} for i in range(300)]
    path = write_lines(tmp_path / "t", HEADER, *lines)
    result = json.loads(tuner("trace", "show", path, "--json").out)
    assert result["window"] is result["running"] is result["in_flight"] is None
    assert tuner("trace", "show", path).code == 0


def test_shared_beginnings_and_a_single_replica_are_told_apart_from_many(
    tuner: Run, tmp_path: Path
) -> None:
    lines = [row(i * 1000, input_length=32, hash_ids=[0, i + 1], replica=0) for i in range(4)]
    path = write_lines(tmp_path / "t", HEADER, *lines)
    assert "37.5% of prompt tokens" in tuner("trace", "show", path).text
    assert "per_replica" not in json.loads(tuner("trace", "show", path, "--json").out)

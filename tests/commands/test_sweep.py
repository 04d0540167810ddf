"""`tuner sweep` as its users meet it: what it prints, writes, refuses and survives."""

import json
import re
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.in_process import tuner
from tests.support.traces import beginning
from tuner.profile import profile

pytestmark = pytest.mark.usefixtures("by_few_draws")

WORLD = """\
step: {a: 0.020, b: 0.0006, n0: 16, h: 0.0025, c: 1.0e-5}
engine_start: 30
noise: {sigma_iter: 0.05, sigma_drift: 0.02, sigma_start: 0.01, stall_rate: 0.0083, stall_mean: 0.1}
"""
"""The article's machine: 8 slots are too few for the sample's busy times."""

CURVE_KEYS = {
    "max_num_seqs", "attainment", "goodput_rps", "requests_per_s", "output_tokens_per_s",
    "ttft_ms", "tpot_ms", "itl_ms", "e2el_ms", "queue_ms", "kv_cache_usage", "preemptions",
    "recomputed_tokens", "cut", "source",
}  # fmt: skip
RESULT_KEYS = {
    "verdict", "max_num_seqs", "interval", "confidence", "reason", "slo", "requirements", "curve",
    "baseline", "front_end",
    "checked", "engine_starts", "engine_seconds", "run_dir", "profile", "warnings",
}  # fmt: skip


SIM = ("--world", "world.yaml", "--trace", "prod.jsonl", "--step", "20s")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "world.yaml").write_text(WORLD)
    beginning(tmp_path / "prod.jsonl", 433)  # two minutes
    return tmp_path


def tune(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return tuner(folder, "sweep", *SIM, *options)


def refused(done: subprocess.CompletedProcess[str], code: int) -> str:
    """Return the message of a run that must have ended in two lines and this exit code."""
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    error, hint = done.stderr.splitlines()[-2:]
    assert error.startswith("Error: ")
    assert hint
    return error


def test_json_is_the_contracts_object_and_a_requirement_moves_the_choice(folder: Path) -> None:
    done = tune(folder, "--run-dir", "run", "--json")
    assert done.returncode == 0, done.stderr
    before = json.loads(done.stdout)
    assert before.keys() == RESULT_KEYS
    assert all(step.keys() >= CURVE_KEYS for step in before["curve"])
    assert [step["max_num_seqs"] for step in before["curve"]] == [1, 2, 4, 8, 16, 32]
    assert (before["verdict"], before["max_num_seqs"]) == ("knee", 16)
    assert (before["engine_starts"], before["engine_seconds"]["starts"]) == (2, 60)
    written = profile.load(folder / before["profile"])
    assert written.promise.source == "confirming run"
    kept = (folder / "run" / "profile.yaml").read_bytes()
    assert kept == (folder / "profile.yaml").read_bytes()
    done = rescored(folder, "--require", "p99 ttft <= 150ms", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["max_num_seqs"] == 32
    (each,) = result["requirements"]
    assert each["kept"]
    assert each["at_worst"] <= 0.15
    assert profile.load(folder / "other.yaml").decision.requirements[0].text == each["text"]
    done = rescored(folder, "--require", "p99 ttft <= 1ms", "--require", "preemptions == 0")
    assert done.returncode == 6
    error, hint = done.stderr.splitlines()[-2:]
    assert re.search(r"max_num_seqs 16 does not keep p99 ttft <= 1ms \(at worst \d+ ms", error)
    assert "; 32 comes nearest and breaks p99 ttft <= 1ms (" in error
    assert hint.startswith("Add replicas or require less. Next: tuner show other.yaml")
    assert "max_num_seqs 16 breaks p99 ttft <= 1ms" in done.stdout
    bad = refused(rescored(folder, "--require", "p99 tfft <= 1ms"), 2)
    assert "cannot read" in bad


def rescored(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return tuner(folder, "show", "run", "-o", "other.yaml", *options)


def _trials(run_dir: Path) -> list[tuple[str, int]]:
    events = map(json.loads, (run_dir / "journal.jsonl").read_text().splitlines())
    return [(e["purpose"], e["max_num_seqs"]) for e in events if e["event"] == "replay"]


def test_a_budget_that_was_too_small_is_raised_and_the_probe_is_kept(folder: Path) -> None:
    first = tune(folder, "--run-dir", "run", "--budget", "61s")
    assert "--budget leaves" in refused(first, 2)
    assert "What was measured is kept in run: tuner resume." in first.stderr
    words = refused(tune(folder, "--run-dir", "run", "--budget", "60s"), 3)
    assert 'budget was "61s", now "60s"' in words
    done = tune(folder, "--run-dir", "run", "--budget", "120s")
    assert done.returncode in {0, 5}, done.stderr
    events = [json.loads(line) for line in (folder / "run/journal.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events].count("probe") == 1
    again = tune(folder, "--run-dir", "run", "--budget", "120s")
    assert (again.returncode, again.stdout) == (done.returncode, done.stdout)
    measured = _trials(folder / "run")
    more = tune(folder, "--run-dir", "run", "--budget", "240s")
    assert more.returncode in {0, 5}, more.stderr
    assert _trials(folder / "run")[: len(measured)] == measured


@contextmanager
def little_room(most: int) -> Iterator[None]:
    """Let this process write no file of more bytes."""
    usual, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (usual, hard))


def test_a_full_disk_is_one_error_and_the_run_goes_on_where_there_is_room(folder: Path) -> None:
    beginning(folder / "prod.jsonl", 100)
    # room for the iterations of a ramp (17 kB), not for the requests of a rung (24 kB)
    with little_room(20_000):
        done = tune(folder, "--run-dir", "run")
    assert "cannot be written" in refused(done, 3)
    kept = _trials(folder / "run")
    assert kept[0] == ("ramp", 32)
    done = tune(folder, "--run-dir", "run", "--json")
    assert done.returncode == 0, done.stderr
    again = _trials(folder / "run")
    assert again[: len(kept)] == kept
    assert len(again) > len(kept)


@pytest.mark.parametrize(
    ("arrivals_s", "output_length"),
    [([0.0] * 300, 50), ([0.0] * 2000, 5), ([0.1 * row for row in range(200)], 1), ([1.0], 20)],
    ids=["burst", "large burst", "one token each", "one request"],
)
def test_odd_traffic_ends_with_a_verdict_and_finite_numbers(
    folder: Path, arrivals_s: list[float], output_length: int
) -> None:
    rows = [
        {"timestamp": round(1e3 * at_s), "input_length": 20, "output_length": output_length}
        for at_s in arrivals_s
    ]
    (folder / "prod.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = tune(folder, "--json")
    assert done.returncode in {0, 5}, done.stderr
    assert "Traceback" not in done.stderr
    result = json.loads(done.stdout, parse_constant=pytest.fail)
    assert any(step["output_tokens_per_s"] > 0 for step in result["curve"])
    profile.load(folder / "profile.yaml")

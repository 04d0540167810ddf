"""``tuner doctor``: a line a check, and the exit code."""

import asyncio
import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engines.conftest import request
from tests.support import fake_nvml
from tests.support.in_process import tuner
from tests.support.places import ROOT
from tuner.commands.doctor import twin
from tuner.engines.checks import engine as engine_checks
from tuner.engines.checks.check import MachineCheck
from tuner.engines.seam import Engine, Reply
from tuner.engines.sim import virtual_time
from tuner.engines.sim.start import SimStarter
from tuner.engines.sim.world import World, WorldKv, WorldStep
from tuner.engines.vllm import start as vllm
from tuner.engines.vllm.flags import Setting
from tuner.errors import EngineError

SIMULATED = ("--engine", "sim", "--world", ROOT / "examples/worlds/article-quiet.yaml")


def lines(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Return what each line says by what it asked, but for PASS, FAIL or SKIP."""
    return {line[6:].partition(": ")[0]: line[:4] for line in done.stdout.splitlines()}


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    return tuner(tmp_path_factory.mktemp("doctor"), "doctor", *SIMULATED)


def test_a_simulated_engine_is_well(simulated: subprocess.CompletedProcess[str]) -> None:
    assert simulated.returncode == 0, simulated.stderr
    found = lines(simulated)
    assert "FAIL" not in found.values()
    assert {name for name, status in found.items() if status == "SKIP"} == {
        *("memory back", "kill -9"),
    }
    assert {
        "log tiles",
        "log sums",
        "stairs",
        "cut",
        "decode steps",
        "A/A pairs",
        "twin",
    } <= found.keys()


def test_what_was_found_before_an_engine_failed_is_told_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, sizes = SimStarter.start, list[int]()

    async def second_fails(starter: SimStarter, *, max_num_seqs: int) -> Engine:
        sizes.append(max_num_seqs)
        if len(sizes) == 2:
            raise EngineError("no memory", hint="Free some.")
        return await start(starter, max_num_seqs=max_num_seqs)

    monkeypatch.setattr(SimStarter, "start", second_fails)
    done = tuner(tmp_path, "doctor", *SIMULATED)
    assert done.returncode == 6
    found = lines(done)
    assert {found[name] for name in ("log tiles", "log sums", "twin")} == {"PASS"}
    assert "kill -9" not in found
    assert done.stdout.splitlines()[-1] == "FAIL  engine: no memory. Free some."


def test_a_check_that_fails_ends_it_with_6_and_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvml.install(monkeypatch, fake_nvml.Card("GPU-aaaaaaaa-1", processes={900001}))
    monkeypatch.setattr("tuner.engines.provenance.accelerator", lambda: "cuda")
    monkeypatch.setattr("tuner.commands.doctor.run._ask_engine", lambda *_: None)
    done = tuner(tmp_path, "doctor", "--quick")
    assert done.returncode == 6
    assert "FAIL  foreign processes: GPU-aaaaaaaa-1 1. End them (nvidia-smi)" in done.stdout
    assert "checks failed" in done.stderr.splitlines()[0]


def _counts(given: Sequence[Setting], *, model: str) -> dict[str, int]:
    """Return arguments that are numbers, without ten seconds in which vLLM is imported."""
    del model
    return {one.name: int(str(one.value)) for one in given}


def test_a_gpu_that_no_engine_of_ours_takes_may_be_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = fake_nvml.Card("GPU-bbbbbbbb-2", processes={900001}, memory_used=70 * fake_nvml.GIB)
    fake_nvml.install(monkeypatch, fake_nvml.Card("GPU-aaaaaaaa-1"), busy)
    monkeypatch.setattr("tuner.commands.doctor.run._ask_engine", lambda *_: None)
    monkeypatch.setattr(vllm, "parse", _counts)
    for gpus_needed, status in ((1, "PASS"), (2, "FAIL")):
        of_two = ("--set", f"tensor_parallel_size={gpus_needed}")
        done = tuner(tmp_path, "doctor", "--quick", "--json", *of_two)
        found = json.loads(done.stdout)["checks"]
        told = [one["status"] for one in found if one["name"] == "foreign processes"]
        assert told == ["PASS", status][:gpus_needed]


def test_as_json_it_is_one_object(tmp_path: Path) -> None:
    done = tuner(tmp_path, "doctor", "--quick", "--json", *SIMULATED)
    (first, *_) = json.loads(done.stdout)["checks"]
    assert first == {"name": "async_scheduling", "status": "PASS", "said": "False", "cure": ""}


def test_what_contradicts_itself_is_refused(tmp_path: Path) -> None:
    done = tuner(tmp_path, "doctor", "--engine", "sim")
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2,
        "Error: --engine sim needs a world",
    )


@pytest.mark.vllm
def test_a_real_engine_on_this_machine_answers_everything_that_is_not_a_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one step takes as long as another needs a quiet machine; of what each burst is for, a
    few tokens show as much as many."""
    monkeypatch.setattr(engine_checks, "OUTPUT", 2)
    monkeypatch.setattr(engine_checks, "LONG_OUTPUT", 20)
    monkeypatch.setattr(twin, "REQUESTS", 20)
    done = tuner(tmp_path, "doctor", "--ceiling", "17", "--json")
    found = {one["name"]: one for one in json.loads(done.stdout)["checks"]}
    needs_quiet = {"decode steps", "mixed steps", "front end", "twin"}
    failed = {name for name, one in found.items() if one["status"] == "FAIL"}
    assert failed <= needs_quiet, [found[name] for name in failed]
    assert done.returncode == (6 if failed else 0)
    passed = {name for name, one in found.items() if one["status"] == "PASS"}
    assert {"vllm", "engine", "log tiles", "log sums", "stairs", "cut", "kill -9"} <= passed
    assert "front end at 5,000 tokens/s" in passed  # no CPU will be so fast: it is only said


def test_a_twin_that_is_wrong_of_the_engine_fails() -> None:
    """It is told of 20 blocks where there are many more: it makes requests wait that did not."""

    async def main(blocks: int | None) -> MachineCheck:
        world = World(step=WorldStep(a=0.01, b=0.001), kv=WorldKv(blocks=4000, block_size=16))
        engine = await SimStarter(world).start(max_num_seqs=16)
        replies = [Reply() for _ in range(32)]
        await engine.take_iterations()
        await asyncio.gather(
            *(
                engine.generate(request(n, prompt=40, output=60 + 2 * n), reply)
                for n, reply in enumerate(replies)
            )
        )
        burst = await engine.take_iterations()
        if blocks is not None:
            engine._facts = replace(engine._facts, kv_blocks=blocks)
        return await twin.twin_check(engine, burst)

    assert virtual_time.run(main(None)).status == "PASS"
    wrong = virtual_time.run(main(20))
    assert (wrong.status, wrong.name) == ("FAIL", "twin")
    assert "foretold; furthest off: " in wrong.said

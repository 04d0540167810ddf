"""`tuner refine` as its users meet it: what it proves, writes, refuses and survives."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
import pytest

from tests.support.in_process import tuner
from tests.support.traces import beginning

if TYPE_CHECKING:
    import subprocess

pytestmark = pytest.mark.timeout(180)  # the first test waits for a sweep and a refinement

WORLD = """\
step: {a: 0.016, b: 0.0004, n0: 12, h: 0.012, c: 1.0e-5}
engine_start: 30
noise: {sigma_iter: 0.02, sigma_drift: 0.003, sigma_start: 0.001}
"""
"""Beyond 12 sequences every one more costs a lot: the best cap lies between two doublings."""

SIM = ("--world", "world.yaml", "--trace", "prod.jsonl")
SHARED = ("--storage", "sqlite:///shared.db")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, by_few_draws: None) -> Path:  # noqa: ARG001 - for all of them
    folder = tmp_path_factory.mktemp("swept")
    (folder / "world.yaml").write_text(WORLD)
    beginning(folder / "prod.jsonl", 1083)
    assert tuner(folder, "sweep", *SIM, "--step", "30s").returncode == 0
    return folder


def refine(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    return tuner(folder, "refine", "profile.yaml", *SIM, *SHARED, *options)


@pytest.fixture(scope="module")
def ended(swept: Path) -> dict[str, Any]:
    done = refine(swept, "--run-dir", "ended", "--json")
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert json.loads((swept / "ended" / "result.json").read_text()).items() >= result.items()
    return result


def test_the_trials_are_in_the_study_for_others_to_look_at(
    swept: Path, ended: dict[str, Any]
) -> None:
    (name,) = optuna.get_all_study_names(f"sqlite:///{swept}/shared.db")
    study = optuna.load_study(study_name=name, storage=f"sqlite:///{swept}/shared.db")
    measured = [trial for trial in study.trials if trial.user_attrs["fidelity"] == "replay"]
    labels = {each.user_attrs["label"] for each in measured if each.values}
    assert len(study.trials) > len(measured)
    assert labels == {f"replay: {each['configuration']}" for each in ended["trials"]}


@pytest.mark.attack
@pytest.mark.parametrize(("event", "key"), [("gathered", "chosen"), ("replay", "configuration")])
@pytest.mark.parametrize("planted", [{"trust_remote_code": True}, {"max_num_seqs": 5000}], ids=str)
@pytest.mark.usefixtures("ended")
def test_a_strangers_run_that_is_resumed_starts_nothing_that_is_not_searched(
    swept: Path, event: str, key: str, planted: dict[str, Any]
) -> None:
    folder = swept / f"planted {event} {planted}"
    shutil.copytree(swept / "ended", folder)
    path = folder / "journal.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    place = [event["event"] for event in events].index(event)
    events[place][key] |= planted
    path.write_text("".join(json.dumps(event) + "\n" for event in events[: place + 1]))
    done = refine(swept, "--run-dir", folder.name)
    assert (done.returncode, done.stdout) == (3, "")
    assert "is not searched" in done.stderr
    assert f"{next(iter(planted))}={next(iter(planted.values()))}" in done.stderr
    assert "starting an engine" not in done.stderr


def test_a_real_engine_is_not_started_for_a_simulated_profile(swept: Path) -> None:
    done = tuner(swept, "refine", "profile.yaml", "--trace", "prod.jsonl", "--run-dir", "real")
    assert done.returncode == 6, done.stderr
    words, cure = done.stderr.splitlines()
    assert words.startswith(
        "Error: the profile was measured with name simulated:world, here it is "
    )
    assert "add or drop --world" in cure
    assert not (swept / "real").exists()

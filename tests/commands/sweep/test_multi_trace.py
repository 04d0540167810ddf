"""`tuner sweep` with several traces: one engine, a profile each, and one for all."""

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tuner.commands.schema.run import of_sweep

from tests.commands.sweep.test_sweep import TRACE, WORLD, refused, wait_for
from tests.support.few_draws import as_the_program
from tests.support.in_process import tuner
from tuner.commands.sweep.multi_trace import named_warnings, names_of, outputs_of
from tuner.errors import UsageError
from tuner.profile import profile

pytestmark = pytest.mark.usefixtures("by_few_draws")

SIM = ("--engine", "sim", "--world", "world.yaml", "--step", "8s", "--ceiling", "16")


def thinned(every: int, *, model: str | None = None) -> str:
    """Return the first 120 s of the sample trace with one request of so many."""
    header, *rows = TRACE.read_text().splitlines()
    kept = [row for row in rows if json.loads(row)["timestamp"] < 120_000][::every]
    counts = {"rows_read": len(kept), "rows_kept": len(kept)}
    head = json.loads(header) | counts | ({"model": model} if model else {})
    return "\n".join([json.dumps(head), *kept]) + "\n"


def filled(folder: Path) -> Path:
    (folder / "world.yaml").write_text(WORLD)
    (folder / "day.jsonl").write_text(thinned(1))
    (folder / "night.jsonl").write_text(thinned(4))
    return folder


TRACES = ("--trace", "day.jsonl", "--trace", "night.jsonl")


def tune(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return tuner(folder, "sweep", *SIM, *TRACES, *options)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return a folder in which two traces were tuned, and what that printed."""
    folder = filled(tmp_path_factory.mktemp("several"))
    with as_the_program():
        done = tune(folder, "--json", "-o", "out", "--run-dir", "run")
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def test_each_trace_has_its_verdict_and_the_shared_cap_its_price(
    tuned: tuple[Path, dict[str, Any]],
) -> None:
    _, result = tuned
    Draft202012Validator(of_sweep()).validate(result)
    assert {name: one["max_num_seqs"] for name, one in result["traces"].items()} == {
        "day": 16,
        "night": 8,
    }
    shared = result["shared"]
    assert (shared["verdict"], shared["max_num_seqs"]) == ("shared", 16)
    day, night = shared["prices"]
    assert (day["trace"], day["loss"], day["changes"]) == ("day", 0, {})
    assert night["loss"] <= 1
    change = night["changes"]["e2el_p99_ms"]
    assert change["low"] <= change["value"] <= change["high"]


def test_one_engine_serves_every_trace_and_each_choice_is_confirmed_once(
    tuned: tuple[Path, dict[str, Any]],
) -> None:
    _, result = tuned
    assert result["engine_starts"] == 3  # the ladder's, one at 8 and one at 16
    assert result["engine_seconds"]["starts"] == 90
    assert [one["engine_starts"] for one in result["traces"].values()] == [2, 2]


def test_the_budget_is_split_and_kept(tuned: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = tuned
    done = tune(folder, "--json", "-o", "tight", "--budget", "260s")
    result = json.loads(done.stdout)
    assert sum(result["engine_seconds"].values()) <= 1.1 * 260
    message = refused(tune(folder, "--budget", "2m"), 2)
    assert "each of 2 traces" in message


def test_profiles_of_each_trace_and_of_all_are_written(
    tuned: tuple[Path, dict[str, Any]],
) -> None:
    folder, result = tuned
    caps = {
        path.name: profile.load(path).decision.max_num_seqs for path in (folder / "out").iterdir()
    }
    assert caps == {"day.yaml": 16, "night.yaml": 8, "shared.yaml": 16}
    shared = profile.load(folder / "out" / "shared.yaml")
    assert shared.decision.reason == result["shared"]["reason"]
    assert (
        shared.validity.trace_digest
        == profile.load(folder / "out" / "day.yaml").validity.trace_digest
    )
    assert any("those of day, the busiest" in one for one in shared.provenance.warnings)
    assert any(one.startswith("day, night: no hash_ids") for one in shared.provenance.warnings)
    said = [one for one in shared.provenance.warnings if one.startswith("night: ")]
    assert any("no fresh engine confirmed the choice" in one for one in said)  # at 16
    assert (folder / "run" / "night" / "profile.yaml").read_bytes() == (
        folder / "out" / "night.yaml"
    ).read_bytes()


def test_a_stored_run_is_rescored_for_all_its_traces(
    tuned: tuple[Path, dict[str, Any]],
) -> None:
    folder, before = tuned
    with as_the_program():
        done = tuner(folder, "sweep", "--rescore", "run", "-o", "again.yaml", "--json")
    result = json.loads(done.stdout)
    assert result["shared"] | {"profile": ""} == before["shared"] | {"profile": ""}
    assert profile.load(folder / "again-night.yaml").decision.max_num_seqs == 8
    one = tuner(folder, "sweep", "--rescore", "run/night", "-o", "one.yaml", "--json")
    assert json.loads(one.stdout)["max_num_seqs"] == 8


def test_what_serves_nobody_in_time_is_not_named_for_rollout_and_with_check_ends_with_6(
    tuned: tuple[Path, dict[str, Any]],
) -> None:
    folder, _ = tuned
    words = ("sweep", "--rescore", "run", "-o", "late.yaml", "--slo", "tpot=1ms", "--check")
    done = tuner(folder, *words)
    assert done.returncode == 6
    assert "no max_num_seqs serves half of day, night in time" in done.stdout
    assert done.stdout.endswith("\n  next     tuner show late-day.yaml\n")
    assert "late-day.yaml: only 0.2 % of requests meet the SLO" in done.stderr


def without_places(result: Mapping[str, Any]) -> dict[str, Any]:
    text = json.dumps(result).replace('"run2', '"run').replace('"out2', '"out')
    found: dict[str, Any] = json.loads(text)
    for one in (found, *found["traces"].values()):
        del one["engine_starts"], one["engine_seconds"]  # a start that was lost is one more
    return found


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(
    tuned: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder = filled(tmp_path)
    options = ("--json", "-o", "out", "--run-dir", "run")
    program = str(Path(sys.executable).with_name("tuner"))
    running = subprocess.Popen(
        [program, "sweep", *SIM, *TRACES, *options],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for(running, "night: confirm 8:")
    running.send_signal(signal.SIGINT)
    out, err = running.communicate()
    assert (running.returncode, out) == (130, "")
    assert err.splitlines()[-1].endswith("--resume")
    with as_the_program():
        done = tune(folder, *options, "--resume")
    assert done.returncode == 0, done.stderr
    assert without_places(json.loads(done.stdout)) == without_places(tuned[1])


def test_what_is_to_be_known_of_traces_is_told_with_their_names() -> None:
    said = {"day": ["short"], "night": ["few requests", "short"]}
    assert named_warnings(said) == ["day, night: short", "night: few requests"]


def test_traces_are_named_by_what_tells_them_apart() -> None:
    paths = [Path("/a/prod.jsonl"), Path("/b/prod.jsonl"), Path("/b/other.jsonl")]
    assert names_of(paths) == ["a-prod", "b-prod", "other"]
    with pytest.raises(UsageError, match="called the same"):
        names_of([Path("/a/prod.jsonl"), Path("/a/prod.csv")])
    with pytest.raises(UsageError, match="given twice"):
        names_of([Path("/a/prod.jsonl"), Path("/b/../a/prod.jsonl")])


def test_outputs_go_beside_the_file_or_into_the_folder(tmp_path: Path) -> None:
    beside = outputs_of(Path("x/prod.yaml"), ["day", "night"])
    assert (beside.of_trace["night"], beside.of_all) == (
        Path("x/prod-night.yaml"),
        Path("x/prod.yaml"),
    )
    inside = outputs_of(tmp_path, ["day", "night"])
    assert (inside.of_trace["day"], inside.of_all) == (
        tmp_path / "day.yaml",
        tmp_path / "shared.yaml",
    )
    with pytest.raises(UsageError, match=r"shared\.yaml"):
        outputs_of(tmp_path, ["day", "Shared"])


def test_what_cannot_be_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    (folder / "copy.jsonl").write_text(thinned(1))
    (folder / "other.jsonl").write_text(thinned(2, model="somebody/else"))
    (folder / "p-night.yaml").write_text("replicas: 3\n")
    before = set(folder.rglob("*"))
    assert "hold the same requests" in refused(tune(folder, "--trace", "copy.jsonl"), 2)
    assert "is of model" in refused(tune(folder, "--trace", "other.jsonl"), 2)
    assert "given twice" in refused(tune(folder, "--trace", "day.jsonl"), 2)
    assert "p-night.yaml" in refused(tune(folder, "-o", "p.yaml"), 3)
    assert set(folder.rglob("*")) == before

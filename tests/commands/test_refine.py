"""`tuner refine` as its users meet it: what it proves, writes, refuses and survives."""

import json
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
import pytest

from tests.support import postgres
from tests.support.in_process import tuner
from tests.support.traces import beginning
from tuner.profile import profile

pytestmark = pytest.mark.timeout(180)  # the first test waits for a sweep and a refinement

WORLD = """\
step: {a: 0.016, b: 0.0004, n0: 12, h: 0.012, c: 1.0e-5}
engine_start: 30
noise: {sigma_iter: 0.02, sigma_drift: 0.003, sigma_start: 0.001}
"""
"""Beyond 12 sequences every one more costs a lot: the best cap lies between two doublings."""

TUNER = str(Path(sys.executable).with_name("tuner"))
MACHINE = ("--engine", "sim", "--world", "world.yaml", "--step", "10s")
TRACE = ("--trace", "prod.jsonl")
SIM = (*MACHINE, *TRACE)
SHARED = ("--storage", "sqlite:///shared.db")
TOLD = """\
SELECT what.value_json FROM trial_user_attributes AS what JOIN trial_user_attributes AS source
ON what.trial_id = source.trial_id AND what.key = 'configuration'
AND source.key = 'source' AND source.value_json = '"engine"'
"""
"""The configurations that engines were measured with, of a study's storage."""

KEYS = {
    "refined", "reason", "chosen", "knee", "ratios", "pairs", "objective", "trials", "front",
    "importance", "space", "left_out", "pruned", "of_others", "failed", "complete", "engine_starts",
    "engine_seconds", "run_dir", "profile", "warnings", "windows",
}  # fmt: skip

TRIAL_KEYS = {
    "configuration", "gains", "replayed", "foreseen", "keeps_slo", "attainment",
    "attainment_bound", "goodput_rps", "cut", "worker",
}  # fmt: skip


ALL, HALF, THIRD = 1083, 540, 360
"""Requests of the sample trace."""


def filled(folder: Path, world: str, *, requests: int = ALL) -> None:
    (folder / "world.yaml").write_text(world)
    beginning(folder / "prod.jsonl", requests)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, by_few_draws: None) -> Path:  # noqa: ARG001 - for all of them
    folder = tmp_path_factory.mktemp("swept")
    filled(folder, WORLD)
    beginning(folder / "third.jsonl", THIRD)
    assert tuner(folder, "sweep", *SIM).returncode == 0
    return folder


def words(*options: str) -> list[str]:
    trace = () if "--trace" in options else TRACE
    return ["refine", "profile.yaml", *MACHINE, *trace, *options]


def command(*options: str) -> list[str]:
    return [TUNER, *words(*options)]


def refine(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    return tuner(folder, *words(*options))


def replays(run_dir: Path) -> list[tuple[str, int]]:
    events = map(json.loads, (run_dir / "journal.jsonl").read_text().splitlines())
    return [(e["purpose"], e["max_num_seqs"]) for e in events if e["event"] == "replay"]


def windows(run_dir: Path) -> list[tuple[str, list[float]]]:
    """Return the purpose of every trial but the ramps, and where its windows start."""
    events = map(json.loads, (run_dir / "journal.jsonl").read_text().splitlines())
    return [
        (e["purpose"], [window["start_s"] for window in e["windows"]])
        for e in events
        if e["event"] == "trial" and e["purpose"] != "climb"
    ]


def whole_trials(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the trials that were not ended early: those that a study is told with numbers."""
    return [one for one in found["trials"] if one["cut"] is None]


@pytest.fixture(scope="module")
def whole(swept: Path) -> dict[str, Any]:
    done = refine(swept, "--run-dir", "whole", *SHARED, "-o", "whole.yaml")
    assert done.returncode == 0, done.stderr
    (swept / "whole.txt").write_text(done.stdout)
    return kept(swept / "whole")


def kept(run_dir: Path) -> dict[str, Any]:
    """Return what a run came to, as ``--json`` prints it."""
    found: dict[str, Any] = json.loads((run_dir / "result.json").read_text())
    del found["block"]
    return found


def test_a_better_cap_between_the_doublings_is_found_and_proven(
    swept: Path, whole: dict[str, Any]
) -> None:
    before = profile.load(swept / "profile.yaml")
    assert before.decision.max_num_seqs in {8, 16}
    assert whole["refined"]
    assert 9 <= whole["chosen"]["max_num_seqs"] <= 14
    after = profile.load(swept / "whole.yaml")
    assert after.engine["max_num_seqs"] == whole["chosen"]["max_num_seqs"]
    assert after.decision.reason.startswith(f"refined from the {before.decision.verdict} at")
    assert after.promise.source == "confirming run"
    assert after.twin is not None
    assert after.decision.max_num_seqs in {step.max_num_seqs for step in after.curve}
    assert {1, 2, 4, 8, 16, 32} <= {step.max_num_seqs for step in after.curve}


def test_a_refined_profile_warns_of_what_a_sweep_warns_and_tells_of_the_caps_that_were_tried(
    swept: Path, whole: dict[str, Any]
) -> None:
    after = profile.load(swept / "whole.yaml")
    assert list(after.provenance.warnings) == whole["warnings"]
    for said in ("no hash_ids", "does not hold at 1.25 times the load"):
        assert any(said in warning for warning in whole["warnings"])
    tried = {one["configuration"]["max_num_seqs"] for one in whole["trials"]}
    assert tried <= {step.max_num_seqs for step in after.curve}


def test_the_gain_is_stated_with_an_interval_that_excludes_none(whole: dict[str, Any]) -> None:
    goodput, tail = whole["ratios"]["goodput"], whole["ratios"]["e2el"]
    assert whole["pairs"] == 16
    assert goodput["low"] > 1 or (goodput["low"] >= 0.99 and tail["high"] < 1)


def test_each_pair_replays_windows_of_its_own_and_the_promise_is_of_the_searchs(
    swept: Path, whole: dict[str, Any]
) -> None:
    found = windows(swept / "whole")
    pairs = [starts_s for purpose, starts_s in found if purpose in {"refined", "knee"}]
    assert pairs[::2] == pairs[1::2]
    assert len({tuple(starts_s) for starts_s in pairs}) == whole["pairs"] == len(whole["windows"])
    told = [[float(one.split("s+")[0]) for one in pair] for pair in whole["windows"]]
    assert told == [pytest.approx(starts_s, abs=0.001) for starts_s in pairs[::2]]
    searched = {tuple(starts_s) for purpose, starts_s in found if purpose == "search"}
    assert searched == {tuple(starts_s) for purpose, starts_s in found if purpose == "alone"}


def test_a_trial_names_what_its_replays_and_what_the_twin_say_of_its_gain(
    whole: dict[str, Any],
) -> None:
    assert all(trial.keys() == TRIAL_KEYS for trial in whole["trials"])
    for trial in whole_trials(whole):
        (gain,), (replayed,), (foreseen,) = (
            trial[name] for name in ("gains", "replayed", "foreseen")
        )
        low, high = sorted((replayed, foreseen))
        assert low - 0.1 <= gain <= high + 0.1  # but for the control variate
    knee = next(one for one in whole["trials"] if one["configuration"] == whole["knee"])
    assert (knee["replayed"], knee["foreseen"]) == ([0.0], [0.0])


def test_caps_change_live_so_that_engines_are_started_for_what_needs_one(
    whole: dict[str, Any],
) -> None:
    assert whole["engine_starts"] <= 3
    assert len(whole["trials"]) >= 2


SMALL = ("--budget", "240s")


@pytest.fixture(scope="module")
def small(swept: Path) -> dict[str, Any]:
    done = refine(swept, *SMALL, "--json", "-o", "small.yaml", "--run-dir", "small")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found == kept(swept / "small")
    assert found.keys() == KEYS
    return found


def test_a_budget_without_room_for_a_search_compares_what_the_twin_likes_best(
    small: dict[str, Any],
) -> None:
    assert not small["complete"]
    assert [one["configuration"] for one in small["trials"]] == [small["knee"]]
    assert small["pairs"] == 4
    assert small["chosen"] != small["knee"]


@pytest.mark.parametrize("objective", ["goodput", "throughput", "e2el"])
def test_what_the_twin_cannot_tell_of_is_scored_by_its_replays_alone(
    swept: Path, objective: str
) -> None:
    cap = profile.load(swept / "profile.yaml").decision.max_num_seqs
    few = ("--search", f"max_num_seqs={cap}", "--search", "max_num_batched_tokens=2048")
    one = ("--search", "block_size=8,16", "--objective", objective, "--force")
    done = refine(swept, *few, *one, f"--run-dir=block-{objective}", "--json", "-o", "block.yaml")
    assert done.returncode == 0, done.stderr
    (trial,) = [
        each
        for each in json.loads(done.stdout)["trials"]
        if each["configuration"]["block_size"] == 8
    ]
    assert trial["foreseen"] is None
    assert trial["gains"] == trial["replayed"]
    assert abs(trial["gains"][0]) < 0.05  # the same engine but for its noise


def test_the_twin_ends_what_cannot_win_and_says_so_in_the_study(
    swept: Path, whole: dict[str, Any]
) -> None:
    (one,) = optuna.get_all_study_summaries(storage=f"sqlite:///{swept}/shared.db")
    study = optuna.load_study(study_name=one.study_name, storage=f"sqlite:///{swept}/shared.db")
    trials = [trial.user_attrs for trial in study.get_trials(deepcopy=False)]
    ended = [attrs for attrs in trials if "ended_by" in attrs]
    assert len(ended) == whole["pruned"]
    by_twin = [each["configuration"] for each in ended if each["ended_by"] == "twin"]
    assert by_twin
    assert not any(one["configuration"] in by_twin for one in whole["trials"])


def test_of_two_objectives_the_front_is_what_no_other_trial_beats_in_both(swept: Path) -> None:
    both = ("--objective", "goodput,tpot", "--budget", "7m", "--run-dir", "both")
    done = refine(swept, *both, "--json", "-o", "both.yaml")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    kept = [one for one in whole_trials(found) if one["keeps_slo"]]
    front = [one for one in kept if one["configuration"] in found["front"]]
    assert len(kept) > len(front) > 1
    for one in kept:
        beaten = [
            other
            for other in kept
            if other["gains"] != one["gains"]
            and all(a >= b for a, b in zip(other["gains"], one["gains"], strict=True))
        ]
        assert bool(beaten) == (one not in front)


def test_a_refined_profile_is_as_good_a_one_as_any(swept: Path, whole: dict[str, Any]) -> None:
    assert whole["refined"]
    done = tuner(swept, "verify", "whole.yaml", *SIM, "--json")
    assert done.returncode == 0, done.stdout
    assert all(gate["kept"] for gate in json.loads(done.stdout)["gates"]), done.stdout


def test_kill_9_loses_nothing_that_was_measured_and_nothing_is_measured_twice(
    swept: Path, small: dict[str, Any]
) -> None:
    asked = (*SMALL, "--run-dir", "killed")
    running = subprocess.Popen(command(*asked), cwd=swept, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    assert any("with the knee, in turns" in line for line in running.stderr)
    running.kill()
    running.communicate()
    kept = replays(swept / "killed")
    assert len(kept) >= 2
    done = refine(swept, *asked, "--resume", "--json", "-o", "killed.yaml")
    assert done.returncode == 0, done.stderr
    after = replays(swept / "killed")
    assert after[: len(kept)] == kept
    assert after == replays(swept / "small")
    assert windows(swept / "killed") == windows(swept / "small")
    assert json.loads(done.stdout)["chosen"] == small["chosen"]


def edited(swept: Path, name: str, *, until: str, **changes: object) -> Path:
    """Return a copy of the whole run whose journal ends with that event of a purpose, changed."""
    folder = swept / name
    shutil.copytree(swept / "whole", folder)
    path = folder / "journal.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    purposes = [one for one in events if one["event"] in {"trial", "gathered"}]
    ends = [one for one in events if one["event"] in {"measured", "gathered"}]
    wanted = next(
        end
        for begun, end in zip(purposes, ends, strict=True)
        if until in {begun.get("purpose"), begun["event"]}
    )
    place = events.index(wanted)
    kept = [*events[:place], {**wanted, **changes}]
    path.write_text("".join(json.dumps(one) + "\n" for one in kept))
    return folder


@pytest.mark.usefixtures("whole")
def test_a_promise_whose_engine_died_is_measured_again(swept: Path) -> None:
    folder = edited(swept, "died", until="alone", failed="the engine is gone")
    done = refine(swept, "--run-dir", "died", "--resume", *SHARED, "--json", "-o", "died.yaml")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["refined"]
    assert [purpose for purpose, _ in windows(folder)].count("alone") == 2
    assert profile.load(swept / "died.yaml").promise.source == "confirming run"


@pytest.mark.parametrize("pairs", [8, [[{"start_s": 0.0}]], None], ids=str)
@pytest.mark.usefixtures("whole")
def test_a_journal_that_makes_no_sense_is_refused(swept: Path, pairs: object) -> None:
    folder = edited(swept, f"torn {pairs}", until="gathered", pairs=pairs)
    done = refine(swept, "--run-dir", folder.name, "--resume", *SHARED)
    assert done.returncode == 3, done.stderr
    assert "journal.jsonl: an event makes no sense" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.attack
@pytest.mark.parametrize(("event", "key"), [("gathered", "chosen"), ("trial", "configuration")])
@pytest.mark.parametrize("planted", [{"trust_remote_code": True}, {"max_num_seqs": 5000}], ids=str)
@pytest.mark.usefixtures("whole")
def test_a_strangers_run_that_is_resumed_starts_nothing_that_is_not_searched(
    swept: Path, event: str, key: str, planted: dict[str, Any]
) -> None:
    folder = swept / f"planted {event} {planted}"
    shutil.copytree(swept / "whole", folder)
    path = folder / "journal.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    place = [one["event"] for one in events].index(event)
    events[place][key] |= planted
    path.write_text("".join(json.dumps(one) + "\n" for one in events[: place + 1]))
    done = refine(swept, "--run-dir", folder.name, "--resume", *SHARED)
    assert (done.returncode, done.stdout) == (3, "")
    assert "journal.jsonl: an event makes no sense" in done.stderr
    assert f"{next(iter(planted))}={next(iter(planted.values()))}" in done.stderr
    assert "starting an engine" not in done.stderr


def test_where_nothing_is_better_the_knee_stays(swept: Path, whole: dict[str, Any]) -> None:
    best = whole["chosen"]["max_num_seqs"]
    shutil.copy(swept / "whole.yaml", swept / "best.yaml")
    options = ("--search", f"max_num_seqs={best},1,2", "--search", "max_num_batched_tokens=2048")
    done = tuner(swept, "refine", "best.yaml", *SIM, *options, "--json", "-o", "kept.yaml")
    assert done.returncode == 0, done.stderr
    assert not json.loads(done.stdout)["refined"]
    one, other = (profile.load(swept / name) for name in ("best.yaml", "kept.yaml"))
    assert one.engine == other.engine
    assert one.promise == other.promise
    assert "nothing better was found" in other.decision.reason


def test_of_one_argument_it_shows_gains_with_the_twin_weighs_nothing_and_warns_in_json_too(
    swept: Path,
) -> None:
    asked = ["--trace", "third.jsonl", "--run-dir", "third", "-o", "third.yaml"]
    asked += ["--search", "max_num_seqs=7", "--search", "max_num_batched_tokens=2048"]
    done = refine(swept, *asked, "--json")
    assert done.returncode == 0, done.stderr
    (said,) = [one for one in json.loads(done.stdout)["warnings"] if "not the trace" in one]
    assert said in done.stderr
    shown = refine(swept, *asked, "--resume", "--details").stdout
    assert f"Warning: {said}" in " ".join(shown.split())
    assert re.search(r"gain,.*\n.*with twin", shown)
    assert "max_num_seqs alone was searched" in shown
    gains = [float(one) for one in re.findall(r"([+-]\d+\.\d)%", shown)]
    assert gains
    assert min(gains) > -100  # no ratio is below nothing


def test_a_trace_of_a_few_requests_is_refused(swept: Path) -> None:
    lines = (swept / "prod.jsonl").read_text().splitlines()
    (swept / "few.jsonl").write_text("\n".join(lines[:2]) + "\n")
    done = refine(swept, "--trace", "few.jsonl")
    assert done.returncode == 3
    assert "few.jsonl: requests served: 1, too few" in done.stderr
    assert "starting an engine" not in done.stderr


def test_a_second_process_compares_what_the_first_found_in_the_study_that_they_share(
    swept: Path, whole: dict[str, Any]
) -> None:
    done = refine(swept, *SHARED, "--json", "-o", "second.yaml", "--budget", "240s")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["of_others"] == len(whole_trials(whole))
    assert found["chosen"] == whole["chosen"]
    assert found["chosen"] not in [one["configuration"] for one in found["trials"]]
    assert found["pairs"] == 4


@pytest.mark.long
@pytest.mark.services
def test_two_runs_that_begin_at_once_share_a_study_in_postgresql(swept: Path) -> None:
    psycopg = pytest.importorskip("psycopg")
    few = ("--search", "max_num_seqs=8,10,12,14", "--search", "max_num_batched_tokens=2048")
    with postgres.running() as server, closing(psycopg.connect(server.url)) as base:
        asked = ("--trace", "third.jsonl", "--budget", "5m", "--storage", server.url, "--json")
        shared = (*few, *asked)
        both = [
            subprocess.Popen(
                command(*shared, "--run-dir", one, "-o", f"{one}.yaml"),
                cwd=swept,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for one in ("pg-one", "pg-two")
        ]
        said = [one.communicate() for one in both]
        told = {name for (name,) in base.execute(TOLD)}
    assert [one.returncode for one in both] == [0, 0], said
    assert not any(re.search("[a-z]Warning", errors) for _, errors in said), said
    found = [json.loads(out) for out, _ in said]
    first, second = ([each["configuration"] for each in one["trials"]] for one in found)
    assert [one for one in first if one in second] == [found[0]["knee"]]
    assert len(told) >= 3  # the knee, and what each of them tried
    assert told == {
        json.dumps(each["configuration"]) for one in found for each in whole_trials(one)
    }


def test_a_finished_run_resumed_measures_nothing_and_tells_a_storage_that_knows_nothing_of_it(
    swept: Path, whole: dict[str, Any]
) -> None:
    """And what its sweep warned of it counts, and says with ``--details``."""
    late = ("--storage", "sqlite:///late.db", "--details", "-o", "whole.yaml")
    done = refine(swept, "--run-dir", "whole", "--resume", *late)
    again = kept(swept / "whole")
    assert again == whole | {"pruned": 0}  # which the first storage alone knows
    assert "starting an engine" not in done.stderr
    with closing(sqlite3.connect(swept / "late.db")) as base:
        told = base.execute("SELECT value_json FROM trial_user_attributes WHERE key = 'source'")
        assert list(told).count(('"engine"',)) == len(whole_trials(whole))
    before = profile.load(swept / "profile.yaml").provenance.warnings
    twice = [one for one in whole["warnings"] if one in before and "hash_ids" not in one]
    assert twice
    shown = (swept / "whole.txt").read_text()
    assert not [one for one in twice if one in " ".join(shown.split())]
    assert "more warning" in shown
    assert [one for one in twice if one in " ".join(done.stdout.split())] == twice


def test_another_machine_is_refused_before_anything_starts(
    swept: Path, whole: dict[str, Any]
) -> None:
    assert whole["complete"]
    (swept / "other.yaml").write_text(WORLD.replace("b: 0.0004", "b: 0.0005"))
    elsewhere = ("--world", "other.yaml", "--force", "--run-dir")
    shared = refine(swept, *SHARED, *elsewhere, "there")
    assert shared.returncode == 3
    assert "this study is measured on simulated:world" in shared.stderr
    assert not (swept / "there").exists()
    again = refine(swept, "--resume", *elsewhere, "whole")
    assert again.returncode == 3
    assert "machine was" in again.stderr
    assert "starting an engine" not in shared.stderr + again.stderr


def test_a_real_engine_is_not_started_for_a_simulated_profile(swept: Path) -> None:
    done = tuner(swept, "refine", "profile.yaml", "--trace", "prod.jsonl", "--run-dir", "real")
    assert done.returncode == 6, done.stderr
    said, cure = done.stderr.splitlines()
    assert said.startswith("Error: the profile was measured with name simulated:world, here it is ")
    assert cure.startswith("Add --engine sim --world FILE, or ")
    assert not (swept / "real").exists()


def test_a_budget_holds_on_an_overloaded_engine(tmp_path: Path) -> None:
    """Which takes three times as long for a window as the window is."""
    filled(tmp_path, WORLD.replace("a: 0.016", "a: 0.090"), requests=HALF)
    assert tuner(tmp_path, "sweep", *SIM).returncode == 0
    refused = refine(tmp_path, "--budget", "8m")
    assert refused.returncode == 2, refused.stderr
    enough_s = enough_of(refused)
    done = refine(tmp_path, "--budget", f"{enough_s}s", "--json")
    assert done.returncode == 0, done.stderr
    assert sum(json.loads(done.stdout)["engine_seconds"].values()) <= enough_s
    refused = refine(tmp_path, "--budget", "1m")
    assert enough_of(refused) == enough_s  # whatever was asked


def test_more_slots_than_the_sweep_knew_of_are_told_by_the_twin_too(tmp_path: Path) -> None:
    """And other token budgets than the knee's."""
    filled(tmp_path, WORLD, requests=HALF)
    assert tuner(tmp_path, "sweep", *SIM, "--ceiling", "4").returncode == 0
    searched = ("max_num_seqs=4,8,12,16,24", "max_num_batched_tokens=256,2048")
    done = refine(tmp_path, *(f"--search={one}" for one in searched), "--json")
    found = json.loads(done.stdout)
    assert (found["knee"]["max_num_seqs"], found["chosen"]["max_num_seqs"]) == (4, 12)
    assert found["refined"]
    assert not [one for one in found["warnings"] if "the twin was wrong" in one]
    whole = profile.load(tmp_path / found["profile"])
    assert whole.decision.max_num_seqs == 12


def enough_of(refused: "subprocess.CompletedProcess[str]") -> int:
    """Return the budget that a refusal says would do."""
    found = re.search(r"Give at least --budget (\d+)s\.$", refused.stderr.strip())
    assert found is not None, refused.stderr
    return int(found[1])


def test_ctrl_c_says_how_to_go_on_without_the_password(swept: Path) -> None:
    options = ("--storage=sqlite:///own.db?password=secret", "--run-dir", "secret-run")
    running = subprocess.Popen(command(*options), cwd=swept, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    assert any("ramp to" in line for line in running.stderr)
    running.send_signal(signal.SIGINT)
    _, told = running.communicate()
    assert running.returncode == 130
    assert "Traceback" not in told
    assert "--resume" in told.splitlines()[-1]
    assert "--storage=sqlite:///own.db?password=" in told.splitlines()[-1]
    assert "=secret" not in told
    kept = b"".join(path.read_bytes() for path in (swept / "secret-run").rglob("*.*"))
    assert b"=secret" not in kept
    assert {*re.findall(rb"password=(.?)", kept)} == {b"'"}


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--search", "max_num_batched_tokens=2"), 2, "is less than every max_num_seqs"),
        (("--search", "enable_prefix_caching=true"), 2, "a simulated engine takes whole numbers"),
        (("--search", "max_num_seqs=many"), 2, "whole numbers of at least 1"),
        (("--objective", "speed"), 2, "--objective 'speed' is not known"),
        (("--budget", "1m"), 2, "--budget 60s is too small"),
        (("--step", "1ms"), 2, "--step 1ms: so short a replay"),
        (("--window", "9999s+10s"), 3, "window 9999"),
        (("--storage", "postgresql://u:secret@127.0.0.1:1/x"), 3, "u@127.0.0.1:1/x: the study's"),
        ((*TRACE, *TRACE), 2, "--trace is there 2 times: one profile"),
        (("-o", "prod.jsonl"), 3, "is there already and is no serving profile"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(
    swept: Path, options: tuple[str, ...], code: int, said: str
) -> None:
    before = list(swept.glob("runs/*"))
    done = refine(swept, *options)
    assert list(swept.glob("runs/*")) == before  # nor will --resume take it for the newest run
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "starting an engine" not in done.stderr
    assert "secret" not in done.stderr
    assert said in done.stderr.splitlines()[-2]

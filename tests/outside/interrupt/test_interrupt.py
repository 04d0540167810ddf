"""Runs that are stopped at any moment: they continue, measure nothing twice and end alike."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.outside.machines.swept import HERE as MACHINES
from tests.outside.table import (
    BAD_INPUT,
    INTERRUPTED,
    JOURNAL,
    OK,
    REPLAYS,
    Done,
    ended,
    run,
    start,
    words,
)

TRACE = ("--trace", str(MACHINES / "traces" / "light.jsonl"))
SIM = ("--world", str(MACHINES / "still" / "world.yaml"), *TRACE)
SWEEP = ("sweep", *SIM, "--ceiling", "4", "--step", "20s", "--run-dir", "run")
REFINE = ("refine", "profile.yaml", *SIM, "--budget", "8m", "--run-dir", "run")
COMPARE = (
    *("compare", *SIM, "--profile", "profile.yaml", "--approaches", "untuned,tuned"),
    *("--loads", "recorded", "--run-dir", "run"),
)
PROFILE = ("profile.yaml", "profile.evidence")
RUNS = {"sweep": SWEEP, "refine": REFINE, "compare": COMPARE}
STRIDES = {"sweep": 1, "refine": 1, "compare": 7}
"""After which of the events of a run it is cut."""


def events(folder: Path) -> list[dict[str, Any]]:
    """Return the events of a journal, which must be whole."""
    text = (folder / "run" / JOURNAL).read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def measured(folder: Path) -> list[tuple[str, int]]:
    replays = [event for event in events(folder) if event["event"] == "replay"]
    return [(event["purpose"], event["max_num_seqs"]) for event in replays]


def decided(done: Done) -> dict[str, Any]:
    """Return the answer of a run, its numbers to nine digits, without what depends on how often it
    was stopped."""
    assert done.code == OK, done.stderr
    changes = ("engine_starts", "engine_seconds", "starts_s", "replay_s", "run_dir", "profile")
    kept = {k: v for k, v in done.json.items() if k not in {*changes, "warnings"}}
    rounded: dict[str, Any] = json.loads(json.dumps(kept), parse_float=lambda x: f"{float(x):.9g}")
    return rounded


def check_files(folder: Path) -> None:
    """Check that every file of a run is whole."""
    events(folder)
    for path in (folder / "run" / REPLAYS).iterdir():
        assert path.suffix == ".npz", path
        with np.load(path, allow_pickle=False) as arrays:
            assert all(arrays[name] is not None for name in arrays.files)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    assert run(folder, *SWEEP[:-1], "sweep").code == OK
    return folder


@pytest.fixture(scope="module")
def finished(swept: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Done]]:
    """Each run without an interruption."""
    made = {}
    for name, command in RUNS.items():
        folder = tmp_path_factory.mktemp(name)
        for kept in PROFILE:
            shutil.copy(swept / kept, folder)
        made[name] = folder, run(folder, *command, "--json")
    return made


def cut_after(finished: Path, count: int, folder: Path) -> None:
    """Leave what a run that dies in its next event leaves: half of a line, and its replay."""
    shutil.copytree(finished, folder, dirs_exist_ok=True)
    lines = (finished / "run" / JOURNAL).read_bytes().splitlines(keepends=True)
    half = lines[count][: len(lines[count]) // 2] if count < len(lines) else b""
    (folder / "run" / JOURNAL).write_bytes(b"".join(lines[:count]) + half)
    kept = [json.loads(line).get("file", "") for line in lines[: count + 1]]
    for path in (folder / "run" / REPLAYS).iterdir():
        if f"{REPLAYS}/{path.name}" not in kept:
            path.unlink()
    for path in (folder / "run").glob("*.json"):
        path.unlink()


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.timeout(300)
def test_a_run_that_dies_in_any_event_continues_to_the_same_answer(
    name: str, finished: dict[str, tuple[Path, Done]], tmp_path: Path
) -> None:
    folder, done = finished[name]
    known, lines = decided(done), (folder / "run" / JOURNAL).read_bytes().splitlines(keepends=True)
    for count in range(1, len(lines) + 1, STRIDES[name]):
        here = tmp_path / str(count)
        cut_after(folder, count, here)
        again = run(here, *RUNS[name], "--json")
        assert decided(again) == known, count
        assert measured(here) == measured(folder), count
        journal = (here / "run" / JOURNAL).read_bytes()
        assert journal.startswith(b"".join(lines[:count])), count
        check_files(here)


def stopped(folder: Path, command: Sequence[str], at_lines: int, *signals: signal.Signals) -> Done:
    """Start a run and send it signals when its journal has so many lines."""
    process = start(folder, *command)
    journal = folder / "run" / JOURNAL
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if journal.exists() and journal.read_bytes().count(b"\n") >= at_lines:
            for number in signals:
                process.send_signal(number)
            break
        time.sleep(0.001)
    done = ended(process)
    with pytest.raises(ProcessLookupError):  # of its group nobody is left
        os.killpg(process.pid, 0)
    return done


@pytest.mark.parametrize("at_lines", random.Random(2).sample(range(3, 12), 3))
def test_a_killed_run_continues_to_the_same_answer(
    at_lines: int, finished: dict[str, tuple[Path, Done]], tmp_path: Path
) -> None:
    assert stopped(tmp_path, SWEEP, at_lines, signal.SIGKILL).code == -signal.SIGKILL
    kept = (tmp_path / "run" / JOURNAL).read_bytes()
    again = run(tmp_path, *SWEEP, "--json")
    assert decided(again) == decided(finished["sweep"][1])
    assert measured(tmp_path) == measured(finished["sweep"][0])
    assert (tmp_path / "run" / JOURNAL).read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])
    check_files(tmp_path)


def test_a_killed_search_measures_nothing_twice(swept: Path, tmp_path: Path) -> None:
    for name in PROFILE:
        shutil.copy(swept / name, tmp_path)
    assert stopped(tmp_path, REFINE, 5, signal.SIGKILL).code == -signal.SIGKILL
    kept = (tmp_path / "run" / JOURNAL).read_bytes()
    assert run(tmp_path, *REFINE).code == OK
    assert (tmp_path / "run" / JOURNAL).read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])
    check_files(tmp_path)
    complete = (tmp_path / "run" / JOURNAL).read_bytes()
    assert run(tmp_path, *REFINE).code == OK
    assert (tmp_path / "run" / JOURNAL).read_bytes() == complete


@pytest.mark.parametrize(
    "signals",
    [(signal.SIGTERM,), (signal.SIGHUP,), (signal.SIGINT, signal.SIGINT)],
    ids=str,
)
def test_a_signal_ends_a_run_in_order_with_the_command_that_continues_it(
    signals: Sequence[signal.Signals], finished: dict[str, tuple[Path, Done]], tmp_path: Path
) -> None:
    done = stopped(tmp_path, SWEEP, 8, *signals)
    assert done.code == INTERRUPTED
    assert "Traceback" not in done.stderr
    check_files(tmp_path)
    program, *printed = done.stderr.splitlines()[-1].partition(": ")[2].split()
    assert program == "tuner"
    assert run(tmp_path, *printed).code == OK
    result = (tmp_path / "run" / "result.json").read_text()
    result = json.dumps({key: value for key, value in json.loads(result).items() if key != "page"})
    assert decided(Done(OK, result, "")) == decided(finished["sweep"][1])


def test_of_two_in_one_folder_one_works_and_the_other_is_refused(tmp_path: Path) -> None:
    first, second = start(tmp_path, *SWEEP), start(tmp_path, *SWEEP)
    both = sorted([ended(first), ended(second)], key=lambda done: done.code)
    assert [done.code for done in both] == [OK, BAD_INPUT]
    assert "run" in both[1].error
    check_files(tmp_path)


def test_a_run_is_not_resumed_while_it_goes_on(tmp_path: Path) -> None:
    process = start(tmp_path, *SWEEP)
    journal = tmp_path / "run" / JOURNAL
    while not (journal.exists() and journal.read_bytes().count(b"\n") > 3):
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGSTOP)
    try:
        before = journal.read_bytes()
        refused = run(tmp_path, *SWEEP)
        assert journal.read_bytes() == before
    finally:
        process.send_signal(signal.SIGCONT)
    assert refused.code == BAD_INPUT
    assert "run" in refused.error
    assert ended(process).code == OK


def test_other_options_do_not_continue_a_run(
    finished: dict[str, tuple[Path, Done]], tmp_path: Path
) -> None:
    shutil.copytree(finished["sweep"][0], tmp_path, dirs_exist_ok=True)
    before = (tmp_path / "run" / JOURNAL).read_bytes()
    for option, value in (("--ceiling", "8"), ("--slo", "ttft=1s"), ("--headroom", "2")):
        done = run(tmp_path, *SWEEP, option, value)
        assert done.code == BAD_INPUT
        assert option.strip("-") in done.error
    assert (tmp_path / "run" / JOURNAL).read_bytes() == before


BEFORE, AFTER = b"model: tuner:tiny\nmax-num-seqs: 256\n", b"max-num-seqs: 4\n"


@pytest.mark.parametrize("command", ["apply", "rollback"])
def test_apply_that_is_killed_leaves_the_old_file_or_the_new_one(
    command: str, swept: Path, tmp_path: Path
) -> None:
    template = tmp_path / "template"
    template.mkdir()
    shutil.copy(swept / "profile.yaml", template)
    (template / "serve.yaml").write_bytes(BEFORE)
    apply = ("apply", "profile.yaml", "serve.yaml", "--force")
    if command == "rollback":
        assert run(template, *apply).code == OK
    given = words(*(apply if command == "apply" else ("rollback", "serve.yaml")))
    killer = [sys.executable, str(Path(__file__).with_name("stopped.py")), str(template), *given]
    subprocess.run(killer, check=True, capture_output=True)
    folders = [path for path in tmp_path.iterdir() if path.name.isdecimal()]
    assert len(folders) > 10
    for folder in folders:
        serve = folder / "serve.yaml"
        result = serve.read_bytes()
        assert result == BEFORE or AFTER in result, folder.name
        assert run(folder, *apply).code == OK, folder.name
        assert AFTER in serve.read_bytes(), folder.name
        assert run(folder, "rollback", "serve.yaml").code == OK, folder.name
        assert serve.read_bytes() == BEFORE, folder.name
        left = {path.name for path in folder.iterdir() if path.suffix != ".tmp"}
        assert left == {"profile.yaml", "serve.yaml"}, folder.name

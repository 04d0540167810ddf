"""`tuner compare` on simulated machines: the story of the article, faults, and interruptions."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.traces import SAMPLES
from tuner.commands.compare_run import run
from tuner.commands.compare_setup import CompareOptions
from tuner.errors import EngineError, TunerError

ROOT = Path(__file__).parent.parent
ARTICLE = ROOT / "examples" / "worlds" / "article.yaml"

OPTIONS = CompareOptions(
    trace=SAMPLES / "translation.jsonl",
    profile=None,
    max_num_seqs=16,
    approaches=None,
    loads="very-heavy",
    engine="sim",
    world=ARTICLE,
    model=None,
    base=None,
    overrides=(),
    untuned=64,
    batch_size=16,
    batch_wait="50ms",
    queue_size=1024,
    slo=None,
    window="busiest",
    step="90s",
    repeats=1,
    budget="6h",
    resume=False,
    run_dir=None,
    output=None,
    seed=0,
    json=True,
)

Compare = Callable[..., dict[str, Any]]


@pytest.fixture
def compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Compare:
    """Return what runs a comparison in a folder of its own and gives its JSON."""

    def go(**changes: object) -> dict[str, Any]:
        run(replace(OPTIONS, **{"run_dir": tmp_path / "run", **changes}))  # type: ignore[arg-type]
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return go


def rows(result: dict[str, Any], lengths: str = "captured") -> dict[str, dict[str, Any]]:
    """Return approach → its row, of the only load."""
    table = next(one for one in result["tables"] if one["lengths"] == lengths)
    return {row["approach"]: row for row in table["rows"]}


@pytest.fixture(scope="module")
def article(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[dict[str, Any], Path]:
    """Return the article's comparison, and the folder that it was written to."""
    folder = tmp_path_factory.mktemp("article")
    run(replace(OPTIONS, run_dir=folder / "run", output=folder / "out", json=False))
    return json.loads((folder / "out" / "comparison.json").read_text()), folder / "out"


def test_the_approaches_come_in_the_articles_order(article: tuple[dict[str, Any], Path]) -> None:
    served = {name: row["measured"]["requests_per_s"] for name, row in rows(article[0]).items()}
    assert sorted(served, key=lambda name: served[name]) == [
        *("two-workers", "worker", "static", "untuned", "tuned"),
    ]
    assert served["two-workers"] == pytest.approx(served["worker"] / 1.1, rel=0.1)


def test_uniform_lengths_make_static_batching_look_as_good_as_the_best(
    article: tuple[dict[str, Any], Path],
) -> None:
    real, uniform = rows(article[0]), rows(article[0], "uniform")
    assert (
        real["static"]["measured"]["requests_per_s"]
        < 0.8 * (real["tuned"]["measured"]["requests_per_s"])
    )
    assert (
        uniform["static"]["measured"]["requests_per_s"]
        > 0.95 * (uniform["tuned"]["measured"]["requests_per_s"])
    )


def test_notes_say_only_what_was_measured(article: tuple[dict[str, Any], Path]) -> None:
    real, uniform = rows(article[0]), rows(article[0], "uniform")
    assert real["static"]["measured"]["held_mean_ms"] > 1000
    assert uniform["static"]["measured"]["held_mean_ms"] == pytest.approx(0, abs=30)
    assert any("head of line" in note for note in real["static"]["notes"])
    assert not any("head of line" in note for note in uniform["static"]["notes"])
    assert real["worker"]["measured"]["transfer_ms"]["mean"] == pytest.approx(10)
    assert any("contention" in note for note in real["two-workers"]["notes"])
    assert real["two-workers"]["measured"]["iteration_ms"] == pytest.approx(
        2.2 * real["worker"]["measured"]["iteration_ms"], rel=0.05
    )
    assert real["tuned"]["measured"]["transfer_ms"] is None


def test_every_key_of_the_json_is_documented(article: tuple[dict[str, Any], Path]) -> None:
    page = (ROOT / "docs" / "journey.md").read_text()
    table = article[0]["tables"][0]
    row = table["rows"][2]
    names = {*article[0], *table, *row, *row["measured"]}
    assert {name for name in names if f"`{name}`" not in page} == set()


def test_the_markdown_has_the_same_numbers(article: tuple[dict[str, Any], Path]) -> None:
    result, folder = article
    page = (folder / "comparison.md").read_text()
    served = rows(result)["tuned"]["measured"]["requests_per_s"]
    assert f"| continuous, tuned (16) | {served:.2f} |" in page
    assert page.count("| one worker |") == 2
    plotted = importlib.util.find_spec("plotly") is not None
    assert (folder / "comparison.html").exists() == plotted


def test_heavier_levels_have_more_requests_in_flight(compare: Compare) -> None:
    result = compare(loads="light,heavy,recorded", approaches="tuned", step="20s")
    assert result["rates_rps"]["light"] < result["rates_rps"]["heavy"]
    offered = {
        table["load"]: table["rows"][0]["measured"]["offered_rps"]
        for table in result["tables"]
        if table["lengths"] == "captured"
    }
    assert offered["light"] < 0.5 * offered["heavy"]
    assert offered["heavy"] == pytest.approx(result["rates_rps"]["heavy"], rel=0.2)
    assert [table["in_flight"] for table in result["tables"][::2]] == [2, 16, None]


SHORT: dict[str, Any] = {"step": "8s", "repeats": 2, "approaches": "static,tuned"}
"""Two approaches whose engines have the same size."""


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that went through."""
    folder = tmp_path_factory.mktemp("short")
    run(replace(OPTIONS, **SHORT, run_dir=folder / "run", output=folder))
    return folder


@pytest.mark.parametrize("kept", [1, 3, 5, 6, 8])
def test_a_run_that_was_cut_off_anywhere_ends_as_if_it_had_not_been(
    compare: Compare, short: Path, tmp_path: Path, kept: int
) -> None:
    """As if the power had failed after so many events."""
    shutil.copytree(short / "run", tmp_path / "run")
    journal = tmp_path / "run" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    assert len(lines) == 4 + 4 * 3  # plan, start, calibrated, choice; four sessions
    journal.write_bytes(b"".join(lines[:kept]) + lines[kept][:-3])
    whole = json.loads((short / "comparison.json").read_text())
    assert compare(**SHORT, resume=True)["tables"] == whole["tables"]


def test_an_interrupted_command_says_how_to_go_on_and_does(tmp_path: Path, short: Path) -> None:
    tuner = str(Path(sys.executable).with_name("tuner"))
    command = [tuner, "compare", "--trace", str(OPTIONS.trace), "--engine", "sim"]
    command += ["--world", str(ARTICLE), "--max-num-seqs", "16", "--budget", "6h", "--json"]
    command += ["--step", "8s", "--repeats", "2", "--approaches", "static,tuned"]
    with subprocess.Popen(
        [*command, "--run-dir", "run"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as process:
        while not (tmp_path / "run" / "replays").exists() and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate()
    assert process.returncode == 130
    said, cure = told.splitlines()[-2:]
    assert re.fullmatch(r"Interrupted: \d replays are kept in run", said)
    again = subprocess.run(
        shlex.split(cure.removeprefix("Go on with: ")),
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(tuner).parent}:{os.environ['PATH']}"},
        capture_output=True,
        check=True,
    )
    whole = json.loads((short / "comparison.json").read_text())
    assert json.loads(again.stdout)["tables"] == whole["tables"]


def test_another_question_is_refused_on_resume(compare: Compare, short: Path) -> None:
    with pytest.raises(TunerError, match="batch_size was 16, now 8"):
        compare(**SHORT, run_dir=short / "run", resume=True, batch_size=8)


def test_without_a_tuned_value_a_fast_sweep_finds_one(compare: Compare) -> None:
    result = compare(max_num_seqs=None, approaches="tuned", step="5s")
    assert result["tuned"]["max_num_seqs"] == 16
    assert "a fast sweep at this load: knee at 16" in result["tuned"]["source"]


def test_a_profile_brings_its_value_and_its_whole_configuration(
    compare: Compare, tmp_path: Path
) -> None:
    profile = ROOT / "profiles" / "translation-tiny-cpu.yaml"
    changes: dict[str, Any] = {"profile": profile, "approaches": "tuned,profile", "step": "5s"}
    assert compare(**changes, max_num_seqs=None)["tuned"] == {
        "max_num_seqs": 8,
        "source": str(profile),
    }
    result = compare(**changes, max_num_seqs=4, run_dir=tmp_path / "other")
    assert [row["max_num_seqs"] for row in rows(result).values()] == [4, 8]


def test_a_queue_that_fills_refuses_requests_and_the_others_go_on(compare: Compare) -> None:
    result = compare(queue_size=3, step="20s", approaches="worker,tuned")
    worker, tuned = rows(result)["worker"], rows(result)["tuned"]
    assert worker["measured"]["failed"] > 0
    assert any("failed: the queue is full" in note for note in worker["notes"])
    assert tuned["measured"]["failed"] == 0


def cramped(tmp_path: Path, blocks: int) -> Path:
    path = tmp_path / "cramped.yaml"
    path.write_text(f"kv: {{blocks: {blocks}, block_size: 512}}\nengine_start: 1\n")
    return path


def test_two_workers_that_do_not_fit_are_a_result_and_the_others_go_on(
    compare: Compare, tmp_path: Path
) -> None:
    result = compare(
        world=cramped(tmp_path, 1), step="10s", untuned=1, max_num_seqs=1, batch_size=1
    )
    two = rows(result)["two-workers"]
    assert two["measured"] is None
    assert two["errors"] == [
        "1 KV blocks are too few for 2 workers. Raise kv.blocks in the world file."
    ]
    assert rows(result)["worker"]["measured"]["completed"] > 0


def test_only_when_all_fail_the_run_fails(compare: Compare, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no approach could be measured: 1 KV blocks"):
        compare(world=cramped(tmp_path, 1), step="10s", untuned=1, approaches="two-workers")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"approaches": "worker,magic"}, "--approaches: 'magic' is not known"),
        ({"approaches": "worker,worker"}, "--approaches: a name is there twice"),
        ({"approaches": "profile"}, "--approaches profile: there is no profile"),
        ({"loads": "heavy,crushing"}, "--loads: 'crushing' is not known"),
        ({"loads": "heavy,heavy"}, "--loads: a name is there twice"),
        ({"batch_wait": "soon"}, "--batch-wait: 'soon' is not a positive duration"),
        ({"budget": "1s"}, "--budget 1s is too little"),
        ({"window": "1h"}, "--window: cannot read '1h'"),
        ({"slo": "fast"}, "--slo: cannot read 'fast'"),
        ({"world": None}, "--engine sim needs a world"),
        ({"engine": "other"}, "--engine 'other' is not known"),
        ({"engine": "vllm"}, "--world is for --engine sim"),
        ({"output": Path("/dev/null/x")}, "/dev/null/x: cannot be a folder"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    compare: Compare, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(TunerError) as refused:
        compare(**changes)
    assert said in str(refused.value)
    assert refused.value.hint


def test_a_small_budget_shortens_the_replays_until_all_blocks_fit(compare: Compare) -> None:
    result = compare(step="90s", repeats=2, approaches="worker,tuned", budget="15m")
    assert {row["measured"]["blocks"] for row in rows(result).values()} == {2}
    assert sum(result["engine_seconds"].values()) < 15 * 60
    length_s = float(result["window"].rpartition("+")[2].removesuffix("s"))
    assert 3 < length_s < 60

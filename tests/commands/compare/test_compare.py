"""`tuner compare` on simulated machines: the story of the article, faults, and interruptions."""

import json
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

from tests.support.in_process import tuner
from tests.support.places import ROOT
from tests.support.traces import SAMPLES
from tuner.commands.compare.options import CompareOptions
from tuner.commands.compare.run import run
from tuner.errors import EngineError, GateError, RunError, TraceError, TunerError, UsageError
from tuner.runs.compare.evidence import Comparing
from tuner.runs.journal import read
from tuner.trace.trace import load

pytestmark = pytest.mark.usefixtures("by_few_draws")

ARTICLE = ROOT / "examples" / "worlds" / "article.yaml"
QUIET = ROOT / "examples" / "worlds" / "article-quiet.yaml"

OPTIONS = CompareOptions(
    trace=SAMPLES / "translation.jsonl",
    max_num_seqs=16,
    engine="sim",
    world=ARTICLE,
    step="90s",
    repeats=1,
    budget="6h",
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
    changes: dict[str, Any] = {"run_dir": folder / "run", "output": folder / "out"}
    run(replace(OPTIONS, **changes, step="60s", json=False))
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


def test_a_reply_that_comes_whole_has_its_engines_time_per_token(
    article: tuple[dict[str, Any], Path],
) -> None:
    of_one = rows(article[0])["worker"]["measured"]
    assert of_one["tpot_ms"]["p50"] == pytest.approx(of_one["iteration_ms"], rel=0.05)


def test_the_markdown_has_the_same_numbers(article: tuple[dict[str, Any], Path]) -> None:
    result, folder = article
    page = (folder / "comparison.md").read_text()
    served = rows(result)["tuned"]["measured"]["requests_per_s"]
    assert f"| continuous, tuned (16) | {served:.2f} |" in page
    assert page.count("| one worker |") == 2


def test_the_page_has_the_same_numbers(article: tuple[dict[str, Any], Path]) -> None:
    result, folder = article
    page = (folder / "comparison.html").read_text()
    served = [
        row["measured"]["requests_per_s"] for table in result["tables"] for row in table["rows"]
    ]
    assert len(served) > 6
    assert [one for one in served if f"<td>{one:.2f}</td>" not in page] == []


@pytest.fixture(scope="module")
def loads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the untuned and the tuned engine at several levels, in three blocks."""
    folder = tmp_path_factory.mktemp("loads")
    changes: dict[str, Any] = {"loads": "light,heavy,recorded", "step": "15s", "repeats": 3}
    changes |= {"approaches": "untuned,tuned", "run_dir": folder / "run", "output": folder}
    run(replace(OPTIONS, world=QUIET, **changes))
    found: dict[str, Any] = json.loads((folder / "comparison.json").read_text())
    return found


def test_a_level_is_what_is_in_flight_at_the_untuned_engine(loads: dict[str, Any]) -> None:
    flown = {
        table["load"]: (table["in_flight"], table["rows"][0]["measured"]["in_flight_mean"])
        for table in loads["tables"]
        if table["lengths"] == "captured"
    }
    for level in ("light", "heavy"):
        asked, found = flown[level]
        assert found == pytest.approx(asked, rel=0.15)
    assert flown["recorded"][0] is None


def test_a_level_is_reached_by_thinning_the_trace_out(loads: dict[str, Any]) -> None:
    rates = loads["rates_rps"]
    assert set(rates) == {"light", "heavy"}
    assert rates["light"] < 0.5 * rates["heavy"]
    offered = {
        table["load"]: table["rows"][0]["measured"]["offered_rps"]
        for table in loads["tables"]
        if table["lengths"] == "uniform"
    }
    assert offered["heavy"] == pytest.approx(rates["heavy"], rel=0.01)


def test_light_load_is_served_alike_and_never_more_than_offered(loads: dict[str, Any]) -> None:
    for table in loads["tables"]:
        for row in table["rows"]:
            assert row["measured"]["requests_per_s"] <= row["measured"]["offered_rps"]
    light = next(one for one in loads["tables"] if one["load"] == "light")
    against = light["rows"][1]["measured"]["ratios"]["requests_per_s"]
    assert against["value"] == pytest.approx(1.0, abs=0.02)
    assert against["low"] < 1 < against["high"]


def test_every_block_replays_another_part_of_the_trace(loads: dict[str, Any]) -> None:
    assert len(set(loads["windows"])) == 3
    assert not any("too short" in warning for warning in loads["warnings"])


def test_a_short_trace_says_that_its_blocks_are_alike(compare: Compare) -> None:
    result = compare(window="60s+20s", step="60s", repeats=2, approaches="untuned")
    assert len(set(result["windows"])) == 1
    assert any("too short for another part of it" in one for one in result["warnings"])
    assert not any("copies" in one for one in result["warnings"])


def test_a_load_of_copies_says_so(compare: Compare, tmp_path: Path) -> None:
    sparse = tmp_path / "sparse.jsonl"
    head, *rows = OPTIONS.trace.read_text().splitlines()
    sparse.write_text("\n".join([head, *rows[::20]]) + "\n")
    warnings = compare(trace=sparse, step="20s", approaches="untuned")["warnings"]
    assert any(re.match(r"very-heavy: \d\d\.\d times what was recorded", one) for one in warnings)


def test_the_traffic_of_a_load_is_kept_as_a_trace(compare: Compare, tmp_path: Path) -> None:
    result = compare(step="20s", repeats=2, approaches="untuned")
    kept = load(tmp_path / "run" / "traffic" / "very-heavy.jsonl")
    assert len(kept.requests) / 50 == pytest.approx(result["rates_rps"]["very-heavy"], rel=0.01)
    assert kept.header.model == "tuner:tiny"


SHIPPED = ROOT / "profiles" / "translation-tiny-cpu.yaml"

SHORT: dict[str, Any] = {"step": "8s", "repeats": 2, "approaches": "two-workers,tuned"}


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
    program = str(Path(sys.executable).with_name("tuner"))
    command = [program, "compare", "--trace", str(OPTIONS.trace), "--engine", "sim"]
    command += ["--world", str(ARTICLE), "--max-num-seqs", "16", "--budget", "6h", "--json"]
    command += ["--step", "8s", "--repeats", "2", "--approaches", "two-workers,tuned"]
    journal = tmp_path / "run" / "journal.jsonl"
    with subprocess.Popen(
        [*command, "--run-dir", "run"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as process:
        while process.poll() is None:
            if journal.exists() and b'"start"' in journal.read_bytes():
                break
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate()
    assert process.returncode == 130
    said, cure = told.splitlines()[-2:]
    assert re.fullmatch(r"Interrupted: \d replays? (is|are) kept in run", said)
    name, *words = shlex.split(cure.removeprefix("Go on with: "))
    assert name == "tuner"
    again = tuner(tmp_path, *words)
    assert again.returncode == 0, again.stderr
    whole = json.loads((short / "comparison.json").read_text())
    assert json.loads(again.stdout)["tables"] == whole["tables"]


def test_a_resumed_run_knows_what_a_block_has_taken(short: Path) -> None:
    """Two approaches a block: an engine start of 60 s and two replays of 10 to 15 s each."""
    comparing = Comparing(read(short / "run"))
    for block in (0, 1):
        assert 2 * (60 + 2 * 10) <= comparing.block_s(block) <= 2 * (60 + 2 * 16)
    assert comparing.block_s(2) == 0


def test_another_question_is_refused_on_resume(compare: Compare, short: Path) -> None:
    with pytest.raises(TunerError, match="batch_size was 16, now 8"):
        compare(**SHORT, run_dir=short / "run", resume=True, batch_size=8)


def test_without_a_tuned_value_a_fast_sweep_finds_one(compare: Compare) -> None:
    result = compare(max_num_seqs=None, approaches="tuned", step="60s")
    assert result["tuned"]["max_num_seqs"] == 16
    assert "a fast sweep at this load: knee at 16" in result["tuned"]["source"]


def test_a_profile_brings_its_value_and_its_whole_configuration(
    compare: Compare, tmp_path: Path
) -> None:
    profile = SHIPPED
    changes: dict[str, Any] = {"profile": profile, "approaches": "tuned,profile", "step": "5s"}
    with pytest.raises(GateError, match="here it is simulated:article"):
        compare(**changes, run_dir=tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    changes["force"] = True
    assert compare(**changes, max_num_seqs=None)["tuned"] == {
        "max_num_seqs": 8,
        "source": str(profile),
    }
    result = compare(**changes, max_num_seqs=4, run_dir=tmp_path / "other")
    # the load that a profile was made for stands beside the story's
    assert {table["load"] for table in result["tables"]} == {"recorded", "very-heavy"}
    assert [row["max_num_seqs"] for row in rows(result).values()] == [4, 8]
    assert any("takes of a profile's arguments only" in one for one in result["warnings"])


def test_a_sweep_finds_the_value_for_this_load_also_beside_a_profile(compare: Compare) -> None:
    result = compare(
        profile=SHIPPED, force=True, max_num_seqs=None, sweep=True, step="30s",
        approaches="tuned,profile",
    )  # fmt: skip
    assert [row["max_num_seqs"] for row in rows(result).values()] == [16, 8]


def test_a_server_is_one_more_way_of_serving_where_it_is_asked_for(compare: Compare) -> None:
    result = compare(approaches="tuned,server", step="5s")
    assert list(rows(result)) == ["tuned", "server"]
    (error,) = rows(result)["server"]["errors"]
    assert error.startswith("a simulated engine of 16 slots has no server.")


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
        ({"sweep": True}, "--sweep finds max_num_seqs, --max-num-seqs gives it"),
        ({"slo": "fast"}, "--slo: cannot read 'fast'"),
        ({"slo": "ttft=1s"}, "--slo is for the sweep that finds max_num_seqs, and there is none"),
        ({"profile": SHIPPED, "model": "acme/other"}, "--model acme/other: "),
        ({"window": "900s+9s"}, "--window 900s+9s: no request arrives there"),
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
    length_s = float(result["windows"][0].rpartition("+")[2].removesuffix("s"))
    assert 3 < length_s < 60


def test_the_sweep_has_its_share_of_the_budget_and_the_rest_keeps_to_its_own(
    compare: Compare, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"max_num_seqs": None, "approaches": "worker,tuned", "repeats": 2}
    result = compare(**changes, step="45s", budget="20m")
    assert sum(result["engine_seconds"].values()) < 0.8 * 20 * 60
    assert {row["measured"]["blocks"] for row in rows(result).values()} == {2}
    with pytest.raises(UsageError, match="is too little for 4 engine starts"):
        compare(**changes, budget="6m", run_dir=tmp_path / "other")


@pytest.mark.parametrize(
    ("times", "said"),
    [((7,), "one request: no traffic"), ((7, 7, 7), "all 3 requests at one time: no traffic")],
)
def test_a_trace_without_a_rate_is_refused_before_any_engine_starts(
    compare: Compare, tmp_path: Path, times: tuple[int, ...], said: str
) -> None:
    path = tmp_path / "tiny.jsonl"
    path.write_text(
        "".join(f'{{"timestamp": {ms}, "input_length": 9, "output_length": 9}}\n' for ms in times)
    )
    with pytest.raises(TraceError, match=said):
        compare(trace=path, engine="vllm", world=None, model="no/such-model")


def test_what_is_too_long_for_the_engine_is_counted(compare: Compare, tmp_path: Path) -> None:
    lines = (OPTIONS.trace).read_text().splitlines()
    row = json.loads(lines[1])
    long = [json.dumps({**row, "timestamp": at, "input_length": 10**6}) for at in (1, 2, 3)]
    path = tmp_path / "long.jsonl"
    path.write_text("\n".join([lines[0], *long, *lines[1:]]) + "\n")
    result = compare(trace=path, step="5s", approaches="untuned")
    assert any(
        one.startswith(f"3 of {len(lines) + 2} requests are longer than max_model_len=19200")
        for one in result["warnings"]
    )


def test_another_world_is_another_run(compare: Compare, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"step": "5s", "approaches": "untuned"}
    world = tmp_path / "world.yaml"
    world.write_text(ARTICLE.read_text())
    compare(**changes, world=world)
    world.write_text(ARTICLE.read_text().replace("seed: 1", "seed: 2"))
    with pytest.raises(RunError, match="world_digest was"):
        compare(**changes, world=world, resume=True)


def test_an_error_stands_under_the_traffic_that_met_it(compare: Compare, tmp_path: Path) -> None:
    """As if one replay's requests had left late in every attempt."""
    compare(step="5s", approaches="untuned")
    journal = tmp_path / "run" / "journal.jsonl"
    lines = journal.read_text().splitlines()
    made = next(one for one in lines if '"lengths": "uniform"' in one)
    event = json.loads(made)
    failed = {"event": "failed", "approach": "untuned", "block": 0, "load": "very-heavy"}
    failed |= {"lengths": "uniform", "why": "too late", "hint": "Wait.", "at_s": event["at_s"]}
    journal.write_text(
        "\n".join(json.dumps(failed) if one == made else one for one in lines) + "\n"
    )
    captured, uniform = compare(step="5s", approaches="untuned", resume=True)["tables"]
    assert captured["rows"][0]["errors"] == []
    assert captured["rows"][0]["measured"]["completed"] > 0
    assert uniform["rows"][0]["errors"] == ["too late. Wait."]


def test_tables_fit_a_terminal_of_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run(replace(OPTIONS, run_dir=tmp_path / "run", step="5s", json=False))
    out = capsys.readouterr().out
    assert "…" not in out
    rules = [line for line in out.splitlines() if line.startswith("──")]
    assert len(rules) == 2
    assert all(len(line) <= 80 for line in rules)

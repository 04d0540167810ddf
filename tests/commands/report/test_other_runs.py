"""``tuner report`` of what refine, compare, verify and watch leave."""

import html
import json
import os
import random
import re
import shlex
import shutil
import stat
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.commands.report.test_report import next_on, outline
from tests.support import strange_runs
from tests.support.builders import record, replay_of
from tests.support.in_process import tuner
from tests.support.places import ROOT
from tests.support.traces import beginning
from tuner.commands.report.drawing.page import Table
from tuner.commands.report.replays import Step, replay_section
from tuner.live.watch import WindowSummary
from tuner.traffic.slo import Slo

SIM = (
    *("--trace", "prod.jsonl", "--engine=sim"),
    *("--world", ROOT / "examples" / "worlds" / "article-quiet.yaml"),
)


pytestmark = pytest.mark.usefixtures("by_few_draws")

LINKS = {
    "swept": ("profile.yaml", "result.json"),
    "refined": ("profile.yaml", "result.json"),
    "compared": ("result.json",),
    "verified": ("profile.yaml", "result.json"),
}
"""Folder of a run → what is a link to a file of ours before the run begins: somebody else, who can
write there, has planted them."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a profile of a simulated machine."""
    folder = tmp_path_factory.mktemp("runs")
    beginning(folder / "prod.jsonl", 360)
    (folder / "ours.txt").write_text("ours")
    for run_dir, names in LINKS.items():
        for name in names:
            (folder / run_dir / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / run_dir / name).symlink_to(folder / "ours.txt")
    done = tuner(folder, "sweep", *SIM, "--run-dir=swept", "--step=20s", "--ceiling=16")
    assert done.returncode == 0, done.stderr
    return folder


def report(folder: Path, run_dir: str) -> tuple[list[str], str]:
    """Return the headings of the page of a run, and the page."""
    done = tuner(folder, "report", run_dir)
    assert done.returncode == 0, done.stderr
    page = folder / "report.html"
    return outline(page).headings, page.read_text(encoding="utf-8")


def kept_in(folder: Path, run_dir: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a run came to as JSON, and its verdict block."""
    found = json.loads((folder / run_dir / "result.json").read_text())
    return found, found.pop("block")


Answer = tuple[list[tuple[str, str]], list[str]]
"""The rows of a verdict, but for the reason, which a page gives whole; and the next command."""


def answer_on(text: str) -> Answer:
    (verdict,) = re.findall(r'<dl class="verdict">(.*?)</dl>', text)
    found = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", verdict)
    rows = [(name, html.unescape(one)) for name, one in found if name not in {"why", "next"}]
    return rows, next_on(text)


def answer_of(block: dict[str, Any]) -> Answer:
    rows = [(name, one) for name, one in block["rows"] if name != "why"]
    return rows, shlex.split(block["next"])


def begun(folder: Path, run_dir: str, *, events: int, into: Path) -> None:
    """Copy a run as if it had been interrupted after so many events."""
    shutil.copytree(folder / run_dir, into / run_dir)
    for name in ("profile.yaml", "result.json", "study.log"):
        (into / run_dir / name).unlink(missing_ok=True)
    lines = (into / run_dir / "journal.jsonl").read_text().splitlines(keepends=True)
    (into / run_dir / "journal.jsonl").write_text("".join(lines[:events]))
    for name in ("prod.jsonl", "profile.yaml"):
        shutil.copy(folder / name, into / name)


def test_the_page_of_a_sweep_ends_as_the_terminal_did(folder: Path, tmp_path: Path) -> None:
    _, block = kept_in(folder, "swept")
    assert block["next"] == "tuner show profile.yaml"
    shutil.copytree(folder / "swept", tmp_path / "swept")
    block["next"] = "tuner sweep --trace=prod.jsonl --ceiling=64"  # of a curve that still rises
    (tmp_path / "swept" / "result.json").write_text(json.dumps({"block": block}))
    assert answer_on(report(tmp_path, "swept")[1]) == answer_of(block)


@pytest.fixture(scope="module")
def refined(folder: Path) -> dict[str, Any]:
    """What a refinement of that profile printed."""
    done = tuner(
        folder, "refine", "profile.yaml", *SIM, "--run-dir=refined", "--json", "--step=20s"
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_refinement_shows_every_trial_before_its_profile(
    folder: Path, refined: dict[str, Any]
) -> None:
    found, block = kept_in(folder, "refined")
    assert found == refined
    headings, text = report(folder, "refined")
    assert headings[:2] == [block["title"].partition("  (")[0], "Search"]
    assert answer_on(text) == answer_of(block)
    assert "Replays over time" in headings
    assert text.count("max_num_batched_tokens=") >= len(refined["trials"])


@pytest.mark.usefixtures("refined")
def test_an_interrupted_refinement_is_shown_as_far_as_it_came(folder: Path, tmp_path: Path) -> None:
    begun(folder, "refined", events=4, into=tmp_path)
    headings, text = report(tmp_path, "refined")
    assert headings[0] == "Not decided yet"
    assert "This run has not ended" in text
    done = tuner(tmp_path, *next_on(text)[1:])
    assert done.returncode == 0, done.stderr
    assert "This run has not ended" not in report(tmp_path, "refined")[1]


@pytest.fixture(scope="module")
def compared(folder: Path) -> dict[str, Any]:
    """What a comparison printed."""
    done = tuner(
        folder, "compare", *SIM, "--run-dir=compared", "--approaches=untuned,tuned",
        "--loads=heavy", "--max-num-seqs=8", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_comparison_shows_every_approach_at_every_load(
    folder: Path, compared: dict[str, Any]
) -> None:
    headings, text = report(folder, "compared")
    assert headings[1:3] == ["Heavy, as captured", "Heavy, uniform lengths"]
    assert all(str(row["title"]) in text for row in compared["tables"][0]["rows"])
    assert "This run has not ended" not in text
    assert answer_on(text) == answer_of(kept_in(folder, "compared")[1])


@pytest.mark.usefixtures("compared")
def test_an_interrupted_comparison_says_what_goes_on_with_it(folder: Path, tmp_path: Path) -> None:
    begun(folder, "compared", events=-1, into=tmp_path)
    _, text = report(tmp_path, "compared")
    assert "This run has not ended" in text
    done = tuner(tmp_path, *next_on(text)[1:])
    assert done.returncode == 0, done.stderr
    assert "This run has not ended" not in report(tmp_path, "compared")[1]


@pytest.fixture(scope="module")
def verified(folder: Path) -> dict[str, Any]:
    """What a verification printed."""
    done = tuner(
        folder, "verify", "profile.yaml", *SIM, "--run-dir=verified", "--json", "--step=20s"
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_verification_shows_its_gates_and_what_they_compare(
    folder: Path, verified: dict[str, Any]
) -> None:
    found, block = kept_in(folder, "verified")
    assert found == verified
    headings, text = report(folder, "verified")
    assert headings == [block["title"], "Gates", "Replays over time"]
    assert block["title"] == "max_num_seqs 16 keeps its promise"
    assert answer_on(text) == answer_of(block)
    assert text.count(">kept</td>") + text.count(">broken</td>") == len(found["gates"])


def test_of_what_only_clients_tell_the_page_shows_no_number_of_the_engine() -> None:
    step = Step("verify 8", 8, [replay_of([record(row) for row in range(3)])])
    table = replay_section([step], Slo(), opened=None).parts[0]
    assert isinstance(table, Table)
    row = dict(zip(table.headings, table.rows[0], strict=True))
    assert (row["running"], row["KV peak"], row["preempted"]) == ("-", "-", "-")
    assert row["in SLO"] == "100%"


@pytest.mark.parametrize("parts", ["kinds"])
def test_of_several_parts_the_page_gives_the_answer_of_the_command(
    folder: Path, tmp_path: Path, parts: str
) -> None:
    one = (folder / "swept" / "profile.yaml").read_text()
    for name in ("day", "night"):
        (tmp_path / "both" / name).mkdir(parents=True)
        (tmp_path / "both" / name / "profile.yaml").write_text(one)
    plan = {"event": "plan", "format": 2, "plan": {"ceiling": 16, parts: {"day": "", "night": ""}}}
    (tmp_path / "both" / "journal.jsonl").write_text(json.dumps(plan) + "\n")
    block = {
        "title": "no max_num_seqs serves half of night in time",
        "aside": "shared, confidence 0.91",
        "rows": [["alone", "16 for day, 8 for night"], ["took", "6 min of engine"]],
        "next": "tuner plan night.yaml",
    }
    (tmp_path / "both" / "result.json").write_text(json.dumps({"block": block}))
    headings, text = report(tmp_path, "both")
    assert headings[0] == block["title"]
    assert answer_on(text) == answer_of(block)


@pytest.mark.attack
@pytest.mark.parametrize("block", [[], 3, {}, {"rows": 3}, {"title": 3, "rows": [[1, 2, 3]]}])
def test_what_is_no_answer_in_a_strangers_run_is_refused_in_one_line(
    folder: Path, tmp_path: Path, block: object
) -> None:
    shutil.copytree(folder / "swept", tmp_path / "swept")
    (tmp_path / "swept" / "result.json").write_text(json.dumps({"block": block}))
    done = tuner(tmp_path, "report", "swept")
    assert (done.returncode, done.stderr.count("\n")) == (3, 2)


@pytest.mark.parametrize("named", ["3", '["../day"]', '{"..": 1}'])
def test_a_foreign_plan_of_several_traces_is_refused_in_one_line(
    named: str, tmp_path: Path
) -> None:
    (tmp_path / "day").mkdir()
    plan = f'{{"event": "plan", "format": 2, "plan": {{"ceiling": 16, "kinds": {named}}}}}'
    (tmp_path / "day" / "journal.jsonl").write_text(plan + "\n")
    done = tuner(tmp_path, "report", "day")
    assert (done.returncode, done.stderr.count("\n")) == (3, 2)


def test_a_verification_that_was_not_ended_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "begun").mkdir()
    plan = {"event": "plan", "format": 2, "plan": {"verify": True}}
    (tmp_path / "begun" / "journal.jsonl").write_text(json.dumps(plan) + "\n")
    done = tuner(tmp_path, "report", "begun")
    assert (done.returncode, done.stderr.count("\n")) == (3, 2)


def window(number: int, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any number
    """A window of ten seconds with forty requests, as promised."""
    seen = WindowSummary(
        number=number, begin_s=10.0 * number, end_s=10.0 * number + 10, arrived=40, finished=40,
        failed=0, gap_ms=20.0, promised_gap_ms=20.0, slowness=1.0, running=4.0,
        promised_running=4.0, waiting=0.0, kv_cache_usage=0.1, preemptions=0.0, restarts=0,
    )  # fmt: skip
    return {**asdict(seen), **changes}


def watched(folder: Path, *lines: dict[str, Any]) -> None:
    begin = {"event": "begin", "profile": "p.yaml", "url": "http://<b>:1"}
    text = "".join(json.dumps(one) + "\n" for one in (begin, *lines))
    (folder / "windows.jsonl").write_text(text + '{"event": "win')


def test_a_watch_shows_its_last_verdict_and_when_it_changed(tmp_path: Path) -> None:
    ok = {"event": "window", "verdict": "still valid", **window(1)}
    slow = {"event": "window", "verdict": "drifting", **window(2, gap_ms=None, slowness=1.5)}
    watched(tmp_path, ok, slow)
    headings, text = report(tmp_path, ".")
    assert headings == ["drifting", "Windows", "In numbers"]
    assert "still valid from window 1; drifting from window 2" in text
    assert "80 requests in 20 s" in text
    assert "http://&lt;b&gt;:1" in text


def test_a_watch_that_ended_says_why_and_what_to_run(tmp_path: Path) -> None:
    slow = {"event": "window", "verdict": "drifting", **window(1, slowness=1.5)}
    why = "iterations take <b>1.5</b> times as long as the law says"
    end = {"verdict": "re-tune now", "reason": why, "next": "tuner plan p.yaml --load=1"}
    watched(tmp_path, slow, {"event": "end", **end})
    headings, text = report(tmp_path, ".")
    assert headings[0] == "re-tune now"
    assert "iterations take &lt;b&gt;1.5&lt;/b&gt; times" in text
    assert "<code>tuner plan p.yaml --load=1</code>" in text


def test_a_watch_of_weeks_has_a_small_page(tmp_path: Path) -> None:
    watched(
        tmp_path,
        *(
            {"event": "window", "verdict": "still valid", **window(number, gap_ms=20 + number / 7)}
            for number in range(6_000)
        ),
    )
    _, text = report(tmp_path, ".")
    assert len(text.encode()) < 1_500_000
    assert "after 6,000 windows" in text
    assert "The newest 200 windows" in text


@pytest.mark.parametrize(
    "line",
    ["[]", '{"event": "window"}', '{"event": "window", "verdict": 1}', '{"event": "end"}'],
)
def test_what_is_no_window_is_named_with_its_line(line: str, tmp_path: Path) -> None:
    (tmp_path / "windows.jsonl").write_text(line + "\n")
    done = tuner(tmp_path, "report", ".")
    assert done.returncode == 3
    assert "windows.jsonl:1: is no window of a watch" in done.stderr


@pytest.mark.attack
@pytest.mark.usefixtures("refined", "compared", "verified")
def test_nothing_is_written_through_links_that_lie_in_the_folder_of_a_run(folder: Path) -> None:
    assert (folder / "ours.txt").read_text() == "ours"
    for run_dir, names in LINKS.items():
        for name in names:
            status = (folder / run_dir / name).lstat()
            assert (stat.S_ISREG(status.st_mode), status.st_mode & 0o077) == (True, 0), name


ODD_WINDOWS: dict[str, dict[str, Any]] = {
    "no end": {"end_s": None},
    "an end without end": {"end_s": float("inf")},
    "more than a number holds": {"arrived": 10**400},
    "text for a number": {"failed": "5"},
    "escapes": {"verdict": "\x1b[2J\u202e"},
    "no character": {"verdict": "\ud800"},
    "a million": {"running": 1e308, "waiting": 1e308},
}


@pytest.mark.attack
@pytest.mark.parametrize("what", ODD_WINDOWS)
def test_a_window_of_a_strangers_watch_is_shown_or_refused_in_one_line(
    what: str, tmp_path: Path
) -> None:
    one = {"event": "window", "verdict": "still valid", **window(1), **ODD_WINDOWS[what]}
    watched(tmp_path, {**one, **window(0)}, one)
    done = tuner(tmp_path, "report", ".")
    assert done.returncode in {0, 3}
    assert done.stderr.count("\n") <= 2
    assert not set("\x1b\u202e") & set(done.stderr)


@pytest.mark.attack
def test_a_line_without_end_of_a_strangers_watch_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "windows.jsonl").write_text("[" * 200_000 + "\n")
    done = tuner(tmp_path, "report", ".")
    assert (done.returncode, done.stderr.count("\n")) == (3, 2)


@pytest.mark.attack
@pytest.mark.parametrize("name", ["windows.jsonl", "journal.jsonl", "result.json", "profile.yaml"])
@pytest.mark.usefixtures("verified")
def test_a_pipe_in_place_of_a_runs_file_is_not_waited_for(
    folder: Path, tmp_path: Path, name: str
) -> None:
    if name != "windows.jsonl":
        shutil.copytree(folder / "verified", tmp_path, dirs_exist_ok=True)
        (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    done = tuner(tmp_path, "report", ".")
    assert (done.returncode, done.stderr.count("\n")) == (3, 2)


RESUMED: dict[str, tuple[object, ...]] = {
    "refined": ("refine", "profile.yaml", *SIM, "--run-dir=refined", "--json", "--step=20s"),
    "compared": (
        *("compare", *SIM, "--run-dir=compared", "--approaches=untuned,tuned", "--json"),
        *("--loads=heavy", "--max-num-seqs=8"),
    ),
    "swept": ("sweep", *SIM, "--run-dir=swept", "--step=20s", "--ceiling=16"),
    "verified": (),
    "watched": (),
}


SEEDS = {
    "refined": (37, 121), "compared": (7, 86), "swept": (7, 44),
    "verified": (0, 1), "watched": (0, 1),
}  # fmt: skip
"""Of six hundred that were tried, mostly those that ended in a traceback once."""


@pytest.mark.attack
@pytest.mark.parametrize(("run_dir", "seed"), [(one, each) for one in SEEDS for each in SEEDS[one]])
@pytest.mark.usefixtures("refined", "compared", "verified")
def test_whatever_a_strangers_run_says_each_command_ends_in_order_and_inside_of_it(
    folder: Path, tmp_path: Path, run_dir: str, seed: int
) -> None:
    if run_dir == "watched":
        (tmp_path / run_dir).mkdir()
        lines = [{"event": "window", "verdict": "drifting", **window(place)} for place in range(4)]
        watched(tmp_path / run_dir, *lines)
    else:
        shutil.copytree(folder / run_dir, tmp_path / run_dir)
    for name in ("prod.jsonl", "profile.yaml"):
        shutil.copy(folder / name, tmp_path / name)
    what = strange_runs.change(tmp_path / run_dir, random.Random(f"{run_dir} {seed}"))
    asked: list[tuple[object, ...]] = [("report", run_dir), ("export", run_dir, "-o", "tables")]
    asked += [(*RESUMED[run_dir], "--resume")] if RESUMED[run_dir] else []
    for words in asked:
        done = tuner(tmp_path, *words)
        assert done.returncode in {0, 3, 4, 5, 6}, (what, done.stderr)
        assert not set("\x1b\u202e") & set(done.stdout + done.stderr), what
    made = {one.name for one in tmp_path.iterdir()}
    known = {"prod.jsonl", "profile.yaml", "report.html", "tables", "refined.yaml"}
    assert made <= known | {run_dir}, what

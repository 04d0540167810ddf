"""`tuner show`: profiles, runs in any state, tables in files, and differences."""

import csv
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pyarrow.parquet as pq
import pytest

from tests.support.completions import Exchange, completions
from tests.support.in_process import tuner
from tests.support.places import ROOT
from tests.support.profiles import ENGINE, profile
from tests.support.traces import beginning
from tuner.profile.profile import load, save

SIM = (
    *("--trace", "prod.jsonl"),
    *("--world", ROOT / "examples" / "worlds" / "article-quiet.yaml"),
)
RUNS = {
    "swept": ("sweep", *SIM, "--step=20s", "--ceiling=16"),
    "refined": ("refine", "profile.yaml", *SIM),
    "compared": (
        *("compare", *SIM, "--profile=profile.yaml"),
        *("--approaches=untuned,tuned", "--loads=very-heavy"),
    ),
    "verified": ("verify", "profile.yaml", *SIM),
}
pytestmark = pytest.mark.usefixtures("by_few_draws")


class Html:
    """A page that was written: well formed, or it is no page."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text(encoding="utf-8")
        root = ET.fromstring(self.text.partition("\n")[2])
        self.headings = [each.text for each in root.iter() if each.tag in {"h1", "h2"}]
        self.charts = [each.attrib["aria-label"] for each in root.iter("svg")]
        self.next = [shlex.split(each.text or "") for each in root.iter("code")]


def page_of(folder: Path, source: str) -> Html:
    path = folder / "page.html"
    path.unlink(missing_ok=True)
    done = tuner(folder, "show", source, "-o", path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return Html(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a profile, and a run of each command that somebody had planted links in."""
    folder = tmp_path_factory.mktemp("runs")
    beginning(folder / "prod.jsonl", 360)
    (folder / "ours.txt").write_text("ours")
    for name, words in RUNS.items():
        (folder / name).mkdir()
        (folder / name / "result.json").symlink_to(folder / "ours.txt")
        done = tuner(folder, *words, f"--run-dir={name}")
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_shown_as_its_command_ended(name: str, folder: Path) -> None:
    result = json.loads((folder / name / "result.json").read_text())["page"]
    done = tuner(folder, "show", name)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] in result["title"]
    assert result["next"] in done.stdout
    assert json.loads(tuner(folder, "show", name, "--json").stdout) == result
    page = page_of(folder, name)
    assert page.headings[0] == result["title"]
    assert page.next == [shlex.split(result["next"])]
    assert {section["title"] for section in result["sections"]} <= set(page.headings)
    assert "Steps over time" in page.headings
    assert not re.search(r"\bnan\b", page.text.lower())
    assert len(page.text) < 1_500_000
    assert (folder / "ours.txt").read_text() == "ours"
    if name == "swept":
        assert page.headings[1:] == ["Curve", "Traffic", "Steps over time", "Details"]
        assert len(page.charts) > 6


@pytest.mark.parametrize(
    ("name", "count"), [("swept", 1), ("swept", 4), ("swept", 9), ("refined", 4), ("compared", 20)]
)
def test_a_run_that_has_not_ended_is_shown_as_far_as_it_came(
    name: str, count: int, folder: Path, tmp_path: Path
) -> None:
    lines = (folder / name / "journal.jsonl").read_text().splitlines(keepends=True)
    begun = tmp_path / "begun"
    shutil.copytree(folder, begun, ignore=lambda *_: [each for each in RUNS if each != name])
    for left in ("profile.yaml", "result.json", "study.log"):
        (begun / name / left).unlink(missing_ok=True)
    (begun / name / "journal.jsonl").write_text("".join(lines[:count]) + '{"event": "rep')
    page = page_of(begun, name)
    assert "this run has not ended" in page.text
    assert page.next == [["tuner", "resume", name]]
    if count < 4:
        return
    done = tuner(begun, "resume", name)
    assert done.returncode == 0, done.stderr
    assert "this run has not ended" not in page_of(begun, name).text


def test_a_replay_that_cannot_be_read_back_is_named(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "swept", tmp_path / "run")
    (tmp_path / "run" / "replays" / "001.npz").write_bytes(b"no array")
    done = tuner(tmp_path, "show", "run", "-o", "page.html")
    assert done.returncode == 3
    assert "run/replays/001.npz: cannot be read back" in done.stderr
    assert not (tmp_path / "page.html").exists()
    assert tuner(tmp_path, "show", "run").returncode == 0


# Tables


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_curve_is_written_in_any_format(folder: Path, tmp_path: Path) -> None:
    for suffix in ("csv", "parquet", "json"):
        done = tuner(folder, "show", "swept", "-o", tmp_path / f"curve.{suffix}")
        assert done.returncode == 0, done.stderr
    result = rows(tmp_path / "curve.csv")
    curve = load(folder / "swept" / "profile.yaml").curve
    assert [int(row["max_num_seqs"]) for row in result] == [s.max_num_seqs for s in curve]
    table = pq.read_table(tmp_path / "curve.parquet")
    assert (table.column_names, table.num_rows) == (list(result[0]), len(result))
    assert len(json.loads((tmp_path / "curve.json").read_text())) == table.num_rows


# Differences

FEW = {name: ENGINE[name] for name in ("model", "max_num_seqs", "max_num_batched_tokens")}


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A folder with two profiles and a deployment file."""
    save(profile(engine=FEW), tmp_path / "a.yaml")
    second = profile(
        engine={**FEW, "max_num_seqs": 8, "seed": 1}, reason="8 is enough",
        versions={"vllm": "0.31.0"}, device={"name": "NVIDIA A10"},
    )  # fmt: skip
    save(second, tmp_path / "b.yaml")
    serve = "model: m\nmax-num-seqs: 32\nmax-num-active-seqs: 4\nport: 8000\n"
    (tmp_path / "serve.yaml").write_text(serve)
    return tmp_path


def differences(folder: Path, target: str) -> list[tuple[Any, ...]]:
    done = tuner(folder, "show", "a.yaml", target, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    tables = [
        table for section in json.loads(done.stdout)["sections"] for table in section["tables"]
    ]
    return [tuple(row) for table in tables for row in table["rows"]]


def test_of_two_profiles_everything_that_differs_is_shown(two: Path) -> None:
    assert differences(two, "a.yaml") == []
    result = differences(two, "b.yaml")
    assert result[0] == ("engine", "max_num_seqs", "16", "8", "")
    assert [row[1] for row in result] == [
        *("max_num_seqs", "seed", "interval", "device.kind", "device.name", "versions.vllm"),
    ]
    shown = tuner(two, "show", "a.yaml", "b.yaml").stdout
    assert shown.startswith("6 differences\n")


def test_of_a_file_what_apply_would_change_is_shown_and_what_undoes_it(two: Path) -> None:
    result = differences(two, "serve.yaml")
    assert [row[1:4] for row in result] == [
        ("max_num_seqs", "16", "32"),
        ("clash", None, None),
    ]
    assert "max_num_active_seqs is 4, which lowers max_num_seqs 16" in result[1][4]


PAGES = {
    "/metrics": (
        b'vllm:cache_config_info{block_size="16",cache_dtype="fp8",engine="0",'
        b'gpu_memory_utilization="0.9"} 1.0\n'
    ),
    "/version": b'{"version": "0.9.1"}',
}


async def never(_: Exchange) -> None:
    pytest.fail("a completion was asked for")


def test_a_running_server_is_compared_as_far_as_it_reports(two: Path) -> None:
    engine = {**FEW, "gpu_memory_utilization": 0.3, "kv_cache_dtype": "auto", "block_size": 16}
    save(profile(engine=engine, versions={"vllm": "0.32.0"}), two / "a.yaml")
    with completions(never, get=PAGES) as url:
        assert [row[1:4] for row in differences(two, url)] == [
            ("gpu_memory_utilization", "0.3", "0.9"),
            ("kv_cache_dtype", "auto", "fp8"),
            ("vllm", None, None),
        ]
        shown = tuner(two, "show", "a.yaml", url).stdout
    assert "the server does not report model, max_num_seqs" in shown

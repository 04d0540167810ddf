"""`tuner export`: a run's measurements for other programs."""

import csv
import json
import shutil
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.in_process import tuner
from tests.support.places import ROOT
from tests.support.traces import beginning
from tuner.profile.profile import load

WORLD = ROOT / "examples" / "worlds" / "article.yaml"

pytestmark = pytest.mark.usefixtures("by_few_draws")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a finished run."""
    path = tmp_path_factory.mktemp("export")
    trace = beginning(path / "prod.jsonl", 200)
    words = ("sweep", "--engine", "sim", "--world", WORLD, "--trace", trace)
    assert tuner(path, *words, "--run-dir", "run").returncode == 0
    return path


def export(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return tuner(folder, "export", *words)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_step_replay_request_and_iteration_is_a_row(folder: Path) -> None:
    done = export(folder, "run")
    assert (done.returncode, done.stderr) == (0, "")
    found = {name: rows(folder / "run" / "export" / f"{name}.csv") for name in TABLES}
    curve = load(folder / "run" / "profile.yaml").curve
    assert [int(one["max_num_seqs"]) for one in found["curve"]] == [
        one.max_num_seqs for one in curve
    ]
    assert [float(one["tpot_p95_ms"]) for one in found["curve"]] == [
        one.tpot_ms.p95 for one in curve if one.tpot_ms
    ]
    lines = (folder / "run" / "journal.jsonl").read_text().splitlines()
    replayed = [one for one in map(json.loads, lines) if one["event"] == "replay"]
    assert len(found["replays"]) == len(replayed)
    for name in ("requests", "iterations"):
        assert len(found[name]) == sum(int(one[name]) for one in found["replays"])
    first = found["requests"][0]
    taken_s = float(first["first_s"]) - float(first["planned_s"])
    assert float(first["ttft_s"]) == pytest.approx(taken_s)


TABLES = ("curve", "replays", "requests", "iterations")


def test_parquet_has_the_same_columns_and_keeps_their_types(folder: Path) -> None:
    assert export(folder, "run", "-o", "as_csv").returncode == 0
    assert export(folder, "run", "--to", "parquet", "-o", "as_parquet").returncode == 0
    tables = {name: pq.read_table(folder / "as_parquet" / f"{name}.parquet") for name in TABLES}
    for name, table in tables.items():
        text = rows(folder / "as_csv" / f"{name}.csv")
        assert (table.column_names, table.num_rows) == (list(text[0]), len(text))
    assert str(tables["iterations"].schema.field("duration_s").type) == "double"


def test_tables_that_are_there_are_left_alone(folder: Path) -> None:
    assert export(folder, "run", "-o", "twice").returncode == 0
    done = export(folder, "run", "-o", "twice")
    assert done.returncode == 3
    assert "twice/curve.csv: is there already" in done.stderr
    assert export(folder, "run", "-o", "twice", "--force").returncode == 0


def strange(folder: Path, name: str, **content: object) -> None:
    """Make a run like ours, in which each replay's event says this too."""
    shutil.copytree(folder / "run", folder / name, ignore=lambda *_: ["export"])
    journal = folder / name / "journal.jsonl"
    events = map(json.loads, journal.read_text().splitlines())
    lines = (one | (content if one["event"] == "replay" else {}) for one in events)
    journal.write_text("".join(json.dumps(one) + "\n" for one in lines))


@pytest.mark.attack
def test_no_cell_of_a_strangers_run_is_a_formula(folder: Path) -> None:
    formula = "=HYPERLINK(A1)"
    strange(folder, "formula", **{"worker": formula, formula: "+1"})
    assert export(folder, "formula").returncode == 0
    first, *_ = rows(folder / "formula" / "export" / "replays.csv")
    assert (first["worker"], first[f"'{formula}"]) == (f"'{formula}", "'+1")


@pytest.mark.attack
def test_what_no_table_can_hold_is_refused_and_nothing_is_written(folder: Path) -> None:
    strange(folder, "odd", worker="\ud800")
    done = export(folder, "odd", "--to", "parquet")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 2)
    assert "odd/journal.jsonl: an event makes no sense" in done.stderr
    assert list((folder / "odd" / "export").iterdir()) == []


@pytest.mark.attack
def test_nothing_is_exported_through_a_link_that_somebody_planted(folder: Path) -> None:
    shutil.copytree(folder / "run", folder / "linked", ignore=lambda *_: ["export"])
    (folder / "theirs").mkdir()
    (folder / "linked" / "export").symlink_to(folder / "theirs")
    done = export(folder, "linked")
    assert (done.returncode, done.stdout) == (3, "")
    assert "export: is a link" in done.stderr
    assert list((folder / "theirs").iterdir()) == []

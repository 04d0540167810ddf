"""`--dry-run`: what would be run and in what memory, said before anything is started."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.in_process import tuner
from tests.support.places import ROOT

pytestmark = pytest.mark.usefixtures("by_few_draws")

SIM = ("--world", "world.yaml", "--trace", "prod.jsonl")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dry")
    shutil.copy(ROOT / "traces" / "translation.jsonl", path / "prod.jsonl")
    shutil.copy(ROOT / "examples" / "worlds" / "article.yaml", path / "world.yaml")
    assert tuner(path, "sweep", *SIM).returncode == 0
    shutil.rmtree(path / "runs")
    return path


def test_a_sweep_shows_what_it_would_do(folder: Path) -> None:
    done = tuner(folder, "sweep", *SIM, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    assert not (folder / "runs").exists()
    result = json.loads(done.stdout)
    assert "at most 15 min, with two engine starts" in result["facts"]["time"]
    assert result["kv_blocks"] == 1200
    assert result["longest_fit"] == 48  # of 25 blocks, 400 tokens
    assert result["next"].startswith("tuner sweep ")
    assert "--dry-run" not in result["next"]


def test_of_a_real_engine_it_takes_neither_vllm_nor_torch(folder: Path) -> None:
    code = (
        "import sys; from tuner.commands.options import SweepOptions; "
        "from tuner.commands.sweep import run; from pathlib import Path; "
        "run(SweepOptions(trace=Path('prod.jsonl'), model='tuner:tiny', dry_run=True)); "
        "assert not {'vllm', 'torch'} & sys.modules.keys()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

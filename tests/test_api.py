"""The Python API: what `import tuner` offers scripts and notebooks."""

import asyncio
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tuner
from tests.support.places import ROOT
from tests.support.profiles import ENGINE, profile

NOTEBOOK = ROOT / "examples" / "notebook" / "tuning.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("api")
    shutil.copy(ROOT / "traces" / "translation.jsonl", path)
    shutil.copy(ROOT / "examples" / "worlds" / "article.yaml", path)
    return path


@pytest.fixture(scope="module")
def cells(folder: Path, by_few_draws: None) -> dict[str, Any]:  # noqa: ARG001 - in force
    """Return what the notebook's names are, once its cells were run inside an event loop."""
    result: dict[str, Any] = {}

    async def kernel() -> None:
        for cell in NOTEBOOK.read_text(encoding="utf-8").split("# %%")[1:]:
            exec(compile("#" + cell, str(NOTEBOOK), "exec"), result)
            await asyncio.sleep(0)

    with pytest.MonkeyPatch.context() as here:
        here.chdir(folder)
        asyncio.run(kernel())
    return result


def test_a_notebook_tunes_inside_the_event_loop_that_runs_already(
    cells: dict[str, Any], folder: Path
) -> None:
    profile = cells["profile"]
    assert cells["arguments"]["max_num_seqs"] == 16
    assert profile.decision.verdict == "knee"
    assert tuner.summary(profile).startswith("Use max_num_seqs 16")
    assert [step["max_num_seqs"] for step in tuner.curve(profile)] == [1, 2, 4, 8, 16, 32]
    assert cells["slowest_s"] > 1
    assert tuner.load_profile(folder / "run" / "profile.yaml") == profile
    for name in ("requests", "iterations"):
        assert len(tuner.table(folder / "run", name)) > 0


def test_what_a_profile_may_not_set_is_no_engine_argument() -> None:
    arguments = tuner.engine_args(profile(engine={**ENGINE, "worker_cls": "a.B"}))
    assert arguments["max_num_batched_tokens"] == 8192
    assert "worker_cls" not in arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"celing": 64}, "No such option: --celing"),
        ({"dry_run": True}, "makes a whole sweep"),
        ({"ceiling": "many"}, "a valid integer"),
        ({"headroom": 99}, "is not from 1 to 10"),
        ({"require": ["p99 ttft ? 5s"]}, "'p99 ttft ? 5s'"),
    ],
)
def test_options_are_checked_as_on_the_command_line(
    folder: Path, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(tuner.TunerError, match=re.escape(message)):
        tuner.sweep("translation.jsonl", **options)


def run_script(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(text)
    command = [sys.executable, "script.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_script_that_an_engine_imports_again_must_be_guarded(folder: Path) -> None:
    again = "else:\n    tuner.sweep('translation.jsonl')\n"
    begin = "import multiprocessing, tuner\nif __name__ == '__main__':\n"
    spawn = "    multiprocessing.get_context('spawn').Process(target=print).start()\n"
    done = run_script(begin + spawn + again, folder)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("tuner.errors.UsageError: ")
    assert "the engine's process imports the main module again" in last


def test_importing_tuner_imports_nothing_else() -> None:
    code = "import sys, tuner; print(*[m for m in sys.modules if m.startswith(('tuner', 'numpy'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["tuner"]

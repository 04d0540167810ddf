"""The examples are what they say they are."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import in_process
from tests.support.places import ROOT
from tuner.engines.sim.world import read_world

WORLDS = sorted((ROOT / "examples" / "worlds").glob("*.yaml"))
WALK = ROOT / "examples" / "walk"
TUNER = Path(sys.executable).with_name("tuner")
OF_THE_REAL_ENGINE = ROOT / "profiles" / "translation-tiny-cpu.yaml"
"""What a real engine once made of the very traffic of the walk."""


STARTING = ("sweep", "verify")
"""What starts an engine."""


@pytest.mark.parametrize("path", WORLDS, ids=lambda path: path.stem)
def test_every_world_can_be_simulated(path: Path) -> None:
    assert read_world(path).kv.blocks > 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of examples/walk, as its page asks for."""
    return Path(shutil.copytree(WALK, tmp_path / "walk"))


def printed() -> list[list[str]]:
    """Return the commands of the page, as they are printed there."""
    page = (WALK / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^```sh\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert found is not None
    lines = [shlex.split(line) for line in found[1].splitlines()]
    assert [line[0] for line in lines] == ["tuner"] * 10
    return [line[1:] for line in lines]


def assert_applied(folder: Path) -> None:
    deployed = (folder / "deployment.yaml").read_text(encoding="utf-8")
    chosen = re.search(
        r"^  max_num_seqs: (\d+)", (folder / "profile.yaml").read_text(), re.MULTILINE
    )
    assert chosen is not None
    assert f"- --max-num-seqs={chosen[1]} " in deployed
    assert "- --model=/models/translator" in deployed


@pytest.mark.usefixtures("by_few_draws")
def test_the_walk_goes_as_it_is_printed_with_a_simulated_engine_and_applies_a_real_ones_profile(
    folder: Path,
) -> None:
    simulated = ["--engine", "sim", "--world", str(ROOT / "examples" / "worlds" / "article.yaml")]
    said = {}
    for words in printed():
        if words[0] == "apply" and "apply" not in said:  # no simulated one is ever applied
            shutil.copy(OF_THE_REAL_ENGINE, folder / "profile.yaml")
        done = in_process.tuner(folder, *words, *(simulated if words[0] in STARTING else ()))
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        said[words[0]] = done.stdout
    assert "(now 256)" in said["show"]
    assert "keeps its promise" in said["verify"]
    assert_applied(folder)
    engine = said["diff"].partition("engine\n")[2].split()
    assert (engine[0], engine[-1]) == ("model", '"/models/translator"')
    assert len(engine) == 3


@pytest.mark.vllm
@pytest.mark.alone
@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_whole_walk_goes_as_it_is_printed_on_a_real_engine(folder: Path) -> None:
    for words in printed():
        done = subprocess.run(
            [TUNER, *words], cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    assert_applied(folder)

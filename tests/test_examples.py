"""The examples are what they say they are."""

from pathlib import Path

import pytest

from tests.support.places import ROOT
from tuner.engines.sim.world import read_world

WORLDS = sorted((ROOT / "examples" / "worlds").glob("*.yaml"))


@pytest.mark.parametrize("path", WORLDS, ids=lambda path: path.stem)
def test_every_world_can_be_simulated(path: Path) -> None:
    assert read_world(path).kv.blocks > 0

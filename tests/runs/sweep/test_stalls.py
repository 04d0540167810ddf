"""Runs whose engine stands still: for a while, and for good."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runs.sweep.test_sweep import HALF, SLOTS_COST_LATE, UP_TO_8, Notes, swept
from tuner.engines.sim.world import World, WorldNoise
from tuner.runs import journal
from tuner.runs.events import Repeated, Replayed
from tuner.runs.outcome import SweepOutcome

pytestmark = pytest.mark.usefixtures("by_few_draws")

IN_THE_PROBE, IN_THE_RAMP, IN_THE_LADDER = 62.0, 100.0, 200.0


def standing(at_s: float, seconds: float) -> World:
    return replace(SLOTS_COST_LATE, noise=WorldNoise(hang_at=at_s, hang_len=seconds))


def events(run_dir: Path, kind: type[Repeated]) -> list[str]:
    return [event.what for event in journal.read(run_dir).of(kind)]


def longest_iteration_s(run_dir: Path) -> float:
    """Return the longest iteration of all that was kept."""
    book = journal.read(run_dir)
    logs = [book.replay(event).iterations for event in book.of(Replayed)]
    return max(float(one["duration_s"].max()) for one in logs)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> SweepOutcome:
    return swept(tmp_path_factory.mktemp("calm") / "run", settings=UP_TO_8, traffic=HALF)


@pytest.mark.parametrize(
    ("at_s", "what", "resumed"),
    [
        (IN_THE_PROBE, "one at a time", False),
        (IN_THE_LADDER, "ladder 8", True),
    ],
)
def test_what_was_measured_while_the_engine_stood_still_is_measured_again(
    calm: SweepOutcome, tmp_path: Path, at_s: float, what: str, *, resumed: bool
) -> None:
    """Meanwhile so many come too late that the replay is cut, which ends all waiting."""
    notes, world = Notes(), standing(at_s, 20.0)
    if resumed:
        notes.stop_at = 3  # after a ramp and two short ones
        with pytest.raises(KeyboardInterrupt):
            swept(tmp_path / "run", world, settings=UP_TO_8, traffic=HALF, notes=notes)
        notes.stop_at = None
    found = swept(
        tmp_path / "run", world, settings=UP_TO_8, traffic=HALF, notes=notes, resume=resumed
    )
    stall = re.compile(f"{what}: the engine stood still for (19|20) s")
    assert any(map(stall.match, notes.told))
    assert set(events(tmp_path / "run", Repeated)) == {what}
    assert longest_iteration_s(tmp_path / "run") < 1.0
    assert (found.slo, found.verdict.kind) == (calm.slo, calm.verdict.kind)
    assert found.verdict.max_num_seqs == calm.verdict.max_num_seqs == 8
    assert found.chosen.numbers.attainment == pytest.approx(
        calm.chosen.numbers.attainment, abs=0.005
    )


def test_where_the_engine_hangs_another_one_goes_on(calm: SweepOutcome, tmp_path: Path) -> None:
    """The new one hangs too, an age after the first: by then the ladder is done."""
    notes = Notes()
    world = standing(IN_THE_RAMP, 1e5)
    found = swept(tmp_path / "run", world, settings=UP_TO_8, traffic=HALF, notes=notes)
    assert any("going on with a new engine" in one for one in notes.told)
    assert found.verdict.max_num_seqs == calm.verdict.max_num_seqs == 8

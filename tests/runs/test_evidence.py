"""What the replays of a run say of each cap."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.builders import facts, record, replay_of
from tuner.errors import RunError
from tuner.replay.records import Replay
from tuner.runs import journal
from tuner.runs.events import EngineStart, TrialBegun, TrialEnded
from tuner.runs.evidence import Evidence, cut_under_another, measured
from tuner.traffic.slo import Slo

PLAN = {"trace_digest": "sha256:1", "seed": 0}
SLO = Slo(ttft_s=2.0)
WHOLE = replay_of([record(row) for row in range(10)])
LOST = replay_of([record(10, outcome="cut")], cut="hopeless", unsent=9, attainment_bound=0.5)


def evidence_of(folder: Path, *rungs: Mapping[int, Replay]) -> Evidence:
    """Return a run of these rungs at cap 4, each number of a window → its replay."""
    book = journal.create(folder, PLAN)
    for number, windows in enumerate(rungs):
        book.add(TrialBegun(purpose="ladder", max_num_seqs=4))
        for window, replay in windows.items():
            book.add_replay(replay, "ladder", window=window, trial=number)
        book.add(TrialEnded())
    book.close()
    return Evidence(journal.read(folder))


def attained(folder: Path, *rungs: Mapping[int, Replay]) -> tuple[float, int, str | None]:
    item = measured(evidence_of(folder, *rungs).rungs(), SLO)[4]
    return item.attainment, item.blocks, item.cut


def test_a_window_that_was_cut_counts_beside_one_that_was_not(tmp_path: Path) -> None:
    """Ten of the twenty requests were served in time, and not ten of ten."""
    assert attained(tmp_path, {0: WHOLE, 1: LOST}) == (0.5, 2, "hopeless")


def test_a_window_that_was_replayed_whole_later_speaks_for_itself(tmp_path: Path) -> None:
    assert attained(tmp_path, {0: WHOLE, 1: LOST}, {1: WHOLE}) == (1.0, 2, None)


def test_a_cap_that_another_slo_cut_is_not_measured_until_it_is_replayed_whole(
    tmp_path: Path,
) -> None:
    lost = replace(LOST, slo=Slo(ttft_s=0.5))
    for name, rungs, cut in (
        ("lost", [{0: WHOLE, 1: lost}], {4}),
        ("again", [{0: WHOLE, 1: lost}, {1: WHOLE}], set[int]()),
        ("same", [{0: WHOLE, 1: replace(LOST, slo=SLO)}], set[int]()),
        ("older", [{0: WHOLE, 1: LOST}], set[int]()),
    ):
        assert cut_under_another(evidence_of(tmp_path / name, *rungs).rungs(), SLO) == cut, name


def test_engines_of_another_environment_are_not_of_the_same_run(tmp_path: Path) -> None:
    """Which of several cards it is makes no difference, and of some nothing is known."""
    one_thread = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "0"}
    with closing(journal.create(tmp_path / "run", PLAN)) as book:
        evidence = Evidence(book)
        for like in (None, one_thread, {**one_thread, "CUDA_VISIBLE_DEVICES": "3"}, None):
            result = facts(environment=like)
            evidence.check_machine(result)
            book.add(EngineStart(purpose="server", max_num_seqs=8, facts=result))
        with pytest.raises(RunError, match="with environment OMP_NUM_THREADS=1, here it is 2"):
            evidence.check_machine(facts(environment={**one_thread, "OMP_NUM_THREADS": "2"}))

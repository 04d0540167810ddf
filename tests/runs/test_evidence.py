"""What the replays of a run say of each cap."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.builders import facts, record, replay_of
from tuner.errors import RunError
from tuner.replay.records import Replay
from tuner.runs import journal
from tuner.runs.evidence import Evidence
from tuner.runs.journal import EngineStart, Tried
from tuner.traffic.slo import Slo

PLAN = {"trace_digest": "sha256:1", "seed": 0}
SLO = Slo(ttft_s=2.0)
WHOLE = replay_of([record(row) for row in range(10)])
LOST = replay_of([record(10, outcome="cut")], cut="hopeless", unsent=9, attainment_bound=0.5)


def evidence_of(folder: Path, *replays: Replay) -> Evidence:
    """Return a run of these rungs at cap 4."""
    book = journal.create(folder, PLAN)
    for replay in replays:
        book.add_replay(replay, Tried(purpose="ladder", max_num_seqs=4))
    book.close()
    return Evidence(journal.read(folder))


def test_what_was_replayed_to_its_end_counts_and_not_what_was_cut(tmp_path: Path) -> None:
    cases = {"lost": ([LOST], (0.0, "hopeless")), "again": ([LOST, WHOLE], (1.0, None))}
    for name, (replays, expected) in cases.items():
        item = evidence_of(tmp_path / name, *replays).measured(SLO)[4]
        assert (item.attainment, item.cut) == expected


def test_a_cap_that_another_slo_cut_is_not_measured_until_it_is_replayed_whole(
    tmp_path: Path,
) -> None:
    lost = replace(LOST, slo=Slo(ttft_s=0.5))
    for name, replays, is_known in (
        ("lost", [lost], False),
        ("again", [lost, WHOLE], True),
        ("same", [replace(LOST, slo=SLO)], True),
    ):
        known = evidence_of(tmp_path / name, *replays).measured(SLO)
        assert (4 in known) == is_known, name


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

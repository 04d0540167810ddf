"""What was measured so far → what is measured next, as a table."""

import tomllib
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from tests.support.builders import block, facts, flat, hopeless, measurement, replay_of, request
from tuner.engines.sim.start import SimStarter
from tuner.engines.sim.world import World
from tuner.runs import journal
from tuner.runs.compare.compare import Comparison, Question, Tuned
from tuner.runs.compare.ways import APPROACHES, Workload
from tuner.runs.events import EngineStart, TrialBegun, TrialEnded
from tuner.runs.ladder import next_for_twin, next_trial
from tuner.traffic.window import Window
from tuner.twin.windows import Block, Trial

if TYPE_CHECKING:
    from tuner.twin.forecast import Forecast

CASES = tomllib.loads(Path(__file__).with_name("trials.toml").read_text())
CEILING = 16


def cases(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", CASES[name], ids=lambda case: case["says"])


def in_words(trial: Trial | None) -> str | None:
    return None if trial is None else f"{trial.purpose} {trial.max_num_seqs}"


def trial(text: str) -> Trial:
    purpose, cap = text.split()[:2]
    return Trial(int(cap), purpose)  # type: ignore[arg-type]


@cases("twin")
def test_the_twin_is_given_what_it_needs(case: dict[str, Any]) -> None:
    choice = SimpleNamespace(best=case.get("best", 8), confidence=case.get("confidence", 1.0))
    slowdown = np.array([1.0] * 4 + [1.0 + case.get("drift", 0.0)] * 4)
    view = SimpleNamespace(choice=choice, fitted=SimpleNamespace(slowdown=slowdown))
    trial_ = next_for_twin(
        [trial(text) for text in case["done"]],
        cast("Forecast", view) if case["done"] else None,
        ceiling=CEILING,
        steps_left=case.get("steps_left", 5.0),
        disturbed=case.get("disturbed", ()),
    )
    assert in_words(trial_) == case.get("next")


def window_block(text: str) -> Block:
    purpose, cap, *seen = text.split()
    if seen == ["ruled-out"]:
        return block(hopeless(int(cap)), cast("Any", purpose))
    changes: dict[str, Any] = {"cut": "lost", "attainment": 0.1, "attainment_bound": 0.9}
    if seen != ["cut"]:
        share, tail_s = map(float, seen)
        changes = {"attainment": share, "goodput_rps": 10 * share, "e2el_s": flat(tail_s)}
    return block(measurement(int(cap), **changes), cast("Any", purpose))


@cases("windows")
def test_the_windows_are_given_what_they_need(case: dict[str, Any]) -> None:
    blocks = [window_block(text) for text in case["done"]]
    assert in_words(next_trial(blocks, ceiling=CEILING)) == case.get("next")


@cases("compare")
def test_every_approach_meets_every_load_in_every_block(
    case: dict[str, Any], tmp_path: Path
) -> None:
    requests = [request(row) for row in range(60)]
    approaches = [each for each in APPROACHES if each.name in {"tuned", "untuned"}]
    levels = ["recorded", "very-heavy"]
    question = Question(
        requests=requests, block_size=16, approaches=approaches, levels=levels, budget_s=1e9,
        max_num_seqs=8, profile=None, source="", base=SimStarter(World()), of_profile=None,
    )  # fmt: skip
    windows = [Window(10.0 * block, 10.0, 0.0) for block in range(3)]
    with closing(journal.create(tmp_path / "run", {})) as book:
        for number, text in enumerate(case["done"]):
            name, block_, load, *failed = text.split()
            purpose = f"{name} {block_}"
            book.add(EngineStart(purpose=purpose, max_num_seqs=8, facts=facts()))
            book.add(TrialBegun(purpose=purpose, max_num_seqs=8, approach=name, load=load))
            if not failed:
                book.add_replay(replay_of([]), purpose, trial=number)
            book.add(TrialEnded(failed="it died" if failed else None))
        workload = Workload(requests, windows, levels, None, 16)
        comparison = Comparison(question, book, workload, Tuned(8, ""), None)
        trial_ = comparison.next_trial()
    assert trial_ is not None
    assert f"{trial_.purpose} {trial_.load}" == case["next"]

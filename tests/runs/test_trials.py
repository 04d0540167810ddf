"""What was measured so far → what is measured next, as a table."""

import tomllib
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np
import pytest

from tests.runs.sweep.test_sweep import Notes
from tests.support.builders import (
    facts,
    flat,
    measurement,
    record,
    replay_of,
    request,
    settings,
)
from tests.support.profiles import profile
from tuner.engines.scheduler.state import StepLaw
from tuner.engines.sim.start import SimStarter
from tuner.engines.sim.world import World
from tuner.profile.evidence import StoredTwin
from tuner.replay.numbers import Measurement
from tuner.replay.records import Replay
from tuner.replay.replay import CutRule
from tuner.runs import journal
from tuner.runs.bench import Bench, Build
from tuner.runs.bench import Trial as MadeNext
from tuner.runs.compare.compare import Comparison
from tuner.runs.compare.ways import APPROACHES, Workload
from tuner.runs.journal import EngineStart, Failed, Tried
from tuner.runs.refine.refine import SIDES, Refining
from tuner.runs.refine.search import Study
from tuner.runs.refine.space import Knob, Space
from tuner.runs.sweep.sweep import next_for_twin, next_trial
from tuner.runs.verify import Verification
from tuner.runs.verify import next_trial as next_in_verification
from tuner.traffic.slo import Slo
from tuner.traffic.window import Window
from tuner.twin.samples import Machine
from tuner.twin.simulation import Traffic, shape_of

if TYPE_CHECKING:
    from tuner.twin.forecast import Forecast

CASES = tomllib.loads(Path(__file__).with_name("trials.toml").read_text())
CEILING = 16


def cases(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", CASES[name], ids=lambda case: case["says"])


def in_words(trial: Tried | None) -> str | None:
    return None if trial is None else f"{trial.purpose} {trial.max_num_seqs}"


def trial(text: str) -> Tried:
    purpose, cap = text.split()[:2]
    return Tried(purpose, int(cap))


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
    )
    assert in_words(trial_) == case.get("next")


def window(text: str) -> Measurement:
    _, cap, *seen = text.split()
    changes: dict[str, Any] = {"cut": "lost", "attainment": 0.1, "attainment_bound": 0.9}
    if seen != ["cut"]:
        share, tail_s = map(float, seen)
        changes = {"attainment": share, "goodput_rps": 10 * share, "e2el_s": flat(tail_s)}
    return measurement(int(cap), **changes)


@cases("windows")
def test_the_windows_are_given_what_they_need(case: dict[str, Any]) -> None:
    runs = [window(text) for text in case["done"] if "ramp" not in text]
    curve = {cap: next(run for run in reversed(runs) if run.max_num_seqs == cap)
             for cap in sorted({run.max_num_seqs for run in runs})}  # fmt: skip
    done = [trial(text) for text in case["done"]]
    assert in_words(next_trial(done, curve, ceiling=CEILING)) == case.get("next")


@cases("compare")
def test_every_approach_meets_every_load_in_every_block(
    case: dict[str, Any], tmp_path: Path
) -> None:
    requests = [request(row) for row in range(60)]
    approaches = [each for each in APPROACHES if each.name in {"tuned", "untuned"}]
    levels = ["recorded", "very-heavy"]
    windows = [Window(10.0 * block, 10.0, 0.0) for block in range(3)]
    with closing(journal.opened(tmp_path / "run", {})) as book:
        for text in case["done"]:
            name, block_, load, *failed = text.split()
            tried: dict[str, Any] = {
                "purpose": f"{name} {block_}",
                "max_num_seqs": 8,
                "approach": name,
                "load": load,
            }
            if failed:
                book.add(Failed(**tried, why="it died"))
            else:
                book.add_replay(replay_of([]), Tried(**tried))
        bench = Bench(book, Notes(), None, block_size=16)
        comparison = Comparison(
            requests, approaches, levels, 1e9, profile(),
            base=SimStarter(World()), of_tuned=SimStarter(World()), bench=bench,
        )  # fmt: skip
        counts = {(25, block): 10 for block in range(3)}
        comparison.workload = Workload(requests, windows, None, 16, counts)
        trial_ = comparison.next_trial()
    assert trial_ is not None
    assert f"{trial_.tried.purpose} {trial_.tried.load}" == case["next"]


KNEE = {"max_num_seqs": 16, "max_num_batched_tokens": 2048, "block_size": 16}
SPACE = Space((Knob("max_num_seqs", (8, 16, 32), ""), Knob("block_size", (8, 16), "")), KNEE)
SLO = Slo(ttft_s=2.0)


def refinement(book: journal.Journal, budget_s: float = 1e9) -> Refining:
    """Return a refinement of 60 requests, one a second, that has just begun."""
    wanted = replace(settings(SLO, ceiling=32), budget_s=budget_s)
    bench, study = Bench(book, Notes(), None, block_size=16), Study(None, SPACE)
    run = Refining(
        profile(), None, SPACE, wanted, bench=bench, vary=lambda _: SimStarter(World()), study=study
    )
    run.prepare([request(row) for row in range(60)])
    return run


def served(share: float) -> Replay:
    """Return ten requests of which so many had their first token in time."""
    return replay_of([record(row, first_s=1.0 if row < 10 * share else 2.5) for row in range(10)])


def made(book: journal.Journal, text: str, replay: Replay | None) -> None:
    purpose, cap, block_size = text.split()
    tried = {**KNEE, "max_num_seqs": int(cap), "block_size": int(block_size)}
    book.add(EngineStart(purpose=text, max_num_seqs=int(cap), facts=facts()))
    of: dict[str, Any] = {
        "purpose": purpose, "max_num_seqs": int(cap), "configuration": tried,
        "window": Window(0.0, 10.0, 0.0),
    }  # fmt: skip
    if replay is not None:
        book.add_replay(replay, Tried(**of))
    else:
        book.add(Failed(**of, why="it died"))


def configured(trial: MadeNext | None) -> str | None:
    if trial is None:
        return None
    tried = trial.tried.configuration
    return f"{trial.tried.purpose} {tried['max_num_seqs']} {tried['block_size']}"


@cases("refine")
def test_a_refinement_tries_every_value_once(case: dict[str, Any], tmp_path: Path) -> None:
    with closing(journal.opened(tmp_path / "run", {})) as book:
        run = refinement(book, case.get("budget_s", 1e9))
        for text in case["done"]:
            words = text.removesuffix(" failed")
            made(book, words, served(1.0) if words == text else None)
        assert configured(run.next_in_search()) == case.get("next")


@cases("pairs")
def test_the_sides_of_a_pair_take_turns(case: dict[str, Any], tmp_path: Path) -> None:
    chosen = {**KNEE, "max_num_seqs": 8}
    with closing(journal.opened(tmp_path / "run", {})) as book:
        run = refinement(book)
        for number, share in enumerate(case["done"]):
            side = SIDES[number % 4]
            made(book, f"{side} {8 if side == 'refined' else 16} 16", served(share))
        assert configured(run.next_half(chosen, [Window(0.0, 10.0, 0.0)] * 4)) == case.get("next")


@cases("verify")
def test_a_broken_promise_is_measured_once_more(case: dict[str, Any], tmp_path: Path) -> None:
    law, alone = StepLaw(np.full(9, 1.0), 0.0, 0.0, 0.0, 0.0), Traffic.of([(0.0, 10, 5)])
    twin = StoredTwin(law, shape_of(facts()), 8, (law,), alone, 10.0, Machine())
    promised = profile()
    slo = msgspec.structs.replace(promised.decision.slo, ttft_ms=2000.0, tpot_ms=None)
    decision = msgspec.structs.replace(promised.decision, max_num_seqs=8, slo=slo)
    question = Verification(
        profile=msgspec.structs.replace(promised, decision=decision), twin=twin,
        trace_block_size=16, step_s=10.0, tolerance=0.1,
    )  # fmt: skip
    tried = Tried("verify", 8, window=Window(0.0, 10.0, 0.0))
    sent = MadeNext(tried, Build("verify", 8, SimStarter(World())), [request()], CutRule(SLO, 0.0))
    with closing(journal.opened(tmp_path / "run", {})) as book:
        for share in case["done"]:
            book.add_replay(served(share), tried)
        trial_ = next_in_verification(Bench(book, Notes(), None, block_size=16), question, sent)
        assert (trial_ and f"verify {trial_.tried.max_num_seqs}") == case.get("next")
